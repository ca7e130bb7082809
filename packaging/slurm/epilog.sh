#!/bin/sh
# Slurm epilog: take the job's right back and leave its GPUs as they were before the job, daemon or no daemon.
#
# slurm.conf:  Epilog=/etc/slurm/epilog.d/joulewise.sh
#
# Its exit code counts: Slurm drains a node whose epilog fails, and a GPU that could not be given back must not
# go to the next tenant. It does nothing, and succeeds, for a job that was given nothing.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
JOULEWISE=${JOULEWISE:-/opt/joulewise/bin/joulewise}

[ -n "$SLURM_JOB_GPUS" ] && [ -n "$SLURM_JOB_ID" ] || exit 0
exec timeout 60 "$JOULEWISE" -q restore --job "$SLURM_JOB_ID"
