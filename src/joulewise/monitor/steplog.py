"""Steps of a job, made from the marks its hooks leave: which of them may be compared, and why the others may not.

A fold of marks and of the moments at which a setting was switched; no clock is read. A step reaches from the end of
the one before to its own end. It is comparable work unless a switch, a warm-up, an evaluation, a checkpoint, a stall
or a change of phase falls into it. Long steps are stalls only where they are rare: a slow kind that keeps coming (every
k-th step does more) is work like any other, and whoever left it out would judge half a job. Steps of a few
milliseconds are taken together, so that a job of a thousand steps a second costs no more to follow than one of fifty.

What it is not: a judge of pace (``tune/change``), or a meter (``monitor/ruler``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from joulewise.core.marks import Mark, MarkKind

KEPT_S = 200.0
"""How far back steps are remembered: longer than the longest block …"""
KEPT_STEPS = 32
"""… and so many steps at least, however long they are."""
TOGETHER_S = 0.02
"""Steps shorter than this are taken together up to it."""
STALL = 3.0
"""A step of so many times the usual length is a stall: a loader that fell behind, an evaluation nobody marked …"""
FAR = 0.33
"""… and so is one that is this much longer where steps are otherwise even, as long as …"""
RARE = 0.03
"""… no more than this share of steps is so long: what comes more often is a kind of work."""
SETTLED = 1.5
"""A job has warmed up when the last five steps lie within this factor of their median …"""
SHORTEST_PHASE_S = 0.5
"""A phase that lasts shorter is part of its neighbour: switching takes 25 ms and some of the work on both sides."""
STEPLESS_S = 10.0
"""A phase without a step for so long is believed to mark none."""
_TAKES_OVER = 8  # steps before somebody else leads
_WARM_STEPS = 5
_WARM_MOST = 60  # … or it is of the uneven kind, after so many
_STALLS_ARE_NEWS = 5  # so many stalls in a row are not stalls but a new pace
_SLOW_KNOWN = 200  # steps that the share of slow ones is reckoned from …
_SLOW_LEAST = 3  # … and so many slow ones at least
_FEW = 8  # steps that say too little about what is usual
_USUAL = 101  # steps that the usual length is the median of
_ASKED_EVERY = 16  # steps between two medians, which cost more than a step is worth
_ASLEEP = "asleep"
_TOLD_MOST = 100_000  # step ends that wait for whoever keeps them: hours of most jobs
_WHOLE = ("", "stall", "phase change")  # what a job's time goes into, pauses and our own switches aside
_TOUCHED = 0.01
"""A switch that overlaps less than this share of a step spoils it by under 0.1 % (clocks differ by some 10 %)."""


@dataclass(slots=True)
class Step:
    """One step, or a few short ones together."""

    start_s: float
    end_s: float
    work: float
    phase: str
    dirt: str = ""
    """Why it is no comparable work; empty if it is."""
    slow: bool = False
    """Whether it is much longer than usual: a stall, or one of a slow kind."""

    @property
    def whole(self) -> bool:
        """Whether it counts in the job's all-in pace: stalls too, pauses and switches not."""
        return self.dirt in _WHOLE

    @property
    def duration_s(self) -> float:
        """From the end of the step before."""
        return self.end_s - self.start_s

    @property
    def unit_s(self) -> float:
        """Seconds a unit of work."""
        return (self.end_s - self.start_s) / self.work


