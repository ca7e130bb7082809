"""ctypes mirrors of ``native/vnvml/state.h``: the shared memory of the virtual NVML, field by field.

They exist apart from ``vnvml_layout`` so that a test can compare every offset with the C side. They know no rules; who
may write what is said in the header file and kept by ``vnvml_layout.VnvmlState``.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

MAGIC = 0x4C4D564E564A5731
LAYOUT_VERSION = 2
MAX_GPUS = 64
MAX_MEMORY_CLOCKS = 8
MAX_SM_CLOCKS = 512
MAX_PROCESSES = 16
MAX_GROUPS = 16
SAMPLES = 128
NONE_32 = 2**32 - 1
NONE_64 = 2**64 - 1
GPM_METRICS = (*range(1, 14), 20, 21, 60, 61)
"""NVML's GPM metric id of each slot: activity 1–13 in percent, PCIe 20/21 and NVLink 60/61 in MiB/s."""
GPM_SLOTS = 24

EVERYONE_MAY_WRITE = 1
FAULT_LOST, FAULT_NO_PERMISSION, FAULT_HANG, FAULT_MIG = 1, 2, 4, 8


class Group(IntEnum):
    """What a call cost or a missing feature can be given for."""

    ENERGY_COUNTER = 0
    POWER = 1
    LIMIT_SET = 2
    SM_CLOCK_SET = 3
    MEMORY_CLOCK_SET = 4
    GPM = 5
    FIELD_VALUES = 6
    PROCESSES = 7
    OTHER = 8


_U16, _U32, _U64, _F64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double


class Header(ctypes.Structure):
    """Written once, before the file gets its final name (but for ``driver_generation``)."""

    _fields_ = (
        ("magic", _U64),
        ("layout_version", _U32),
        ("state_size", _U32),
        ("gpu_count", _U32),
        ("flags", _U32),
        ("simulator_pid", _U32),
        ("driver_generation", _U32),
        ("lock_inode", _U64),
        ("origin_ns", _U64),
        ("user_namespace", _U64),
        ("cuda_version", ctypes.c_int32),
        ("reserved", _U32),
        ("driver_version", ctypes.c_char * 80),
        ("nvml_version", ctypes.c_char * 80),
    )


class Clock(ctypes.Structure):
    """Simulated time was ``simulated_ns`` at ``monotonic_ns`` and runs ``speed`` times as fast since."""

    _fields_ = (
        ("sequence", _U32),
        ("reserved", _U32),
        ("simulated_ns", _U64),
        ("monotonic_ns", _U64),
        ("speed", _F64),
    )


class Identity(ctypes.Structure):
    """What does not change while a GPU is up."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("memory_total_bytes", _U64),
        ("memory_reserved_bytes", _U64),
        ("bar1_total_bytes", _U64),
        ("pci_domain", _U32),
        ("pci_bus", _U32),
        ("pci_device", _U32),
        ("pci_device_id", _U32),
        ("pci_subsystem_id", _U32),
        ("brand", _U32),
        ("architecture", _U32),
        ("compute_major", _U32),
        ("compute_minor", _U32),
        ("cores", _U32),
        ("memory_bus_bits", _U32),
        ("gpm_supported", _U32),
        ("limit_min_mw", _U32),
        ("limit_max_mw", _U32),
        ("limit_default_mw", _U32),
        ("shutdown_c", _U32),
        ("slowdown_c", _U32),
        ("max_operating_c", _U32),
        ("memory_clock_count", _U32),
        ("sm_clock_count", _U32),
        ("memory_clocks_mhz", _U32 * MAX_MEMORY_CLOCKS),
        ("sm_clocks_mhz", _U16 * MAX_SM_CLOCKS),
    )


class Process(ctypes.Structure):
    """One process with work on the GPU."""

    _fields_ = (("pid", _U32), ("reserved", _U32), ("memory_bytes", _U64))


class Published(ctypes.Structure):
    """What the GPU's sensors show; all ones where there is no such value."""

    __slots__ = ()  # a misspelt value is an error, not a new attribute
    _fields_ = (
        ("simulated_ns", _U64),
        ("energy_mj", _U64),
        ("memory_used_bytes", _U64),
        ("clocks_event_reasons", _U64),
        ("power_violation_ns", _U64),
        ("thermal_violation_ns", _U64),
        ("power_mw", _U32),
        ("power_instant_mw", _U32),
        ("power_average_mw", _U32),
        ("sm_mhz", _U32),
        ("graphics_mhz", _U32),
        ("memory_mhz", _U32),
        ("video_mhz", _U32),
        ("utilisation_gpu_percent", _U32),
        ("utilisation_memory_percent", _U32),
        ("temperature_c", _U32),
        ("memory_temperature_c", _U32),
        ("pstate", _U32),
        ("process_count", _U32),
        ("reserved", _U32),
        ("processes", Process * MAX_PROCESSES),
        ("gpm_ns", _U64),
        ("gpm_integral", _F64 * GPM_SLOTS),
        ("gpm_slots", _U64),
    )


class ControlWords(ctypes.Structure):
    """What clients asked for, one word a knob: a writer killed at any point leaves every knob whole."""

    _fields_ = (
        ("power_limit_mw", _U64),
        ("sm_lock", _U64),
        ("memory_lock", _U64),
        ("persistence", _U64),
        ("sequence", _U64),
        ("written_ns", _U64),
        ("writer_pid", _U64),
        ("reserved", _U64),
    )


class Faults(ctypes.Structure):
    """What shall go wrong, and what calls cost."""

    _fields_ = (
        ("flags", _U32),
        ("unsupported", _U32),
        ("latency_us", _U32 * MAX_GROUPS),
        ("bmc_limit_mw", _U32),
        ("reserved", _U32),
    )


class Sample(ctypes.Structure):
    """One entry of the driver's ring, read by ``nvmlDeviceGetSamples``."""

    _fields_ = (
        ("timestamp_us", _U64),
        ("power_mw", _U32),
        ("utilisation_gpu_percent", _U32),
        ("utilisation_memory_percent", _U32),
        ("sm_mhz", _U32),
        ("memory_mhz", _U32),
        ("reserved", _U32),
    )


class GpuBlock(ctypes.Structure):
    """Everything about one GPU."""

    _fields_ = (
        ("identity", Identity),
        ("published_sequence", _U64),
        ("published", Published),
        ("control", ControlWords),
        ("faults", Faults),
        ("samples_head", _U64),
        ("samples", Sample * SAMPLES),
    )


class State(ctypes.Structure):
    """The whole file."""

    _fields_ = (("header", Header), ("clock", Clock), ("gpus", GpuBlock * MAX_GPUS))
