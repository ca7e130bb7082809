"""How a Slurm job is brought from where it is to where it shall be: one step at a time, decided from what is seen.

What it is: a pure function from what Slurm says of a job and what is wanted of it to the next thing to do. Nothing is
remembered that Slurm does not know but when we began to ask, so another process can go on at any point.

The order of things was found by trying (Slurm 22.05.8): a job that was requeued must not be released in the same
second, or its launch is taken for the one that was killed and Slurm ends it; a requeue, also Slurm's own after a node
has died, puts the start two minutes off, so "start now" belongs to every change; tasks, CPUs and nodes must be said
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from joulewise.cluster.engine import DONE, Place
from joulewise.cluster.engines.slurm_text import SlurmJob

PAUSE_S = 1.1
"""Between a requeue and the release: into another second (without it 17 of 28 resizes killed the job)."""
AGAIN_S = 1.0
"""How often a script that has not saved yet is asked again: it may not have listened the first time."""


class Step(Enum):
    """The next thing to do. ``REACHED``: nothing, it is as wanted; ``LATER``: nothing yet."""

    REACHED = "reached"
    LATER = "later"
    HOLD = "hold"
    RELEASE = "release"
    SIGNAL = "signal"
    REQUEUE = "requeue"


@dataclass(slots=True)
class Aim:
    """What is wanted of one job: to run on ``place``, or (None) to wait. Times are of one monotonic clock."""

    place: Place | None
    asked_s: float | None = None
    """When it was first asked to save."""
    last_asked_s: float | None = None
    waiting_s: float | None = None
    """When it was first seen waiting."""
    running_s: float | None = None
    """When it was first seen running."""


def next_step(
    job: SlurmJob,
    aim: Aim,
    *,
    now_s: float,
    unix_s: float,
    saves: bool,
    saved: bool,
    grace_s: float,
    listens: bool = True,
    sure: bool = True,
) -> Step:
    """What to do next about ``job``.

    ``saves``: it can be asked to save; ``saved``: and it has, in this start. ``grace_s`` is how long it may take.
    ``listens``: its command has begun, so that a signal ends nothing.
    ``sure``: no process of an earlier start can be left. After slurmctld was killed and started again, jobs that it has
    forgotten to run go on until their nodes have reported to it.
    """
    if job.state in DONE:
        return Step.REACHED
    if job.state == "leaving":
        return Step.LATER
    if job.state == "waiting":
        return _waiting(job, aim, now_s, unix_s, sure)
    # One that was asked to save pauses, and has to be started again though it shall stay where it is.
    if aim.place is not None and dict(job.place) == dict(aim.place) and aim.asked_s is None and not saved:
        return Step.REACHED
    if not saves or saved or job.state == "starting":
        return Step.REQUEUE
    if aim.asked_s is not None and now_s - aim.asked_s >= grace_s:
        return Step.REQUEUE
    if not listens:
        return Step.REQUEUE if aim.running_s is not None and now_s - aim.running_s >= grace_s else Step.LATER
    if aim.last_asked_s is None or now_s - aim.last_asked_s >= AGAIN_S:
        return Step.SIGNAL
    return Step.LATER


def _waiting(job: SlurmJob, aim: Aim, now_s: float, unix_s: float, sure: bool) -> Step:
    if aim.place is None:
        return Step.REACHED if job.held and not job.held_by_user else Step.HOLD
    soon = job.begin_s is None or job.begin_s <= unix_s + 1
    if not job.held:
        # Slurm starts it when it can; but what is asked for must be what is wanted, and nothing may put it off.
        return Step.LATER if soon and as_asked(job, aim.place) else Step.HOLD
    if not sure or (job.restarts and (aim.waiting_s is None or now_s - aim.waiting_s < PAUSE_S)):
        return Step.LATER
    return Step.RELEASE


def as_asked(job: SlurmJob, place: Place) -> bool:
    """Whether Slurm would start it on ``place``."""
    asked: Mapping[str, object] = job.asked
    per_node = next(iter(place.values()))
    return asked["nodes"] == len(place) and set(asked["required"]) == set(place) and asked["gpus"] == per_node  # type: ignore[call-overload]
