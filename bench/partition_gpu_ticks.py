"""Power of a steady load from the moments at which a GPU's energy counter moves; and the thread that watches them.

The counter moves every 0.1 s or so. Between two of its movements the energy is exact, and the time is known as well as
the counter was looked at: every 3.5 ms on an H200, so a window of 1 s between movements is good to 0.15 %, where one
that begins and ends anywhere is off by up to a tick at each end. What it is not: a measurer of work that changes;
that is ``joulewise.monitor``.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from joulewise.core.measurement import EnergyReading, Reading, Throttle
from joulewise.device.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Tick:
    """One movement of the counter: when, ± one standard error, and what it showed from then on."""

    time_s: float
    error_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Power:
    """Between the first and the last tick of a window."""

    power_w: float
    error_w: float
    drift: float
    """Power of its second half over that of its first; 1 where there are too few ticks to tell."""
    duration_s: float


def ticks(readings: Sequence[EnergyReading]) -> list[Tick]:
    """Movements between neighbouring readings; each anywhere between the middles of their calls."""
    found = []
    for a, b in pairwise(readings):
        if b.energy_j != a.energy_j:
            low, high = a.time_s + a.call_s / 2, b.time_s + b.call_s / 2
            found.append(Tick((low + high) / 2, (high - low) / math.sqrt(12.0), b.energy_j))
    return found


def power(window: Sequence[Tick]) -> Power:
    """Of a steady load. ValueError with fewer than two ticks."""
    if len(window) < 2:
        raise ValueError(f"{len(window)} movements of the energy counter are no window; measure longer")
    first, middle, last = window[0], window[len(window) // 2], window[-1]
    took_s = last.time_s - first.time_s
    power_w = (last.energy_j - first.energy_j) / took_s
    drift = 1.0
    if len(window) >= 5:
        before = (middle.energy_j - first.energy_j) / (middle.time_s - first.time_s)
        drift = (last.energy_j - middle.energy_j) / (last.time_s - middle.time_s) / before
    return Power(power_w, power_w * math.hypot(first.error_s, last.error_s) / took_s, drift, took_s)


@dataclass
class Watch:
    """Reads a GPU in a thread until its counter has moved over ``window_s``, after ``lead_s`` that do not count."""

    gpu: Gpu
    lead_s: float
    window_s: float
    energies: list[EnergyReading] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    error: BaseException | None = None

    def start(self) -> Watch:
        """Begin; the load is running already."""
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    @property
    def done(self) -> bool:
        """Whether the window is over, well or not."""
        return not self._thread.is_alive()

    def result(self) -> Power:
        """What was found. Raises what went wrong in the thread."""
        self._thread.join()
        if self.error is not None:
            raise self.error
        return power(ticks(self.energies))

    def mean(self, name: str) -> float | None:
        """Of a reading's field over the window; None where the GPU does not say."""
        seen = [value for reading in self.readings if (value := getattr(reading, name)) is not None]
        return statistics.fmean(seen) if seen else None

    def spread(self, name: str) -> float | None:
        """Standard deviation of a reading's field over the window."""
        seen = [value for reading in self.readings if (value := getattr(reading, name)) is not None]
        return statistics.pstdev(seen) if seen else None

    def capped_share(self) -> float | None:
        """Share of readings in which the power cap held the clock down."""
        seen = [Throttle.POWER_CAP in reading.throttle for reading in self.readings if reading.throttle is not None]
        return statistics.fmean(seen) if seen else None

    def _loop(self) -> None:
        try:
            time.sleep(self.lead_s)
            until_s = time.monotonic() + 3.0 * self.window_s + 1.0
            first_s: float | None = None
            while True:
                self.energies.append(self.gpu.energy())
                self.readings.append(self.gpu.read())
                if len(self.energies) > 1 and self.energies[-1].energy_j != self.energies[-2].energy_j:
                    now_s = self.energies[-1].time_s
                    first_s = now_s if first_s is None else first_s
                    if now_s - first_s >= self.window_s:
                        return
                if time.monotonic() > until_s:
                    raise TimeoutError(f"the energy counter did not move over {self.window_s:g} s in three times that")
        except BaseException as error:  # whoever waits for the result hears of it
            self.error = error
