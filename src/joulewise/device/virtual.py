"""VirtualGpu: a GPU that exists only as a law, on any time: one body (``board``), its instruments (``sensors``).

It is read like any other GPU (the ``Gpu`` protocol), works when it is given work, obeys settings with the delays of
real hardware, fails when told to, and knows its own truth, which no real GPU tells. It is not reached by other
processes; ``device/node`` puts it behind the virtual NVML for that.
"""

from __future__ import annotations

import math
import random
import threading
import uuid as uuids
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from joulewise.core.errors import BadSpec, GpuLost, NotPermitted, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import Loop, TimeSource
from joulewise.device.board import Board
from joulewise.device.gpu import GpuInfo
from joulewise.device.operating import Demand, Law
from joulewise.device.playlist import Phase
from joulewise.device.sensors import Sensors
from joulewise.device.state import Job
from joulewise.model.catalog import GpuModel
from joulewise.model.physics import Load

CONTEXT_BYTES = 512 * 2**20
"""What a process takes on a GPU if it does not say: about what CUDA reserves for a context on current GPUs."""

# Seconds and watts beyond any real work, where the law's powers would overflow; kernels are within 2 to 5 sharp.
_MOST, _SHARPEST = 1e6, 50.0
_MOST_STATIC = 10.0  # static power varies by some 10 % between loads

# A GPU was there before anybody looked: its sensors have had time to fill their longest window (1 s).
_PREHISTORY_S = 2.0


class Workload(Protocol):
    """What ``run`` and ``play`` take, such as ``model.workloads.get("transformer")``."""

    def phases(self) -> Iterator[Phase]:
        """Phases one after another, usually without end."""
        ...


