"""What this machine can measure and set, found out by looking: the facts behind ``joulewise doctor``.

Every "no" comes with why and what to do. Nothing is ever written to hardware to find out what may be written.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joulewise
from joulewise import native
from joulewise.cli.control import Control, look
from joulewise.cli.finding import Finding
from joulewise.cli.truths import see, truths
from joulewise.core.errors import JoulewiseError, NotPermitted, Unsupported
from joulewise.core.knob import KNOBS, Choices
from joulewise.core.units import format_percent, format_si
from joulewise.device import discover, nvml_library
from joulewise.device.amd import EXPERIMENTAL, AmdGpu
from joulewise.device.gpm import Gpm
from joulewise.device.gpu import Gpu
from joulewise.device.host import HostEnergy
from joulewise.device.nvml import NvmlGpu
from joulewise.device.saved import STATE
from joulewise.device.visible import visible

_KNOB_NAMES = frozenset(knob.name for knob in KNOBS)
_CAP_SYS_ADMIN = 21  # linux/capability.h
ROOT = "run as root (in a container with '--cap-add SYS_ADMIN'), or ask for a daemon"


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """One GPU: its names, whether it is this process's own, and what it can do."""

    index: int
    name: str
    uuid: str
    backend: str
    mine: bool
    driver: str | None
    pci_bus_id: str | None
    findings: tuple[Finding, ...]

    @property
    def settable(self) -> bool:
        """Whether this process may set anything on it."""
        return any(finding.ok for finding in self.findings if finding.what in _KNOB_NAMES)

    @property
    def measurable(self) -> bool:
        """Whether joules can be had from it at all."""
        told = {finding.what: finding.ok for finding in self.findings}
        return told.get("power", False) is not False or told.get("energy", False) is True


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that ``doctor`` says."""

    version: str
    python: str
    system: str
    uid: int
    gpus: tuple[GpuFindings, ...]
    mine: Finding
    host: tuple[Finding, ...]
    parts: tuple[Finding, ...]
    control: tuple[Finding, ...] = ()
    """Of the daemon and what is left of dead ones."""

    @property
    def measurable(self) -> bool:
        """Whether anything at all can be measured here."""
        return any(gpu.measurable for gpu in self.gpus) or any(finding.ok for finding in self.host)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        plain = asdict(self)
        for gpu, found in zip(plain["gpus"], self.gpus, strict=True):
            gpu |= {"measurable": found.measurable, "settable": found.settable}
        return {"measurable": self.measurable, **plain}


def examine(environ: Mapping[str, str] = os.environ, *, state: Path = STATE) -> Checkup:
    """Look at everything. Never raises for what is missing: that is what it reports."""
    gpus, reasons = discover.listed()
    infos = [gpu.info for gpu in gpus]
    seen = visible(environ, infos, discover.mig_parents() if gpus else {})
    control = look(environ, state, [info.uuid for info in infos]) if gpus else Control()
    indices = ", ".join(str(info.index) for info in infos if info.uuid in seen.uuids)
    if not gpus:
        mine = Finding("mine", False, "none", "'--gpu sim:h200' gives a virtual one to try joulewise with")
    elif not seen.uuids:
        mine = Finding("mine", False, seen.why, "set CUDA_VISIBLE_DEVICES, or name GPUs: '--gpu nvml:0'")
    else:
        mine = Finding("mine", True if seen.certain else None, f"{indices} ({seen.why})")
    return Checkup(
        version=joulewise.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        uid=os.geteuid(),
        gpus=tuple(_gpu(gpu, gpu.info.uuid in seen.uuids, control) for gpu in gpus),
        mine=mine,
        host=_host(),
        parts=(*(_backend(reason) for reason in reasons), *_parts()),
        control=control.findings,
    )


def may_set() -> Finding:
    """Whether this process has the right to set clocks and limits, judged from its capabilities."""
    if nvml_library.is_virtual():
        state = Path(os.environ[nvml_library.ENVIRONMENT]) / "state"
        allowed = os.access(state, os.W_OK)
        if allowed:
            return Finding("rights", True, "virtual GPUs")
        do = "start virtual GPUs of your own ('joulewise sim -- COMMAND'), or ask who started these for a daemon"
        return Finding("rights", False, f"these virtual GPUs are another user's: no right to write {state}", do)
    if capable(_CAP_SYS_ADMIN):
        return Finding("rights", True, "CAP_SYS_ADMIN is there")
    return Finding("rights", False, f"the driver wants CAP_SYS_ADMIN, which uid {os.geteuid()} lacks", ROOT)


def capable(capability: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether a Linux capability is in this process's effective set."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return os.geteuid() == 0
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(mask >> capability & 1)


def _gpu(gpu: Gpu, mine: bool, control: Control) -> GpuFindings:
    info = gpu.info
    findings = [_power(gpu), _energy(gpu)]
    if isinstance(gpu, NvmlGpu):
        findings.append(_activity(gpu))
        seen = see(gpu)
        findings += _settings(gpu, control)
        findings += truths(gpu, control, seen)
    else:
        findings += _settings(gpu, control)
    findings += [Finding("note", None, note) for note in info.notes if note != EXPERIMENTAL]
    if isinstance(gpu, AmdGpu):
        findings.append(Finding("backend", None, EXPERIMENTAL))
    return GpuFindings(
        info.index, info.name, info.uuid, info.backend, mine, info.driver, info.pci_bus_id, tuple(findings)
    )


def _power(gpu: Gpu) -> Finding:
    try:
        reading = gpu.read()
    except JoulewiseError as error:
        return Finding("power", False, str(error))
    if reading.power_w is None:
        return Finding("power", False, "this GPU or its driver does not tell its power", "use a newer driver")
    sensors = gpu.info.sensors
    says = f"new every {format_si(sensors.power_update_s, 's', digits=2)}"
    if isinstance(gpu, NvmlGpu) and gpu.power_kind == "average":
        says += ", a 1 s average: this driver has no instant power"
        return Finding("power", None, says, "a driver from 2023 or newer gives instant power")
    if sensors.power_duty < 1:
        says += f", looking {format_percent(sensors.power_duty)} of the time"
    return Finding("power", True, says)


def _energy(gpu: Gpu) -> Finding:
    try:
        energy = gpu.energy()
    except Unsupported:
        return Finding("energy", None, "no counter on this GPU or driver: power is integrated instead")
    except JoulewiseError as error:
        return Finding("energy", False, str(error))
    update_s = gpu.info.sensors.counter_update_s
    says = "counter" if update_s is None else f"counter, new every {format_si(update_s, 's', digits=2)}"
    return Finding("energy", True, f"{says}; one look costs {format_si(energy.call_s, 's', digits=2)}")


def _activity(gpu: NvmlGpu) -> Finding:
    try:
        Gpm(gpu).close()
    except NotPermitted:
        return Finding("activity", False, "GPM counters are for root here", ROOT)
    except JoulewiseError:
        return Finding("activity", False, "no GPM counters: they came with Hopper")
    return Finding("activity", True, "GPM counters (SM, tensor, DRAM, …)")


def _settings(gpu: Gpu, control: Control) -> list[Finding]:
    """One finding a knob, and why it may not be turned if it may not."""
    info = gpu.info
    knobs = info.space.knobs
    if not knobs:
        return [Finding("set", False, "this GPU or its driver lets nothing be set")]
    rights = may_set()
    mig = any(note.startswith("MIG is on") for note in info.notes)
    if mig and not rights.ok:
        do = "ask for a whole GPU; root may set it"
        rights = Finding("rights", False, "MIG is on, and settings would hit all instances: root's alone", do)
    elif not rights.ok and control.daemon is not None and info.uuid in control.daemon.gpus:
        allowed, why = control.ranges(info.uuid)
        if allowed:
            return [_through_daemon(name, choices, allowed.get(name)) for name, choices in knobs.items()]
        uid = control.daemon.uid
        do = f"work on it alone, or ask an admin for 'joulewise grant add --uid {uid} --gpu {info.uuid}'"
        rights = Finding("rights", False, f"the daemon lets uid {uid} set nothing: {why}", do)
    findings = []
    for name, choices in knobs.items():
        findings.append(Finding(name, rights.ok, f"{'can' if rights.ok else 'could'} be set to {_shown(choices)}"))
    if mig and rights.ok:
        return [*findings, Finding("MIG", None, "is on: root may set it, but it hits all instances")]
    return findings if rights.ok else [*findings, rights]


def _through_daemon(name: str, choices: Choices, allowed: tuple[float, float] | None) -> Finding:
    if allowed is None:
        return Finding(name, False, f"could be set to {_shown(choices)}, but neither a grant nor a rule lets you")
    whole = allowed == (choices.low, choices.high)
    shown = _shown(choices) if whole else f"{allowed[0]:g}–{allowed[1]:g}, of {_shown(choices)},"
    return Finding(name, True, f"can be set to {shown} through the daemon")


def _shown(choices: Choices) -> str:
    return str(choices) if len(choices.values) <= 4 else f"{choices.low:g}–{choices.high:g}"


def _host() -> tuple[Finding, ...]:
    host = HostEnergy()
    findings = [Finding("energy", True, ", ".join(zone.name for zone in host.zones))] if host.zones else []
    for line in host.missing:
        says, _, do = line.partition("; ")
        findings.append(Finding("energy", False, says, do or None))
    return tuple(findings)


def _backend(reason: str) -> Finding:
    """A backend without GPUs: its own words, "NVIDIA: what; way out"."""
    vendor, colon, rest = reason.partition(": ")
    if not colon or " " in vendor:
        vendor, rest = "GPU", reason
    says, _, do = rest.partition("; ")
    return Finding(vendor, False, says, do or None)


def _parts() -> list[Finding]:
    parts: list[Finding] = []
    try:
        native.library_path()
        parts.append(Finding("virtual GPUs", True, "'joulewise sim --gpu sim:h200 -- COMMAND'"))
    except FileNotFoundError as error:
        says, _, do = str(error).partition("; ")
        parts.append(Finding("virtual GPUs", False, says, do or None))
    for module, package, purpose, extra in (
        ("pynvml", "nvidia-ml-py", "NVIDIA GPUs", None),
        ("matplotlib", "matplotlib", "plots", "plot"),
    ):
        if importlib.util.find_spec(module) is None:
            do = f"pip install {package}" if extra is None else f"pip install 'joulewise[{extra}]'"
            parts.append(Finding(package, False, f"not installed; needed for {purpose}", do))
        else:
            parts.append(Finding(package, True, f"{_version(package)} for {purpose}"))
    return parts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
