"""Two laws of a GPU's power for ``bench.cluster_truth``, and the nodes that carry the GPUs.

*note*: PowerFlow's reconstruction with its assumed constants, P = 63 + (80·x + 240·x³) while a GPU computes and 63 + 60
while it communicates, x = clock / its maximum. *mixture*: a card of ``model/truth`` (kernel mixtures, a bent voltage
curve, the clock tree, its own leakage), drawn by job, at its resident idle power while it communicates. An A100 as
catalogued; a T4 is the Turing card of the catalogue scaled to the T4's 70 W board limit, hence an assumption.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Choices
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.physics import Load
from joulewise.model.truth import RichLaw

POWERS = ("note", "mixture")
_T4_OF_A100 = 70.0 / 383.0  # T4's board limit against what the note's law draws at full clock
_T4_OF_TURING = 70.0 / 260.0  # T4's against the RTX 8000's board limit


@dataclass(frozen=True)
class PowerLaw:
    """Watts of one GPU by clock fraction: while it computes, and while it communicates."""

    busy_w: Callable[[float], float]
    waiting_w: Callable[[float], float]

    @classmethod
    def of(cls, law: str, gpu: str, sensitivity: float, rng: random.Random, scatter: float) -> PowerLaw:
        """Of one job: ``law`` is one of POWERS, ``gpu`` a100 or t4, ``scatter`` σ of the logarithm of its power."""
        own = math.exp(scatter * rng.gauss(0.0, 1.0))
        if law == "note":
            scale = _T4_OF_A100 if gpu == "t4" else 1.0
            return cls(
                lambda x: scale * (63.0 + own * (80.0 * x + 240.0 * x**3)),
                lambda _: scale * (63.0 + 60.0),
            )
        if law != "mixture":
            raise BadSpec(f"no power law is called {law!r}; there are {', '.join(POWERS)}")
        chip = gpu_model(gpu).chip
        card = RichLaw(chip, seed=rng.randrange(2**31))
        # GEMMs draw more than streams: an A100 takes 478 W in transformer stages, 296 W in a scalar solver, 228 W in
        # copies, all at full clock; with 84 W static that is 0.35 + 0.65·κ of a transformer's switching power.
        full_w = 390.0 if gpu == "a100" else 390.0 * _T4_OF_A100
        load = Load(1.0, sensitivity, own * full_w * (0.35 + 0.65 * sensitivity))

        @lru_cache(maxsize=64)
        def busy_w(x: float) -> float:
            return card.operate(chip, load, lock_mhz=x * chip.sm_max_mhz).busy_power_w

        return cls(busy_w, card.idle_power_w)


@lru_cache(maxsize=2)
def gpu_model(gpu: str) -> GpuModel:
    """The catalogue's entry: what a scheduler knows of the board; the cards of ``mixture`` are drawn around it."""
    if gpu == "a100":
        return catalog.load("a100-sxm")
    big = catalog.load("rtx8000")
    watts = {
        name: getattr(big.chip, name) * _T4_OF_TURING for name in ("static_w", "idle_w", "deep_idle_w", "memory_w")
    }
    chip = replace(big.chip, sm_max_mhz=1590.0, **watts)
    return replace(big, key="t4", name="Tesla T4", chip=chip, sm_mhz=Choices(300.0, 1590.0, 15.0), default_limit_w=70.0)


def kind_of(gpu: str, nodes: int) -> Kind:
    """So many nodes. A100: Acme's power CDFs (idle GPU 63 W, empty host 1.0 kW, boot 300 s at 1.5 kW), 8 GPUs a node;
    T4: 4 a node and a smaller host, assumed in proportion to its GPUs' number and power. A sleeping node keeps its
    management controller, about 15 W (assumed)."""
    if gpu == "a100":
        return Kind(
            gpu, nodes, 8, idle_gpu_w=63.0, host_w=996.0, off_w=15.0, boot_s=300.0, boot_w=1500.0, top_mhz=1410.0
        )
    return Kind(gpu, nodes, 4, idle_gpu_w=10.0, host_w=260.0, off_w=15.0, boot_s=300.0, boot_w=300.0, top_mhz=1590.0)
