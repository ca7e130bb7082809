#!/bin/sh
# Slurm epilog: take the job's right back and leave its GPUs as they were before the job, daemon or no daemon.
#
# slurm.conf:  Epilog=/etc/slurm/epilog.d/joulewise.sh
#
# Its exit code counts: Slurm drains a node whose epilog fails, and a GPU that could not be given back must not
# go to the next tenant. It does nothing, and succeeds, for a job that was given nothing, and on a node where
# joulewise is not installed and has left nothing.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
SETTINGS=${JOULEWISE_SETTINGS:-/etc/joulewise/slurm.env} # lines NAME=value: what a site sets differently
[ -r "$SETTINGS" ] && . "$SETTINGS"
JOULEWISE=${JOULEWISE:-/opt/joulewise/bin/joulewise}
STATE=${JOULEWISE_STATE:-/var/lib/joulewise} # where the daemon keeps what was there, and grants: its defaults
GRANTS=${JOULEWISE_GRANTS:-/run/joulewise/grants}

[ -n "$SLURM_JOB_GPUS" ] && [ -n "$SLURM_JOB_ID" ] || exit 0
if ! command -v "$JOULEWISE" >/dev/null; then
    for left in "$STATE"/*.jsonl "$GRANTS"/*.json; do
        [ -e "$left" ] || continue
        echo "joulewise: $left is there, but $JOULEWISE is not; GPUs may still be set by job $SLURM_JOB_ID" >&2
        exit 1
    done
    exit 0
fi
exec timeout 60 "$JOULEWISE" -q restore --job "$SLURM_JOB_ID"
