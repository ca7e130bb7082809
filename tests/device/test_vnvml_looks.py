"""Looks at a GPU that lives faster than the wall: however late they come, they are dated by what they saw."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.device import nvml_library
from joulewise.device.node import RunningNode, spawn
from joulewise.device.nvml import NvmlGpu
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.nvml_reads import SLOW_S
from joulewise.device.vnvml_layout import Group, VnvmlState
from joulewise.device.vnvml_looks import Looks
from joulewise.device.work import Link
from joulewise.native import library_path
from tests.device.test_vnvml_layout import gpu as identity

SPEED = 20.0
TICK_S = 0.1  # of an H200's counter
STEADY = [(600.0, 0.1, 300.0)]  # one load for ten simulated minutes: power stands still but for the heat


@pytest.fixture
def state(tmp_path: Path) -> Iterator[VnvmlState]:
    """A state that nobody serves: it shows what a test publishes."""
    with VnvmlState.create(tmp_path, [identity()], speed=SPEED) as state:
        state.publish(0, simulated_ns=5_000_000_000, energy_mj=100)
        yield state


def test_a_look_has_the_moment_of_what_was_shown_not_of_the_call(state: VnvmlState) -> None:
    looks = Looks(state, 0)
    assert looks.dated(lambda: state.published(0).energy_mj) == (100, 5.0, 5.0)
    state.publish(0, simulated_ns=5_300_000_000, energy_mj=200)
    assert looks.dated(lambda: state.published(0).energy_mj) == (200, 5.3, 5.3)


def test_what_is_shown_anew_while_one_looks_is_looked_at_again(state: VnvmlState) -> None:
    news = iter([5_100_000_000])

    def late() -> int:
        seen: int = state.published(0).energy_mj
        for shown_ns in news:  # the first time only
            state.publish(0, simulated_ns=shown_ns, energy_mj=150)
        return seen

    assert Looks(state, 0).dated(late) == (150, 5.1, 5.1)


def test_values_that_never_hold_still_are_dated_from_and_to(state: VnvmlState) -> None:
    moments_ns = itertools.count(5_100_000_000, 100_000_000)

    def restless() -> int:
        state.publish(0, simulated_ns=next(moments_ns))
        return 7

    value, from_s, to_s = Looks(state, 0).dated(restless)
    assert value == 7
    assert to_s - from_s == pytest.approx(0.1)


def test_a_call_takes_as_long_as_it_is_made_to_take_and_not_as_the_machine_takes(state: VnvmlState) -> None:
    state.publish_time(5_000_000_000)
    state.set_fault(0, latency_us={Group.ENERGY_COUNTER: 1_000})  # 20 ms at twenty times the speed

    def slowly() -> int:
        time.sleep(0.005)  # 100 ms
        return 1

    _, from_s, to_s = Looks(state, 0).dated(slowly, Group.ENERGY_COUNTER)
    assert from_s <= 5.0 <= to_s
    assert 0.01 - 1e-9 <= to_s - from_s <= 0.02 + 1e-9


@pytest.fixture
def node() -> Iterator[RunningNode]:
    try:
        library_path()
    except FileNotFoundError as error:
        pytest.skip(f"the virtual NVML is not built: {error}")
    with spawn("sim:h200", speed=SPEED) as running, nvml_library.virtual(running.directory):
        yield running


def test_the_counter_is_right_to_a_tick_however_irregularly_one_looks(node: RunningNode) -> None:
    card, draw = NvmlGpu.all()[0], random.Random(1)
    link = Link(node.directory)
    link.launch(STEADY)
    with node.client() as client:
        while client.truth().power_w < 200.0:
            time.sleep(0.01)
        card.time.sleep(20.0)  # warm by now: the limiter and most of the heat are settled
        power_w = client.truth().power_w
        looks = []
        for _ in range(25):
            time.sleep(draw.uniform(0.0, 0.03))  # up to 0.6 s, so that most are between two showings
            looks.append(card.energy())
    for one, other in itertools.pairwise(looks):
        passed_s = other.time_s + 0.5 * other.call_s - one.time_s - 0.5 * one.call_s
        assert other.energy_j - one.energy_j == pytest.approx(power_w * passed_s, abs=1.1 * TICK_S * power_w)
    link.close()


def test_a_simulator_that_stands_still_is_seen_as_it_was(node: RunningNode) -> None:
    card = NvmlGpu.all()[0]
    seen = card.read()
    os.kill(node.pid, signal.SIGSTOP)
    try:
        stopped_s = card.time.now_s()
        stale = [card.read() for _ in range(3)]
        assert all(seen.time_s <= each.time_s <= stopped_s for each in stale)
    finally:
        os.kill(node.pid, signal.SIGCONT)
    deadline_s = time.monotonic() + 30.0
    while card.read().time_s <= stopped_s:  # it is asked again after a while
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets the limits of GPUs")
def test_a_limit_that_was_set_is_read_within_a_second_of_the_gpu_though_its_simulator_stands_still(
    node: RunningNode,
) -> None:
    card, controls = NvmlGpu.all()[0], NvmlControls.all()[0]
    assert card.read().power_limit_w == 700.0
    os.kill(node.pid, signal.SIGSTOP)
    try:
        controls.write("power_limit_w", 450.0)
        card.time.sleep(SLOW_S)
        assert card.read().power_limit_w == 450.0
    finally:
        os.kill(node.pid, signal.SIGCONT)


def test_a_simulator_that_was_late_keeps_its_one_connection(node: RunningNode) -> None:
    card = NvmlGpu.all()[0]
    card.read()
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, not paths
    os.kill(node.pid, signal.SIGSTOP)
    try:
        stopped_s = card.read().time_s  # waits for an answer, in vain
        assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208
    finally:
        os.kill(node.pid, signal.SIGCONT)
    deadline_s = time.monotonic() + 30.0
    while card.read().time_s <= stopped_s + 1.0:  # the answer that was late is not taken for the next one's
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208


def test_a_forked_child_looks_on_a_connection_of_its_own(node: RunningNode) -> None:
    card = NvmlGpu.all()[0]
    before_s = card.read().time_s
    child = os.fork()
    if child == 0:
        os._exit(0 if card.read().time_s > before_s else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert card.read().time_s > before_s
