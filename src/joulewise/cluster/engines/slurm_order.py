"""An ``Order`` as a Slurm job, and back: Slurm is the book of jobs, so everything needed is written into it.

What it is: the words of ``sbatch``, the batch script, and the comment by which a scheduler finds its jobs again:
``joulewise`` and compact JSON, in the 1,024 characters that Slurm allows. Command, environment and brought points may
be long, so they lie in a folder of the order's own beside its output (``.joulewise/NAME-…``), which the comment names.

What it is not: trusting. A comment and a folder are their user's to write; what cannot be read is no job of ours, and a
file that is not the user's own is not opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulewise.cluster import orders, user_file
from joulewise.cluster.engine import GIVEN, Order
from joulewise.core.errors import BadSpec
from joulewise.core.plain import built, plain

MARK = "joulewise "
_VERSION = 1
_LONGEST_COMMENT = 1024  # slurmctld refuses more
_LONGEST_FILE = 4 << 20
_APART = frozenset({"command", "directory", "environ", "brought"})
_DEFAULTS = plain(Order("", (), 0))
_SLURMS = {name: _DEFAULTS[name] for name in GIVEN - {"submitted_s"}}
"""What is never read from a comment: Slurm's own records say it. A time of submission is kept in it as written, since
an older joulewise reads it; what counts is Slurm's."""
# All that reading what somebody else wrote can raise.
_UNSOUND = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, BadSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """An order as a comment names it. ``digest`` is the same for the same order; ``folder`` may be unreadable.
    ``comment`` is the text itself, by which it can be handed in again. ``tells``: its tasks say from when on they
    ``listen``."""

    order: Order
    digest: str
    folder: Path
    comment: str
    tells: bool = False


def check(order: Order, sizes: Sequence[int]) -> None:
    """BadSpec for an order that no Slurm job can be, on nodes with so many GPUs each (``sizes``)."""
    orders.check(order)
    if not order.command:
        raise BadSpec(f"job {order.name} has no command; write it behind '--'")
    if order.gpus not in (fits := possible(sizes)):
        near = [each for each in fits if each < order.gpus][-1:] + [each for each in fits if each > order.gpus][:1]
        raise BadSpec(
            f"job {order.name} asks for {order.gpus} GPUs, which Slurm cannot give evenly: up to one node's GPUs, or "
            f"whole nodes; nearest that fit: {' or '.join(map(str, near)) or 'none, there are no GPUs'}"
        )


def possible(sizes: Sequence[int]) -> list[int]:
    """All numbers of GPUs that a job can have on nodes of ``sizes`` GPUs: part of one node, or whole nodes alike."""
    whole = {each * size for size in set(sizes) for each in range(1, sum(other == size for other in sizes) + 1)}
    return sorted(set(range(1, max(sizes, default=0) + 1)) | whole)


def split(gpus: int, sizes: Sequence[int]) -> tuple[int, int]:
    """``gpus`` as nodes × GPUs on each, as few nodes as can be. It must be ``possible``."""
    if gpus <= max(sizes):
        return 1, gpus
    size = next(each for each in sorted(set(sizes), reverse=True) if gpus % each == 0)
    return gpus // size, size


