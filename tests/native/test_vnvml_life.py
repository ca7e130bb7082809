"""Initialisation, and the simulator's life and death as clients see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from joulewise.device.vnvml_layout import ENVIRONMENT, VnvmlState

from .conftest import PRELUDE, Client, h200, publish_all

SIMULATOR = """
import sys, time
from joulewise.device.vnvml_layout import GpuIdentity, VnvmlState
gpu = GpuIdentity(uuid="GPU-0", name="NVIDIA H200", sm_clocks_mhz=(345, 1980), memory_clocks_mhz=(3201,),
                  memory_total_bytes=1, limit_mw=None)
state = VnvmlState.create(sys.argv[1], [gpu])
state.publish(0, power_mw=int(sys.argv[2]), energy_mj=5)
if sys.argv[3:]:
    state._gpus[0].published_sequence += 1  # as if killed in the middle of a write
print("up", flush=True)
time.sleep(600)
"""


def start_simulator(directory: Path, power_mw: int, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SIMULATOR, str(directory), str(power_mw), *more], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def go_on(process: subprocess.Popen[str]) -> object:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_nothing_works_before_initialisation_or_after_shutdown(state: VnvmlState, client: Client) -> None:
    assert client("""
library, count = CDLL("libnvidia-ml.so.1"), c_uint()
before = [library.nvmlDeviceGetCount_v2(byref(count)), library.nvmlShutdown()]
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
nvmlInit()
nvmlShutdown()
still = error_of(nvmlDeviceGetPowerUsage, gpu)
nvmlShutdown()
tell([before, still, error_of(nvmlDeviceGetPowerUsage, gpu), error_of(nvmlDeviceGetFanSpeed, gpu),
      error_of(nvmlShutdown)])
""") == [[1, 1], 0, 1, 1, 1]


def test_every_way_to_initialise_counts(state: VnvmlState, client: Client) -> None:
    assert client("""
library = CDLL("libnvidia-ml.so.1")
tell([library.nvmlInit(), library.nvmlInit_v2(), library.nvmlInitWithFlags(1),
      *[library.nvmlShutdown() for _ in range(4)]])
""") == [0, 0, 0, 0, 0, 0, 1]


def test_errors_have_words_before_initialisation(library: Path, client: Client) -> None:
    assert client("""
library = CDLL("libnvidia-ml.so.1")
library.nvmlErrorString.restype = c_char_p
tell([library.nvmlErrorString(code).decode() for code in (0, 3, 9, 15, 12345)])
""") == ["Success", "Not Supported", "Driver Not Loaded", "GPU is lost", "Unknown Error"]


def test_without_a_simulator_there_is_no_driver(environment: dict[str, str], tmp_path: Path) -> None:
    script = PRELUDE + "tell(error_of(nvmlInit))"
    without = {name: value for name, value in environment.items() if name != ENVIRONMENT}
    for case in (without, {**environment, ENVIRONMENT: str(tmp_path / "absent")}, {**environment, ENVIRONMENT: ""}):
        done = subprocess.run([sys.executable, "-c", script], env=case, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == 9


def test_a_state_of_another_layout_is_a_version_mismatch(directory: Path, client: Client) -> None:
    with VnvmlState.create(directory, [h200()]):
        whole = (directory / "state").read_bytes()
        (directory / "state").write_bytes(whole[:8] + b"\x63" + whole[9:])
        assert client("tell(error_of(nvmlInit))") == 18
        (directory / "state").write_bytes(whole[:-1])
        assert client("tell(error_of(nvmlInit))") == 18


def test_a_killed_simulator_reads_as_a_missing_driver(library: Path, directory: Path, talk: Client) -> None:
    simulator = start_simulator(directory, 100_000)
    process = talk("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
sys.stdin.readline()
tell(nvmlDeviceGetPowerUsage(gpu))
sys.stdin.readline()
time.sleep(0.006)  # longer than the library may keep an answer about the simulator's life
calls = [nvmlDeviceGetPowerUsage, nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetName, nvmlDeviceGetFanSpeed,
         nvmlDeviceGetPowerManagementDefaultLimit, lambda gpu: nvmlDeviceGetFieldValues(gpu, [186]),
         nvmlDeviceResetGpuLockedClocks, lambda gpu: nvmlDeviceGetCount(), lambda gpu: nvmlSystemGetDriverVersion(),
         lambda gpu: nvmlEventSetCreate(), lambda gpu: nvmlInit()]
tell([[error_of(call, gpu) for call in calls], error_of(nvmlShutdown)])
""")
    try:
        assert go_on(process) == 100_000
    finally:
        kill(simulator)
    assert go_on(process) == [[9] * 11, 0]


