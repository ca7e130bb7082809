"""One rank of a pipeline: the clock of each of its operations, asked for ahead; what each took, and what it drew.

Whoever runs the operations calls ``iteration``, ``begin`` and ``end``; settings may change with every iteration. An
operation's place on the GPU's time is told by a ``Stamp``, perhaps long after it was launched: a host runs ahead of its
GPU, and nothing here waits for either. The clock of the next operation is asked for so long before the present one is
expected to end as a change takes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from joulewise.core.knob import DEFAULT, Setting
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease
from joulewise.monitor.interpolate import view_of
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.spent import Spent, spent
from joulewise.monitor.track import Extract
from joulewise.tune.follow_clocks import Clocks
from joulewise.tune.follow_profile import Seen
from joulewise.tune.follow_spans import Kind, Readings, Span, held_to, mean_and_error, powers_w

SETTLES_S = 0.15
"""After a change of setting nothing is measured for so long: the slowest of 19,000 changes took 55 ms, and readings are
means of up to 100 ms."""
_KEPT = 50_000
"""Spans: a hundred iterations of the largest pipelines reported."""
_WAITING: Kind = (-1, "waiting")

Op = tuple[int, str, int]
"""Stage, kind and microbatch."""


class Stamp(Protocol):
    """An operation on the GPU's time. Moments are None until the GPU has got there."""

    def began_s(self) -> float | None:
        """When it began."""
        ...

    def ended_s(self) -> float | None:
        """When it was done."""
        ...


@dataclass(slots=True)
class _Launched:
    op: Op
    iteration: int
    setting: Setting
    after: Setting
    expected_s: float | None
    stamp: Stamp
    paced: bool = False


Iteration = tuple[float, float, float]
"""A whole iteration of one rank: seconds, joules, and one standard error of these."""


