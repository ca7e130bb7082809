#!/bin/sh
# Slurm prolog: say whose GPUs are whose, until the epilog takes it back.
#
# slurm.conf:  Prolog=/etc/slurm/prolog.d/joulewise.sh  and  PrologFlags=Alloc
# so that it runs on every node of the allocation, as root, before the job's first step.
#
# By default the job's user gets the right to set the job's GPUs. Where the cluster's scheduler sets clocks
# (joulewise cluster up), write JOULEWISE_MANAGED=1 into /etc/joulewise/slurm.env: then the job only *claims* its
# GPUs, which allows its user nothing, and tells the node's agent which GPUs are the job's.
#
# A job without GPUs gets nothing. This script never fails a job: a prolog that does drains the node, and a
# job without a grant only loses the right to set its GPUs.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
SETTINGS=${JOULEWISE_SETTINGS:-/etc/joulewise/slurm.env} # lines NAME=value: what a site sets differently
[ -r "$SETTINGS" ] && . "$SETTINGS"
JOULEWISE=${JOULEWISE:-/opt/joulewise/bin/joulewise} # slurmd sets no search path

[ -n "$SLURM_JOB_GPUS" ] || exit 0
[ -n "$SLURM_JOB_ID" ] && [ -n "$SLURM_JOB_UID" ] || exit 0

set -- --uid "$SLURM_JOB_UID" --gpu "nvml:$SLURM_JOB_GPUS" --job "$SLURM_JOB_ID" --name "slurm-$SLURM_JOB_ID"
if [ "$JOULEWISE_MANAGED" = 1 ]; then
    set -- "$@" --claim
else
    # The job's control group, so that another login of the same user gets nothing from it. It is made after the
    # prolog, but where it will be is known; a site that uses no cgroup plugin sets JOULEWISE_CGROUP=none.
    if [ -z "$JOULEWISE_CGROUP" ]; then
        if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
            JOULEWISE_CGROUP=/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID
        else
            JOULEWISE_CGROUP=/slurm/uid_$SLURM_JOB_UID/job_$SLURM_JOB_ID
        fi
    fi
    [ "$JOULEWISE_CGROUP" = none ] || set -- "$@" --cgroup "$JOULEWISE_CGROUP"
fi

# A grant always ends: with the job's time limit and ten minutes for the epilog, where Slurm tells it.
now=$(date +%s)
case $SLURM_JOB_END_TIME in
    '' | *[!0-9]*) ;;
    *) [ "$SLURM_JOB_END_TIME" -gt "$now" ] && set -- "$@" --for "$((SLURM_JOB_END_TIME - now + 600))" ;;
esac

if ! timeout 20 "$JOULEWISE" -q grant add "$@"; then
    if [ "$JOULEWISE_MANAGED" = 1 ]; then
        echo "joulewise: no claim for job $SLURM_JOB_ID; it runs, but the scheduler cannot set its GPUs" >&2
    else
        echo "joulewise: no grant for job $SLURM_JOB_ID; it runs, but may not set its GPUs" >&2
    fi
fi
exit 0
