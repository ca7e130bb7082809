"""The files of a virtual Slurm site: configuration, and the small scripts that Slurm calls on its nodes.

What it is: text, and where it is put. ``slurm_site`` starts what reads it.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulewise.core.errors import MissingPart

KILL_WAIT_S = 2
"""After SIGTERM, until SIGKILL."""
DEVICES = "/dev/fakegpu"
"""Slurm counts GPUs by device files; these are the null device under other names, shared by all sites of a machine."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files of a site are, and how it is reached."""

    folder: Path
    cluster: str
    nodes: Mapping[str, int]
    """Name → port of its slurmd."""
    gpus: int
    kind: str
    port: int
    accounting_port: int | None
    database_port: int | None
    slurmd_timeout_s: int
    boot_s: float

    @property
    def conf(self) -> Path:
        """What ``SLURM_CONF`` names."""
        return self.folder / "slurm.conf"

    @property
    def munge(self) -> Path:
        """The socket of the site's own munge."""
        return self.folder / "munge" / "socket"

    @property
    def scripts(self) -> Path:
        """The scripts that a real site installs. MissingPart where the sources are not there."""
        found = Path(__file__).parents[3] / "packaging" / "slurm"
        if not (found / "prolog.sh").exists():
            raise MissingPart(f"{found} is not there; a virtual Slurm site needs the sources of joulewise")
        return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def cluster_name() -> str:
    """One that no other site has."""
    return f"jw{os.getpid()}x{secrets.token_hex(3)}"


def write(layout: Layout) -> None:
    """All files that Slurm reads, and the folders that it writes into."""
    folder = layout.folder
    for name in ("state", "spool", "log", "munge", "power", *layout.nodes):
        (folder / name).mkdir(mode=0o755, exist_ok=True)
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    layout.conf.write_text(_slurm_conf(layout))
    kind = f"Type={layout.kind} " if layout.kind else ""
    names = ",".join(layout.nodes)
    (folder / "gres.conf").write_text(f"NodeName={names} Name=gpu {kind}File={DEVICES}[0-{layout.gpus - 1}]\n")
    if layout.accounting_port is not None:
        conf = folder / "slurmdbd.conf"
        conf.write_text(_slurmdbd_conf(layout))
        conf.chmod(0o600)
    _scripts(layout)


def node_settings(layout: Layout, node: str, environ: Mapping[str, str], joulewise: str) -> None:
    """What prolog, epilog and task prolog read on ``node``: where its daemon keeps things, and its virtual GPUs."""
    home = layout.folder / node
    program = home / "joulewise"
    grants = f"--grants {shlex.quote(str(home / 'grants'))}"
    owed = f"--state {shlex.quote(str(home / 'state'))} --socket {shlex.quote(str(home / 'daemon.sock'))}"
    _script(
        program,
        f'case "$*" in *restore*) set -- "$@" {owed};; esac',
        f'exec {joulewise} "$@" {grants}',
    )
    settings = {
        "JOULEWISE": str(program),
        "JOULEWISE_MANAGED": "1",
        "JOULEWISE_STATE": str(home / "state"),
        "JOULEWISE_GRANTS": str(home / "grants"),
        **environ,
    }
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    (home / "slurm.env").write_text("".join(lines))
    # Slurm's task prolog: what it prints as "export NAME=value" comes into the task's environment.
    seen = [f"echo {shlex.quote(f'export {name}={value}')}\n" for name, value in environ.items()]
    (home / "task.env").write_text("".join(seen))


def joulewise_command() -> str:
    """This very package's command line, whatever the search path."""
    source = Path(__file__).parents[2]
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(_MAIN.format(source=str(source)))}"


_MAIN = "import sys; sys.path.append({source!r}); from joulewise.cli import main; main()"


def _slurm_conf(layout: Layout) -> str:
    folder = layout.folder
    host = socket.gethostname()
    kind = f"{layout.kind}:" if layout.kind else ""
    accounting = (
        f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={layout.accounting_port}
AccountingStoragePass={layout.munge}
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""
        if layout.accounting_port is not None
        else ""
    )
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket=64 ThreadsPerCore=1 RealMemory=64000 Gres=gpu:{kind}{layout.gpus} State=UNKNOWN\n"
        for name, port in layout.nodes.items()
    )
    return f"""\
ClusterName={layout.cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={layout.port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge}
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/log/slurmctld.pid
SlurmdPidFile={folder}/log/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=2,batch_sched_delay=0,sched_min_interval=10000
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={layout.slurmd_timeout_s}
KillWait={KILL_WAIT_S}
MinJobAge=600
JobAcctGatherType=jobacct_gather/none
Prolog={folder}/prolog
Epilog={folder}/epilog
TaskProlog={folder}/task-prolog
PrologFlags=Alloc
PrologEpilogTimeout=60
JobRequeue=1
SuspendProgram={folder}/suspend
ResumeProgram={folder}/resume
SuspendTime=31536000
SuspendTimeout=5
ResumeTimeout={int(60 + layout.boot_s)}
{accounting}{nodes}PartitionName=train Nodes={",".join(layout.nodes)} Default=YES MaxTime=INFINITE
"""


def _slurmdbd_conf(layout: Layout) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.accounting_port}
SlurmUser=root
LogFile={layout.folder}/log/slurmdbd.log
PidFile={layout.folder}/log/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={layout.database_port}
StorageUser=root
StorageLoc=slurm
"""


def _scripts(layout: Layout) -> None:
    folder, scripts = layout.folder, layout.scripts
    quoted = shlex.quote(str(folder))
    for name in ("prolog", "epilog"):
        _script(
            folder / name,
            f'[ -r {quoted}/"$SLURMD_NODENAME"/slurm.env ] || exit 0',
            f'export JOULEWISE_SETTINGS={quoted}/"$SLURMD_NODENAME"/slurm.env',
            # Slurm throws away what they say.
            f"exec 2>>{quoted}/log/{name}.err",
            f"exec {shlex.quote(str(scripts / f'{name}.sh'))}",
        )
    _script(
        folder / "task-prolog",
        f'[ -r {quoted}/"$SLURMD_NODENAME"/task.env ] && . {quoted}/"$SLURMD_NODENAME"/task.env',
        'echo "export JOULEWISE_NODE_GPUS=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}"',
        "exit 0",
    )
    # A board controller is outside of Slurm: the site looks into this folder.
    _script(
        folder / "board",
        f'cd {quoted}/power && : > ".$2.$1.$$" && mv ".$2.$1.$$" "$(date +%s%N).$2.$1"',
    )
    settings = folder / "power.env"
    settings.write_text(f"JOULEWISE_POWER_OFF='{folder}/board off'\nJOULEWISE_POWER_ON='{folder}/board on'\n")
    for name in ("suspend", "resume"):
        _script(
            folder / name,
            f"export SLURM_CONF={shlex.quote(str(layout.conf))} JOULEWISE_SETTINGS={shlex.quote(str(settings))}",
            f'exec {shlex.quote(str(scripts / f"{name}.sh"))} "$@"',
        )


def _script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