def test_a_simulator_killed_in_the_middle_of_a_write_reads_as_a_missing_driver(
    library: Path, directory: Path, talk: Client
) -> None:
    simulator = start_simulator(directory, 100_000, "odd")
    process = talk("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
answer = []
thread = threading.Thread(target=lambda: answer.append(error_of(nvmlDeviceGetPowerUsage, gpu)))
thread.start()
sys.stdin.readline()
tell([thread.is_alive(), answer])
sys.stdin.readline()
thread.join()
tell(answer)
""")
    try:
        assert go_on(process) == [True, []]
    finally:
        kill(simulator)
    assert go_on(process) == [9]


def test_a_hung_call_ends_with_the_simulator(directory: Path, talk: Client) -> None:
    state = VnvmlState.create(directory, [h200()])
    process = talk("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
tell("ready")
sys.stdin.readline()
tell(error_of(nvmlDeviceGetPowerUsage, gpu))
""")
    assert process.stdout.readline() == '"ready"\n'
    state.set_fault(0, hang=True)
    process.stdin.write("\n")
    process.stdin.flush()
    state.close()
    assert json.loads(process.stdout.readline()) == 9


def test_after_a_new_start_an_old_client_must_open_again_and_then_sees_the_new_gpus(
    library: Path, directory: Path, talk: Client
) -> None:
    first = start_simulator(directory, 100_000)
    process = talk("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
sys.stdin.readline()
tell(nvmlDeviceGetPowerUsage(gpu))
sys.stdin.readline()
time.sleep(0.006)
stale = error_of(nvmlDeviceGetPowerUsage, gpu)
nvmlInit()
tell([stale, nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(0))])
""")
    try:
        assert go_on(process) == 100_000
    finally:
        kill(first)
    second = start_simulator(directory, 222_000)
    try:
        assert go_on(process) == [9, 222_000]
    finally:
        kill(second)


def test_a_forked_child_reads_and_its_parent_still_does(state: VnvmlState, client: Client) -> None:
    assert client("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        good = nvmlDeviceGetPowerUsage(gpu) == 312_400
        nvmlInit(); nvmlShutdown(); nvmlShutdown()
        os._exit(0 if good and error_of(nvmlDeviceGetPowerUsage, gpu) == NVML_ERROR_UNINITIALIZED else 1)
    children.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
tell([children, nvmlDeviceGetPowerUsage(gpu)])
""") == [[0] * 5, 312_400]


def test_threads_may_read_while_others_open_and_close(state: VnvmlState, client: Client) -> None:
    assert (
        client("""
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
nvmlShutdown()
seen, stop = set(), threading.Event()

def read():
    while not stop.is_set():
        seen.add(error_of(nvmlDeviceGetPowerUsage, gpu))

threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(300):
    nvmlInit()
    time.sleep(0)
    nvmlShutdown()
stop.set()
for thread in threads:
    thread.join()
tell(sorted(seen - {NVML_SUCCESS, NVML_ERROR_UNINITIALIZED}))
""")
        == []
    )


def test_whoever_opens_anew_finds_the_simulator_that_the_environment_names_then(
    state: VnvmlState, client: Client, tmp_path: Path
) -> None:
    with VnvmlState.create(tmp_path, [h200()]):
        assert client(
            """
counts = []
for directory in (os.environ["JOULEWISE_VNVML"], sys.argv[1], os.environ["JOULEWISE_VNVML"]):
    os.environ["JOULEWISE_VNVML"] = directory
    nvmlInit()
    counts.append(nvmlDeviceGetCount())
    nvmlShutdown()
tell(counts)
""",
            tmp_path,
        ) == [2, 1, 2]


def test_a_library_loaded_by_path_first_is_found_by_name_without_any_loader_path(
    library: Path, directory: Path, state: VnvmlState
) -> None:
    without = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    script = f"import ctypes; ctypes.CDLL({str(library)!r})" + PRELUDE
    script += "nvmlInit(); tell(nvmlDeviceGetPowerUsage(nvmlDeviceGetHandleByIndex(0)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**without, ENVIRONMENT: str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == 312_400


def test_a_wrong_handle_is_an_invalid_argument_not_a_crash(state: VnvmlState, client: Client) -> None:
    assert (
        client("""
nvmlInit()
library, value = CDLL("libnvidia-ml.so.1"), c_uint()
past_the_end = cast(nvmlDeviceGetHandleByIndex(1), c_void_p).value + 4
tell([library.nvmlDeviceGetPowerUsage(c_void_p(handle), byref(value)) for handle in (None, 1, 2**60, past_the_end)])
""")
        == [2] * 4
    )


def test_missing_room_for_an_answer_is_an_invalid_argument_not_a_crash(state: VnvmlState, client: Client) -> None:
    assert client("""
nvmlInit()
library, gpu = CDLL("libnvidia-ml.so.1"), nvmlDeviceGetHandleByIndex(0)
tell([getattr(library, name)(gpu, None) for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo",
      "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetIndex")]
     + [library.nvmlDeviceGetName(gpu, create_string_buffer(3), 3), library.nvmlDeviceGetFieldValues(gpu, 1, None)])
""") == [2, 2, 2, 2, 2, 7, 2]


def test_no_other_signs_of_life_are_needed_than_the_lock(directory: Path, client: Client) -> None:
    """A state that rests is no dead one: an idle GPU's values do not move."""
    with VnvmlState.create(directory, [h200()]) as state:
        publish_all(state)
        assert client(
            "nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0); time.sleep(0.05); tell(nvmlDeviceGetPowerUsage(gpu))"
        )