def digest(order: Order) -> str:
    """The same for the same order, different for any other."""
    said = {name: value for name, value in plain(order).items() if name not in _SLURMS}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def written(order: Order, now_s: float, environ: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """Make the order's folder with its script and its file; the folder, and the comment. BadSpec where that fails.

    ``now_s`` is written as its time of submission where it has none. ``environ`` is what it is handed in with: kept,
    for its user's eyes only, in case that Slurm forgets the job and it must be handed in again.
    """
    mark = digest(order)
    directory = Path(order.directory or ".").resolve()
    folder = directory / ".joulewise" / f"{order.name}-{mark}"
    dated = order if order.submitted_s else dataclasses.replace(order, submitted_s=round(now_s, 3))
    facts = {
        key: value
        for key, value in plain(dated).items()
        if key not in _APART and key not in _SLURMS and value != _DEFAULTS[key]
    }
    comment = MARK + json.dumps(
        {"v": _VERSION, "digest": mark, "folder": str(folder), "tells": True, "order": facts}, separators=(",", ":")
    )
    if len(comment.encode()) > _LONGEST_COMMENT:
        raise BadSpec(
            f"job {order.name}: its facts take {len(comment.encode())} bytes and Slurm's comment has "
            f"{_LONGEST_COMMENT}; use shorter paths or names"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _put(folder / "order.json", json.dumps(plain(dated)).encode())
        _put(folder / "job.sh", script(order, folder).encode())
        if environ is not None:
            kept = {name: value for name, value in environ.items() if name != "SLURM_JWT"}  # a key to Slurm itself
            _put(folder / "environ", packed_environ(kept), mode=0o600)
    except OSError as fault:
        raise BadSpec(
            f"job {order.name}: {folder} cannot be written ({fault.strerror}); submit from a folder of yours that all "
            "nodes see"
        ) from fault
    return folder, comment


def script(order: Order, folder: Path) -> str:
    """The batch script: one task a node, the order's environment, the command's exit code.

    Each task ignores SIGUSR1, and a command that listens to it sets its own handler: one that is asked to save before
    it listens, or never listens, must not die of it. From when on that is so each task says in ``folder``.
    """
    said = f'echo "$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" >{shlex.quote(str(folder))}/"task-$SLURM_PROCID"'
    task = f'trap "" USR1; {{ {said}; }} 2>/dev/null; exec "$@"'
    exports = [f"export {name}={shlex.quote(value)}" for name, value in order.environ.items()]
    command = " ".join(map(shlex.quote, order.command))
    return "\n".join(
        [
            "#!/bin/sh",
            f"# joulewise: {order.name}",
            *exports,
            'exec srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\',
            "  --kill-on-bad-exit=1 \\",
            f"  sh -c {shlex.quote(task)} sh {command}",
            "",
        ]
    )


def listen(found: Found, job: int, restarts: int, tasks: int, uid: int) -> bool:
    """Whether SIGUSR1 ends no task of this job in this start (``restarts``): it would end Slurm's TaskProlog, or the
    shell that is about to ignore it, and the job would have failed.

    True as well where that cannot be known: a script made before this was said, or a folder that we may not read.
    """
    if not found.tells or user_file.read(found.folder / "job.sh", _LONGEST_FILE, uid=uid) is None:
        return True
    said = f"{job}.{restarts}\n".encode()
    return all(user_file.read(found.folder / f"task-{rank}", 64, uid=uid) == said for rank in range(tasks))


def words(order: Order, batch: Path, comment: str, nodes: int, gpus: int) -> list[str]:
    """What is said to ``sbatch``, the script (``batch``) last."""
    directory = str(Path(order.directory or ".").resolve())
    limit = [] if order.limit_s is None else [f"--time={max(1, -(-int(order.limit_s) // 60))}"]
    return [
        "--parsable",
        "--hold",
        "--requeue",
        "--open-mode=append",
        f"--job-name={order.name}",
        f"--comment={comment}",
        f"--chdir={directory}",
        f"--output={directory}/{order.name}-%j.out",
        f"--nodes={nodes}-{nodes}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{gpus}",
        *limit,
        str(batch),
    ]


def found(comment: str, uid: int) -> Found | None:
    """The order that a job's comment names, with what its user's folder adds; None for a job that is none of ours.

    Whatever a user writes there, it raises nothing: a comment that is not sound is none of ours.
    """
    if not comment.startswith(MARK):
        return None
    try:
        said = json.loads(comment.removeprefix(MARK))
        if said["v"] != _VERSION:
            return None
        folder, mark, tells = said["folder"], said["digest"], said.get("tells") is True
        if not (isinstance(mark, str) and isinstance(folder, str) and folder.startswith("/") and "\0" not in folder):
            return None
        apart: dict[str, Any] = {"command": (), "environ": {}, "directory": "", "brought": None}
        facts = {**_DEFAULTS, **said["order"], **apart, **_SLURMS}
        order = built(Order, facts)
        orders.check(order)
    except _UNSOUND:
        return None
    rest = _own_file(Path(folder) / "order.json", uid)
    if rest is not None:
        with contextlib.suppress(*_UNSOUND):  # the comment has all that a scheduler cannot do without
            full = built(Order, {**facts, **{key: rest[key] for key in _APART if key in rest}})
            orders.check(full)
            order = full
    return Found(order, mark, Path(folder), comment, tells)


def kept_environ(folder: Path, uid: int) -> Mapping[str, str] | None:
    """The environment that the order was handed in with, as its user's folder has it; None where that is not sound."""
    text = user_file.read(folder / "environ", _LONGEST_FILE, uid=uid)
    if text is None:
        return None
    pairs = [each.partition("=") for each in os.fsdecode(text).split("\0") if each]
    return {name: value for name, between, value in pairs if name and between}


def packed_environ(environ: Mapping[str, str]) -> bytes:
    """As ``sbatch --export-file`` reads it."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())


def _own_file(path: Path, uid: int) -> Mapping[str, Any] | None:
    """A user's JSON file."""
    text = user_file.read(path, _LONGEST_FILE, uid=uid)
    try:
        said = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _put(path: Path, text: bytes, mode: int = 0o644) -> None:
    """Write it whole or not at all."""
    file, beside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(file, "wb") as opened:
        opened.write(text)
    Path(beside).chmod(mode)
    Path(beside).rename(path)
