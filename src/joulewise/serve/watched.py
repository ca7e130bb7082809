"""One GPU as the server watches it: the last reading, its joules, ten minutes of curve. It decides nothing but when to
ask the driver for what is dear.

Why not the sampler of ``joulewise run``: that one polls ten times a second and takes the GPU's lock for it, and a
server that is always there would keep the lock from every run that measures. This one looks once a second, takes
nothing, and rests its joules on the GPU's own counter. What it is not: a measurement with errors, which is a window's
(``monitor/window``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulewise.core.errors import GpuError, GpuLost, Unsupported
from joulewise.core.knob import SM_MHZ
from joulewise.core.measurement import Reading, Source, Throttle
from joulewise.device.gpu import Gpu
from joulewise.device.saved import command_of

KEPT_S = 600.0
"""How much of the past is remembered."""
POINTS = 300
"""Of a curve that is handed out: as many as a small chart has pixels for."""
_COUNTER_SHARE = 0.001
"""CPU share of one core that unasked looks at all counters may cost; a call took 3.45 ms on an H200."""
_SUMMED_S = 0.1
"""How often power is read where there is no counter and joules are its sum."""
_HOLE_S = 10.0
"""A longer time without a reading is not bridged: what was drawn in it is not known."""
_PROCESSES_EVERY_S = 10.0
"""Process lists cost the driver milliseconds."""
_RETRY_S = 30.0
"""How often a GPU that was lost is asked whether it is back."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process with work on a GPU. ``name`` is its program's, never its arguments; empty where unknown."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The last ten minutes, oldest first; None where nothing was read. Times are seconds since 1970."""

    time_s: tuple[float, ...]
    power_w: tuple[float | None, ...]
    sm_mhz: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU as last seen; what is not known is None. ``power_w`` is the driver's mean over a second where it has
    one. ``energy_j``: since the server was started. ``reason``: why there is no reading."""

    uuid: str
    index: int
    name: str
    node: str
    virtual: bool
    power_w: float | None
    limit_w: float | None
    default_limit_w: float | None
    sm_mhz: float | None
    sm_max_mhz: float | None
    memory_mhz: float | None
    temperature_c: float | None
    utilization: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    energy_j: float | None
    throttle: tuple[str, ...] | None
    processes: tuple[Process, ...] | None
    held_by: str | None
    reason: str | None
    history: Curve | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Joules that only grow: of the GPU's own counter, since its driver was loaded; else summed from power since we
    look."""

    energy_j: float
    source: Source


class WatchedGpu:
    """``gpu``, looked at by one thread; what it shows is put together by whoever holds ``LiveGpus``' lock.

    ``now`` is a monotonic clock, ``unix`` seconds since 1970. Nothing here raises.
    """

    def __init__(self, gpu: Gpu, *, interval_s: float, now: Callable[[], float], unix: Callable[[], float]) -> None:
        self.gpu = gpu
        self.reading: Reading | None = None
        self.seen_s = -math.inf
        """When it was last read, by ``now``."""
        self.lost: str | None = None
        """Why it cannot be read any more; None while it can."""
        self.trouble: str | None = None
        """Why the last look failed; a single one that does is no news."""
        self.has_counter = gpu.info.sensors.counter_update_s is not None
        self.counted_s = -math.inf
        """When the counter was last looked at."""
        self.spent_j = 0.0
        """Since the first look; as of the last look at the counter, where it has one."""
        self.energy_j = 0.0
        """The same as of the last reading: what was drawn since the counter was looked at is the sum of power, until it
        is looked at again. It never falls."""
        self.processes: tuple[Process, ...] | None = None
        self._shown_j: float | None = None
        self._since_j = 0.0
        self._call_s = gpu.info.sensors.counter_call_s
        self._interval_s, self._now, self._unix = interval_s, now, unix
        self._due_s = self._processes_due_s = self._kept_s = -math.inf
        self._past: deque[tuple[float, float | None, float | None]] = deque(maxlen=max(1, round(KEPT_S / interval_s)))

    @property
    def pace_s(self) -> float:
        """How long it wants to be left alone between two looks."""
        return self._interval_s if self.has_counter else min(self._interval_s, _SUMMED_S)

    def look(self, *, counters: bool, watched: int) -> None:
        """Read it if that is due. ``counters``: its joules of now, whatever that costs; else its counter only now and
        then, with ``watched`` GPUs that share what it may cost."""
        now_s = self._now()
        if now_s >= self._due_s or (counters and not self.has_counter and self.lost is None):
            self._read(now_s)
        dear_s = self._call_s * watched / _COUNTER_SHARE
        if self.has_counter and self.lost is None and (counters or now_s - self.counted_s >= dear_s):
            self._count(now_s)
        self.energy_j = max(self.energy_j, self.spent_j + self._since_j)
        if self.lost is None and now_s >= self._processes_due_s:
            self._processes_due_s = now_s + _PROCESSES_EVERY_S
            self.processes = _processes(self.gpu)

    def counted(self, stale_s: float) -> Counted | None:
        """Its joules; None where they are not known, or were last seen more than ``stale_s`` ago."""
        at_s = self.counted_s if self.has_counter else self.seen_s
        if self.lost is not None or self._now() - at_s > stale_s:
            return None
        if not self.has_counter:
            return Counted(self.spent_j, Source.INTEGRATED)
        return None if self._shown_j is None else Counted(self._shown_j, Source.COUNTER)

    def shown(self, *, node: str, virtual: bool, held_by: str | None, stale_s: float, history: bool) -> GpuNow:
        """How it is. A reading older than ``stale_s`` is none."""
        info = self.gpu.info
        silent_s = self._now() - self.seen_s
        fresh = self.lost is None and silent_s <= stale_s
        reading = self.reading if fresh and self.reading is not None else Reading(self.gpu.time.now_s())
        reason = None if fresh else self.lost or self.trouble or _silence(silent_s)
        clocks = info.space.knobs.get(SM_MHZ.name)
        return GpuNow(
            uuid=info.uuid,
            index=info.index,
            name=info.name,
            node=node,
            virtual=virtual or info.backend == "virtual",
            power_w=power_of(reading),
            limit_w=reading.power_limit_w,
            default_limit_w=info.default_limit_w,
            sm_mhz=reading.sm_mhz,
            sm_max_mhz=clocks.high if clocks is not None else None,
            memory_mhz=reading.memory_mhz,
            temperature_c=reading.temperature_c,
            utilization=reading.utilization,
            memory_used_bytes=reading.memory_used_bytes,
            memory_bytes=info.memory_bytes,
            energy_j=self.energy_j if math.isfinite(self.counted_s if self.has_counter else self.seen_s) else None,
            throttle=_in_words(reading),
            processes=self.processes if fresh else None,
            held_by=held_by,
            reason=reason,
            history=thinned(self._lately(), POINTS) if history else None,
        )

    def _lately(self) -> list[tuple[float, float | None, float | None]]:
        since_s = self._unix() - KEPT_S
        return [each for each in tuple(self._past) if each[0] >= since_s]

    def _read(self, now_s: float) -> None:
        before = self.reading
        try:
            reading = self.gpu.read()
        except GpuLost as error:
            self.lost, self.reading, self._due_s = str(error), None, now_s + _RETRY_S
            self._shown_j = None  # what its counter shows when it is back may be of another life
            self.spent_j, self._since_j = self.spent_j + self._since_j, 0.0
            self._past.append((self._unix(), None, None))
            return
        except GpuError as error:
            self.trouble, self._due_s = str(error), now_s + 0.9 * self._interval_s
            return
        self.reading, self.seen_s, self.lost, self.trouble = reading, now_s, None, None
        # A little less, so that a look that comes a moment early is not put off by a whole turn.
        self._due_s = now_s + 0.9 * self.pace_s
        if self.has_counter:
            self._since_j += _drawn_j(before, reading, power_of)
        else:
            self.spent_j += _drawn_j(before, reading, lambda read: read.power_w)
        if now_s - self._kept_s >= 0.9 * self._interval_s:
            if max(_HOLE_S, 3 * self._interval_s) < now_s - self._kept_s < math.inf:
                self._past.append((self._unix(), None, None))  # nobody knows what was drawn meanwhile
            self._kept_s = now_s
            self._past.append((self._unix(), power_of(reading), reading.sm_mhz))

    def _count(self, now_s: float) -> None:
        try:
            shown = self.gpu.energy()
        except Unsupported:
            self.has_counter = False
            self.spent_j, self._since_j = self.spent_j + self._since_j, 0.0
            return
        except GpuError:
            return  # a read will say what is wrong, if it lasts
        self._call_s += 0.2 * (shown.call_s - self._call_s)
        if self._shown_j is not None:
            # A counter that fell has begun anew with its driver: it shows what was drawn since then.
            fell = shown.energy_j < self._shown_j
            self.spent_j += shown.energy_j if fell else shown.energy_j - self._shown_j
        self._shown_j, self.counted_s, self._since_j = shown.energy_j, now_s, 0.0


def _drawn_j(before: Reading | None, reading: Reading, power_w: Callable[[Reading], float | None]) -> float:
    """Joules between two readings; 0 where that is not known."""
    if before is None or not 0 < (passed_s := reading.time_s - before.time_s) <= _HOLE_S:
        return 0.0
    from_w, to_w = power_w(before), power_w(reading)
    return 0.0 if from_w is None or to_w is None else 0.5 * (from_w + to_w) * passed_s


def power_of(reading: Reading) -> float | None:
    """The driver's mean over a second where it has one: looked at once a second, an instant says little of a job
    whose steps are shorter."""
    return reading.power_w if reading.average_power_w is None else reading.average_power_w


def thinned(past: Sequence[tuple[float, float | None, float | None]], most: int) -> Curve:
    """``past`` (time, power, clock) in at most ``most`` points, each the mean of as many neighbours; none of those that
    have a hole among them, so that no line is drawn across it."""
    many = max(1, math.ceil(len(past) / most))
    groups = [past[start : start + many] for start in range(0, len(past), many)]
    return Curve(
        tuple(group[-1][0] for group in groups),
        tuple(_mean(group, [power_w for _, power_w, _ in group]) for group in groups),
        tuple(_mean(group, [sm_mhz for _, _, sm_mhz in group]) for group in groups),
    )


def _mean(group: Sequence[tuple[float, float | None, float | None]], values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    hole = any(power_w is None and sm_mhz is None for _, power_w, sm_mhz in group)
    return sum(known) / len(known) if known and not hole else None


def _in_words(reading: Reading) -> tuple[str, ...] | None:
    if reading.throttle is None:
        return None
    return tuple(reason.value for reason in Throttle if reason in reading.throttle)


def _processes(gpu: Gpu) -> tuple[Process, ...] | None:
    try:
        pids = gpu.processes()
    except GpuError:
        return None
    return None if pids is None else tuple(Process(pid, command_of(pid)) for pid in pids)


def _silence(silent_s: float) -> str:
    if not math.isfinite(silent_s):
        return "not read yet"
    return f"no answer for {silent_s:.0f} s; the driver may hang, see 'joulewise doctor'"


Holders = Callable[[], Mapping[str, str] | None]
"""GPU → who holds a lease on it, in words; None where nobody can tell."""
