"""NVML in this process: found, opened once, opened again after a fork, its errors translated into ours.

The binding is nvidia-ml-py (imported as ``pynvml``), imported on first use. The library behind it is the driver's,
or joulewise's own virtual one: wherever ``JOULEWISE_VNVML`` names a running simulator, that one is loaded first, so
that nothing else in the process has to know.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from joulewise.core.errors import BadSpec, GpuError, GpuLost, MissingPart, NoGpu, NotPermitted, Unsupported
from joulewise.core.timeline import Loop, T, TimeSource, WallTime, drive
from joulewise.device.vnvml_layout import ENVIRONMENT as ENVIRONMENT
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.device.vnvml_looks import Looks
from joulewise.native import VNVML, library_path

# NVML's return codes that mean one thing to a caller. Numbers are the ABI's (nvml.h, nvmlReturn_t).
_UNINITIALIZED, _NOT_SUPPORTED, _NO_PERMISSION, _DRIVER_NOT_LOADED = 1, 3, 4, 9
_LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND, _GPU_IS_LOST, _RESET_REQUIRED = 12, 13, 15, 16
_OPERATING_SYSTEM, _VERSION_MISMATCH = 17, 18
UNSUPPORTED: Final = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
LOST: Final = frozenset(
    {_UNINITIALIZED, _DRIVER_NOT_LOADED, _GPU_IS_LOST, _RESET_REQUIRED, _OPERATING_SYSTEM, _VERSION_MISMATCH}
)


class _Process:
    """What this process knows of NVML. ``generation`` moves on whenever old handles stop being good."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 0
        self.opened = False
        self.binding: ModuleType | None = None
        self.state: VnvmlState | None = None

    def forget(self) -> None:
        """After a fork: the parent's session is not ours, and its lock may be held by a thread that is not here."""
        self.lock = threading.RLock()
        self.opened = False
        self.generation += 1


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)


def nvml() -> ModuleType:
    """The binding, with NVML open in this process.

    MissingPart if the binding is absent or shadowed; NoGpu, with the way out, if there is no driver to talk to.
    """
    with _process.lock:
        binding = _process.binding
        if binding is None:
            binding = _process.binding = _import_binding()
        if not _process.opened:
            if os.environ.get(ENVIRONMENT):
                _load_virtual()
            try:
                binding.nvmlInit()
            except binding.NVMLError as error:
                raise NoGpu(_why_not_open(error.value)) from None
            _process.opened = True
        return binding


def generation() -> int:
    """A number that changes when handles from before are no longer good (after a fork, or ``use_virtual``)."""
    return _process.generation


def use_virtual(directory: Path) -> None:
    """Let this process and its children see the virtual GPUs of the simulator in ``directory`` through NVML.

    Must come before anything in the process loads the driver's NVML. MissingPart if the virtual NVML was not built,
    BadSpec if the driver's is already loaded.
    """
    with _process.lock:
        _load_virtual()
        close()
        os.environ[ENVIRONMENT] = str(directory)


@contextmanager
def virtual(directory: Path) -> Iterator[None]:
    """``use_virtual`` while the context lasts; then the environment is as before.

    Contexts need not end in the reverse order of their beginning: an environment that names another simulator by then
    is left alone, and one that is gone does not come back.
    """
    before = os.environ.get(ENVIRONMENT)
    use_virtual(directory)
    try:
        yield
    finally:
        close()
        if os.environ.get(ENVIRONMENT) == str(directory):
            del os.environ[ENVIRONMENT]
            if before and (Path(before) / "lock").exists():
                os.environ[ENVIRONMENT] = before


def close() -> None:
    """End this process's NVML session; the next use opens a new one. Old GPUs go on working, on new handles."""
    with _process.lock:
        if _process.opened and _process.binding is not None:
            with suppress(_process.binding.NVMLError):  # the driver may be gone: then nothing is left to close
                _process.binding.nvmlShutdown()
        _process.opened = False
        _process.generation += 1
        _process.state = None  # not closed: times that were handed out still read it


def is_virtual() -> bool:
    """Whether NVML here is, or would be, the virtual one."""
    return bool(os.environ.get(ENVIRONMENT))


def time_source() -> TimeSource:
    """The time in which NVML's GPUs live: the wall's, or simulated time where a simulator runs faster."""
    state = _faster_than_wall()
    return WallTime() if state is None else SimulatedTime(state)


def looks(index: int) -> Looks | None:
    """How GPU ``index`` is looked at where NVML's GPUs live in simulated time; None on the wall's."""
    state = _faster_than_wall()
    return None if state is None else Looks(state, index)


