"""The book brought up to what the engine shows: who came, started, stopped, ended, was lost, or runs elsewhere.

What it is: the only writer of ``Ordered`` and of what jobs ``Turned`` into. It notes each thing once, however often it
is looked at and whoever was scheduler when it happened. A job that the engine runs otherwise than aimed is taken as it
is; one that the engine has not shown for a while is lost, until it is there again. Jobs are told apart by their ids: a
name may be used again, and one order may get another id (an engine that forgot it had it handed in again).
What it is not: a decision about any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from joulewise.cluster.engine import DONE, JobSeen
from joulewise.cluster.queue import Kept
from joulewise.cluster.scheduler_acts import standing
from joulewise.cluster.scheduler_energy import Energy
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_track import Track

# A start that has not come true after so long waits for GPUs that somebody else holds: decide anew.
_STUCK_S = 300.0
# An engine that was down may need so long to show everything that it has.
_LOST_S = 30.0


class Following:
    """``said``: the version of a job's aim that was last said to the engine by this process; None: none."""

    def __init__(self, sight: Sight, said: Callable[[str], int | None], energy: Energy) -> None:
        self._sight = sight
        self._said = said
        self._energy = energy

    def take_in(self, now_s: float) -> None:
        """Bring the book up to what the engine shows."""
        for name, seen in self._sight.seen.items():
            kept = self._sight.book.jobs.get(name)
            if kept is None:
                self._new(now_s, seen)
            elif kept.id == seen.id:
                if kept.over and seen.state not in DONE:
                    self._found(now_s, kept, seen)
            elif kept.over:
                if kept.lost and _same_order(kept, seen):
                    self._found(now_s, kept, seen)
                else:
                    self._new(now_s, seen)
            elif not kept.id or _same_order(kept, seen):
                if kept.id:
                    self._energy.note(now_s, kept)
                self._sight.book.order(now_s, kept.order, seen.id)
                self._sight.call(now_s)
            else:
                why = "another job has its name now; what became of this one was not seen"
                self._sight.book.turn(now_s, name, "lost", ended_s=now_s, why=why)
                self._new(now_s, seen)
        for name, kept in list(self._sight.book.jobs.items()):
            if kept.over:
                continue
            if name in self._sight.missing:
                if now_s - self._sight.missing[name] >= _LOST_S:
                    self._sight.book.turn(now_s, name, "lost", ended_s=now_s)
                    self._sight.seen.pop(name, None)
                    del self._sight.missing[name]
                    self._sight.call(now_s)
                continue
            seen_job = self._sight.seen[name]
            if seen_job.state in DONE:
                self._over(now_s, kept, seen_job)
            else:
                self._follow(now_s, kept, seen_job)

    def _new(self, now_s: float, seen: JobSeen) -> None:
        order = seen.order if seen.order.submitted_s > 0 else replace(seen.order, submitted_s=now_s)
        self._sight.book.order(now_s, order, seen.id, seen.by.facts)
        self._sight.tracks.pop(order.name, None)
        self._sight.call(now_s)

    def _found(self, now_s: float, kept: Kept, seen: JobSeen) -> None:
        """It was over, and is there again: given up too early, or started again by somebody."""
        before_j = self._energy.reopened(kept, seen.id)
        self._sight.book.turn(now_s, kept.order.name, "found", id=seen.id, before_j=before_j)
        self._sight.tracks.pop(kept.order.name, None)
        self._sight.call(now_s)

    def _over(self, now_s: float, kept: Kept, seen: JobSeen) -> None:
        ended_s = now_s if seen.since_s is None else seen.since_s
        facts = {"ended_s": ended_s, "exit_code": seen.exit_code, "why": seen.why, "starts": seen.starts}
        self._sight.book.turn(now_s, kept.order.name, str(seen.state), **facts)
        self._sight.call(now_s)

    def _follow(self, now_s: float, kept: Kept, seen: JobSeen) -> None:
        """Note what came true, or what came otherwise than aimed."""
        name = kept.order.name
        track = self._sight.track(kept)
        match standing(kept, seen):
            case "as aimed":
                aim = kept.aim
                assert aim is not None
                if seen.starts != kept.starts or (kept.reached != aim.version and aim.what != "retune"):
                    if kept.starts and seen.starts != kept.starts:
                        track.restarted()
                    facts = {"version": aim.version, "starts": seen.starts, "place": dict(seen.place)}
                    self._sight.book.turn(now_s, name, "started", **facts)
            case "waits":
                said = self._said(name)
                aim = kept.aim
                if aim is not None and aim.what != "stop" and seen.state == "waiting":
                    if said == aim.version:
                        self._stopped(now_s, kept, track)
                elif aim is None and kept.state == "running":
                    self._stopped(now_s, kept, track)
            case "dropped":
                self._sight.faults[f"job {name}"] = "the engine stopped it; it is decided anew"
                self._stopped(now_s, kept, track)
            case "elsewhere":
                self._adopt(now_s, kept, seen)
            case "on its way":
                assert kept.aim is not None
                if seen.state == "waiting" and now_s - kept.aim.time_s > _STUCK_S:
                    reason = f"it did not start within {_STUCK_S:.0f} s of being told to"
                    self._sight.faults[f"job {name}"] = f"{reason}; it is decided anew"
                    self._sight.book.aim(now_s, name, "preempt", None, {}, reason)
                    self._sight.call(now_s)

    def _stopped(self, now_s: float, kept: Kept, track: Track) -> None:
        self._sight.book.turn(now_s, kept.order.name, "stopped", done=track.done, gpu_s=track.gpu_s)
        track.restarted()
        self._sight.call(now_s)

    def _adopt(self, now_s: float, kept: Kept, seen: JobSeen) -> None:
        """It runs where nobody aimed it: take that as it is."""
        name = kept.order.name
        kind = next((node.kind for node in self._sight.nodes if node.name in seen.place), "")
        gpus = sum(seen.place.values())
        setting = None if kept.aim is None or kept.aim.way is None else kept.aim.way.setting
        way = self._sight.track(kept).nearest(gpus, kind, setting)
        if way is None:
            # Nothing is believed of this size: what it takes is guessed from the nearest.
            others = [each for each in self._sight.track(kept).belief.ways() if each.kind == kind]
            if not others:
                self._sight.faults[f"job {name}"] = f"it runs on {gpus} GPUs of {kind!r}, of which nothing is known"
                return
            near = min(others, key=lambda each: abs(each.gpus - gpus))
            part = near.gpus / gpus
            way = replace(near, gpus=gpus, unit_s=near.unit_s * part)
        self._sight.book.aim(now_s, name, "retune", way, seen.place, "the engine runs it there")
        facts = {"version": self._sight.book.jobs[name].versions, "starts": seen.starts, "place": dict(seen.place)}
        self._sight.book.turn(now_s, name, "started", **facts)
        self._sight.call(now_s)


def _same_order(kept: Kept, seen: JobSeen) -> bool:
    """Whether a job under another id is the same one, handed in again: it has the same mark, or, where an engine makes
    none, the same time."""
    if kept.order.mark and seen.order.mark:
        return kept.order.mark == seen.order.mark
    return kept.order.submitted_s == seen.order.submitted_s > 0
