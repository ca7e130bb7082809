"""The ruler: how far a job has got, by the best signal there is, and what its comparable work took in time and joules.

Four rungs, finest first: steps told by hooks; a period found in power and utilisation; the work rate that activity
counters show; none. The rung in use is stated with its resolution, and what is finer than it is not judged. A stretch
is measured after the fact, from what sampler and hooks have kept: only clean work counts (``steplog``), its energy
comes from the sampler's tracks (``estimate``), and both carry honest errors.

It reads the sampler's tracks and never the hardware, except for activity counters, which cost a call and are read only
when somebody wants them. It decides nothing: what to run next is the tuner's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from joulewise.core.block import Rung
from joulewise.core.knob import DEFAULT
from joulewise.monitor.counters import Activity, CounterSource
from joulewise.monitor.period import Found, find, resolution
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.scatter import Scatter
from joulewise.monitor.signals import signals
from joulewise.monitor.silence import Silence
from joulewise.monitor.spent import Spent, spent
from joulewise.monitor.steplog import KEPT_STEPS, Step, StepLog
from joulewise.monitor.steps import Feed
from joulewise.monitor.track import AROUND_S, Extract, Track

ENOUGH_STEPS = 8
"""Steps after which hooks are believed to mark the job's pace."""
PERIOD_FIRST_S = 25.0
"""Seconds of readings before a period is looked for: five of 5 s, and what GPOEO takes."""
PERIOD_AGAIN_S = 5.0
PERIOD_LEAST_S, PERIODS_LEAST = 12.0, 10.0
"""Seconds and periods without which a period is no measure of a setting: the detector wants 64 readings, and its error
is the scatter over the periods that it sees."""
HOOK_WAIT_S = 120.0
"""A job whose hooks have said hello is given so long to take its first steps (compilation) before power is asked."""
WAITS_S = 10.0
"""A job without hooks is watched so long before another ruler than steps is considered."""
GIVE_UP_S = 90.0
"""After so long without steps or a period the job counts as one whose pace cannot be told by them."""
STAMP_S = 2e-4
"""Error of one step's end: CUDA events are good to microseconds, host stamps to some 0.1 ms under load."""
LONG_STEP_S = 30.0
"""Steps longer than this are a poorer ruler than counters: a handful of them takes minutes at each setting."""
LONGEST_S = 96.0
"""No stretch is asked to be longer: tracks remember two minutes."""
GOES_DOWN = (0.97, 1.5)
"""What a period may become under a setting: no iteration gets shorter by slower clocks (an alias does)."""
_BUSY_STEPS = 3.0  # a job is at work until so many usual steps have passed without one, whatever utilisation shows
_LONG = "hooks tell steps that are too long to compare settings by"
_ACTIVITY_S = 1.0  # counters are read at most once in so long while they are the ruler
_AWAKE = 0.02  # utilisation above this is work


@dataclass(frozen=True, slots=True)
class Clean:
    """The comparable work in a stretch of time."""

    intervals: tuple[tuple[float, float], ...]
    """When it was done, in order, without overlap."""
    work: float
    duration_s: float
    time_error: float
    """One relative standard error of ``duration_s / work``."""
    left_out: Mapping[str, float] = field(default_factory=dict)
    """Reason → seconds that were left out."""


WATCHING = "watching the job"
"""What a ruler says until it has seen a pace."""


