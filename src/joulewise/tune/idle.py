"""Idle gaps inside a job: when a waiting GPU is worth clocking down, and when it must be awake again.

A resident but quiet GPU keeps its clocks and draws two to three times its deep idle power. Clocking it down costs two
switches, and the work that comes back runs slow until the next poll sees it. So: learn how long gaps last, go down
only when the gap is expected to last longer than what that costs, and wake at the first sign of work. A fold of gaps;
it knows no hardware and reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WORTHWHILE_S = 0.5
"""Gaps shorter than this are part of a step, not idleness."""
SLOWEST_S = 0.3
"""A GPU whose utilisation is older than this (up to 1 s on an A100) is left awake: each wake would cost a step."""
REMEMBERED = 64
"""Gaps that the distribution is learnt from."""
FEWEST = 3
"""Gaps seen before any is believed to be like them."""
_SWITCH_S = 0.05
"""Two clock switches (25 ms each, V100)."""
_ALIKE = 0.5
"""Share of past gaps that must have lasted long enough from here: a coin is no reason to touch a job."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What waking late costs: seconds lost a gap, at most, and joules the GPU draws meanwhile."""

    poll_s: float = 0.1
    slow: float = 0.8
    """Share of speed lost at idle clocks: 345 of 1980 MHz leave a fifth."""
    update_s: float = 0.2
    """Utilisation says something new once in this time: a look may see what was so long ago."""

    @property
    def lost_s(self) -> float:
        """Seconds that one wake costs the job in the mean: half a poll and half an update at low speed, and the
        switch up."""
        return 0.5 * (self.poll_s + self.update_s) * self.slow + 0.5 * _SWITCH_S

    @property
    def late(self) -> bool:
        """Whether work that comes back is noticed so late that no gap is worth it."""
        return self.update_s > SLOWEST_S


class Gaps:
    """The idle gaps of one job: how long they last, and whether the present one is worth going down for.

    ``saves`` is the share of idle power that low clocks save (L40S: 105 W to 61 W with the SM clock alone), ``busy``
    how many times idle power the job draws at work: lost time costs that.
    """

    def __init__(self, *, saves: float = 0.4, busy: float = 3.0, cost: Cost | None = None) -> None:
        self.cost = cost or Cost()
        self.lost_s = 0.0
        """Seconds that wakes have cost the job so far, by our own estimate."""
        self._saves, self._busy = saves, busy
        self._lengths_s: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seen(self) -> int:
        """How many gaps are remembered."""
        return len(self._lengths_s)

    def ended(self, length_s: float) -> None:
        """A gap of ``length_s`` seconds is over; what was clocked down for it cost its wake."""
        if length_s >= WORTHWHILE_S:
            self._lengths_s.append(length_s)

    def woke(self) -> None:
        """A clocked-down GPU was woken."""
        self.lost_s += self.cost.lost_s

    def remaining_s(self, elapsed_s: float) -> float | None:
        """How much longer a gap that has lasted ``elapsed_s`` is expected to last; None while too few are known."""
        longer = [length_s for length_s in self._lengths_s if length_s > elapsed_s]
        if len(self._lengths_s) < FEWEST or len(longer) < max(2.0, _ALIKE * self._reaching(elapsed_s)):
            return None
        return sum(longer) / len(longer) - elapsed_s

    def worth_it(self, elapsed_s: float, room_s: float) -> bool:
        """Whether to go down now: the gap has begun ``elapsed_s`` ago, ``room_s`` may still be lost by the job.

        The energy saved in what remains must repay the wake twice over, and the job must be able to afford it.
        """
        if self.cost.late or elapsed_s < WORTHWHILE_S or room_s < self.cost.lost_s:
            return False
        remaining_s = self.remaining_s(elapsed_s)
        if remaining_s is None:
            return False
        saved = self._saves * max(0.0, remaining_s - _SWITCH_S)  # in seconds of idle power
        return saved > 2.0 * self._busy * self.cost.lost_s

    def _reaching(self, elapsed_s: float) -> float:
        """How many gaps got about as far as this one."""
        return float(sum(1 for length_s in self._lengths_s if length_s > 0.5 * elapsed_s))
