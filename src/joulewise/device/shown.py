"""What a virtual GPU shows through NVML: its identity and its values in the driver's units and codes.

A translation, nothing else: ``VirtualGpu`` on one side, ``vnvml_values`` on the other.
"""

from __future__ import annotations

from joulewise.core.measurement import Throttle
from joulewise.core.units import milliwatts_from_watts
from joulewise.device.operating import Demand
from joulewise.device.virtual import VirtualGpu
from joulewise.device.vnvml_values import Control, GpuIdentity, Values

_HOPPER = 9  # NVML_DEVICE_ARCH_HOPPER: the first with GPM

# nvmlClocksEventReason*: gpu idle, applications clocks setting, software power cap, software thermal slowdown.
_REASONS = {Throttle.IDLE: 0x1, Throttle.LOCKED: 0x2, Throttle.POWER_CAP: 0x4, Throttle.HEAT: 0x20}
_GPM_BUSY, _GPM_SM_BOUND, _GPM_MEMORY_BOUND = (1, 2), (5, 7), (10,)  # graphics, SM; any tensor, HMMA; DRAM


def identity(gpu: VirtualGpu) -> GpuIdentity:
    """What does not change."""
    model, info = gpu.model, gpu.info
    limit = model.power_limit_w
    return GpuIdentity(
        uuid=info.uuid,
        name=info.name,
        sm_clocks_mhz=[int(mhz) for mhz in model.sm_mhz.all()],
        memory_clocks_mhz=[int(mhz) for mhz in model.memory_mhz.all()],
        memory_total_bytes=info.memory_bytes or 0,
        limit_mw=(
            milliwatts_from_watts(limit.low),
            milliwatts_from_watts(limit.high),
            milliwatts_from_watts(model.default_limit_w),
        ),
        pci_bus_id=info.pci_bus_id or "00000000:01:00.0",
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        gpm=model.architecture >= _HOPPER,
        slowdown_c=round(model.chip.heat.throttle_c),
        max_operating_c=round(model.chip.heat.throttle_c),
    )


def values(gpu: VirtualGpu) -> Values:
    """What the instruments show now."""
    reading = gpu.read()
    board, sensors = gpu.board, gpu.sensors
    time_ns = round(reading.time_s * 1e9)
    instant_mw, average_mw = _milli(reading.power_w), _milli(reading.average_power_w)
    counter_j = sensors.counter_j(reading.time_s)
    sm_mhz, memory_mhz = int(reading.sm_mhz or 0), int(reading.memory_mhz or 0)
    residents = board.state.residents
    shown: Values = {
        "simulated_ns": time_ns,
        "energy_mj": None if counter_j is None else round(counter_j * 1000),
        "memory_used_bytes": reading.memory_used_bytes,
        "clocks_event_reasons": sum(_REASONS.get(reason, 0) for reason in reading.throttle or ()),
        "power_violation_ns": round(board.throttled_s[0] * 1e9),
        "thermal_violation_ns": round(board.throttled_s[1] * 1e9),
        "power_mw": instant_mw if sensors.timing.average_window_s is None else average_mw,
        "power_instant_mw": instant_mw,
        "power_average_mw": average_mw,
        "sm_mhz": sm_mhz,
        "graphics_mhz": sm_mhz,
        "video_mhz": sm_mhz,
        "memory_mhz": memory_mhz,
        "utilisation_gpu_percent": _percent(reading.utilization),
        "utilisation_memory_percent": _percent(reading.memory_utilization),
        "temperature_c": None if reading.temperature_c is None else int(reading.temperature_c),
        "pstate": 0 if residents else 8,
        "processes": [(pid, size) for pid, size in sorted(residents.items()) if pid > 0],
    }
    if gpu.model.architecture >= _HOPPER:
        seconds = dict(zip((_GPM_BUSY, _GPM_SM_BOUND, _GPM_MEMORY_BOUND), board.activity_s, strict=True))
        shown["gpm_ns"] = time_ns
        shown["gpm_integral"] = {metric: 100.0 * total for ids, total in seconds.items() for metric in ids}
    return shown


def demand(control: Control, gpu: VirtualGpu) -> Demand:
    """What NVML clients have asked of ``gpu``, as its board understands it: clocks that exist, a limit in watts."""
    model = gpu.model
    sm_lock, memory_lock = control.sm_lock_mhz, control.memory_lock_mhz
    return Demand(
        sm_mhz=sm_lock and (model.sm_mhz.snap(sm_lock[0]), model.sm_mhz.snap(sm_lock[1])),
        memory_mhz=memory_lock and (model.memory_mhz.snap(memory_lock[0]), model.memory_mhz.snap(memory_lock[1])),
        limit_w=control.power_limit_w,
    )


def _milli(power_w: float | None) -> int | None:
    return None if power_w is None else milliwatts_from_watts(power_w)


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(ratio * 100)