class Ruler:
    """Measures one job on the GPUs of ``sampler``. For one thread."""

    def __init__(
        self, sampler: Sampler, feed: Feed | None = None, counters: Sequence[CounterSource | None] = ()
    ) -> None:
        self.sampler = sampler
        self.log = StepLog()
        self.rung = Rung.UNKNOWN
        self.says = WATCHING
        self._feed = feed
        self._counters = [each for each in counters if each is not None]
        self._fresh: list[Step] = []
        self._scatters: dict[str, Scatter] = {}
        self._found: Found | None = None
        self._busy_since_s: float | None = None
        self._looked_s = -math.inf
        self._rates: list[tuple[float, float, float]] = []  # from, to, work a second
        self._rates_due_s = -math.inf
        self._silence = Silence(self.log)
        self._switched: deque[tuple[float, bool]] = deque([(-math.inf, False)], maxlen=64)  # since when, set or not
        self._steps_before = 0  # steps that hooks had told when they fell silent
        # In time that runs faster than the wall a stamp errs by so much more.
        self._stamp_s = STAMP_S * max(1.0, float(getattr(sampler.time, "speed", 1.0)))
        self._switches: deque[tuple[float, float]] = deque(maxlen=64)  # from when until settled
        self._heads: dict[float, list[Extract]] = {}  # what was read around the ends of long steps

    # Keeping up.

    def read(self) -> None:
        """Take in what hooks have marked since the last call, and settle on a rung."""
        now_s = self.sampler.time.now_s()
        if self._feed is not None:
            self._fresh += self.log.take(self._feed.read())
        self._watch_silence(now_s)
        self._keep_heads(now_s)
        if self.rung is not Rung.STEPS:
            self._settle(now_s)
        if self.rung_in(self.phase) is Rung.ACTIVITY and now_s >= self._rates_due_s:
            self._rates_due_s = now_s + _ACTIVITY_S
            self._count_activity()

    def fresh(self) -> list[Step]:
        """The steps that have ended since the last call; a step that short ones have joined since may come again."""
        fresh, self._fresh = self._fresh, []
        return fresh

    @property
    def phase(self) -> str:
        """The phase that the job has marked; empty where it marks none."""
        return self.log.phase

    @property
    def busy(self) -> bool:
        """Whether the job is at work: any of its GPUs shows it, or steps keep coming."""
        return self._steps_come(self.sampler.time.now_s()) or any(self._works(track) for track in self.sampler.tracks)

    @property
    def unmarked(self) -> str:
        """What the job does instead of what steps were measured on, in words, once that has lasted a while; empty
        while steps come, or nothing runs, or another ruler serves."""
        return self._silence.says(self.usual_s(self.phase)) if self._steps_rule else ""

    @property
    def _steps_rule(self) -> bool:
        """Whether single steps are the ruler now, and not the visits of a marked phase that has none."""
        visits = bool(self.phase) and self.log.stepless(self.phase, self.sampler.time.now_s())
        return self.rung is Rung.STEPS and not visits

    def _watch_silence(self, now_s: float) -> None:
        """Where work goes on without steps for long, the hooks are no ruler any more."""
        self._silence.look(now_s, busy=self.busy)
        why = self._silence.forsaken(self.usual_s(self.phase)) if self._steps_rule else ""
        if why:
            self.rung, self.says, self._busy_since_s = Rung.UNKNOWN, why, now_s
            self._steps_before, self._looked_s = self.log.steps_seen, -math.inf

    def _steps_come(self, now_s: float) -> bool:
        last_s, usual_s = self.log.last_s, self.log.usual_s(self.phase)
        return last_s is not None and usual_s is not None and now_s - last_s <= _BUSY_STEPS * usual_s

    def _keep_heads(self, now_s: float) -> None:
        """Around the ends of long steps keep what was read: tracks forget it before a block of them is over."""
        usual_s, last_s = self.log.usual_s(self.phase), self.log.last_s
        if usual_s is None or usual_s < LONG_STEP_S or last_s is None or last_s in self._heads:
            return
        if now_s >= last_s + AROUND_S:
            self._heads[last_s] = [track.extract(last_s, last_s) for track in self.sampler.tracks]
            for old_s in list(self._heads)[:-KEPT_STEPS]:
                del self._heads[old_s]

    @property
    def counts(self) -> bool:
        """Whether there are activity counters."""
        return bool(self._counters)

    def activity(self) -> dict[str, float]:
        """Mean shares of the activity counters over all GPUs since the last call; empty without counters."""
        seen = [shares for source in self._counters if (shares := _known(source.read()))]
        names = set.intersection(*(set(each) for each in seen)) if seen else set()
        return {name: sum(each[name] for each in seen) / len(seen) for name in sorted(names)}

    def _settle(self, now_s: float) -> None:
        unit_s = self.log.usual_s(self.log.phase)
        if self.log.steps_seen >= self._steps_before + ENOUGH_STEPS and unit_s is not None:
            if self.rung is Rung.UNKNOWN or unit_s <= LONG_STEP_S:
                self.rung, self.says = Rung.STEPS, f"steps of {1e3 * unit_s:.4g} ms, told by hooks"
            elif _LONG not in self.says:
                self.says = f"{self.says}; {_LONG} ({unit_s:.0f} s)"
            return
        if self.rung is Rung.PERIOD:
            return
        if not self.busy:
            return
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        busy_s = now_s - self._busy_since_s
        hooked = self.log.greeted or self.log.steps_seen > 0
        patience_s = HOOK_WAIT_S if hooked and not self._steps_before else WAITS_S
        if busy_s < max(patience_s, PERIOD_FIRST_S) or now_s < self._looked_s + PERIOD_AGAIN_S:
            return
        self._looked_s = now_s
        found = self._find(now_s - min(busy_s, 60.0), now_s, near=None)
        self.says = found.says
        alias_s = found.period.alias_s if found.period is not None else None
        if alias_s is not None:
            self.says = f"{found.says}, which steps of {1e3 * alias_s:.3g} ms would look like too"
        if found.kind == "stable" and found.period is not None and alias_s is None:
            self.rung, self._found = Rung.PERIOD, found
        elif busy_s > patience_s + GIVE_UP_S:
            if self._counters and self.rung is Rung.UNKNOWN:
                self.rung = Rung.ACTIVITY
                self.says = f"work rate by activity counters ({self.says})"
            elif not self._counters:
                self.says = f"{self.says}, and this GPU has no activity counters: the job's pace is unknown"

    # Measuring.

    def rung_in(self, phase: str) -> Rung:
        """The rung in use in a phase: where a job marks steps in some phases only, counters serve in the others."""
        if self.rung is Rung.STEPS and self._counters and phase:
            return Rung.ACTIVITY if self.log.stepless(phase, self.sampler.time.now_s()) else Rung.STEPS
        return self.rung

    def usual_s(self, phase: str = "") -> float | None:
        """The usual seconds a unit of work at whatever setting ran last; None while unknown."""
        rung = self.rung_in(phase)
        if rung is Rung.STEPS:
            return self.log.usual_s(phase)
        if rung is Rung.PERIOD and self._found is not None and self._found.period is not None:
            return self._found.period.period_s
        return 1.0 if rung is Rung.ACTIVITY else None

    def least_s(self, phase: str = "") -> float:
        """The shortest stretch that this ruler can measure at all; 0 where steps are told."""
        rung, unit_s = self.rung_in(phase), self.usual_s(phase)
        if rung is Rung.PERIOD and unit_s is not None:
            return max(PERIOD_LEAST_S, PERIODS_LEAST * unit_s)
        if rung is not Rung.ACTIVITY:
            return 0.0
        # Where steps are known but too long to be the ruler, a stretch holds one: its parts may be of different kinds.
        return max(4.0 * _ACTIVITY_S, min(LONGEST_S, self.log.usual_s(phase) or 0.0))

    def resolution(self, duration_s: float, phase: str = "") -> float:
        """Relative standard error of unit time over a stretch of ``duration_s``; infinite while nothing is known."""
        if self.rung is Rung.PERIOD and self._found is not None:
            return resolution(self._found, duration_s)
        usual_s, rung = self.usual_s(phase), self.rung_in(phase)
        if usual_s is None:
            return math.inf
        scatter = self._scatter(phase if rung is Rung.STEPS else f"{phase} rates")
        return max(scatter.error(duration_s / usual_s), self._stamp_s / duration_s)

    def switched(self, from_s: float, to_s: float, setting: Hashable = None) -> None:
        """``setting`` came into force between these moments: nothing that overlaps them is comparable."""
        self.log.switched(from_s, to_s, setting)
        self._switched.append((from_s, setting not in (None, DEFAULT)))
        self._switches.append((from_s, to_s))

    def clean(self, from_s: float, to_s: float, phase: str = "") -> Clean | None:
        """The comparable work of a phase between two moments, or None where there is none (yet)."""
        rung = self.rung_in(phase)
        if rung is Rung.STEPS:
            return clean_steps(self.log.steps(from_s, to_s, phase), self._scatter(phase), self._stamp_s)
        if rung is Rung.PERIOD:
            return self._clean_periods(from_s, to_s)
        if rung is Rung.ACTIVITY:
            return self._clean_activity(from_s, to_s, phase)
        return None

    def progress(self, from_s: float, to_s: float, phase: str = "") -> tuple[float, float]:
        """Clean work and its seconds so far, cheaply: what tells when a stretch is long enough."""
        if self.rung_in(phase) is Rung.STEPS:
            good = [step for step in self.log.steps(from_s, to_s, phase) if not step.dirt]
            return sum(step.work for step in good), sum(step.duration_s for step in good)
        unit_s = self.usual_s(phase)
        length_s = max(0.0, to_s - from_s)
        return (length_s / unit_s if unit_s else 0.0), length_s

    def error_of(self, phase: str, setting: Hashable, from_s: float, to_s: float, unit_s: float, error: float) -> float:
        """What a stretch's unit time really errs by: ``error``, and what stretches beside it disagree by."""
        return self._scatter(phase).beside(setting, from_s, to_s, unit_s, error)

    def power_error_of(
        self, phase: str, setting: Hashable, from_s: float, to_s: float, power_w: float, error: float
    ) -> float:
        """The same of a stretch's mean power, for sensors whose stamps are worse than they claim: on a loaded machine,
        and in simulated time, where a late stamp is late by so many times more."""
        return self._scatter(f"{phase} power").beside(setting, from_s, to_s, power_w, error)

    def spent(self, intervals: Sequence[tuple[float, float]]) -> Spent | None:
        """Energy, clock and limiter over stretches of clean work, summed over the GPUs; None where nothing was read."""
        return spent(self.sampler.tracks, intervals, self._heads, self._switches)

    def _clean_periods(self, from_s: float, to_s: float) -> Clean | None:
        known = self._found.period if self._found else None
        if known is None or to_s - from_s < 2.0 * known.period_s:
            return None
        found = self._find(from_s, to_s, near=self._found)
        if found.period is None or found.kind != "stable":
            return None
        duration_s, error = to_s - from_s, found.period.error_s / found.period.period_s
        return Clean(((from_s, to_s),), duration_s / found.period.period_s, duration_s, error)

    def _clean_activity(self, from_s: float, to_s: float, phase: str) -> Clean | None:
        inside = [rate for rate in self._rates if rate[0] >= from_s - 1e-9 and rate[1] <= to_s + 1e-9]
        if len(inside) < 3:
            return None
        lengths_s = [to - start for start, to, _ in inside]
        work = sum(length_s * rate for length_s, (_, _, rate) in zip(lengths_s, inside, strict=True))
        if not work > 0:
            return None
        scatter = self._scatter(f"{phase} rates")
        scatter.add([1.0 / rate for _, _, rate in inside])
        intervals = merged([(start, to) for start, to, _ in inside])
        return Clean(intervals, work, sum(lengths_s), scatter.error(len(inside)))

    def _scatter(self, phase: str) -> Scatter:
        return self._scatters.setdefault(phase, Scatter())

    def _find(self, from_s: float, to_s: float, near: Found | None) -> Found:
        shown = signals(self.sampler.tracks, from_s, to_s)
        if near is None:
            return find(shown)
        down = next(is_set for since_s, is_set in reversed(self._switched) if since_s <= from_s)
        return find(shown, near=near.period, ratio=GOES_DOWN) if down else find(shown, near=near.period)

    def _count_activity(self) -> None:
        for source in self._counters[:1]:  # a synchronous job has one pace; one GPU's counters tell it
            seen = source.read()
            latest = self.sampler.tracks[0].latest
            if seen is None or latest is None:
                continue
            rate = seen.work_rate(latest.sm_mhz, latest.memory_mhz, waits=len(self.sampler.tracks) > 1)
            if rate is not None:
                self._rates.append((seen.start_s, seen.end_s, rate))
        del self._rates[:-1000]

    def _works(self, track: Track) -> bool:
        latest = track.latest
        if latest is None:
            return False
        if latest.utilization is not None:
            return latest.utilization > _AWAKE
        idle_w = track.gpu.info.idle_power_w
        return latest.power_w is not None and idle_w is not None and latest.power_w > 1.3 * idle_w


