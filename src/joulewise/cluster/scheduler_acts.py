"""What to say to an engine about a job, from what it shows and what is aimed at; and how a job stands between the two.

What it is: pure functions. ``wanted`` names the one act that brings a job nearer to its aim, or none; it may be said
again at any time, also by a scheduler that came after, so nothing has to be remembered of what was said. ``standing``
says how the job counts in the next decision. A job that the engine shows otherwise than aimed, without our doing (its
node died, somebody restarted it), is not fought: it counts as it is, and is decided anew.
What it is not: the saying itself (``scheduler``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from joulewise.cluster.engine import JobSeen
from joulewise.cluster.queue import Kept

HOLDS = ("starting", "running", "leaving")
"""States in which a job holds its place."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing to say to the engine about a job."""

    what: Literal["start", "resize", "preempt", "stop"]
    place: Mapping[str, int] = field(default_factory=dict)
    why: str = ""


def wanted(kept: Kept, seen: JobSeen) -> Act | None:
    """The act that is left to do for the job's aim; None: it is as it shall be, or nothing can be done now."""
    aim = kept.aim
    if aim is None or kept.over:
        return None
    if aim.what == "stop":
        return Act("stop", why=aim.reason)
    if aim.way is None:
        return Act("preempt")
    if seen.state == "waiting":
        return Act("start", aim.place)
    if seen.state == "leaving" or dict(seen.place) != dict(aim.place):
        return Act("resize", aim.place)
    return None


def done(kept: Kept, seen: JobSeen) -> bool:
    """Whether the engine shows a job as it is aimed at."""
    aim = kept.aim
    if aim is None:
        return True
    if aim.what == "stop":
        return kept.over
    if aim.way is None:
        return seen.state == "waiting"
    return seen.state in ("starting", "running") and dict(seen.place) == dict(aim.place)


Standing = Literal["waits", "as aimed", "on its way", "dropped", "elsewhere"]
"""``dropped``: it ran as aimed and waits again without our doing; ``elsewhere``: it runs where nobody aimed it."""


def standing(kept: Kept, seen: JobSeen) -> Standing:
    """How a job that is not over stands between its aim and what the engine shows."""
    aim = kept.aim
    holds = seen.state in HOLDS and bool(seen.place)
    if aim is None:
        return "elsewhere" if holds else "waits"
    if aim.way is None:
        return "waits"
    if done(kept, seen):
        return "as aimed"
    restarts = aim.what in ("resize", "migrate") and kept.reached != aim.version
    if seen.state == "waiting":
        return "dropped" if aim.what == "retune" or kept.reached == aim.version else "on its way"
    if seen.state == "leaving":
        return "on its way"
    if restarts and (kept.former is None or dict(seen.place) == dict(kept.former.place)):
        return "on its way"
    if aim.what == "start" and kept.reached != aim.version and kept.former is not None:
        # It was told to wait and then to start again before it had left.
        return "on its way" if dict(seen.place) == dict(kept.former.place) else "elsewhere"
    return "elsewhere"
