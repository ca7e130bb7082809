"""Persistence mode as the virtual driver plays it: who counts as a user of a GPU, and what goes with the last one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from joulewise import native
from joulewise.device import node
from joulewise.device.node import RunningNode
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.device.work import Link

try:
    native.library_path()
except FileNotFoundError:
    pytest.skip("the virtual NVML is not built; install joulewise with a C compiler", allow_module_level=True)

NVML = "import os, sys, time\nfrom pynvml import *\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex(0)\n"
SET = "nvmlDeviceSetPowerManagementLimit(gpu, 300_000)\nnvmlDeviceSetGpuLockedClocks(gpu, 345, 990)\n"
STAY = "print('set', flush=True)\nsys.stdin.read()\n"


@pytest.fixture(scope="module")
def pair() -> Iterator[RunningNode]:
    """Two H200, persistence off on the first of them."""
    with node.spawn("sim:h200*2") as running:
        with running.client() as client:
            client.fault(0, "persistence", on=False)
        yield running


@pytest.fixture
def state(pair: RunningNode) -> Iterator[VnvmlState]:
    with VnvmlState.open(pair.directory) as state:
        yield state


@pytest.fixture
def start(pair: RunningNode) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a process that sees the GPUs and wait until it says that it has set something."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", NVML + textwrap.dedent(script)],
            env=pair.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "set\n"
        return process

    yield begin
    for process in started:
        process.kill()
        with process:  # closes its pipes and waits
            pass


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` comes true within 10 s."""
    deadline_s = time.monotonic() + 10.0
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


def untouched(state: VnvmlState, index: int = 0) -> bool:
    control = state.read_control(index)
    return (control.power_limit_mw, control.sm_lock_mhz) == (700_000, None)


def through_nvml(running: RunningNode, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NVML + code], env=running.environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_settings_stay_while_any_client_lives_and_vanish_with_the_last_even_by_sigkill(
    pair: RunningNode, state: VnvmlState, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    setter, watcher = start(SET + STAY), start(STAY)
    with pair.client() as client:
        assert client.status()["nvml_clients"] == sorted([setter.pid, watcher.pid])
        setter.send_signal(signal.SIGKILL)
        setter.wait()
        assert eventually(lambda: client.status()["nvml_clients"] == [watcher.pid])
    assert state.read_control(0).sm_lock_mhz == (345, 990)
    assert through_nvml(pair, "print(nvmlDeviceGetPowerManagementLimit(gpu))") == "300000"
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    assert eventually(lambda: untouched(state))


def test_whoever_comes_after_the_last_one_finds_the_defaults_at_once(
    pair: RunningNode, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    show = "print(nvmlDeviceGetPowerManagementLimit(gpu), nvmlDeviceGetEnforcedPowerLimit(gpu))"
    for _ in range(10):
        setter = start(SET + STAY)
        setter.kill()
        setter.wait()
        assert through_nvml(pair, show) == "700000 700000"


def test_the_counter_begins_anew_with_each_load_of_the_driver(pair: RunningNode) -> None:
    link = Link(pair.directory)
    link.work([(0.5, 0.9, 300.0)])
    count = "print(nvmlDeviceGetTotalEnergyConsumption(gpu))"
    worked_mj = int(through_nvml(pair, count))
    link.close()
    with pair.client() as client:
        assert eventually(lambda: client.status()["nvml_clients"] == [])
    assert worked_mj > 100_000
    assert int(through_nvml(pair, count)) < 50_000


def test_a_process_that_works_on_the_gpu_keeps_its_settings_and_nobody_elses(
    pair: RunningNode, state: VnvmlState
) -> None:
    with pair.client() as client:
        client.fault(1, "persistence", on=False)
        link = Link(pair.directory)
        link.work((0.01, 0.9, 300.0), gpu=0)
        try:
            through_nvml(pair, SET + "nvmlDeviceSetPowerManagementLimit(nvmlDeviceGetHandleByIndex(1), 300_000)")
            assert eventually(lambda: untouched(state, 1))
            assert state.read_control(0).power_limit_mw == 300_000
        finally:
            link.close()
            client.fault(1, "persistence", on=True)
        assert eventually(lambda: untouched(state, 0))


def test_a_forked_child_keeps_the_driver_loaded_and_an_executed_one_does_not(
    pair: RunningNode, state: VnvmlState, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    parent = start(SET + "if os.fork() == 0:\n    os.read(0, 1)\n    os._exit(0)\n" + STAY)
    executed = start(SET + "import subprocess\nsubprocess.Popen(['cat'], stdout=subprocess.DEVNULL)\n" + STAY)
    for process in (executed, parent):
        process.kill()
        process.wait()
    with pair.client() as client:
        assert eventually(lambda: client.status()["nvml_clients"] == [parent.pid])
        client.truth()  # the simulator has gone round once more
    assert not untouched(state)
    assert parent.stdin is not None
    parent.stdin.close()  # which ends the child
    assert eventually(lambda: untouched(state))


def test_shutting_nvml_down_is_leaving_and_opening_it_again_is_coming_back(
    pair: RunningNode, state: VnvmlState, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    back = "nvmlShutdown()\nprint('set', flush=True)\nsys.stdin.readline()\nnvmlInit()\n" + SET + STAY
    process = start(SET + back)
    assert eventually(lambda: untouched(state))
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "set\n"
    with pair.client() as client:
        assert client.status()["nvml_clients"] == [process.pid]
    assert not untouched(state)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set")
def test_root_turns_it_on_and_off_through_nvml(pair: RunningNode, state: VnvmlState) -> None:
    through_nvml(pair, "nvmlDeviceSetPersistenceMode(gpu, 1)\n" + SET)
    with pair.client() as client:
        assert eventually(lambda: client.status()["nvml_clients"] == [])
        client.truth()  # the simulator has gone round once more
    assert state.read_control(0).power_limit_mw == 300_000
    through_nvml(pair, "nvmlDeviceSetPersistenceMode(gpu, 0)")
    assert eventually(lambda: untouched(state))


def test_with_persistence_on_nothing_goes_when_everybody_leaves(pair: RunningNode, state: VnvmlState) -> None:
    second = "nvmlDeviceSetPowerManagementLimit(nvmlDeviceGetHandleByIndex(1), 300_000)"
    through_nvml(pair, second)
    with pair.client() as client:
        assert eventually(lambda: client.status()["nvml_clients"] == [])
        client.truth()
        assert state.read_control(1).power_limit_mw == 300_000
        client.fault(1, "reload", alone=True)
        assert untouched(state, 1)


def test_a_reload_of_one_gpu_leaves_the_others(pair: RunningNode, state: VnvmlState) -> None:
    with pair.client() as client:
        for index in (0, 1):
            client.fault(index, "persistence", on=True)
            client.fault(index, "foreign", power_limit_w=300.0)
        client.fault(1, "reload", alone=True)
        assert (untouched(state, 0), untouched(state, 1)) == (False, True)
        client.fault(0, "reload")
        client.fault(0, "persistence", on=False)


def test_a_clients_connection_is_not_inherited_by_what_it_starts(pair: RunningNode) -> None:
    code = "import subprocess\nprint(subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, "
    code += "capture_output=True, text=True).stdout.count('socket:'))"
    assert through_nvml(pair, code) == "0"
