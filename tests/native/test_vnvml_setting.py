"""What clients set, who may, and what the simulator hears of it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.device.vnvml_layout import VnvmlState

from .conftest import Client, h200, publish_all

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may set, and only root can become somebody else")

GPU = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
"""


@pytest.fixture
def open_state(directory: Path) -> Iterator[VnvmlState]:
    """A simulator that lets everyone set, so that these tests need no root."""
    with VnvmlState.create(directory, [h200()], everyone_may_write=True) as state:
        publish_all(state)
        yield state


def test_a_limit_reads_back_at_once_and_reaches_the_simulator(open_state: VnvmlState, client: Client) -> None:
    before_ns = time.monotonic_ns()
    limit, enforced, field, pid = client(
        GPU
        + """
nvmlDeviceSetPowerManagementLimit(gpu, 450_000)
tell([nvmlDeviceGetPowerManagementLimit(gpu), nvmlDeviceGetEnforcedPowerLimit(gpu),
      nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_POWER_REQUESTED_LIMIT])[0].value.uiVal, os.getpid()])
"""
    )
    control = open_state.read_control(0)
    assert limit == enforced == field == control.power_limit_mw == 450_000
    assert (control.sequence, control.writer_pid) == (1, pid)
    assert before_ns < control.written_ns < time.monotonic_ns()


def test_the_new_form_of_the_limit_setter_works_too(open_state: VnvmlState, client: Client) -> None:
    client(GPU + "nvmlDeviceSetPowerManagementLimit_v2(gpu, NVML_POWER_SCOPE_GPU, 333_000); tell(0)")
    assert open_state.read_control(0).power_limit_mw == 333_000


def test_locks_are_set_and_reset(open_state: VnvmlState, client: Client) -> None:
    client(
        GPU + "nvmlDeviceSetGpuLockedClocks(gpu, 900, 1410); nvmlDeviceSetMemoryLockedClocks(gpu, 2201, 2201); tell(0)"
    )
    control = open_state.read_control(0)
    assert (control.sm_lock_mhz, control.memory_lock_mhz) == ((900, 1410), (2201, 2201))
    client(GPU + "nvmlDeviceResetGpuLockedClocks(gpu); nvmlDeviceResetMemoryLockedClocks(gpu); tell(0)")
    control = open_state.read_control(0)
    assert (control.sm_lock_mhz, control.memory_lock_mhz, control.sequence) == (None, None, 4)


def test_a_lock_without_an_upper_end_ends_at_the_highest_clock(open_state: VnvmlState, client: Client) -> None:
    client(GPU + "nvmlDeviceSetGpuLockedClocks(gpu, 900, NVML_CLOCK_LIMIT_ID_UNLIMITED); tell(0)")
    assert open_state.read_control(0).sm_lock_mhz == (900, 1980)


def test_persistence_mode_is_set_and_read(open_state: VnvmlState, client: Client) -> None:
    assert client(
        GPU
        + """
before = nvmlDeviceGetPersistenceMode(gpu)
nvmlDeviceSetPersistenceMode(gpu, NVML_FEATURE_DISABLED)
tell([before, nvmlDeviceGetPersistenceMode(gpu)])
"""
    ) == [1, 0]
    assert open_state.read_control(0).persistence is False


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceSetPowerManagementLimit(gpu, 199_999)",
        "nvmlDeviceSetPowerManagementLimit(gpu, 700_001)",
        "nvmlDeviceSetPowerManagementLimit(gpu, 0)",
        "nvmlDeviceSetGpuLockedClocks(gpu, 1500, 900)",
        "nvmlDeviceSetGpuLockedClocks(gpu, 300, 900)",
        "nvmlDeviceSetGpuLockedClocks(gpu, 900, 2100)",
        "nvmlDeviceSetMemoryLockedClocks(gpu, 100, 3201)",
        "nvmlDeviceSetPersistenceMode(gpu, 2)",
    ],
)
def test_what_is_out_of_range_is_refused_and_changes_nothing(open_state: VnvmlState, client: Client, call: str) -> None:
    assert client(GPU + f"tell(error_of(lambda: {call}))") == 2
    assert open_state.read_control(0).sequence == 0


