"""What clients read, through unmodified nvidia-ml-py."""

from __future__ import annotations

import json
import os

import pytest

from joulewise.device.vnvml_layout import VnvmlState

from .conftest import Client, h200, publish_all

ONE_GPU = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
"""


def test_the_node_is_described(state: VnvmlState, client: Client) -> None:
    assert client("""
nvmlInit()
tell([nvmlDeviceGetCount(), nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(),
      nvmlSystemGetCudaDriverVersion(), nvmlUnitGetCount(), nvmlGetExcludedDeviceCount()])
""") == [2, "580.95.05", "13.580.95.05", 13000, 0, 0]


def test_a_gpu_is_described(state: VnvmlState, client: Client) -> None:
    seen = client(
        ONE_GPU
        + """
pci = nvmlDeviceGetPciInfo(gpu)
tell([nvmlDeviceGetName(gpu), nvmlDeviceGetUUID(gpu), nvmlDeviceGetIndex(gpu), nvmlDeviceGetMinorNumber(gpu),
      nvmlDeviceGetBrand(gpu), nvmlDeviceGetArchitecture(gpu), nvmlDeviceGetCudaComputeCapability(gpu),
      nvmlDeviceGetNumGpuCores(gpu), pci.busId, pci.busIdLegacy, pci.pciDeviceId,
      nvmlDeviceGetTemperatureThreshold(gpu, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)])
"""
    )
    assert seen == [
        *("NVIDIA H200", "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd", 0, 0, 14, 9, [9, 0], 16_896),
        *("00000000:1B:00.0", "0000:1B:00.0", 0x233510DE, 92),
    ]


def test_every_way_to_name_a_gpu_leads_to_the_same_handle(state: VnvmlState, client: Client) -> None:
    assert (
        client("""
nvmlInit()
same = nvmlDeviceGetHandleByIndex(1)
uuid = nvmlDeviceGetUUID(same)
others = [
    nvmlDeviceGetHandleByUUID(uuid),
    nvmlDeviceGetHandleByUUIDV(uuid, NVML_UUID_TYPE_ASCII),
    nvmlDeviceGetHandleByUUIDV(bytes.fromhex(uuid[4:].replace("-", "")), NVML_UUID_TYPE_BINARY),
    nvmlDeviceGetHandleByPciBusId("00000001:1B:00.0"),
    nvmlDeviceGetHandleByPciBusId("0001:1b:00.0"),
]
address = lambda handle: cast(handle, c_void_p).value
tell([address(handle) == address(same) for handle in others])
""")
        == [True] * 5
    )


def test_a_name_that_no_gpu_has_is_not_found(state: VnvmlState, client: Client) -> None:
    assert client("""
nvmlInit()
tell([error_of(nvmlDeviceGetHandleByUUID, "GPU-nobody"), error_of(nvmlDeviceGetHandleByPciBusId, "0:99:0.0"),
      error_of(nvmlDeviceGetHandleByPciBusId, "nonsense"), error_of(nvmlDeviceGetHandleByIndex, 2)])
""") == [6, 6, 2, 2]


def test_readings_are_what_was_published(state: VnvmlState, client: Client) -> None:
    assert client(
        ONE_GPU
        + """
use = nvmlDeviceGetUtilizationRates(gpu)
tell([nvmlDeviceGetPowerUsage(gpu), nvmlDeviceGetTotalEnergyConsumption(gpu),
      [nvmlDeviceGetClockInfo(gpu, kind) for kind in (NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM)],
      nvmlDeviceGetClock(gpu, NVML_CLOCK_SM, NVML_CLOCK_ID_CURRENT), [use.gpu, use.memory],
      nvmlDeviceGetTemperature(gpu, NVML_TEMPERATURE_GPU), nvmlDeviceGetTemperatureV(gpu, NVML_TEMPERATURE_GPU),
      nvmlDeviceGetPerformanceState(gpu), nvmlDeviceGetCurrentClocksEventReasons(gpu),
      nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
      nvmlDeviceGetViolationStatus(gpu, NVML_PERF_POLICY_POWER).violationTime])
"""
    ) == [312_400, 9_876_543_210, [1750, 1755, 3201], 1755, [97, 41], 61, 61, 0, 4, 4, 1_111]


def test_memory_counts_the_reserve_as_used_in_version_1_and_apart_in_version_2(
    state: VnvmlState, client: Client
) -> None:
    total, reserve, used = 150_754_820_096, 600 << 20, 20 << 30
    assert client(
        ONE_GPU
        + """
one, two = nvmlDeviceGetMemoryInfo(gpu), nvmlDeviceGetMemoryInfo(gpu, version=nvmlMemory_v2)
tell([[one.total, one.used, one.free], [two.total, two.reserved, two.used, two.free]])
"""
    ) == [[total, reserve + used, total - reserve - used], [total, reserve, used, total - reserve - used]]


def test_a_value_that_was_not_published_is_not_supported_rather_than_zero(state: VnvmlState, client: Client) -> None:
    state.publish(0, power_mw=None, energy_mj=None, utilisation_memory_percent=None, temperature_c=None)
    assert (
        client(
            ONE_GPU
            + """