class _Usual:
    """How long a unit of work usually takes, in one phase under one setting, and what is far from usual.

    ``near_s`` is what it took under another setting; without it the job is new and has to warm up first. ``slow`` is
    which of the phase's last steps were slow, under whatever setting.
    """

    def __init__(self, near_s: float | None, slow: deque[bool]) -> None:
        self._recent: deque[float] = deque(maxlen=_USUAL)
        self._slow = slow
        self._seen = self._stalls = 0
        self._warm = near_s is not None
        self.unit_s = near_s
        self._most = STALL

    def judge(self, unit_s: float) -> str:
        """Take in one step's seconds a unit; the reason why it should be left out, or nothing."""
        self._seen += 1
        if not self._warm:
            return self._warm_up(unit_s)
        slow = self.unit_s is not None and unit_s > self._most * self.unit_s
        self._slow.append(slow)
        self._stalls = self._stalls + 1 if slow else 0
        if self._stalls >= _STALLS_ARE_NEWS:
            self._recent.clear()
            self._slow.clear()
            self.unit_s, self._most, self._stalls = unit_s, STALL, 0
        elif slow and self._rare:
            return "stall"
        self._recent.append(unit_s)
        if self._seen % _ASKED_EVERY == 0 or len(self._recent) <= _FEW:
            self._learn()
        return ""

    @property
    def slow(self) -> bool:
        """Whether the step judged last was much longer than usual."""
        return bool(self._slow) and self._slow[-1]

    @property
    def _rare(self) -> bool:
        """Whether steps as slow as the last one are the exception."""
        return sum(self._slow) < max(_SLOW_LEAST, RARE * len(self._slow))

    def _warm_up(self, unit_s: float) -> str:
        self._recent.append(unit_s)
        last = list(self._recent)[-_WARM_STEPS:]
        even = len(last) == _WARM_STEPS and max(last) <= SETTLED * median(last)
        if even or self._seen >= _WARM_MOST:
            self._warm = True
            self._recent = deque(last, maxlen=_USUAL)
            self._learn()
        return "warm-up"

    def _learn(self) -> None:
        """The median, and beyond what a step is no longer one of many: ten robust deviations, a third at least."""
        self.unit_s = middle = median(self._recent)
        if len(self._recent) >= _FEW:
            deviation = median(abs(unit_s - middle) for unit_s in self._recent) / (0.6745 * middle)
            self._most = min(STALL, 1.0 + max(FAR, 10.0 * deviation))