def test_every_setter_wakes_the_simulator(open_state: VnvmlState, client: Client) -> None:
    assert open_state.wake is not None
    assert select.select([open_state.wake], [], [], 0)[0] == []
    client(GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 450_000); tell(0)")
    assert select.select([open_state.wake], [], [], 5)[0] == [open_state.wake]
    open_state.drain_wake()
    assert select.select([open_state.wake], [], [], 0)[0] == []


def test_a_full_wake_socket_does_not_block_a_setter(open_state: VnvmlState, client: Client) -> None:
    client(GPU + "[nvmlDeviceSetPowerManagementLimit(gpu, 450_000) for _ in range(2_000)]; tell(0)")
    assert open_state.read_control(0).sequence == 2_000


def test_another_client_sees_what_one_has_set(open_state: VnvmlState, client: Client) -> None:
    client(GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 450_000); tell(0)")
    assert client(GPU + "tell(nvmlDeviceGetPowerManagementLimit(gpu))") == 450_000


def test_settings_of_many_clients_at_once_are_each_whole(open_state: VnvmlState, talk: Client) -> None:
    """Three clients lock (n, n) at once; no mixture of two may ever be seen."""
    clients = [
        talk(
            GPU
            + """
for n in range(2_000):
    mhz = 345 + 15 * ((n * 7 + int(sys.argv[1])) % 110)
    nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
""",
            seed,
        )
        for seed in range(3)
    ]
    seen = set()
    while any(process.poll() is None for process in clients):
        lock = open_state.read_control(0).sm_lock_mhz
        if lock is not None:
            seen.add(lock)
            assert lock[0] == lock[1]
    assert all(process.returncode == 0 for process in clients)
    assert open_state.read_control(0).sequence == 6_000
    assert seen


@as_root
def test_root_may_set_and_others_may_not(state: VnvmlState, client: Client) -> None:
    attempt = GPU + "tell([error_of(nvmlDeviceSetPowerManagementLimit, gpu, 450_000), nvmlDeviceGetPowerUsage(gpu)])"
    assert client("become_nobody()" + attempt) == [4, 312_400]
    assert state.read_control(0).sequence == 0
    assert client(attempt) == [0, 312_400]


@as_root
def test_everyone_may_set_where_the_simulator_says_so(open_state: VnvmlState, client: Client) -> None:
    client("become_nobody()" + GPU + "nvmlDeviceSetPowerManagementLimit(gpu, 450_000); tell(0)")
    assert open_state.read_control(0).power_limit_mw == 450_000
    assert open_state.wake is not None
    assert select.select([open_state.wake], [], [], 5)[0] == [open_state.wake]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may always set")
def test_whoever_is_not_root_may_not_set(state: VnvmlState, client: Client) -> None:
    assert client(GPU + "tell(error_of(nvmlDeviceSetPowerManagementLimit, gpu, 450_000))") == 4


@as_root
def test_root_of_another_user_namespace_is_not_root(state: VnvmlState, client: Client) -> None:
    """As in life, where the driver wants the capability in the machine's own namespace; it must not crash either."""
    for whose in ("root", "somebody else"):
        seen = client(
            """
if sys.argv[1] != "root":
    become_nobody()
    CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: or /proc/self would stay root's
uid, gid = os.geteuid(), os.getegid()
if CDLL(None, use_errno=True).unshare(0x10000000) != 0:  # CLONE_NEWUSER
    tell(None)
    sys.exit()
for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(line)
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
tell([os.geteuid(), error_of(nvmlDeviceSetPowerManagementLimit, gpu, 450_000),
      error_of(nvmlDeviceResetGpuLockedClocks, gpu), nvmlDeviceGetPowerUsage(gpu)])
""",
            whose,
        )
        if seen is None:
            pytest.skip("only root of a machine that allows user namespaces can make one")
        assert seen == [0, 4, 4, 312_400]
    assert state.read_control(0).sequence == 0