tell([error_of(nvmlDeviceGetPowerUsage, gpu), error_of(nvmlDeviceGetTotalEnergyConsumption, gpu),
      error_of(nvmlDeviceGetUtilizationRates, gpu), error_of(nvmlDeviceGetTemperatureV, gpu, 0),
      error_of(nvmlDeviceGetClockInfo, gpu, NVML_CLOCK_VIDEO),
      error_of(nvmlDeviceGetViolationStatus, gpu, NVML_PERF_POLICY_THERMAL)])
"""
        )
        == [3] * 6
    )


def test_field_values_answer_each_for_itself(state: VnvmlState, client: Client) -> None:
    state.set_fault(0, bmc_limit_mw=650_000)
    seen = client(
        ONE_GPU
        + """
asked = [NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NVML_FI_DEV_ENERGY, *range(185, 191), 192, 82,
         (NVML_FI_DEV_POWER_INSTANT, NVML_POWER_SCOPE_MEMORY), NVML_FI_DEV_NVLINK_LINK_COUNT]
tell([[value.nvmlReturn, value.valueType, value.value.ullVal if value.valueType == 3 else value.value.uiVal]
      for value in nvmlDeviceGetFieldValues(gpu, asked)])
"""
    )
    counter, no = [0, 3, 9_876_543_210], 3
    powers = (312_300, 318_000, 200_000, 700_000, 700_000, 650_000, 700_000, 70)
    assert seen[:10] == [counter, counter, *([0, 1, mw] for mw in powers)]
    assert [value[0] for value in seen[10:]] == [no, no]


def test_field_values_are_stamped_with_the_time_of_the_call(state: VnvmlState, client: Client) -> None:
    before, stamp, after = client(
        ONE_GPU
        + """
