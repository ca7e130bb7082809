"""Seconds and joules of one iteration of a data-parallel job, by GPUs, nodes, batch and clock.

What it is: closed formulas, for many candidate parameters and many spots at once. A *spot* is where and how a job
runs: so many GPUs on so many nodes, a batch per GPU, gradient-accumulation steps, a clock fraction. What it is not:
a fit (``throughput_fit``), a belief that learns while a cluster runs (``cluster/belief``), or a law of power of its
own: busy and waiting power, the voltage curve and the limiter are those of ``model/physics``.

With b samples a GPU and step, n GPUs, x the clock fraction, and the load's host time H and busy time G at x,

    G(b, x) = G_ref·(a + (1 − a)·b/b_ref)·(κ/x + 1 − κ)            busy seconds of one step
    H(b)    = h·G_ref·(c + (1 − c)·b/b_ref)                        host seconds of one step
    T_grad  = (H^o + G^o)^(1/o),  1 ≤ o ≤ 10                       host and GPU overlap
    T_sync  = 0 at n = 1;  s·(1 + g·(n − 2)) in one node;  s'·(1 + g'·(n − 2)) across nodes
    T_iter  = (T_grad^γ + T_sync^γ)^(1/γ),  1 ≤ γ ≤ 10;  with k accumulated steps before it  k·T_grad + T_iter
    E_iter  = n·(P_busy·(k + 1)·G + w·P_wait·(T − (k + 1)·G)),  P_busy(x) with P_d·(1 + q)·b/(b + q·b_ref) and ψ

This is the form of Pollux (OSDI'21, section 3.2) with a clock and a host in T_grad; host power is not in E_iter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model import physics
from joulewise.model.physics import Chip, Load

Array = NDArray[Any]

UNKNOWNS = (
    "busy",  # ln G_ref, seconds
    "fixed",  # logit a: share of G_ref that does not grow with the batch
    "host",  # ln h
    "host_fixed",  # logit c
    "mesh",  # logit (o − 1)/9: how well host and GPU work at the same time
    "near",  # ln s/G_ref
    "near_growth",  # ln g
    "far",  # ln s'/s
    "far_growth",  # ln g'
    "overlap",  # logit (γ − 1)/9
    "sm_share",  # logit κ
    "dynamic",  # ln P_d/room: at b_ref and maximum clocks; room = default limit − static power
    "half",  # ln q: the batch at which half of the switching power is there, in b_ref
    "static",  # ln ψ: static power under this load against the chip's
    "wait",  # ln w: waiting for others against the law's resident idle
)
INDEX = {name: i for i, name in enumerate(UNKNOWNS)}


@dataclass(frozen=True, slots=True)
class Spots:
    """Where and how a job runs, as arrays of one length."""

    gpus: Array
    nodes: Array
    batch: Array  # samples a GPU and step
    steps: Array  # gradient-accumulation steps before the one that synchronises
    x: Array  # SM clock asked for, as a share of the highest
    limit_w: Array  # power limit in force; infinite: none

    @classmethod
    def of(cls, rows: Any) -> Spots:
        """From rows of (gpus, nodes, batch, steps, x, limit_w)."""
        table = np.asarray(list(rows), dtype=float).reshape(-1, 6)
        return cls(*table.T)

    def __len__(self) -> int:
        return len(self.gpus)

    def pick(self, which: Any) -> Spots:
        """Some of them."""
        parts = (self.gpus, self.nodes, self.batch, self.steps, self.x, self.limit_w)
        return Spots(*(part[which] for part in parts))


@dataclass(frozen=True, slots=True)
class Frame:
    """What a job's unknowns are relative to: the chip, the room for switching power, a usual batch per GPU."""

    chip: Chip
    room_w: float
    batch: float

    def __post_init__(self) -> None:
        if not (self.room_w > 0 and self.batch > 0):
            raise ModelError(f"room {self.room_w:g} W and batch {self.batch:g} must be above 0")