def _faster_than_wall() -> VnvmlState | None:
    directory = os.environ.get(ENVIRONMENT)
    if not directory:
        return None
    with _process.lock:
        if _process.state is None or _process.state.directory != Path(directory):
            _process.state = VnvmlState.open(directory)
        return None if _process.state.speed == 1.0 else _process.state


class SimulatedTime:
    """The time of a simulator in another process, read from its shared memory."""

    def __init__(self, state: VnvmlState) -> None:
        self._state = state
        self._latest_s = 0.0

    @property
    def speed(self) -> float:
        """Simulated seconds per second."""
        return self._state.speed

    def now_s(self) -> float:
        """Simulated seconds; at its start, the simulator's clock shows the machine's monotonic time."""
        # The simulator corrects its clock by microseconds now and then; ours only goes on.
        self._latest_s = max(self._latest_s, self._state.simulated_ns() / 1e9)
        return self._latest_s

    def sleep(self, duration_s: float) -> None:
        """Sleep for ``duration_s`` simulated seconds in this thread."""
        WallTime().sleep(duration_s / self.speed)

    def run(self, loop: Loop[T]) -> T:
        """Drive a loop in this thread."""
        return drive(self, loop)


def translated(code: int, what: str, gpu: str) -> GpuError:
    """Our error for NVML's return ``code`` when ``what`` was asked of ``gpu``."""
    if code in LOST:
        return GpuLost(f"{gpu} is lost: {_words(code)}; {_way_back(code)}")
    if code in UNSUPPORTED:
        return Unsupported(f"{gpu} or its driver has no {what}; see 'joulewise doctor'")
    if code == _NO_PERMISSION:
        return NotPermitted(f"the driver does not let this user have the {what} of {gpu}; see 'joulewise doctor'")
    return GpuError(f"{gpu}: NVML could not give the {what}: {_words(code)}")


def _words(code: int) -> str:
    names = {
        _UNINITIALIZED: "NVML was shut down",
        _DRIVER_NOT_LOADED: "its simulator is gone" if is_virtual() else "the driver was unloaded",
        _GPU_IS_LOST: "it fell off the bus",
        _RESET_REQUIRED: "it needs a reset",
        _OPERATING_SYSTEM: "the operating system blocked the driver",
        _VERSION_MISMATCH: "the driver was exchanged under way",
    }
    return names.get(code, f"NVML error {code}")


def _way_back(code: int) -> str:
    if is_virtual():
        return "start the simulator again"
    return "'nvidia-smi -r' resets it" if code == _RESET_REQUIRED else "see 'dmesg | grep Xid', then reset or reboot"


def _why_not_open(code: int) -> str:
    if is_virtual():
        return f"no simulator runs in {os.environ[ENVIRONMENT]} ({ENVIRONMENT}); start one with 'joulewise sim'"
    return {
        _LIBRARY_NOT_FOUND: (
            "NVIDIA: no driver here (libnvidia-ml.so.1 not found); install it, or start the container with '--gpus all'"
        ),
        _DRIVER_NOT_LOADED: "NVIDIA: the driver is not loaded; 'modprobe nvidia', or reboot",
        _VERSION_MISMATCH: "NVIDIA: driver library and kernel module differ in version; reboot after the upgrade",
        _NO_PERMISSION: "NVIDIA: this user may not open /dev/nvidiactl; join its group, or ask the administrator",
    }.get(code, f"NVIDIA: NVML cannot be opened ({_words(code)}); see 'nvidia-smi'")


def _import_binding() -> ModuleType:
    try:
        binding = importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingPart(f"NVIDIA: nvidia-ml-py is not installed ({error}); 'pip install nvidia-ml-py'") from None
    if hasattr(binding, "__path__") or not hasattr(binding, "NVML_FI_DEV_POWER_INSTANT"):
        # An unofficial package of the same import name, or a binding from before instant power (2022).
        raise MissingPart(
            f"NVIDIA: {binding.__file__} is not a current nvidia-ml-py; "
            "'pip uninstall pynvml' and 'pip install --force-reinstall nvidia-ml-py'"
        )
    return binding


def _load_virtual() -> None:
    """Load our library before the binding asks for one by its name: the loader then takes ours for the driver's."""
    try:
        path = library_path()
    except FileNotFoundError as error:
        raise MissingPart(f"the virtual NVML is not there: {error}") from None
    ours = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    by_name = ctypes.CDLL(VNVML)
    if by_name._handle != ours._handle:
        raise BadSpec(
            "the driver's NVML is already loaded in this process; start it with 'joulewise sim --gpu … -- COMMAND'"
        )
