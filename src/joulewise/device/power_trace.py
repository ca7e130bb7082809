"""What a virtual GPU truly drew and did: piecewise-constant power, appended as time passes, integrated exactly.

It is the truth that sensors look at (``device/sensors``) and that benches compare with. It is not a recording:
it remembers a few seconds in detail, and for good only the total. Its last moments can be taken back, for news
that arrives late (see ``device/board``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable


class PowerTrace:
    """Append-only true power of one GPU, with exact cumulative energy, busy time and time at its memory.

    Time goes from ``start_s`` to ``end_s``; asking outside of what is remembered is a ValueError. At least the
    last ``keep_s`` seconds are remembered (``math.inf`` keeps all).
    """

    # Detail is dropped in bulk, so that an append costs a microsecond however long the trace has run.
    _FORGET_FROM = 4096

    def __init__(self, start_s: float = 0.0, *, keep_s: float = 5.0) -> None:
        self._keep_s = keep_s
        # Boundaries of segments, and at each of them the energy, the busy and the memory's seconds since the start.
        self._times_s = [start_s]
        self._energies_j = [0.0]
        self._busy_s = [0.0]
        self._memory_s = [0.0]
        self._power_w = 0.0
        self._busy = self._memory = 0.0
        self._forget_at = self._FORGET_FROM
        self._before_forgetting: list[Callable[[], object]] = []
        self._after_rewind: list[Callable[[float], None]] = []

    @property
    def start_s(self) -> float:
        """The earliest moment that is still remembered."""
        return self._times_s[0]

    @property
    def end_s(self) -> float:
        """Up to where power is known."""
        return self._times_s[-1]

    @property
    def power_w(self) -> float:
        """Power of the last segment; 0 before the first, NaN right after a rewind."""
        return self._power_w

    @property
    def busy(self) -> float:
        """Busy share of the last segment, 0 to 1."""
        return self._busy

    def append(self, until_s: float, power_w: float, busy: float = 0.0, memory: float = 0.0) -> None:
        """From ``end_s`` until ``until_s`` the GPU drew ``power_w``, ran kernels for the share ``busy`` of the time and
        was held up by its memory for the share ``memory``."""
        span_s = until_s - self._times_s[-1]
        if span_s < 0:
            raise ValueError(f"power is already known until {self._times_s[-1]} s, cannot append up to {until_s} s")
        if span_s == 0:
            return
        energy_j = self._energies_j[-1] + power_w * span_s
        busy_s = self._busy_s[-1] + busy * span_s
        memory_s = self._memory_s[-1] + memory * span_s
        if (power_w, busy, memory) == (self._power_w, self._busy, self._memory) and len(self._times_s) > 1:
            self._times_s[-1] = until_s
            self._energies_j[-1] = energy_j
            self._busy_s[-1] = busy_s
            self._memory_s[-1] = memory_s
            return
        self._times_s.append(until_s)
        self._energies_j.append(energy_j)
        self._busy_s.append(busy_s)
        self._memory_s.append(memory_s)
        self._power_w = power_w
        self._busy, self._memory = busy, memory
        if len(self._times_s) >= self._forget_at:
            self._forget()

    def energy_j(self, time_s: float) -> float:
        """Joules from the start of the trace up to ``time_s``, exact."""
        return self._at(time_s, self._energies_j)

    def busy_s(self, time_s: float) -> float:
        """Seconds with a kernel running from the start of the trace up to ``time_s``, exact."""
        return self._at(time_s, self._busy_s)

    def mean_w(self, from_s: float, to_s: float) -> float:
        """Mean power between two moments, ``from_s`` < ``to_s``."""
        return (self.energy_j(to_s) - self.energy_j(from_s)) / (to_s - from_s)

    def mean_busy(self, from_s: float, to_s: float) -> float:
        """Mean busy share between two moments, ``from_s`` < ``to_s``."""
        return (self.busy_s(to_s) - self.busy_s(from_s)) / (to_s - from_s)

    def mean_memory(self, from_s: float, to_s: float) -> float:
        """Mean share of time at the memory between two moments, ``from_s`` < ``to_s``."""
        return (self._at(to_s, self._memory_s) - self._at(from_s, self._memory_s)) / (to_s - from_s)

    def segment_end_s(self, time_s: float) -> float:
        """The end of the segment of constant power that holds the moments just after ``time_s``."""
        index = bisect_left(self._times_s, time_s)
        if self._times_s[index] == time_s and index + 1 < len(self._times_s):
            index += 1
        return self._times_s[index]

    def before_forgetting(self, hook: Callable[[], object]) -> None:
        """Call ``hook`` before detail is dropped: a part-time counter must first look at what it sums."""
        self._before_forgetting.append(hook)

    def rewind(self, time_s: float) -> None:
        """Take back everything after ``time_s``, which must still be remembered."""
        integrals = (self._energies_j, self._busy_s, self._memory_s)
        ends = [(values, self._at(time_s, values)) for values in integrals]
        keep = bisect_left(self._times_s, time_s)
        for values, last in [*ends, (self._times_s, time_s)]:
            del values[keep:]
            values.append(last)
        self._power_w = math.nan  # equal to nothing: the next append begins a segment of its own
        for hook in self._after_rewind:
            hook(time_s)

    def after_rewind(self, hook: Callable[[float], None]) -> None:
        """Call ``hook`` with the new end whenever the last moments have been taken back."""
        self._after_rewind.append(hook)

    def _at(self, time_s: float, values: list[float]) -> float:
        times_s = self._times_s
        if not times_s[0] <= time_s <= times_s[-1]:
            raise ValueError(f"power is known from {times_s[0]} to {times_s[-1]} s, not at {time_s} s")
        index = bisect_left(times_s, time_s)
        if times_s[index] == time_s:
            return values[index]
        share = (time_s - times_s[index - 1]) / (times_s[index] - times_s[index - 1])
        return values[index - 1] + share * (values[index] - values[index - 1])

    def _forget(self) -> None:
        for hook in self._before_forgetting:
            hook()
        keep_from_s = self._times_s[-1] - self._keep_s
        # The boundary at or before keep_from_s stays, so that the whole of keep_s can be interpolated.
        drop = bisect_left(self._times_s, keep_from_s)
        if drop and self._times_s[drop] > keep_from_s:
            drop -= 1
        for values in (self._times_s, self._energies_j, self._busy_s, self._memory_s):
            del values[:drop]
        self._forget_at = max(self._FORGET_FROM, 2 * len(self._times_s))
