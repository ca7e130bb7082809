"""The shared memory between the simulator and every process that loaded the virtual NVML, as Python sees it.

A simulator owns one directory, named to clients by the environment variable ``JOULEWISE_VNVML``:

``state``  the mapped structs of ``vnvml_structs``
``lock``   the simulator holds an open-file-description write lock on it while it lives; the kernel lets go when it
           dies, however it dies, and from then on every NVML call answers DRIVER_NOT_LOADED
``wake``   a datagram socket; the library sends one byte after each setter, so that the simulator reacts at once

``state`` is writable by everyone (0666) if ``everyone_may_write``, else by its owner and root alone (0644): setters
write into it, so the file system itself enforces who may set. A reader needs no more than read permission.

This module carries values; it simulates nothing. Milliwatts and millijoules are NVML's own units.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from joulewise.core.errors import BadSpec, GpuLost, NotPermitted
from joulewise.device import vnvml_structs as structs
from joulewise.device.vnvml_files import bind_wake, is_locked, take_lock, user_namespace
from joulewise.device.vnvml_structs import GPM_METRICS, NONE_64, Group
from joulewise.device.vnvml_values import (
    Control,
    GpuIdentity,
    Knobs,
    Values,
    describe,
    fill_processes,
    range_of,
    word_of,
)

__all__ = ["ENVIRONMENT", "Control", "GpuIdentity", "Group", "Knobs", "Values", "VnvmlState"]

ENVIRONMENT = "JOULEWISE_VNVML"
"""Names the directory of the simulator that a process shall see."""


class VnvmlState:
    """One simulator's shared memory: made by the simulator (``create``), or looked into by others (``open``).

    One thread publishes; any may read. The creator lives as long as this object: ``close`` (or the end of the process)
    is the death of the simulator in every client's eyes. Never fork without exec while holding one: a forked child
    would keep the lock, and with it the appearance of life.
    """

    def __init__(
        self, directory: Path, state_map: mmap.mmap, lock_fd: int, wake: socket.socket | None, *, writable: bool
    ) -> None:
        self.directory = directory
        self.wake = wake
        """Readable when a client has set something; None where this object did not create the state."""
        self._map = state_map
        self._lock_fd = lock_fd
        self._creator = wake is not None
        self._writable = writable
        self._state: Any = structs.State.from_buffer(state_map)
        self._gpus: list[Any] = [self._state.gpus[i] for i in range(self._state.header.gpu_count)]
        # publish() fills these aside and copies them over in one go, so that a sequence lock is held for a microsecond.
        self._scratch: list[Any] = [structs.Published.from_buffer_copy(gpu.published) for gpu in self._gpus]

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        gpus: Sequence[GpuIdentity],
        *,
        speed: float = 1.0,
        everyone_may_write: bool = False,
        driver_version: str = "580.95.05",
        nvml_version: str = "13.580.95.05",
        cuda_version: int = 13000,
    ) -> Self:
        """Become the simulator of ``directory`` (made if missing), with nothing published yet.

        Left-overs of a dead simulator are replaced. Raises BadSpec if one is alive there, or if a GPU does not fit
        the layout.
        """
        if not 0 < len(gpus) <= structs.MAX_GPUS:
            raise BadSpec(f"{len(gpus)} virtual GPUs asked for; a simulator has 1 to {structs.MAX_GPUS}")
        state = structs.State()
        for index, gpu in enumerate(gpus):
            describe(state.gpus[index], gpu)
        path = Path(directory)
        if not path.is_dir():
            path.mkdir(parents=True)
            path.chmod(0o755)  # whatever the umask: other users' clients look in here
        lock_fd = take_lock(path)
        try:
            header: Any = state.header
            header.magic, header.layout_version = structs.MAGIC, structs.LAYOUT_VERSION
            header.state_size = ctypes.sizeof(structs.State)
            header.gpu_count = len(gpus)
            header.flags = structs.EVERYONE_MAY_WRITE if everyone_may_write else 0
            header.simulator_pid = os.getpid()
            header.lock_inode = os.fstat(lock_fd).st_ino
            header.origin_ns = state.clock.monotonic_ns = time.monotonic_ns()
            header.user_namespace = user_namespace()
            state.clock.speed = speed
            header.driver_version, header.nvml_version = driver_version.encode(), nvml_version.encode()
            header.cuda_version = cuda_version
            wake = bind_wake(path, everyone_may_write)
            # A client either finds no state or a whole one.
            unfinished = path / f"state.{os.getpid()}"
            unfinished.write_bytes(bytes(state))
            unfinished.chmod(0o666 if everyone_may_write else 0o644)
            state_map = _map_state(unfinished, writable=True)
            unfinished.rename(path / "state")
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, state_map, lock_fd, wake, writable=True)

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Self:
        """Look into a running simulator. Raises GpuLost if none runs there, BadSpec if it is of another version."""
        path = Path(directory)
        try:
            lock_fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise GpuLost(f"no simulator runs in {path} ({error}); start one with 'joulewise sim'") from error
        try:
            writable = os.access(path / "state", os.W_OK)
            state_map = _map_state(path / "state", writable=writable)
            mine = structs.Header.from_buffer_copy(state_map).lock_inode == os.fstat(lock_fd).st_ino
            if not mine or not is_locked(lock_fd):
                raise GpuLost(f"the simulator in {path} has ended; start one with 'joulewise sim'")
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, state_map, lock_fd, None, writable=writable)

    def __len__(self) -> int:
        """How many GPUs there are."""
        return len(self._gpus)

    def alive(self) -> bool:
        """Whether the simulator lives."""
        if self._lock_fd < 0:
            return False
        return self._creator or is_locked(self._lock_fd)

    @property
    def speed(self) -> float:
        """Simulated seconds per second."""
        return float(self._state.clock.speed)

    @property
    def driver_generation(self) -> int:
        """How often the driver was reloaded."""
        return int(self._state.header.driver_generation)

    def publish_time(self, simulated_ns: int, *, monotonic_ns: int | None = None) -> None:
        """Simulated time is ``simulated_ns`` now (or was, at ``monotonic_ns``)."""
        clock = self._state.clock
        clock.sequence += 1
        _fence()
        clock.simulated_ns = simulated_ns
        clock.monotonic_ns = time.monotonic_ns() if monotonic_ns is None else monotonic_ns
        _fence()
        clock.sequence += 1

    def simulated_ns(self) -> int:
        """Simulated time now, run on from what was last published."""
        clock = self._state.clock
        while True:
            before = clock.sequence
            copy: Any = structs.Clock.from_buffer_copy(clock)
            _fence()
            if before % 2 == 0 and clock.sequence == before:
                return int(copy.simulated_ns + (time.monotonic_ns() - copy.monotonic_ns) * copy.speed)
            self._require_life()

    def publish(self, index: int, **values: Unpack[Values]) -> None:
        """Show new sensor values of GPU ``index``, all at once: no reader sees some new and some old."""
        gpu, scratch = self._gpus[index], self._scratch[index]
        for name, value in values.items():
            if name == "processes":
                fill_processes(scratch, values["processes"])
            elif name == "gpm_integral":
                for metric, integral in values["gpm_integral"].items():
                    slot = GPM_METRICS.index(metric)
                    scratch.gpm_integral[slot] = integral
                    scratch.gpm_slots |= 1 << slot
            else:
                # ctypes keeps the low bits: all ones in any width.
                setattr(scratch, name, NONE_64 if value is None else value)
        sequence = gpu.published_sequence
        gpu.published_sequence = sequence + 1
        _fence()
        gpu.published = scratch
        _fence()
        gpu.published_sequence = sequence + 2

    def shown_ns(self, index: int) -> int:
        """The simulated time of what is published for GPU ``index``."""
        return int(self._gpus[index].published.simulated_ns)

    def latency_s(self, index: int, group: Group) -> float:
        """Wall seconds that a call of ``group`` is made to take on GPU ``index``."""
        return float(self._gpus[index].faults.latency_us[group]) / 1e6

    def published(self, index: int) -> Any:
        """A consistent copy of what is published for GPU ``index`` (a ``vnvml_structs.Published``)."""
        gpu = self._gpus[index]
        while True:
            before = gpu.published_sequence
            copy = structs.Published.from_buffer_copy(gpu.published)
            _fence()
            if before % 2 == 0 and gpu.published_sequence == before:
                return copy
            self._require_life()

    def append_sample(
        self,
        index: int,
        *,
        power_mw: int,
        utilisation_gpu_percent: int,
        utilisation_memory_percent: int,
        sm_mhz: int,
        memory_mhz: int,
        timestamp_us: int | None = None,
    ) -> None:
        """Append to the driver's ring, stamped now (CLOCK_REALTIME) unless told otherwise."""
        gpu = self._gpus[index]
        head = gpu.samples_head
        stamp_us = time.time_ns() // 1000 if timestamp_us is None else timestamp_us
        gpu.samples[head % structs.SAMPLES] = structs.Sample(
            stamp_us, power_mw, utilisation_gpu_percent, utilisation_memory_percent, sm_mhz, memory_mhz
        )
        _fence()
        gpu.samples_head = head + 1

    def read_control(self, index: int) -> Control:
        """What clients have asked of GPU ``index``."""
        words = self._gpus[index].control
        while True:
            before = words.sequence
            copy: Any = structs.ControlWords.from_buffer_copy(words)
            _fence()
            if words.sequence == before:
                break
        return Control(
            power_limit_mw=copy.power_limit_mw,
            sm_lock_mhz=range_of(copy.sm_lock),
            memory_lock_mhz=range_of(copy.memory_lock),
            persistence=bool(copy.persistence),
            sequence=copy.sequence,
            written_ns=copy.written_ns,
            writer_pid=copy.writer_pid,
        )

    def write_control(self, index: int, **knobs: Unpack[Knobs]) -> None:
        """Set knobs of GPU ``index`` unchecked, as a foreign client would: for faults and for ``reload_driver``."""
        self._require_writable()
        words = self._gpus[index].control
        if "power_limit_mw" in knobs:
            words.power_limit_mw = knobs["power_limit_mw"]
        if "sm_lock_mhz" in knobs:
            words.sm_lock = word_of(knobs["sm_lock_mhz"])
        if "memory_lock_mhz" in knobs:
            words.memory_lock = word_of(knobs["memory_lock_mhz"])
        if "persistence" in knobs:
            words.persistence = knobs["persistence"]
        words.writer_pid, words.written_ns = os.getpid(), time.monotonic_ns()
        _fence()
        words.sequence += 1

    def reload_driver(self) -> None:
        """Limits and locks are the defaults again, as after a driver reload; the counters are the caller's to clear."""
        for index in range(len(self._gpus)):
            self.reset_control(index)
        self._state.header.driver_generation += 1

    def reset_control(self, index: int) -> None:
        """The limit of GPU ``index`` is the default again, and its clocks are not locked."""
        default_mw = self._gpus[index].identity.limit_default_mw
        self.write_control(index, power_limit_mw=default_mw, sm_lock_mhz=None, memory_lock_mhz=None)

    def set_fault(
        self,
        index: int,
        *,
        lost: bool | None = None,
        no_permission: bool | None = None,
        hang: bool | None = None,
        mig: bool | None = None,
        bmc_limit_mw: int | None = None,
        unsupported: Collection[Group] | None = None,
        latency_us: Mapping[Group, int] | None = None,
    ) -> None:
        """Set or clear faults of GPU ``index``; what is not given stays.

        ``unsupported`` replaces the whole set; a ``bmc_limit_mw`` of 0 is none.
        """
        self._require_writable()
        faults = self._gpus[index].faults
        flags = faults.flags
        for bit, wanted in (
            (structs.FAULT_LOST, lost),
            (structs.FAULT_NO_PERMISSION, no_permission),
            (structs.FAULT_HANG, hang),
            (structs.FAULT_MIG, mig),
        ):
            if wanted is not None:
                flags = flags | bit if wanted else flags & ~bit
        faults.flags = flags
        if bmc_limit_mw is not None:
            faults.bmc_limit_mw = bmc_limit_mw
        if unsupported is not None:
            faults.unsupported = sum(1 << group for group in set(unsupported))
        for group, microseconds in (latency_us or {}).items():
            faults.latency_us[group] = microseconds

    def _require_life(self) -> None:
        """A sequence lock that stays shut was left so by a simulator that died in the middle of a write."""
        if not self.alive():
            raise GpuLost(f"the simulator in {self.directory} has ended; start one with 'joulewise sim'")

    def _require_writable(self) -> None:
        if not self._writable:
            raise NotPermitted(f"{self.directory / 'state'} may not be written by this user; ask its owner or root")

    def drain_wake(self) -> None:
        """Swallow the bytes that clients sent, so that ``wake`` is readable only after the next setter."""
        if self.wake is not None:
            with suppress(BlockingIOError):
                while True:
                    self.wake.recv(64)

    def close(self) -> None:
        """Let go; if this object created the state, the simulator is dead from here on. Idempotent."""
        if self._lock_fd < 0:
            return
        if self.wake is not None:
            self.wake.close()
            for name in ("wake", "state", "lock"):
                (self.directory / name).unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = -1
        self._gpus.clear()
        self._state = None
        with suppress(BufferError):  # someone still holds a view; the mapping goes with it
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_fence_lock = threading.Lock()


def _fence() -> None:
    """Order the stores before against those after, on machines that would reorder them (ARM; x86 does not).

    A release followed by an acquire is ordered on both sides, which is what the sequence lock's writer needs.
    """
    with _fence_lock:
        pass
    with _fence_lock:
        pass


def _map_state(path: Path, *, writable: bool) -> mmap.mmap:
    """The mapped file. GpuLost if there is none, BadSpec if it is of another layout."""
    try:
        with path.open("r+b" if writable else "rb") as file:
            # A private mapping of a file that we may not write still follows it while we write nothing.
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
            state_map = mmap.mmap(file.fileno(), 0, access=access)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise GpuLost(f"no simulator runs in {path.parent} ({error}); start one with 'joulewise sim'") from error
    wanted = (structs.MAGIC, structs.LAYOUT_VERSION, ctypes.sizeof(structs.State))
    if len(state_map) != wanted[2] or struct.unpack_from("=QII", state_map) != wanted:
        state_map.close()
        raise BadSpec(f"{path} is of another version of joulewise; restart its simulator with this one")
    return state_map
