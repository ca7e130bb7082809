"""Stamps by CUDA events, against a stand-in for ``torch.cuda`` on a GPU whose queue and clock are known exactly."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from joulewise.frameworks.gpu_time import ANCHOR_S, BRACKET_S, GpuTime

LOOK_S = 5e-6
"""What a look at the clock, or a call, takes."""


class Machine:
    """A host whose every call takes a little, and a GPU that drifts against it and has queues."""

    def __init__(self, drift: float = 20e-6) -> None:
        self.time_s, self.drift = 1000.0, drift
        self.busy_until_s: dict[object, float] = {}
        self.capturing = False
        self.initialized = True
        self.shared_queue = False

    def now_s(self) -> float:
        self.time_s += LOOK_S
        return self.time_s

    def launch(self, stream: object, duration_s: float) -> None:
        """Work for the GPU, behind what is queued on ``stream``."""
        self.busy_until_s[stream] = max(self.time_s, self.busy_until_s.get(stream, 0.0)) + duration_s

    # What torch.cuda has.

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: int) -> str:
        return f"main {device}"

    def Stream(self, device: int, priority: int) -> str:  # noqa: N802 - torch's name
        return "main 0" if self.shared_queue else f"own {device}"

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802 - torch's name
        return Event(self)


class Event:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.passed_s = float("inf")

    def record(self, stream: str) -> None:
        assert not self._machine.capturing
        self._machine.now_s()
        self.passed_s = max(self._machine.time_s, self._machine.busy_until_s.get(stream, 0.0))

    def query(self) -> bool:
        assert not self._machine.capturing
        return self._machine.now_s() >= self.passed_s

    def elapsed_time(self, later: Event) -> float:
        exact_ms = 1e3 * (later.passed_s - self.passed_s) * (1.0 + self._machine.drift)
        return float(struct.unpack("f", struct.pack("f", exact_ms))[0])  # single precision, as CUDA tells it


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_stamp_is_when_the_gpu_is_done_and_not_when_the_host_is(machine: Machine) -> None:
    gpu_time = GpuTime(machine, now_s=machine.now_s)
    machine.launch("main 0", 0.4)
    done_s = machine.busy_until_s["main 0"]
    stamp = gpu_time.stamp()
    assert stamp.time_s() is None
    machine.time_s = done_s + 3.0  # nobody asks for a while
    assert stamp.time_s() == pytest.approx(done_s, abs=3e-5)


def test_steps_keep_their_length_for_hours_though_clocks_drift(machine: Machine) -> None:
    gpu_time = GpuTime(machine, now_s=machine.now_s)
    ends_s, stamps = [], []
    for _ in range(3000):
        machine.launch("main 0", 2.4)
        stamps.append(gpu_time.stamp())
        ends_s.append(machine.busy_until_s["main 0"])
        machine.time_s = ends_s[-1] - 1.0  # the host stays ahead of the GPU
    machine.time_s = ends_s[-1] + 1.0
    told_s = [stamp.time_s() for stamp in stamps]
    assert len(told_s) == 3000
    # Two hours at 20 ppm are 0.14 s; each stamp is off by the drift of the seconds since its anchor.
    assert max(abs(told - true) for told, true in zip(told_s, ends_s, strict=True) if told is not None) < 1e-4


def test_anchors_are_renewed_now_and_then_and_not_at_every_step(machine: Machine) -> None:
    gpu_time, made = GpuTime(machine, now_s=machine.now_s), []
    event = machine.Event
    machine.Event = lambda enable_timing: made.append(1) or event(enable_timing)  # type: ignore
    for _ in range(100):
        gpu_time.stamp()
        machine.time_s += ANCHOR_S / 20
    assert 100 + 5 <= len(made) <= 100 + 7


def test_where_streams_share_a_queue_lengths_are_exact_and_moments_late_by_no_more_than_the_host(
    machine: Machine,
) -> None:
    machine.shared_queue = True
    gpu_time = GpuTime(machine, now_s=machine.now_s)
    ends_s, told_s, waiting, held_up = [], [], [], 0
    for _ in range(2000):
        machine.launch("main 0", 0.05)
        ends_s.append(machine.busy_until_s["main 0"])
        before_s = machine.time_s
        waiting.append(gpu_time.stamp())
        held_up += machine.time_s - before_s > 0.5 * BRACKET_S
        machine.time_s = max(machine.time_s, ends_s[-1] - 0.12)  # the host is two steps ahead
        while waiting and (time_s := waiting[0].time_s()) is not None:
            told_s.append(time_s)
            waiting.pop(0)
    assert len(told_s) > 1990
    lengths_s = [later - earlier for earlier, later in pairwise(told_s)]
    assert lengths_s[5:] == pytest.approx([0.05] * len(lengths_s[5:]), rel=1e-3)
    assert max(abs(told - true) for told, true in zip(told_s, ends_s, strict=False)) < 0.06
    assert held_up < 15  # in 100 s: after each failure it waits longer before it tries again


def test_events_are_used_again(machine: Machine) -> None:
    gpu_time, made = GpuTime(machine, now_s=machine.now_s), []
    event = machine.Event
    machine.Event = lambda enable_timing: made.append(1) or event(enable_timing)  # type: ignore
    ends_s = []
    for _ in range(1000):
        machine.launch("main 0", 1e-4)
        stamp = gpu_time.stamp()
        ends_s.append(machine.busy_until_s["main 0"])
        machine.time_s = ends_s[-1] + 1e-3
        assert stamp.time_s() == pytest.approx(ends_s[-1], abs=5e-5)
    assert len(made) < 10


def test_capturing_a_graph_is_noticed(machine: Machine) -> None:
    gpu_time = GpuTime(machine, now_s=machine.now_s)
    assert not gpu_time.capturing
    machine.capturing = True
    assert gpu_time.capturing
