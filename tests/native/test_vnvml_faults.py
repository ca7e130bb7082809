"""What goes wrong on purpose: lost GPUs, missing features, missing rights, slow and hung calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.device.vnvml_layout import Group, VnvmlState

from .conftest import Client, h200, publish_all

GPU = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
"""


def test_a_lost_gpu_is_lost_for_every_call_and_its_neighbour_is_not(state: VnvmlState, talk: Client) -> None:
    process = talk(
        GPU
        + """
tell("ready")
sys.stdin.readline()
calls = [nvmlDeviceGetPowerUsage, nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetName, nvmlDeviceGetUUID,
         nvmlDeviceGetIndex, nvmlDeviceGetFanSpeed, nvmlDeviceGetMigMode, nvmlDeviceGetComputeRunningProcesses,
         nvmlDeviceGetPowerManagementLimit, nvmlDeviceResetGpuLockedClocks,
         lambda gpu: nvmlDeviceGetFieldValues(gpu, [186]), lambda gpu: nvmlDeviceSetPowerManagementLimit(gpu, 1)]
tell([[error_of(call, gpu) for call in calls], error_of(nvmlDeviceGetHandleByIndex, 0), nvmlDeviceGetCount(),
      nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(1))])
"""
    )
    assert process.stdout.readline() == '"ready"\n'
    state.set_fault(0, lost=True)
    process.stdin.write("\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == [[15] * 12, 15, 2, 312_400]


def test_a_gpu_that_comes_back_can_be_read_again(state: VnvmlState, client: Client) -> None:
    state.set_fault(0, lost=True)
    state.set_fault(0, lost=False)
    assert client(GPU + "tell(nvmlDeviceGetPowerUsage(gpu))") == 312_400


@pytest.mark.parametrize(
    ("group", "call"),
    [
        (Group.ENERGY_COUNTER, "nvmlDeviceGetTotalEnergyConsumption(gpu)"),
        (Group.POWER, "nvmlDeviceGetPowerUsage(gpu)"),
        (Group.LIMIT_SET, "nvmlDeviceSetPowerManagementLimit(gpu, 450_000)"),
        (Group.SM_CLOCK_SET, "nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)"),
        (Group.MEMORY_CLOCK_SET, "nvmlDeviceSetMemoryLockedClocks(gpu, 2201, 2201)"),
        (Group.GPM, "nvmlGpmSampleGet(gpu, nvmlGpmSampleAlloc())"),
        (Group.FIELD_VALUES, "nvmlDeviceGetFieldValues(gpu, [186])"),
        (Group.PROCESSES, "nvmlDeviceGetComputeRunningProcesses(gpu)"),
    ],
)
def test_each_group_can_be_missing_alone(directory: Path, client: Client, group: Group, call: str) -> None:
    attempt = GPU + f"tell(error_of(lambda: {call}))"
    with VnvmlState.create(directory, [h200()], everyone_may_write=True) as state:
        publish_all(state)
        assert client(attempt) == 0
        state.set_fault(0, unsupported=set(Group) - {group, Group.OTHER})
        assert client(attempt) == 0
        state.set_fault(0, unsupported={group})
        assert client(attempt) == 3


def test_fields_follow_what_is_missing(state: VnvmlState, client: Client) -> None:
    state.set_fault(0, unsupported={Group.ENERGY_COUNTER})
    assert client(GPU + "tell([v.nvmlReturn for v in nvmlDeviceGetFieldValues(gpu, [83, 191, 186])])") == [3, 3, 0]


def test_rights_can_be_taken_even_from_root(directory: Path, client: Client) -> None:
    with VnvmlState.create(directory, [h200()], everyone_may_write=True) as state:
        publish_all(state)
        state.set_fault(0, no_permission=True)
        assert client(
            GPU
            + """
tell([error_of(nvmlDeviceSetPowerManagementLimit, gpu, 450_000), error_of(nvmlDeviceSetGpuLockedClocks, gpu, 900, 900),
      error_of(nvmlDeviceSetPersistenceMode, gpu, 0), error_of(nvmlDeviceGetPowerUsage, gpu)])
"""
        ) == [4, 4, 4, 0]
        assert state.read_control(0).sequence == 0


def test_a_call_costs_what_was_given_for_its_group(state: VnvmlState, client: Client) -> None:
    state.set_fault(0, latency_us={Group.ENERGY_COUNTER: 20_000, Group.POWER: 50})
    counter_s, fields_s, power_s = client(
        GPU
        + """
def duration(call, *args):
    start = time.perf_counter()
    call(*args)
    return time.perf_counter() - start
tell([duration(nvmlDeviceGetTotalEnergyConsumption, gpu), duration(nvmlDeviceGetFieldValues, gpu, [186, 83]),
      duration(nvmlDeviceGetPowerUsage, gpu)])
"""
    )
    assert counter_s >= 0.020
    assert fields_s >= 0.020
    assert power_s >= 0.000_050


def test_a_hung_call_returns_when_the_fault_is_cleared(state: VnvmlState, talk: Client) -> None:
    process = talk(
        GPU
        + """
tell("ready")
sys.stdin.readline()
thread = threading.Thread(target=lambda: tell(nvmlDeviceGetPowerUsage(gpu)))
thread.start()
thread.join(0.1)
tell([thread.is_alive(), nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(1))])
thread.join()
"""
    )
    assert process.stdout.readline() == '"ready"\n'
    state.set_fault(0, hang=True)
    process.stdin.write("\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == [True, 312_400]
    state.set_fault(0, hang=False)
    assert json.loads(process.stdout.readline()) == 312_400


def test_setters_of_a_slow_or_hung_gpu_wait_and_its_neighbours_do_not(directory: Path, talk: Client) -> None:
    with VnvmlState.create(directory, [h200(0), h200(1)], everyone_may_write=True) as state:
        process = talk(
            """
nvmlInit()
first, second = (nvmlDeviceGetHandleByIndex(i) for i in range(2))
tell("ready")
sys.stdin.readline()
start = time.monotonic()
nvmlDeviceSetPowerManagementLimit(second, 450_000); nvmlDeviceSetGpuLockedClocks(first, 345, 900)
others_s = time.monotonic() - start
nvmlDeviceSetPowerManagementLimit(first, 450_000)
tell([others_s, time.monotonic() - start])
sys.stdin.readline()
thread = threading.Thread(target=lambda: (nvmlDeviceSetPowerManagementLimit(first, 300_000), tell("set")))
thread.start()
thread.join(0.1)
nvmlDeviceSetPowerManagementLimit(second, 300_000)
tell(thread.is_alive())
thread.join()
"""
        )

        def hear() -> Any:
            assert process.stdout is not None
            return json.loads(process.stdout.readline())

        def go_on() -> Any:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return hear()

        assert hear() == "ready"
        state.set_fault(0, latency_us={Group.LIMIT_SET: 3_000_000})
        others_s, all_s = go_on()
        assert others_s < 3.0 <= all_s
        assert [state.read_control(i).power_limit_mw for i in range(2)] == [450_000, 450_000]
        state.set_fault(0, hang=True, latency_us={Group.LIMIT_SET: 0})
        assert go_on() is True
        assert [state.read_control(i).power_limit_mw for i in range(2)] == [450_000, 300_000]
        state.set_fault(0, hang=False)
        assert hear() == "set"
        assert state.read_control(0).power_limit_mw == 300_000


def test_a_board_controllers_limit_is_enforced_and_the_request_still_shows(directory: Path, client: Client) -> None:
    show = "tell([nvmlDeviceGetPowerManagementLimit(gpu), nvmlDeviceGetEnforcedPowerLimit(gpu)])"
    with VnvmlState.create(directory, [h200()], everyone_may_write=True) as state:
        state.set_fault(0, bmc_limit_mw=500_000)
        assert client(GPU + show) == [700_000, 500_000]
        assert client(GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 650_000)\n" + show) == [650_000, 500_000]
        assert client(GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 300_000)\n" + show) == [300_000, 300_000]
        state.set_fault(0, bmc_limit_mw=0)
        assert client(GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 700_000)\n" + show) == [700_000, 700_000]


def test_mig_mode_is_off_until_it_is_said_to_be_on_and_unknown_to_chips_without_it(
    directory: Path, client: Client
) -> None:
    show = "nvmlInit()\ntell([nvmlDeviceGetMigMode(nvmlDeviceGetHandleByIndex(0))[0], "
    show += "error_of(nvmlDeviceGetMigMode, nvmlDeviceGetHandleByIndex(1))])"
    with VnvmlState.create(directory, [h200(0), h200(1, compute_capability=(8, 9))]) as state:
        assert client(show) == [0, 3]
        state.set_fault(0, mig=True)
        assert client(show) == [1, 3]


def test_a_driver_reload_brings_limits_and_locks_back_to_default(directory: Path, client: Client) -> None:
    with VnvmlState.create(directory, [h200()], everyone_may_write=True) as state:
        publish_all(state)
        client(
            GPU
            + "nvmlDeviceSetPowerManagementLimit(gpu, 450_000); nvmlDeviceSetGpuLockedClocks(gpu, 900, 900); tell(0)"
        )
        state.reload_driver()
        state.publish(0, energy_mj=0)
        assert client(
            GPU + "tell([nvmlDeviceGetPowerManagementLimit(gpu), nvmlDeviceGetTotalEnergyConsumption(gpu)])"
        ) == [
            700_000,
            0,
        ]
        assert state.read_control(0).sm_lock_mhz is None
        assert state.driver_generation == 1
