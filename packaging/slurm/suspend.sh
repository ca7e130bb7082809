#!/bin/sh
# Slurm's SuspendProgram: switch nodes off, by the site's own command.
#
# /etc/joulewise/slurm.env on the controller's machine names that command; it is given one node's name as its last
# word. With a board controller that is called like its node and "-bmc" (a script of yours, since names differ):
#   JOULEWISE_POWER_OFF=/etc/joulewise/power-off      which runs: ipmitool -H "$1-bmc" -f /etc/joulewise/ipmi chassis power soft
#
# slurm.conf:  SuspendProgram=/etc/slurm/joulewise-suspend.sh, and the lines of the README beside this file.
# slurmctld runs it as SlurmUser, with the nodes as a list like n[1-4]. It ends the children of this script with it, so
# the command must hand its wish to something else (a board controller, a cloud), and not do the work itself.
# It fails if the command failed for a node: Slurm writes that into slurmctld's log.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
SETTINGS=${JOULEWISE_SETTINGS:-/etc/joulewise/slurm.env}
[ -r "$SETTINGS" ] && . "$SETTINGS"
if [ -z "$JOULEWISE_POWER_OFF" ]; then
    echo "joulewise: JOULEWISE_POWER_OFF names no command in $SETTINGS; $1 stays as it is" >&2
    exit 1
fi
failed=0
for node in $(scontrol show hostnames "$1"); do
    $JOULEWISE_POWER_OFF "$node" || {
        echo "joulewise: '$JOULEWISE_POWER_OFF $node' failed with $?" >&2
        failed=1
    }
done
exit $failed
