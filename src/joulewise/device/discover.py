"""One grammar for GPUs everywhere: the same text in every flag, file and call.

=====================  ================================================================================
``nvml`` ``amd``       *my* GPUs of that vendor (see ``visible``)
``nvml:0-3,7``         by the number the driver gives; also ``amd:0``
``nvml:GPU-3f2a``      by UUID, or by the beginning of one
``nvml:all``           every GPU of the machine, mine or not
``sim:h200*8``         virtual GPUs by model, in this process; ``sim:a100*4,h200``, and ``sim`` is one H200
``replay:run.jsonl``   the GPUs of a recording
(nothing)              *my* GPUs, whatever the vendor
=====================  ================================================================================
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from joulewise.core.errors import BadSpec, JoulewiseError, MissingPart, NoGpu
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.device.gpu import Gpu
from joulewise.device.visible import Visible, visible

Backend = Literal["nvml", "amd", "sim", "replay"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

DEFAULT_MODEL = "h200"
MOST_GPUS = 64
"""As many as the virtual NVML holds."""

VIRTUAL = "joulewise.gpus('sim:h200')"
"""How a Python caller comes by a GPU where there is none: the way out in NoGpu. A command line has a flag for it."""
_EXAMPLES = "write 'nvml:0-3', 'nvml:GPU-3f2a', 'amd:0', 'sim:h200*8' or 'replay:run.jsonl'"
_log = logging.getLogger("joulewise")


@dataclass(frozen=True, slots=True)
class Spec:
    """What was asked for, understood but not yet looked for."""

    backend: Backend
    picks: tuple[int | str, ...] | None = None
    """Numbers and UUID prefixes, in order; None means *mine*, an empty tuple all."""
    models: tuple[str, ...] = ()
    """One model name for each virtual GPU."""
    path: Path | None = None

    def __str__(self) -> str:
        if self.backend == "replay":
            return f"replay:{self.path}"
        if self.backend == "sim":
            return "sim:" + ",".join(self.models)
        if self.picks is None:
            return self.backend
        return f"{self.backend}:" + (",".join(map(str, self.picks)) or "all")


def parse(text: str) -> Spec:
    """Understand a GPU specification, or raise BadSpec that says what would be right. Touches no hardware."""
    backend, colon, rest = text.strip().partition(":")
    rest = rest.strip()
    if backend not in BACKENDS:
        known = ", ".join(BACKENDS)
        # A bare number, as other tools take it, or a bare model.
        meant = "" if colon else f"'nvml:{text}'" if text[:1].isdigit() else f"'sim:{text}' for a virtual one"
        way = f"write {meant}; or else {_EXAMPLES.removeprefix('write ')}" if meant else _EXAMPLES
        raise BadSpec(f"GPU specification {text!r} names no backend ({known}); {way}")
    if colon and not rest:
        raise BadSpec(f"GPU specification {text!r} ends after the colon; {_EXAMPLES}")
    if backend == "replay":
        if not rest:
            raise BadSpec(f"GPU specification {text!r} names no file; write 'replay:run.jsonl'")
        return Spec("replay", path=Path(rest))
    if backend == "sim":
        return Spec("sim", models=_models(text, rest or DEFAULT_MODEL))
    real: Backend = "nvml" if backend == "nvml" else "amd"
    if not rest:
        return Spec(real)
    return Spec(real, picks=() if rest == "all" else _picks(text, rest))


def find(
    spec: str | None = None, *, environ: Mapping[str, str] = os.environ, time: TimeSource | None = None
) -> list[Gpu]:
    """The GPUs that ``spec`` names, in its order; without one, *my* GPUs.

    ``time`` is where virtual and replayed GPUs live (wall time if not given); real ones live in wall time, or in
    their simulator's. BadSpec if ``spec`` makes no sense, NoGpu if nothing matches, MissingPart if a backend
    cannot be loaded.
    """
    if spec is None or not spec.strip():
        return mine(environ=environ)[0]
    wanted = parse(spec)
    if wanted.backend == "sim":
        return _virtual(wanted.models, time or WallTime())
    if wanted.backend == "replay":
        assert wanted.path is not None
        return _replayed(wanted.path, time or WallTime())
    if wanted.picks is None:
        return mine(environ=environ, backend=wanted.backend)[0]
    return _picked(str(wanted), wanted.picks, _LISTERS[wanted.backend]())


def mine(*, environ: Mapping[str, str] = os.environ, backend: Backend | None = None) -> tuple[list[Gpu], Visible]:
    """This process's own GPUs and why they are. NoGpu, with every backend's reason, if there are none."""
    gpus, reasons = listed(backend)
    seen = visible(environ, [gpu.info for gpu in gpus], mig_parents() if backend != "amd" and gpus else {})
    if not gpus:
        why = "; ".join(reasons)
        raise NoGpu(f"no GPU to read: {why}; {VIRTUAL} gives a virtual one, see 'joulewise doctor'")
    if not seen.uuids:
        raise NoGpu(f"{len(gpus)} GPUs here, none of them for this process: {seen.why}; see 'joulewise doctor'")
    if not seen.certain:
        _log.warning("which GPUs are mine is not certain: %s", seen.why)
    by_uuid = {gpu.info.uuid: gpu for gpu in gpus}
    return [by_uuid[uuid] for uuid in seen.uuids], seen


def listed(backend: Backend | None = None) -> tuple[list[Gpu], list[str]]:
    """Every GPU of the machine, and for each backend without one the reason.

    Under a simulator only its virtual GPUs exist, and NVML is the way to them.
    """
    from joulewise.device.nvml_library import is_virtual

    gpus: list[Gpu] = []
    reasons: list[str] = []
    if backend is None and is_virtual():
        backend = "nvml"
    for name, lister in _LISTERS.items():
        if backend in (None, name):
            try:
                gpus += lister()
            except (NoGpu, MissingPart) as error:
                reasons.append(str(error))
    return gpus, reasons


def are_virtual(gpus: Iterable[Gpu]) -> bool:
    """Whether one of ``gpus`` at least is simulated, in this process or behind the virtual NVML: what such GPUs use or
    save was never spent."""
    from joulewise.device.nvml_library import is_virtual

    return any(gpu.info.backend == "virtual" or (gpu.info.backend == "nvml" and is_virtual()) for gpu in gpus)


def mig_parents() -> Mapping[str, str]:
    """MIG instance → its GPU, where NVML knows any; empty otherwise."""
    from joulewise.device import nvml

    try:
        return nvml.mig_parents()
    except JoulewiseError:
        return {}


def _nvml_gpus() -> Sequence[Gpu]:
    from joulewise.device.nvml import NvmlGpu

    return NvmlGpu.all()


def _amd_gpus() -> Sequence[Gpu]:
    from joulewise.device.amd import AmdGpu

    return AmdGpu.all()


_LISTERS: Mapping[str, Callable[[], Sequence[Gpu]]] = {"nvml": _nvml_gpus, "amd": _amd_gpus}


def _virtual(models: Sequence[str], time: TimeSource) -> list[Gpu]:
    from joulewise.device.virtual import VirtualGpu
    from joulewise.model import catalog

    loaded = {name: catalog.load(name) for name in dict.fromkeys(models)}
    return [VirtualGpu(loaded[name], time=time, index=index) for index, name in enumerate(models)]


def _replayed(path: Path, time: TimeSource) -> list[Gpu]:
    from joulewise.device.recording import load
    from joulewise.device.replay import ReplayGpu

    recording = load(path)
    if not recording.gpus:
        raise NoGpu(f"the recording {path} lists no GPU, only the host was measured; record a run that has one")
    start_s = time.now_s()
    return [ReplayGpu(recording, index, time=time, started_s=start_s) for index in range(len(recording.gpus))]


def _picked(text: str, picks: Sequence[int | str], gpus: Sequence[Gpu]) -> list[Gpu]:
    """The picked ones of ``gpus``, in the order of the picks; NoGpu names those there are."""
    if not picks:
        return list(gpus)
    chosen: list[Gpu] = []
    for pick in picks:
        matches = [
            gpu for gpu in gpus if (gpu.info.index == pick if isinstance(pick, int) else gpu.info.uuid.startswith(pick))
        ]
        if len(matches) != 1:
            what = "several GPUs" if matches else "no GPU"
            there = ", ".join(f"{gpu.info.index} ({gpu.info.uuid[:12]}…)" for gpu in gpus)
            raise NoGpu(f"{pick!r} in {text!r} is {what}; there are {there}")
        if matches[0] in chosen:
            raise BadSpec(f"{text!r} names GPU {matches[0].info.index} twice; name each once")
        chosen += matches
    return chosen


def _picks(text: str, rest: str) -> tuple[int | str, ...]:
    """Numbers, ranges and UUID prefixes."""
    picks: list[int | str] = []
    for entry in (entry.strip() for entry in rest.split(",")):
        numbers = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", entry)
        if numbers:
            first, last = int(numbers.group(1)), int(numbers.group(2) or numbers.group(1))
            if last < first:
                raise BadSpec(f"{entry!r} in {text!r} counts down; write '{last}-{first}'")
            picks += range(first, last + 1)
        elif re.fullmatch(r"GPU-[0-9a-fA-F-]+", entry):
            picks.append(entry)
        elif entry.startswith("MIG-"):
            raise BadSpec(f"{entry!r} in {text!r} is a slice: power is read for whole GPUs; name its GPU")
        else:
            raise BadSpec(f"{entry!r} in {text!r} is no number, range or GPU-… name; {_EXAMPLES}")
    if len(set(picks)) < len(picks):
        raise BadSpec(f"{text!r} names a GPU twice; name each once")
    return tuple(picks)


def _models(text: str, rest: str) -> tuple[str, ...]:
    """Model names with counts, expanded. Whether a model exists is the catalogue's to say."""
    models: list[str] = []
    for entry in (entry.strip() for entry in rest.split(",")):
        name, star, count = (part.strip() for part in entry.partition("*"))
        if not name or (star and not re.fullmatch(r"[1-9]\d{0,3}", count)):
            raise BadSpec(f"{entry!r} in {text!r} is no model with a count; write 'sim:h200*8' or 'sim:a100,h200'")
        models += [name] * (int(count) if star else 1)
    if len(models) > MOST_GPUS:
        raise BadSpec(f"{text!r} asks for {len(models)} virtual GPUs; at most {MOST_GPUS}")
    return tuple(models)
