"""GPM activity counters and the event set."""

from __future__ import annotations

import json
import math
from pathlib import Path

from joulewise.device.vnvml_layout import VnvmlState

from .conftest import Client, h200, publish_all

GPU = """
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
"""

GPM = (
    GPU
    + """
def means(first, second, ids):
    get = c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics, get.sample1, get.sample2 = NVML_GPM_METRICS_GET_VERSION, len(ids), first, second
    for slot, metric in enumerate(ids):
        get.metrics[slot].metricId = metric
    nvmlGpmMetricsGet(get)
    return [[get.metrics[i].nvmlReturn, get.metrics[i].value] for i in range(len(ids))]
first, second = nvmlGpmSampleAlloc(), nvmlGpmSampleAlloc()
"""
)


def test_gpm_gives_the_mean_between_two_samples(state: VnvmlState, talk: Client) -> None:
    state.publish(0, gpm_ns=1_000_000_000, gpm_integral={2: 50.0, 10: 10.0, 60: 0.0})
    process = talk(
        GPM
        + """
nvmlGpmSampleGet(gpu, first)
tell(nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)
sys.stdin.readline()
nvmlGpmSampleGet(gpu, second)
tell(means(first, second, [2, 10, 60, 5, 476]))
nvmlGpmSampleFree(first); nvmlGpmSampleFree(second)
"""
    )
    assert process.stdout.readline() == "1\n"
    state.publish(0, gpm_ns=3_000_000_000, gpm_integral={2: 230.0, 10: 50.0, 60: 8_000.0})
    process.stdin.write("\n")
    process.stdin.flush()
    seen = json.loads(process.stdout.readline())
    assert seen[:3] == [[0, 90.0], [0, 20.0], [0, 4_000.0]]
    assert [answer[0] for answer in seen[3:]] == [3, 3]  # not fed; not known


def test_two_samples_of_one_instant_give_no_number(state: VnvmlState, client: Client) -> None:
    state.publish(0, gpm_ns=1_000_000_000, gpm_integral={2: 50.0})
    ((code, value),) = client(
        GPM + "[nvmlGpmSampleGet(gpu, one) for one in (first, second)]; tell(means(first, second, [2]))"
    )
    assert code == 0
    assert math.isnan(value)


def test_gpm_refuses_what_makes_no_sense(state: VnvmlState, client: Client) -> None:
    state.publish(0, gpm_ns=0, gpm_integral={2: 0.0})
    assert client(
        GPM
        + """
nvmlGpmSampleGet(gpu, first)
empty = error_of(means, first, second, [2])
nvmlGpmSampleGet(nvmlDeviceGetHandleByIndex(1), second)
tell([empty, error_of(means, first, second, [2])])
"""
    ) == [2, 2]


def test_a_gpu_without_gpm_says_so(directory: Path, client: Client) -> None:
    with VnvmlState.create(directory, [h200(gpm=False)]) as state:
        publish_all(state)
        assert client(
            GPM
            + """
tell([nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice, error_of(nvmlGpmSampleGet, gpu, first)])
"""
        ) == [0, 3]


def test_waiting_for_an_event_blocks_until_the_timeout(state: VnvmlState, client: Client) -> None:
    code, wall_s, cpu_s = client(
        GPU
        + """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(gpu, nvmlEventTypeXidCriticalError, events)
wall, cpu = time.perf_counter(), time.process_time()
code = error_of(nvmlEventSetWait_v2, events, 200)
tell([code, time.perf_counter() - wall, time.process_time() - cpu])
nvmlEventSetFree(events)
"""
    )
    assert code == 10
    assert wall_s >= 0.2
    assert cpu_s < 0.1  # it slept rather than spun


def test_a_lost_gpu_raises_xid_79_once(state: VnvmlState, talk: Client) -> None:
    process = talk(
        GPU
        + """
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(nvmlDeviceGetHandleByIndex(1), nvmlDeviceGetSupportedEventTypes(gpu), events)
tell("ready")
event = nvmlEventSetWait_v2(events, 30_000)
which = cast(event.device, c_void_p).value - cast(gpu, c_void_p).value
tell([event.eventType, event.eventData, which != 0, error_of(nvmlEventSetWait_v2, events, 1)])
"""
    )
    assert process.stdout.readline() == '"ready"\n'
    state.set_fault(0, lost=True)  # not registered: nobody asked about it
    state.set_fault(1, lost=True)
    assert json.loads(process.stdout.readline()) == [8, 79, True, 10]


def test_an_event_that_virtual_gpus_never_raise_cannot_be_registered(state: VnvmlState, client: Client) -> None:
    assert client(GPU + "tell(error_of(nvmlDeviceRegisterEvents, gpu, nvmlEventTypeClock, nvmlEventSetCreate()))") == 3