before = time.time_ns() // 1000
stamp = nvmlDeviceGetFieldValues(gpu, [186])[0].timestamp
tell([before, stamp, time.time_ns() // 1000])
"""
    )
    assert before <= stamp <= after


def test_supported_clocks_come_highest_first(state: VnvmlState, client: Client) -> None:
    memory, graphics, wrong, most, boost, ends = client(
        ONE_GPU
        + """
memory = nvmlDeviceGetSupportedMemoryClocks(gpu)
tell([memory, nvmlDeviceGetSupportedGraphicsClocks(gpu, memory[0]),
      error_of(nvmlDeviceGetSupportedGraphicsClocks, gpu, 1234), nvmlDeviceGetMaxClockInfo(gpu, NVML_CLOCK_SM),
      nvmlDeviceGetMaxCustomerBoostClock(gpu, NVML_CLOCK_MEM),
      nvmlDeviceGetMinMaxClockOfPState(gpu, NVML_CLOCK_SM, 0)])
"""
    )
    assert memory == [3201, 2201]
    assert graphics == list(range(1980, 344, -15))
    assert (wrong, most, boost, ends) == (6, 1980, 3201, [345, 1980])


def test_processes_are_listed_in_every_version(state: VnvmlState, client: Client) -> None:
    pid = os.getpid()
    state.publish(1, processes=[(pid, 5)])  # nvidia-ml-py's detail list fails where memory is not known
    v3, v2, details, first, name, graphics = client(
        ONE_GPU
        + """
class v1(Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong)]
room, count = (v1 * 4)(), c_uint(4)
assert CDLL("libnvidia-ml.so.1").nvmlDeviceGetComputeRunningProcesses(gpu, byref(count), room) == 0
pairs = lambda found: [[one.pid, one.usedGpuMemory] for one in found]
tell([pairs(nvmlDeviceGetComputeRunningProcesses_v3(gpu)), pairs(nvmlDeviceGetComputeRunningProcesses_v2(gpu)),
      pairs(nvmlDeviceGetRunningProcessDetailList(nvmlDeviceGetHandleByIndex(1), nvmlProcessDetailList_v1, 0)),
      [[one.pid, one.used] for one in room[:count.value]][0],
      nvmlSystemGetProcessName(int(sys.argv[1])), nvmlDeviceGetGraphicsRunningProcesses(gpu)])
""",
        pid,
    )
    assert v3 == v2 == [[pid, 20 << 30], [1, None]]
    assert details == [[pid, 5]]
    assert first == [pid, 20 << 30]
    assert "python" in name or "pytest" in name
    assert graphics == []


def test_no_room_for_the_process_list_tells_how_much_is_needed(state: VnvmlState, client: Client) -> None:
    assert client(
        ONE_GPU
        + """
library, count = CDLL("libnvidia-ml.so.1"), c_uint(1)
one = (c_nvmlProcessInfo_t * 1)()
tell([library.nvmlDeviceGetComputeRunningProcesses_v3(gpu, byref(count), one), count.value])
"""
    ) == [7, 2]


def test_more_processes_than_there_is_room_for_are_cut(state: VnvmlState, client: Client) -> None:
    state.publish(0, processes=[(pid, 1) for pid in range(1, 40)])
    assert client(ONE_GPU + "tell(len(nvmlDeviceGetComputeRunningProcesses(gpu)))") == 16


def test_the_driver_ring_gives_samples_newer_than_those_seen(state: VnvmlState, client: Client) -> None:
    for i in range(300):
        state.append_sample(
            0,
            timestamp_us=1000 + i,
            power_mw=200_000 + i,
            utilisation_gpu_percent=i % 100,
            utilisation_memory_percent=7,
            sm_mhz=1500,
            memory_mhz=3201,
        )
    all_of_them, newer, clocks, none = client(
        ONE_GPU
        + """
pairs = lambda found: [[one.timeStamp, one.sampleValue.uiVal] for one in found[1]]
tell([pairs(nvmlDeviceGetSamples(gpu, NVML_TOTAL_POWER_SAMPLES, 0)),
      pairs(nvmlDeviceGetSamples(gpu, NVML_TOTAL_POWER_SAMPLES, 1297)),
      pairs(nvmlDeviceGetSamples(gpu, NVML_PROCESSOR_CLK_SAMPLES, 1298)),
      error_of(nvmlDeviceGetSamples, gpu, NVML_TOTAL_POWER_SAMPLES, 5000)])
"""
    )
    assert all_of_them == [[1000 + i, 200_000 + i] for i in range(173, 300)]
    assert newer == [[1298, 200_298], [1299, 200_299]]
    assert clocks == [[1299, 1500]]
    assert none == 6


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetFanSpeed(gpu)",
        "nvmlDeviceGetEccMode(gpu)",
        "nvmlDeviceGetApplicationsClock(gpu, NVML_CLOCK_SM)",
        "nvmlDeviceGetDriverModel(gpu)",
        "nvmlDeviceGetEncoderUtilization(gpu)",
        "nvmlDeviceGetProcessUtilization(gpu, 0)",
        "nvmlDeviceGetNvLinkState(gpu, 0)",
        "nvmlDeviceGetClock(gpu, NVML_CLOCK_SM, NVML_CLOCK_ID_APP_CLOCK_TARGET)",
        "nvmlDeviceGetSerial(gpu)",
        "nvmlDeviceGetBAR1MemoryInfo(gpu)",
        "nvmlSystemGetConfComputeState()",
    ],
)
def test_what_a_virtual_gpu_does_not_have_is_not_supported(state: VnvmlState, client: Client, call: str) -> None:
    assert client(ONE_GPU + f"tell(error_of(lambda: {call}))") == 3


def test_wrong_struct_versions_are_refused(state: VnvmlState, client: Client) -> None:
    assert (
        client(
            ONE_GPU
            + """
library = CDLL("libnvidia-ml.so.1")
def refused(name, struct):
    struct.version = 0x7000001
    return getattr(library, name)(gpu, byref(struct))
tell([refused("nvmlDeviceGetMemoryInfo_v2", c_nvmlMemory_v2_t()),
      refused("nvmlDeviceGetTemperatureV", c_nvmlTemperature_v1_t()),
      refused("nvmlDeviceGetPciInfoExt", nvmlPciInfoExt_v1_t()),
      refused("nvmlDeviceSetPowerManagementLimit_v2", c_nvmlPowerValue_v2_t()),
      refused("nvmlDeviceGetRunningProcessDetailList", c_nvmlProcessDetailList_t()),
      refused("nvmlGpmQueryDeviceSupport", c_nvmlGpmSupport_t())])
"""
        )
        == [25] * 6
    )


def test_a_gpu_without_a_power_limit_says_so_everywhere(client: Client, directory: str) -> None:
    with VnvmlState.create(directory, [h200(limit_mw=None)]) as state:
        publish_all(state)
        assert (
            client(
                ONE_GPU
                + """
tell([error_of(nvmlDeviceGetPowerManagementLimit, gpu), error_of(nvmlDeviceGetEnforcedPowerLimit, gpu),
      error_of(nvmlDeviceGetPowerManagementDefaultLimit, gpu),
      error_of(nvmlDeviceGetPowerManagementLimitConstraints, gpu),
      *[value.nvmlReturn for value in nvmlDeviceGetFieldValues(gpu, [187, 188, 189, 190, 192])]])
"""
            )
            == [3] * 9
        )


def test_no_reader_sees_half_a_publication(state: VnvmlState, talk: Client) -> None:
    """A writer that never rests, and a client that reads five values under one lock 20,000 times."""
    state.publish(0, energy_mj=0, power_average_mw=0, power_instant_mw=0, memory_temperature_c=0)
    process = talk(
        ONE_GPU
        + """
fields, seen, torn = [83, 185, 186, 191, 82], set(), 0
for _ in range(20_000):
    values = nvmlDeviceGetFieldValues(gpu, fields)
    numbers = {value.value.ullVal if value.valueType == 3 else value.value.uiVal for value in values}
    torn += len(numbers) != 1
    seen |= numbers
tell([torn, len(seen)])
"""
    )
    count = 0
    while process.poll() is None:
        count += 1
        state.publish(
            0,
            energy_mj=count,
            power_average_mw=count,
            power_instant_mw=count,
            memory_temperature_c=count,
        )
    assert process.stdout is not None
    torn, distinct = json.loads(process.stdout.read())
    assert torn == 0
    assert distinct > 10