def evaluate(frame: Frame, z: Array, spots: Spots, talk: Array | float = 0.0) -> tuple[Array, Array]:
    """Log seconds and log joules (all GPUs together) of an iteration: one row for each row of ``z``.

    ``talk``: by how much synchronisation takes longer at each spot than the law says, as a logarithm; what the fabric
    adds there (see ``throughput_fit.Prior``).

    Far below any time that a clock can see (1e-12 s) things are taken to be there, so that no logarithm fails.
    """
    u = {name: np.asarray(z)[..., i : i + 1] for name, i in INDEX.items()}
    busy_ref = np.exp(u["busy"])
    grown = spots.batch / frame.batch
    fixed, host_fixed = _share(u["fixed"]), _share(u["host_fixed"])
    half = np.exp(u["half"])
    room_w = frame.room_w * np.exp(u["dynamic"])
    load = Load(
        gpu_s=busy_ref * (fixed + (1.0 - fixed) * grown),
        sm_share=_share(u["sm_share"]),  # type: ignore[arg-type]
        dynamic_w=room_w * (1.0 + half) * grown / (grown + half),
        static_part=np.exp(u["static"]),
        host_s=busy_ref * np.exp(u["host"]) * (host_fixed + (1.0 - host_fixed) * grown),
    )
    chip = replace(frame.chip, overlap=1.0 + 9.0 * _share(u["mesh"]))  # type: ignore[arg-type]
    x = _clock(chip, load, spots)
    busy = physics.busy_s(chip, load, x)
    grad = physics.step_s(chip, load, x)
    near = busy_ref * np.exp(u["near"])
    away = spots.nodes > 1
    first = np.where(away, near * np.exp(u["far"]), near)
    growth = np.exp(np.where(away, u["far_growth"], u["near_growth"]))
    sync = first * (1.0 + growth * np.maximum(spots.gpus - 2.0, 0.0)) * np.exp(talk)
    sync = np.where(spots.gpus > 1, sync, 0.0)
    gamma = 1.0 + 9.0 * _share(u["overlap"])
    longer = np.maximum(np.maximum(grad, sync), 1e-12)
    ratio = np.minimum(grad, sync) / longer
    whole = spots.steps * grad + longer * (1.0 + ratio**gamma) ** (1.0 / gamma)
    busy_all = np.minimum((spots.steps + 1.0) * busy, whole)
    wait_w = physics.idle_power_w(chip, x) * np.exp(u["wait"])
    joules = spots.gpus * (physics.busy_power_w(chip, load, x) * busy_all + wait_w * (whole - busy_all))
    return np.log(whole), np.log(joules)


def _clock(chip: Chip, load: Load, spots: Spots) -> Any:
    """The clock that the limiter leaves; the search for it only where it bites somewhere."""
    asked = spots.x
    if np.all(np.isinf(spots.limit_w)):
        return asked
    over = physics.busy_power_w(chip, load, asked) > chip.limiter_gain * spots.limit_w
    bites = over.reshape(-1, over.shape[-1]).any(axis=0)
    if not bites.any():
        return asked
    shape = over.shape
    x = np.broadcast_to(asked, shape).copy()
    some = Load(
        gpu_s=1.0,
        sm_share=np.broadcast_to(load.sm_share, shape)[..., bites],  # type: ignore[arg-type]
        dynamic_w=np.broadcast_to(load.dynamic_w, shape)[..., bites],  # type: ignore[arg-type]
        static_part=np.broadcast_to(load.static_part, shape)[..., bites],  # type: ignore[arg-type]
    )
    x[..., bites] = physics.limited_x(chip, some, asked[bites], spots.limit_w[bites])
    return x


def statistical_efficiency(noise: float, signal: float, scale: float) -> float:
    """Progress of one sample in a batch ``scale`` times the reference, against one in the reference batch.

    ``noise`` (variance) and ``signal`` (square) of the gradient at the reference batch: (v + s)/(v/k + s)/k, as Pollux
    has it; an iteration makes k times this of the progress of a reference iteration.
    """
    if not (noise >= 0 and signal >= 0 and noise + signal > 0 and scale > 0):
        raise ModelError(f"gradient noise {noise:g}, signal {signal:g} and scale {scale:g} cannot be told")
    return iteration_gain(noise, signal, scale) / scale


def iteration_gain(noise: float, signal: float, scale: float) -> float:
    """Progress of an iteration with ``scale`` times the reference batch, in reference iterations: 1 … ``scale``."""
    return (noise + signal) / (noise / scale + signal)


def local_batch(global_batch: float, gpus: int, most: float = math.inf) -> tuple[float, int]:
    """Samples a GPU and step, and accumulation steps, for a global batch where at most ``most`` samples fit a GPU."""
    share = global_batch / gpus
    steps = max(0, math.ceil(share / most - 1e-9) - 1) if math.isfinite(most) else 0
    return share / (steps + 1), steps


def _share(z: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(z, -30.0, 30.0))))