def clean_steps(steps: Sequence[Step], scatter: Scatter, stamp_s: float = STAMP_S) -> Clean | None:
    """The comparable ones among steps, whose scatter is learnt from; None if there is none. ``stamp_s`` is the error of
    one step's end."""
    good = [step for step in steps if not step.dirt]
    if not good:
        return None
    left_out: dict[str, float] = {}
    for step in steps:
        if step.dirt:
            left_out[step.dirt] = left_out.get(step.dirt, 0.0) + step.duration_s
    work, duration_s = sum(step.work for step in good), sum(step.duration_s for step in good)
    scatter.add([step.unit_s for step in good])
    error = math.hypot(scatter.error(len(good)), math.sqrt(2.0) * stamp_s / duration_s)
    return Clean(merged([(step.start_s, step.end_s) for step in good]), work, duration_s, error, left_out)


def merged(intervals: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Intervals in order, those that touch joined."""
    joined: list[tuple[float, float]] = []
    for from_s, to_s in intervals:
        if joined and from_s - joined[-1][1] < 1e-6:
            joined[-1] = (joined[-1][0], to_s)
        else:
            joined.append((from_s, to_s))
    return tuple(joined)


def _known(activity: Activity | None) -> dict[str, float]:
    return activity.known() if activity is not None else {}
