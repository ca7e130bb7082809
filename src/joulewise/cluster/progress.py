"""How far a training script is, as it writes it down beside its checkpoints and a scheduler reads it.

What it is: one small file in the job's checkpoint folder, ``joulewise.progress.json``, replaced as a whole about once a
second. It works over any shared file system, needs no port, and outlives both sides. ``frameworks/elastic`` writes it.
What it is not: the checkpoint (that is the script's own), or a promise: a script may write nothing for minutes.

Plain Python from 3.9 on, standard library only: the writer runs in whatever Python the job has.
"""

# ruff: noqa: PTH105, PTH108, PTH118, PTH123 (pathlib is slow to load)

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from joulewise.cluster import user_file

FILE = "joulewise.progress.json"
_LONGEST = 4096  # bytes; a file that is longer is not ours
_MOST = 10**15  # of steps or seconds: what a float still counts exactly


@dataclass(frozen=True)
class Progress:
    """One look at a script.

    ``step`` steps are done of ``steps`` (None: nobody knows how many), ``saved_step`` of them are in the last good
    checkpoint. ``time_s``: when this was written, in seconds since 1970. ``world``: GPUs or ranks that it runs on.
    ``paused``: it has stopped at ``step`` on request and waits to be ended. ``starts`` counts its starts, from 1.
    """

    step: int
    steps: int | None
    saved_step: int
    time_s: float
    world: int = 1
    paused: bool = False
    starts: int = 1

    @property
    def safe(self) -> bool:
        """Whether ending it now loses nothing: it stands still, and all it did is saved."""
        return self.paused and self.saved_step >= self.step


def read(folder: str | os.PathLike[str]) -> Progress | None:
    """What the script in ``folder`` last wrote; None where there is nothing, or not (yet) what we understand.

    It never waits, whatever lies there."""
    text = user_file.read(os.path.join(folder, FILE), _LONGEST)
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _understood(value)


def write(folder: str | os.PathLike[str], progress: Progress) -> None:
    """Replace what is there, at once and as a whole. OSError as writing goes; then the old one still stands."""
    path = os.path.join(folder, FILE)
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(new, "w", encoding="ascii") as file:
            json.dump(asdict(progress), file)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _understood(value: Any) -> Progress | None:
    """Checked field by field: the folder is the user's, and anything may lie there."""
    if not isinstance(value, dict):
        return None
    said: dict[str, Any] = {"steps": None, "world": 1, "starts": 1, "paused": False, **value}
    try:
        step, steps, saved_step, time_s = said["step"], said["steps"], said["saved_step"], said["time_s"]
    except KeyError:
        return None
    fits = (
        _whole(step)
        and (steps is None or _whole(steps))
        and _whole(saved_step)
        and _whole(said["world"], least=1)
        and _whole(said["starts"], least=1)
        and type(time_s) in (int, float)
        and abs(time_s) < _MOST
        and type(said["paused"]) is bool
    )
    if not fits:
        return None
    return Progress(step, steps, saved_step, float(time_s), said["world"], said["paused"], said["starts"])


def _whole(value: Any, least: int = 0) -> bool:
    # JSON's true is an int to Python, hence type() and not isinstance().
    return type(value) is int and least <= value < _MOST