@dataclass(frozen=True, slots=True)
class Truth:
    """What really is so, beyond all instruments."""

    time_s: float
    energy_j: float
    """Since the GPU was made."""
    power_w: float
    sm_mhz: float
    temperature_c: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with a GPU at the moment."""

    lost: bool = False
    no_permission: bool = False
    hung: bool = False
    unsupported: frozenset[str] = frozenset()
    """Of "energy_counter", "power", "limit_set", "sm_clock_set", "memory_clock_set", "gpm", "processes"."""
    slow_s: float = 0.0
    """What every call costs on top."""


class VirtualGpu:
    """One GPU of ``model``, living in ``time``. Safe to use from several threads.

    ``seed`` draws what differs between cards and runs: UUID, sensor gain (``gain=None``), phases of the sensors,
    switching times. ``law`` replaces the catalogue's law (see ``model/truth``), ``sensors`` its sensor timing.
    ``rewind_s`` lets work and settings happen up to so long ago (see ``device/news``).
    """

    def __init__(
        self,
        model: GpuModel,
        *,
        time: TimeSource,
        index: int = 0,
        uuid: str | None = None,
        seed: int = 0,
        law: Law | None = None,
        gain: float | None = None,
        sensors: SensorTiming | None = None,
        rewind_s: float = 0.0,
    ) -> None:
        self.model = model
        self._time = time
        draw = random.Random(f"card {model.key} {index} {seed}")
        drawn_uuid = f"GPU-{uuids.UUID(int=draw.getrandbits(128), version=4)}"
        timing = model.sensors if sensors is None else sensors
        drawn_gain = max(0.5, draw.gauss(1.0, timing.gain_error))
        now_s = time.now_s()
        seed = draw.getrandbits(32)
        self.board = Board(model, start_s=now_s - _PREHISTORY_S, law=law, seed=seed, rewind_s=rewind_s)
        self.sensors = Sensors(timing, self.board.trace, gain=drawn_gain if gain is None else gain, seed=seed)
        self.board.advance(now_s)
        self._faults = Faults()
        self._lock = threading.RLock()
        self._info = GpuInfo(
            uuid=uuid or drawn_uuid,
            name=model.name,
            index=index,
            backend="virtual",
            space=model.space,
            sensors=timing,
            idle_power_w=model.chip.idle_w,
            default_limit_w=model.default_limit_w,
            memory_bytes=int(model.memory_gib * 2**30),
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        )

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        return self._info

    @property
    def time(self) -> TimeSource:
        """The time in which this GPU lives."""
        return self._time

    # Reading.

    def read(self) -> Reading:
        """What the instruments show now. Raises GpuLost if the GPU is lost or hangs."""
        with self._lock:
            now_s = self._now()
            board, sensors, stretch = self.board, self.sensors, self.board.now
            no_power = "power" in self._faults.unsupported
            return Reading(
                time_s=now_s,
                power_w=None if no_power else sensors.power_w(now_s),
                average_power_w=None if no_power else sensors.average_power_w(now_s),
                power_limit_w=board.limit_w,
                sm_mhz=float(round(stretch.sm_mhz)),
                memory_mhz=float(round(stretch.memory_mhz)),
                utilization=sensors.utilization(now_s),
                memory_utilization=sensors.memory_utilization(now_s),
                temperature_c=float(round(board.state.temperature_c)),
                memory_used_bytes=sum(board.state.residents.values()),
                throttle=stretch.throttle,
            )

    def energy(self) -> EnergyReading:
        """The energy counter; it says what a call costs, but takes no time itself.

        Raises Unsupported where there is none, GpuLost if the GPU is lost or hangs.
        """
        with self._lock:
            now_s = self._now()
            energy_j = self.sensors.counter_j(now_s)
            if energy_j is None or "energy_counter" in self._faults.unsupported:
                raise Unsupported(f"{self} has no energy counter; joulewise integrates its power instead")
            return EnergyReading(now_s, energy_j, self.sensors.timing.counter_call_s + self._faults.slow_s)

    def processes(self) -> tuple[int, ...] | None:
        """Pids with work on this GPU; work without a pid (0) is not listed."""
        with self._lock:
            self._now()
            if "processes" in self._faults.unsupported:
                return None
            return tuple(sorted(pid for pid in self.board.state.residents if pid > 0))

    def truth(self) -> Truth:
        """What really is so; never fails."""
        with self._lock:
            now_s = self.advance()
            stretch = self.board.now
            return Truth(
                time_s=now_s,
                energy_j=self.board.trace.energy_j(now_s),
                power_w=stretch.power_w,
                sm_mhz=stretch.sm_mhz,
                temperature_c=self.board.state.temperature_c,
            )

    def advance(self) -> float:
        """Live up to now and say when that is. Reading does this too; jobs learn here that they are done."""
        with self._lock:
            now_s = max(self._time.now_s(), self.board.time_s)
            self.board.advance(now_s)
            return now_s

    # Setting.

    def apply(self, setting: Setting) -> None:
        """Ask for exactly ``setting``: knobs that it does not name go back to the driver. A clock is a ceiling.

        Raises Unsupported or OutOfRange for what this model cannot do, NotPermitted and GpuLost as faults say.
        """
        with self._lock:
            self._now()
            if self._faults.no_permission:
                raise NotPermitted(f"the driver lets nobody set {self}; clear the fault to go on")
            self.model.space.check(setting, gpu=str(self))
            for knob, group in (
                ("sm_mhz", "sm_clock_set"),
                ("memory_mhz", "memory_clock_set"),
                ("power_limit_w", "limit_set"),
            ):
                if knob in setting and group in self._faults.unsupported:
                    raise Unsupported(f"{knob} cannot be set on {self}; leave it to the driver")
            self.ask(_demand(setting, self.model))

    @property
    def asked_limit_w(self) -> float:
        """The power limit that was asked for last, or the default; ``read`` gives the one in force."""
        with self._lock:
            return self.board.asked_limit_w

    def hold_below(self, limit_w: float | None) -> None:
        """The board's controller (BMC) allows no more than ``limit_w``, whatever is asked for; None: it lets go."""
        if limit_w is not None and not 0 < limit_w < math.inf:
            raise BadSpec(f"limit_w={limit_w!r} is no power limit; give watts above 0, or None")
        with self._lock:
            self.board.hold_below(limit_w, self.advance())

    def ask(self, demand: Demand, at_s: float | None = None) -> None:
        """Ask for clock ranges and a limit, unchecked, now or as of ``at_s``."""
        with self._lock:
            self.board.ask(demand, self._moment(at_s))

    # Working.

    def submit(self, load: Load | Sequence[Load], pid: int = 0, start_s: float | None = None) -> Job:
        """Queue work for process ``pid``, now or as of ``start_s``; the job's ``finished_s`` is set once it is done.

        A ``start_s`` in the past begins there if it is within ``rewind_s``; one in the future waits for it. The
        process stays resident, and keeps the clocks up, until ``detach``. Raises BadSpec for what is no work.
        """
        loads = (load,) if isinstance(load, Load) else tuple(load)
        if not loads:
            raise BadSpec("no work was given; a job needs at least one load")
        for each in loads:
            _check(each)
        with self._lock:
            now_s = self.advance()
            at_s = now_s if start_s is None else min(start_s, now_s)
            job = Job(loads, pid, start_s=at_s if start_s is None else start_s)
            if pid not in self.board.state.residents:
                self.board.attach(pid, CONTEXT_BYTES if pid else 0, at_s)
            self.board.submit(job, at_s)
            return job

    def finish(self, job: Job) -> Loop[float]:
        """Wait until ``job`` is done; returns its ``finished_s``. Raises BadSpec if it will never be."""
        while job.finished_s is None:
            with self._lock:
                now_s = self.advance()
                expected_s = self.board.expected_s(job)
                wait_s = min(expected_s, self.board.now.end_s) - now_s
            if math.isinf(expected_s):
                raise BadSpec(f"{self} has no such work any more; its process was detached")
            yield max(wait_s, 1e-9)
        return job.finished_s

    def attach(self, pid: int, memory_bytes: int = CONTEXT_BYTES) -> None:
        """A process holds memory on this GPU from now on."""
        with self._lock:
            self.board.attach(pid, memory_bytes, self.advance())

    def detach(self, pid: int = 0) -> None:
        """A process is gone, and its work with it."""
        with self._lock:
            self.board.detach(pid, self.advance())

    def withdraw(self, jobs: Collection[Job]) -> None:
        """Take back jobs that are not done; one that is under way is broken off."""
        with self._lock:
            self.board.withdraw(jobs, self.advance())

    def play(self, workload: Workload, *, pid: int = 0, on_step: Callable[[float], None] | None = None) -> None:
        """Work through ``workload`` from now on; ``on_step`` hears the exact end of every training step.

        Nothing needs to run for this: the GPU lives its past when somebody looks.
        """
        with self._lock:
            memory_bytes = CONTEXT_BYTES if pid else 0
            self.board.play(workload.phases(), self.advance(), pid=pid, memory_bytes=memory_bytes, on_step=on_step)

    def run(self, workload: Workload, *, steps: int | None = None, pid: int = 0) -> Loop[None]:
        """Play ``workload`` as a loop that ends after ``steps`` training steps (None: never) and then detaches."""
        self.play(workload, pid=pid)
        before = self.board.state.steps
        while True:
            with self._lock:
                now_s = self.advance()
                if steps is not None and self.board.state.steps - before >= steps:
                    break
                wait_s = max(self.board.now.end_s - now_s, 1e-9)
            yield wait_s
        self.detach(pid)

    # Failing.

    def fault(
        self,
        *,
        lost: bool = False,
        no_permission: bool = False,
        hung: bool = False,
        unsupported: frozenset[str] = frozenset(),
        slow_s: float = 0.0,
    ) -> None:
        """From now on exactly these things are wrong."""
        with self._lock:
            self._faults = Faults(lost, no_permission, hung, unsupported, slow_s)

    def clear(self) -> None:
        """Nothing is wrong any more."""
        self.fault()

    def reload_driver(self) -> None:
        """The driver is reloaded: the energy counter begins at 0 and every setting is the default."""
        with self._lock:
            now_s = self.advance()
            self.board.reload(now_s)
            self.sensors.reset_counter(now_s)

    def __str__(self) -> str:
        return f"{self._info.uuid[:8]} ({self._info.name})"

    def _moment(self, at_s: float | None) -> float:
        now_s = self.advance()
        return now_s if at_s is None else min(at_s, now_s)

    def _now(self) -> float:
        """The present, if the GPU answers at all."""
        if self._faults.lost:
            raise GpuLost(f"{self} fell off the bus; later calls will fail too")
        if self._faults.hung:
            raise GpuLost(f"{self} does not answer; its driver hangs")
        return self.advance()


def _demand(setting: Setting, model: GpuModel) -> Demand:
    """A clock is a ceiling: a lock from the lowest clock there is up to it."""
    sm_mhz, memory_mhz = setting.get("sm_mhz"), setting.get("memory_mhz")
    return Demand(
        sm_mhz=None if sm_mhz is None else (model.sm_mhz.low, sm_mhz),
        memory_mhz=None if memory_mhz is None else (model.memory_mhz.low, memory_mhz),
        limit_w=setting.get("power_limit_w"),
    )


def _check(load: Load) -> None:
    """Raise BadSpec unless the law means something for ``load``."""
    numbers = (load.gpu_s, load.sm_share, load.dynamic_w, load.host_s, load.dram_share, load.sharpness)
    kept = (
        all(0 <= number <= _MOST for number in numbers)
        and 0 <= load.static_part <= _MOST_STATIC
        and load.gpu_s + load.host_s > 0
        and load.sm_share + load.dram_share <= 1 + 1e-9
        and 1 <= load.sharpness <= _SHARPEST
    )
    if not kept:
        raise BadSpec(
            f"{load} is no work: seconds and watts start at 0, gpu_s + host_s above it, shares add up to 1 at most"
        )
