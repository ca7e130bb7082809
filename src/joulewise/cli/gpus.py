"""``--gpu SPEC`` made into GPUs, and into the environment in which a child sees the same ones.

Virtual GPUs run in a simulator process of their own, behind the virtual NVML, so that the child and we look at
the same hardware by the same road. ``auto`` means: mine if there are any, else one virtual H200.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from joulewise.cli.child import signals_let_through
from joulewise.core.errors import BadSpec, MissingPart, NoGpu
from joulewise.device.gpu import Gpu

AUTO = "auto"
FALLBACK = "sim:h200"
_FULL_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HELP = "nvml:0-3, sim:a100*4, replay:FILE or auto. Default: mine."


@dataclass(frozen=True, slots=True)
class OpenGpus:
    """GPUs to read, and what a child's environment must be to work on them."""

    gpus: list[Gpu]
    environ: Mapping[str, str]
    why: str
    """Why these and no others, in words."""
    simulated: bool = False
    named: bool = False
    """Whether somebody said which they are: ``--gpu``, or CUDA_VISIBLE_DEVICES and its like."""

    @property
    def virtual(self) -> bool:
        """Whether they are simulated, by us or by somebody around us."""
        from joulewise.device.discover import are_virtual

        return bool(self.gpus) and (self.simulated or are_virtual(self.gpus))

    @classmethod
    def none(cls, why: str) -> OpenGpus:
        """No GPU, and the reason."""
        return cls([], os.environ, why)


@contextmanager
def opened(spec: str | None, *, load: str | None = None, speed: float = 1.0) -> Iterator[OpenGpus]:
    """The GPUs of ``spec`` (None: mine) while the context lasts. ``load`` is what virtual GPUs run by themselves, and
    ``speed`` how many seconds they live per second; real ones know one speed only.

    Raises NoGpu, MissingPart or BadSpec, each with the way out.
    """
    from joulewise.device.discover import find

    if spec is None or spec == AUTO:
        if spec is None and speed != 1:
            raise BadSpec(f"--speed {speed:g} is for virtual GPUs; name some with --gpu sim:h200")
        own = _mine(must=spec is None)
        if own is not None:
            if speed != 1:
                raise BadSpec(f"--speed {speed:g} is for virtual GPUs; name some with --gpu sim:h200")
            yield own
            return
        spec = FALLBACK
    if spec.partition(":")[0].strip() != "sim":
        if speed != 1:
            raise BadSpec(f"--speed {speed:g} is for virtual GPUs; --gpu {spec} lives in the world's own time")
        with _flags():
            gpus = find(spec)
        yield OpenGpus(gpus, os.environ, f"--gpu {spec}", named=spec != "nvml:all")
        return

    from joulewise.device.node import spawn
    from joulewise.device.nvml_library import virtual

    with ExitStack() as stack:
        with signals_let_through():
            running = stack.enter_context(spawn(spec, load=load, speed=speed))
        stack.enter_context(virtual(running.directory))
        # All of them: what CUDA_VISIBLE_DEVICES says here was meant for other GPUs.
        yield OpenGpus(find("nvml:all"), running.environment(), f"virtual, {spec}", simulated=True)


@contextmanager
def _flags() -> Iterator[None]:
    """A way out that is a call in Python is a flag here."""
    from joulewise.device.discover import VIRTUAL

    try:
        yield
    except NoGpu as error:
        raise NoGpu(str(error).replace(VIRTUAL, f"'--gpu {FALLBACK}'")) from None


def _mine(*, must: bool) -> OpenGpus | None:
    """My GPUs. Where there are none: NoGpu or MissingPart if there ``must`` be some, else None."""
    from joulewise.device.discover import mine

    try:
        with _flags():
            gpus, seen = mine()
    except (NoGpu, MissingPart):
        if must:
            raise
        return None
    # "all": no variable names any, so these are whatever the machine or the container has.
    return OpenGpus(gpus, os.environ, seen.why, named=not seen.why.startswith("all "))


def uuids(specs: Iterable[str]) -> list[str]:
    """The full names of GPUs of this machine, whoever's they are. The driver is asked only for what is none already.

    Bare numbers are the driver's. Raises NoGpu, MissingPart or BadSpec.
    """
    found: list[str] = []
    for spec in specs:
        words = [word.strip() for word in spec.removeprefix("nvml:").split(",")]
        if all(_FULL_UUID.fullmatch(word) for word in words):
            found += words
            continue
        from joulewise.device.discover import find, parse

        wanted = spec if ":" in spec else f"nvml:{spec}"
        if parse(wanted).backend != "nvml":
            raise BadSpec(f"--gpu {spec}: only NVIDIA GPUs of this machine can be named here; write nvml:0-3 or GPU-…")
        # Of the whole machine: what CUDA_VISIBLE_DEVICES says here may be another's.
        found += [gpu.info.uuid for gpu in find(wanted, environ={})]
    return found