class Rank:
    """The operations of one rank, in ``order``, on ``gpu``. Nothing is set until it is given a lease (``arm``)."""

    def __init__(self, order: Sequence[Op], gpu: Gpu, sampler: Sampler) -> None:
        self.order = list(order)
        self.gpu = gpu
        self.problem = ""
        """Why this rank can follow no more; empty while all is well."""
        self._sampler = sampler
        self._track = sampler.tracks[0]
        self._settings: Sequence[Setting] = [DEFAULT] * len(self.order)
        self._following: Sequence[Setting] = self._settings
        self._expected_s: Mapping[tuple[Kind, Setting], float] = {}
        self._clocks: Clocks | None = None
        self._launched: deque[_Launched] = deque()
        self._took_s: dict[Kind, float] = {}
        self._looking = threading.Lock()
        self._spans: deque[Span] = deque(maxlen=_KEPT)
        self._first_s: dict[int, float] = {}
        self._heads: dict[int, list[Extract]] = {}
        self._iteration = -1
        self._at = 0

    # What is set.

    def arm(self, lease: Lease) -> None:
        """From now on settings are put in force."""
        self._clocks = Clocks(lease, self.gpu, watch=self._look)

    def disarm(self) -> None:
        """Nothing is asked for any more; whoever has the lease releases it."""
        if self._clocks is not None:
            self._clocks.close()
            self._clocks = None

    @property
    def switch_s(self) -> float | None:
        """After how long a change of clock is there nearly always, as seen; None while none was."""
        clocks = self._clocks
        return clocks.surely_s if clocks is not None and clocks.switches_seen else None

    @property
    def trouble(self) -> str:
        """What went wrong so far; empty while all is well."""
        return self.problem or (self._clocks.problem if self._clocks is not None else "")

    def expect(self, expected_s: Mapping[tuple[Kind, Setting], float]) -> None:
        """How long operations take at their settings; unknown ones are taken as they were last seen."""
        self._expected_s = expected_s

    # What runs.

    def iteration(self, number: int, settings: Sequence[Setting], following: Sequence[Setting]) -> None:
        """An iteration begins: the setting of each operation in it, and of each in the one after it."""
        if self._at not in (0, len(self.order)) and not self.problem:
            self._stop(f"iteration {self._iteration} ran {self._at} of {len(self.order)} operations")
        self._sampler.want_counter(self._track)  # iterations are what is measured
        self._iteration, self._at = number, 0
        self._settings, self._following = settings, following
        if number - 1 in self._first_s:
            from_s = self._first_s[number - 1]
            self._heads[number - 1] = [self._track.extract(from_s, from_s)]
        for old in [each for each in self._heads if each < number - 256]:
            del self._heads[old], self._first_s[old]

    def begin(self, op: Op, stamp: Stamp) -> None:
        """An operation is launched."""
        if self.problem:
            return
        if self._at >= len(self.order) or self.order[self._at] != op:
            wanted = _words(self.order[self._at]) if self._at < len(self.order) else "the end"
            self._stop(f"the schedule ran {_words(op)} where {wanted} was expected")
            return
        setting = self._settings[self._at]
        last = self._at + 1 == len(self.order)
        after = self._following[0] if last else self._settings[self._at + 1]
        expected_s = self._expected_s.get(((op[0], op[1]), setting))
        self._launched.append(_Launched(op, self._iteration, setting, after, expected_s, stamp))
        self._at += 1
        self._look()

    def end(self) -> None:
        """The operation that was launched last has been launched altogether."""
        self._look()

    def close(self) -> None:
        """Nothing more runs."""
        self.disarm()

    def _stop(self, problem: str) -> None:
        """Nothing is as it was planned for: nothing set, at once."""
        self.problem = problem
        if self._clocks is not None:
            self._clocks.at(DEFAULT, self.gpu.time.now_s())

    def _look(self) -> bool:
        """Take in what the GPU has done, and ask for clocks as it gets on; whether it is worth looking again soon."""
        if not self._looking.acquire(blocking=False):
            return False
        try:
            while self._launched:
                head = self._launched[0]
                began_s = head.stamp.began_s()
                if began_s is None:
                    return True
                if not head.paced:
                    self._pace(head, began_s)
                ended_s = head.stamp.ended_s()
                if ended_s is None:
                    return len(self._launched) > 1
                began_s = head.stamp.began_s() or began_s
                self._launched.popleft()
                self._first_s.setdefault(head.iteration, began_s)
                stage, kind, microbatch = head.op
                self._spans.append(Span(stage, kind, microbatch, head.iteration, head.setting, began_s, ended_s))
                self._took_s[stage, kind] = ended_s - began_s
            return False
        finally:
            self._looking.release()

    def _pace(self, op: _Launched, began_s: float) -> None:
        op.paced = True
        clocks = self._clocks
        if clocks is None:
            return
        clocks.at(op.setting, began_s)  # where it could not be asked for before
        expected_s = op.expected_s if op.expected_s is not None else self._took_s.get((op.op[0], op.op[1]))
        if expected_s is not None:
            clocks.at(op.after, max(began_s + expected_s - clocks.switch_s, began_s))

    # What it took.

    def window(self, first: int, last: int) -> list[Iteration] | None:
        """Iterations ``first`` to ``last``, each up to the begin of the next, which must be known. None without."""
        found = []
        for number in range(first, last + 1):
            if number not in self._first_s or number + 1 not in self._first_s:
                return None
            from_s, to_s = self._first_s[number], self._first_s[number + 1]
            took = self._spent(from_s, to_s, number)
            if took is None:
                return None
            found.append((to_s - from_s, took.energy_j, took.error_j))
        return found

    def seen(self, first: int, last: int, setting: Setting) -> tuple[dict[Kind, Seen], float | None]:
        """Each kind of operation in iterations ``first`` to ``last``, run at one setting, and watts while waiting.

        Without what came before the setting was surely there. Empty where too little was read.
        """
        spans = [span for span in self._done() if first <= span.iteration <= last]
        if not spans:
            return {}, None
        from_s, to_s = max(spans[0].to_s, spans[0].from_s + SETTLES_S), spans[-1].to_s
        spans = [span for span in spans if span.from_s >= from_s - 1e-9]
        took = self._spent(from_s, to_s, first)
        if took is None or not spans:
            return {}, None
        pieces = [((span.stage, span.kind), span.from_s, span.to_s) for span in spans]
        powers = powers_w(pieces, _WAITING, self._readings(from_s, to_s), from_s, to_s)
        if not powers:
            return {}, None
        times = self._times_s(from_s, to_s)
        seconds = {kind: sum(each) for kind, each in times.items()}
        seconds[_WAITING] = max(0.0, to_s - from_s - sum(seconds.values()))
        powers = held_to(powers, seconds, took.energy_j)
        found = {}
        for kind, each in times.items():
            (time_s, time_error_s), (power_w, power_error_w) = mean_and_error(each), powers[kind]
            error_w = max(power_error_w, power_w * took.error_j / took.energy_j)
            found[kind] = Seen(
                setting, len(each), time_s, time_error_s, power_w, error_w, took.sm_mhz, took.power_capped
            )
        return found, powers[_WAITING][0] if seconds[_WAITING] > 0 else None

    def drift(self, iterations: Collection[int]) -> dict[Kind, tuple[float, float]]:
        """How long operations of these iterations took against what was expected of them: ratio, and its error."""
        ratios: dict[Kind, list[float]] = {}
        for span in self._done():
            expected_s = self._expected_s.get(((span.stage, span.kind), span.setting))
            if span.iteration in iterations and expected_s is not None:
                ratios.setdefault((span.stage, span.kind), []).append(span.duration_s / expected_s)
        return {kind: mean_and_error(each) for kind, each in ratios.items()}

    def iteration_s(self, before: int) -> float | None:
        """How long the iteration before ``before`` took, from its first operation to the next one's; None: unknown."""
        if before not in self._first_s or before - 1 not in self._first_s:
            return None
        return self._first_s[before] - self._first_s[before - 1]

    def span_s(self, first: int, last: int) -> float | None:
        """From the begin of the first operation to the end of the last, of an iteration: the shortest, for any may be
        held up."""
        spans: dict[int, list[Span]] = {}
        for span in self._done():
            if first <= span.iteration <= last:
                spans.setdefault(span.iteration, []).append(span)
        whole = [each[-1].to_s - each[0].from_s for each in spans.values() if len(each) == len(self.order)]
        return min(whole, default=None)

    @property
    def latest_mhz(self) -> float | None:
        """The SM clock that was last read while the GPU worked."""
        for reading in reversed(self._track.readings()):
            if reading.sm_mhz is not None and reading.utilization:
                return reading.sm_mhz
        return None

    def _times_s(self, from_s: float, to_s: float) -> dict[Kind, list[float]]:
        times: dict[Kind, list[float]] = {}
        for span in self._done():
            if span.from_s >= from_s - 1e-9 and span.to_s <= to_s + 1e-9:
                times.setdefault((span.stage, span.kind), []).append(span.duration_s)
        return times

    def _done(self) -> list[Span]:
        with self._looking:
            return list(self._spans)

    def _spent(self, from_s: float, to_s: float, first: int) -> Spent | None:
        heads = {from_s: self._heads[first]} if first in self._heads else None
        return spent([self._track], [(from_s, to_s)], heads)

    def _readings(self, from_s: float, to_s: float) -> Readings:
        view = view_of(self._track.witness(from_s, to_s)(), to_s)
        return Readings(view.end_s, view.power_w, view.window_s, view.lag_error_s)


def _words(op: Op) -> str:
    stage, kind, microbatch = op
    return f"the {kind} of stage {stage}, microbatch {microbatch}"
