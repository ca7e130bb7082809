"""Power and clocks of a whole run in bounded memory, for the sparkline and the plot.

A run may last days; a terminal is a hundred characters wide. Readings fall into bins of equal length, and when
the bins run out, neighbours are merged and each becomes twice as long. It sits between the sampler and the
recording (it has the recorder's face), so that nothing is read twice. Not a measurement: joules come from the
monitor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from joulewise.core.measurement import EnergyReading, Reading

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Bin:
    """The readings of one stretch of time, summed up."""

    samples: int = 0
    power_w_sum: float = 0.0
    low_w: float = float("inf")
    high_w: float = 0.0
    clock_samples: int = 0
    sm_mhz_sum: float = 0.0
    limit_w: float | None = None

    def add(self, reading: Reading) -> None:
        """Take in one reading; what it does not know is left out."""
        if reading.power_w is not None:
            self.samples += 1
            self.power_w_sum += reading.power_w
            self.low_w = min(self.low_w, reading.power_w)
            self.high_w = max(self.high_w, reading.power_w)
        if reading.sm_mhz is not None:
            self.clock_samples += 1
            self.sm_mhz_sum += reading.sm_mhz
        if reading.power_limit_w is not None:
            self.limit_w = reading.power_limit_w

    def merged(self, later: Bin) -> Bin:
        """This bin and the one after it as one."""
        return Bin(
            self.samples + later.samples,
            self.power_w_sum + later.power_w_sum,
            min(self.low_w, later.low_w),
            max(self.high_w, later.high_w),
            self.clock_samples + later.clock_samples,
            self.sm_mhz_sum + later.sm_mhz_sum,
            later.limit_w if later.limit_w is not None else self.limit_w,
        )

    @property
    def power_w(self) -> float | None:
        """Mean power, or None where nothing was read."""
        return self.power_w_sum / self.samples if self.samples else None

    @property
    def sm_mhz(self) -> float | None:
        """Mean SM clock, or None where nothing was read."""
        return self.sm_mhz_sum / self.clock_samples if self.clock_samples else None


class Series:
    """One GPU over time: at most ``capacity`` bins of ``width_s`` seconds, from ``start_s`` on."""

    def __init__(self, *, capacity: int = 1200, width_s: float = 0.1) -> None:
        self.capacity = capacity
        self.width_s = width_s
        self.start_s: float | None = None
        self.bins: list[Bin] = []
        self.last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Take in a reading; one from before the first is counted as the first moment's."""
        self.last = reading
        if self.start_s is None:
            self.start_s = reading.time_s
        place = max(0, int((reading.time_s - self.start_s) / self.width_s))
        while place >= self.capacity:
            self._merge()
            place //= 2
        while len(self.bins) <= place:
            self.bins.append(Bin())
        self.bins[place].add(reading)

    def _merge(self) -> None:
        if len(self.bins) % 2:
            self.bins.append(Bin())
        self.bins = [early.merged(late) for early, late in zip(self.bins[::2], self.bins[1::2], strict=True)]
        self.width_s *= 2

    @property
    def end_s(self) -> float:
        """Where the last bin ends; 0 while there is none."""
        return (self.start_s or 0.0) + len(self.bins) * self.width_s

    def power_w(self) -> list[float | None]:
        """Mean power of each bin; one empty bin between two is a late reading, more are a gap and None."""
        means = [part.power_w for part in self.bins]
        for place in range(1, len(means) - 1):
            if means[place] is None and means[place + 1] is not None:
                means[place] = means[place - 1]
        return means

    def peak_w(self) -> float | None:
        """The highest reading, or None where there was none."""
        return max((part.high_w for part in self.bins if part.samples), default=None)

    def top_w(self) -> float | None:
        """Where a curve's scale ends: at the power limit, or at the highest reading if that is above it."""
        limits_w = [part.limit_w for part in self.bins if part.limit_w is not None]
        return max((*limits_w[-1:], *filter(None, (self.peak_w(),))), default=None)

    def low_w(self) -> float | None:
        """The lowest reading, or None where there was none."""
        return min((part.low_w for part in self.bins if part.samples), default=None)


class Recording(Protocol):
    """Where readings go on to; ``device.recording.Recorder`` is one."""

    def reading(self, index: int, reading: Reading) -> None:
        """Take one reading."""
        ...

    def energy(self, index: int, energy: EnergyReading) -> None:
        """Take one look at a counter."""
        ...


class History:
    """A Series for each GPU, filled as the sampler reads; what it gets it passes on to ``recorder``."""

    def __init__(self, gpus: int, *, interval_s: float = 0.1, recorder: Recording | None = None) -> None:
        self.series = [Series(width_s=interval_s) for _ in range(gpus)]
        self._recorder = recorder
        self._ended = False

    def end(self) -> None:
        """Keep no more readings: what follows is drawn while the sampler may still run."""
        self._ended = True

    def reading(self, index: int, reading: Reading) -> None:
        """Keep one reading of GPU number ``index``."""
        if not self._ended:
            self.series[index].add(reading)
        if self._recorder is not None:
            self._recorder.reading(index, reading)

    def energy(self, index: int, energy: EnergyReading) -> None:
        """A look at the counter; not kept."""
        if self._recorder is not None:
            self._recorder.energy(index, energy)


def squeezed(values: Sequence[float | None], width: int) -> list[float | None]:
    """``values`` as at most ``width`` means over equal stretches; a stretch without values is None."""
    if len(values) <= width:
        return list(values)
    result: list[float | None] = []
    for place in range(width):
        stretch = values[place * len(values) // width : (place + 1) * len(values) // width]
        known = [value for value in stretch if value is not None]
        result.append(sum(known) / len(known) if known else None)
    return result


def sparkline(values: Sequence[float | None], *, width: int, top: float | None = None) -> str:
    """Bars from 0 to ``top`` (default: the highest value) in one line; a gap where there is no value."""
    shown = squeezed(values, width)
    highest = top if top is not None else max((value for value in shown if value is not None), default=0.0)
    if highest <= 0:
        return " " * len(shown)
    steps = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[min(steps, max(0, round(value / highest * steps)))] for value in shown
    )
