"""Which GPUs a command uses, and whether they may be tuned for it at all.

A process is the command's if its environment names the directory of marks that the command was started with: that
holds over any number of forks, also for one that has left its parent. In a container the driver's list of processes is
often empty, or names processes by numbers of the machine outside; then a GPU is taken to be the command's only if it
was chosen for it (``--gpu``, CUDA_VISIBLE_DEVICES, or the only one there is) and works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from joulewise.cli.gpus import OpenGpus
from joulewise.core.errors import JoulewiseError, NoDaemon
from joulewise.core.knob import KNOBS
from joulewise.core.marks import ENVIRONMENT
from joulewise.device.gpu import Gpu

_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own pid namespace, whatever the kernel (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""


def why_never(found: OpenGpus) -> str | None:
    """Why these GPUs cannot be tuned at all, in a line; None where they may be."""
    if not found.gpus:
        return f"there is no GPU: {found.why}"
    for gpu in found.gpus:
        mig = next((note for note in gpu.info.notes if note.startswith("MIG")), None)
        if mig is not None:
            return f"{gpu.info.index} {gpu.info.name}: {mig}"
    return None


def no_rights() -> str | None:
    """Why this process can set nothing whatever the command does, and the way out; None where it may be able to."""
    if os.geteuid() == 0:
        return None
    from joulewise.device.remote_client import DaemonClient

    try:
        DaemonClient().close()
    except NoDaemon as error:
        return f"setting GPUs takes root, or the daemon: {error}"
    except JoulewiseError as error:
        return str(error)
    return None


def common_knobs(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The knobs that all of ``gpus`` have."""
    return tuple(knob.name for knob in KNOBS if all(knob.name in gpu.info.space.knobs for gpu in gpus))


def uses(gpu: Gpu, marks: Path, *, chosen: bool, outside: bool) -> bool:
    """Whether the command that was started with ``marks`` in its environment has a process on ``gpu``.

    ``chosen``: this GPU was meant for the command; ``outside``: the driver may name processes as the machine outside
    this container does, or not at all. Both matter only where the list tells nothing.
    """
    try:
        pids = gpu.processes()
        if pids is not None and any(_started_with(pid, marks) for pid in pids):
            return True
        if pids is not None and (not outside or any(map(_known, pids))):
            return False
        return chosen and gpu.read().utilization != 0
    except JoulewiseError:
        return False


def counted_outside(found: OpenGpus) -> bool:
    """Whether the driver may number processes otherwise than we do: we are in a pid namespace of our own, a
    container's, and the GPUs are real."""
    if found.virtual:
        return False
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != _FIRST_NAMESPACE
    except OSError:
        return False


def why_not_told(gpus: Sequence[Gpu], *, chosen: bool, outside: bool) -> str | None:
    """Why nobody can tell which of ``gpus`` the command uses, and the way out; None where one can."""
    if chosen or not outside:
        return None
    return (
        f"which of these {len(gpus)} GPUs the command uses cannot be told from inside this container; "
        "name them with --gpu or CUDA_VISIBLE_DEVICES, or start it with --pid=host"
    )


def left_behind(gpus: Sequence[Gpu], marks: Path) -> list[str]:
    """A line if the command has ended, but not all that it started."""
    left: dict[int, None] = {}
    for gpu in gpus:
        try:
            left |= dict.fromkeys(pid for pid in gpu.processes() or () if _started_with(pid, marks))
        except JoulewiseError:
            continue
    if not left:
        return []
    pids = ", ".join(map(str, left))
    still = f"process {pids} still uses the GPU, unmeasured and untuned; run it in the foreground to tune it"
    return [f"the command went into the background: {still}"]


def _started_with(pid: int, marks: Path) -> bool:
    """Whether a process has our directory in its environment, however many forks lie between."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{ENVIRONMENT}={marks}".encode() in environ.split(b"\0")


def _known(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