class StepLog:
    """The steps of one job, from the marks of its leading rank."""

    def __init__(self) -> None:
        self.phase = ""
        """The phase that the job says it is in."""
        self.phase_since_s = -math.inf
        self.marks_phases = False
        """Whether the job marks its phases; who recognises them otherwise leaves it to the job then."""
        self.steps_seen = 0
        self.ranks: dict[int, int] = {}
        """Rank → marks heard from it."""
        self.greeted = False
        """Whether a hook has said that it is there, steps or not."""
        self.ended = False
        """Whether the leading rank has said good-bye and nothing since."""
        self._told: deque[tuple[float, float, str, float]] = deque(maxlen=_TOLD_MOST)
        self._work_done = 0.0
        self._lead: tuple[int, int] | None = None  # rank and pid
        self._others = 0  # steps of others since the lead's last
        self._said = ""
        self._said_since_s = -math.inf
        self._lasted: dict[str, deque[float]] = {}
        self._stepped: dict[str, bool] = {}
        self._last_end_s: float | None = None
        self._first_of_phase = False
        self._steps: list[Step] = []
        self._ends: list[float] = []
        self._usual: dict[tuple[str, Hashable], _Usual] = {}
        self._slow: dict[str, deque[bool]] = {}  # phase → which of its last steps were slow
        self._settings: deque[tuple[float, Hashable]] = deque([(-math.inf, None)], maxlen=64)
        self._last_key: dict[str, tuple[str, Hashable]] = {}
        self._paused: tuple[float, str] | None = None
        self._spoilt: list[tuple[float, float, str]] = []
        self._idle = (-math.inf, -math.inf)  # when the job was last seen idle: first and last look

    @property
    def paused(self) -> str:
        """What the job says it is doing instead of steps: "evaluation", "checkpoint" …; empty while it steps."""
        return self._paused[1] if self._paused else ""

    @property
    def last_s(self) -> float | None:
        """When the last step ended."""
        return self._last_end_s

    def fetch_steps(self) -> list[tuple[float, float, str, float]]:
        """The steps that have ended since the last call, clean or not, as (start, end, phase, work of all steps so
        far), for whoever keeps a record of the pace. For one other thread; the oldest are dropped if nobody calls."""
        return [self._told.popleft() for _ in range(len(self._told))]

    def usual_s(self, phase: str) -> float | None:
        """The usual seconds a unit of work in a phase; None until it has warmed up."""
        usual = self._usual.get(self._last_key.get(phase, ("", None)))
        return usual.unit_s if usual else None

    @property
    def longest_s(self) -> float | None:
        """The usual seconds a unit of work in the slowest phase; None until one has warmed up."""
        known = [usual.unit_s for usual in self._usual.values() if usual.unit_s is not None]
        return max(known, default=None)

    def switched(self, from_s: float, to_s: float, setting: Hashable = None) -> None:
        """Between these moments ``setting`` came into force: no step that overlaps them is comparable."""
        self._spoilt.append((from_s, to_s, "switch"))
        self._settings.append((from_s, setting))

    def rested(self, from_s: float, to_s: float = math.inf) -> None:
        """Between these moments the GPU was clocked down because nothing ran; what ran all the same is no measure. To
        be told when it begins, and again when it is over."""
        self._spoilt = [each for each in self._spoilt if each[2] != _ASLEEP or each[1] < math.inf]
        self._spoilt.append((from_s, to_s, _ASLEEP))

    def seen_idle(self, now_s: float) -> None:
        """Nothing runs at this moment: the step that it falls into holds a wait, which no setting makes longer."""
        from_s, _ = self._idle
        # Steps may be told late: one gap goes on until a step has ended in or after it.
        self._idle = (now_s if self._last_end_s is None or self._last_end_s >= from_s else from_s, now_s)

    def take(self, marks: Iterable[Mark]) -> list[Step]:
        """Take in new marks, in order of time per rank; the steps that have ended with them."""
        before = len(self._steps)
        touched = self._steps[-1].end_s if self._steps else None
        for mark in marks:
            self.ranks[mark.rank] = self.ranks.get(mark.rank, 0) + 1
            if self._leads(mark):
                self._one(mark)
        if before and self._steps[before - 1].end_s != touched:
            before -= 1  # short steps have joined the last one
        new = self._steps[before:]
        self._forget()
        return new

    def steps(self, from_s: float, to_s: float, phase: str | None = None) -> Sequence[Step]:
        """Steps that lie wholly within two moments, of one phase or of all."""
        first, last = bisect_left(self._ends, from_s), bisect_left(self._ends, to_s + 1e-9)
        return [
            step
            for step in self._steps[first:last]
            if step.start_s >= from_s - 1e-9 and (phase is None or step.phase == phase)
        ]

    def _leads(self, mark: Mark) -> bool:
        """Whether a mark is of the process that is followed: the lowest rank that steps, until another one takes over.

        A synchronous job has one pace, so one rank tells it; a launcher may hand over to a child, or a child to the
        next.
        """
        who = (mark.rank, mark.pid)
        if mark.kind is MarkKind.HELLO:
            self.greeted = True
        if self._lead is None or self._lead == who:
            self._others = 0
        elif mark.kind is not MarkKind.STEP:
            return False
        else:
            self._others += 1
            if not (who < self._lead and self.steps_seen < _TAKES_OVER) and self._others < _TAKES_OVER * 4:
                return False
            self._others, self._last_end_s = 0, None  # another process's steps say nothing about this one's
            self._usual.clear()
            self._slow.clear()
            self._last_key.clear()
        if mark.kind is MarkKind.STEP or self._lead is None:
            self._lead = who
        return True

    def _one(self, mark: Mark) -> None:
        kind, now_s = mark.kind, mark.time_s
        if kind is MarkKind.STEP:
            self._step(now_s, mark.work if mark.work > 0 else 1.0, clean=mark.clean)
        elif kind is MarkKind.PHASE:
            self.marks_phases = True
            self.enter(mark.name, now_s)
        elif kind is MarkKind.PAUSE:
            self._paused = (now_s, mark.name or "pause")
        elif kind is MarkKind.RESUME:
            self._resume(now_s)
        elif kind is MarkKind.HELLO:
            self.ended = False
        elif kind is MarkKind.BYE:
            self.ended = True

    def enter(self, phase: str, now_s: float) -> None:
        """The job is in ``phase`` from now on; one that usually lasts too short to switch for is part of its
        neighbour."""
        if phase == self._said:
            return
        self._lasted.setdefault(self._said, deque(maxlen=_USUAL)).append(now_s - self._said_since_s)
        self._said, self._said_since_s = phase, now_s
        lasted = self._lasted.get(phase)
        if lasted is not None and len(lasted) >= 3 and median(lasted) < SHORTEST_PHASE_S:
            return
        if phase != self.phase:
            self._enter(phase, now_s)

    def _enter(self, phase: str, now_s: float) -> None:
        stepped = self._stepped_since(self.phase_since_s)
        if math.isfinite(self.phase_since_s):
            self._stepped[self.phase] = stepped or self._stepped.get(self.phase, False)
        if self.phase and not stepped and math.isfinite(self.phase_since_s) and now_s > self.phase_since_s:
            # A phase without steps of its own: the visit is its unit of work.
            self._last_end_s, self._first_of_phase = self.phase_since_s, False
            self._step(now_s, 1.0)
        self.phase, self.phase_since_s = phase, now_s
        self._last_end_s, self._first_of_phase = now_s, True

    def stepless(self, phase: str, now_s: float) -> bool:
        """Whether the job marks no steps in a phase: a visit, or ten seconds of the first, went without."""
        known = self._stepped.get(phase)
        if known is not None:
            return not known
        began_s = self.phase_since_s
        return phase == self.phase and now_s > began_s + STEPLESS_S and not self._stepped_since(began_s)

    def _stepped_since(self, time_s: float) -> bool:
        last = self._steps[-1] if self._steps else None
        return last is not None and last.phase == self.phase and last.end_s > time_s

    def _resume(self, now_s: float) -> None:
        if self._paused is not None:
            from_s, why = self._paused
            self._spoilt.append((from_s, now_s, why))
            self._paused = None

    def _step(self, end_s: float, work: float, *, clean: bool = True) -> None:
        self.steps_seen += 1
        self.ended = False
        start_s, self._last_end_s = self._last_end_s, end_s
        if self._paused is not None:  # a step within a pause ends it: the hook missed the resume
            self._resume(end_s)
        if start_s is None or end_s <= start_s:
            return
        self._work_done += work
        self._told.append((start_s, end_s, self.phase, self._work_done))
        step = Step(start_s, end_s, work, self.phase)
        step.dirt = self._dirt(step) if clean else "pause"
        step.slow = step.dirt in ("", "stall") and self._usual_of(step).slow
        self._first_of_phase = False
        last = self._steps[-1] if self._steps else None
        alike = last is not None and last.dirt == step.dirt and last.phase == step.phase and last.end_s == start_s
        if alike and last is not None and last.duration_s < TOGETHER_S:
            last.end_s, last.work, last.slow = end_s, last.work + work, last.slow or step.slow
            self._ends[-1] = end_s
            return
        self._steps.append(step)
        self._ends.append(end_s)

    def _dirt(self, step: Step) -> str:
        if self._spoilt:
            self._spoilt = [each for each in self._spoilt if each[1] > step.start_s]  # steps only go forward
            for from_s, to_s, why in self._spoilt:
                if _touches(step, from_s, to_s, why):
                    return why
        if step.start_s < self._idle[1] and self._idle[0] <= step.end_s:
            return "idle"
        usual = self._usual_of(step)
        if self._first_of_phase and usual.unit_s is not None and step.unit_s > 1.2 * usual.unit_s:
            return "phase change"
        return usual.judge(step.unit_s)

    def _usual_of(self, step: Step) -> _Usual:
        setting = next((each for from_s, each in reversed(self._settings) if from_s <= step.start_s), None)
        key = (step.phase, setting)
        if key not in self._usual:
            before = self._usual.get(self._last_key.get(step.phase, key))
            slow = self._slow.setdefault(step.phase, deque(maxlen=_SLOW_KNOWN))
            # What has not warmed up yet goes on doing so, whatever is set meanwhile.
            fresh = before if before and before.unit_s is None else None
            self._usual[key] = fresh or _Usual(before.unit_s if before else None, slow)
        self._last_key[step.phase] = key
        return self._usual[key]

    def _forget(self) -> None:
        if not self._ends:
            return
        old_s = min(self._ends[-1] - KEPT_S, self._ends[-KEPT_STEPS:][0])
        if self._ends[0] < old_s - 60.0:  # in bulk
            drop = bisect_left(self._ends, old_s)
            del self._ends[:drop], self._steps[:drop]


def _touches(step: Step, from_s: float, to_s: float, why: str) -> bool:
    overlap_s = min(step.end_s, to_s) - max(step.start_s, from_s)
    if overlap_s <= 0:
        return False
    return why != "switch" or overlap_s > _TOUCHED * step.duration_s
