"""The policies that are compared, and the knob of each that trades energy for time.

Ours: the price of a joule. PowerFlow-style: the energy budget at which its greedy stops, as a share of the way from the
least energy to what it would spend freely, and who gets the first GPUs when they are scarce (by arrival, or by the size
predictions that all have); the best of these is its curve. Beside it goes a variant of ours, not of its authors: the
greedy stops at a threshold of dJ/dE, shortest jobs first, which is nearly a price. Every other policy has no such knob:
it is swept over a uniform clock, all that there are; and beside it "+zeus", each job at its own best setting, over the
weight η of that choice, is a baseline of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.gandiva import gandiva
from joulewise.cluster.allocators.optimus import optimus
from joulewise.cluster.allocators.pollux import pollux
from joulewise.cluster.allocators.powerflow import powerflow
from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.allocators.srtf import srtf
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.allocators.zeus import zeus
from joulewise.cluster.state import Allocator, Budget, Kind

OURS, POWERFLOW = "priced", "powerflow"
PRICES = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.7, 1.2, 2.5)
"""Of a joule, against that at which a busy slot's power costs a job as much as its time."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
THRESHOLDS = (0.0, 0.1, 0.2, 0.4, 0.7, 1.2, 2.0)
CLOCKS = 6
"""How many uniform clocks are tried, the highest first: all that a case has."""
ETAS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Knob:
    """One value of a policy's knob, as data that travels between processes."""

    name: str
    values: tuple[tuple[str, Any], ...] = ()
    price: float = 0.0

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments of the policy's maker."""
        return dict(self.values)


_CLOCKED: Mapping[str, Callable[..., Allocator]] = {
    "fifo": lambda **options: fifo(backfill=True, **options),
    # The better of the two orders that the name stands for: remaining time × GPUs is kinder to the mean.
    "srtf": lambda **options: srtf(service=True, **options),
    "tiresias": tiresias,
    "optimus": optimus,
    "gandiva": gandiva,
    "pollux": pollux,
}
BASELINES = (*_CLOCKED, *(f"{name}+zeus" for name in _CLOCKED))


def knobs_of(policy: str) -> tuple[Knob, ...]:
    """What a policy is swept over."""
    if policy == OURS:
        return tuple(Knob(f"{price:g}", price=price) for price in PRICES)
    if policy == POWERFLOW:
        budgets = [(queue, "share", "share", value) for queue in ("arrival", "shortest") for value in SHARES]
        stops = [("shortest", "threshold", "stop", value) for value in THRESHOLDS]
        return tuple(
            Knob(f"{queue} {word} {value:g}", ((option, value), ("queue", queue)))
            for queue, option, word, value in budgets + stops
        )
    if policy.endswith("+zeus"):
        return tuple(Knob(f"η {eta:g}", (("eta", eta),)) for eta in ETAS)
    return tuple(clock_knob(below) for below in range(CLOCKS))


def clock_knob(below: int) -> Knob:
    """One clock for all: so many below the highest."""
    return Knob(f"clock -{below}", (("below", below),))


def made(policy: str, knob: Knob, kind: Kind, full_w: float, clocks_mhz: Sequence[float]) -> tuple[Allocator, Budget]:
    """A fresh allocator and what comes down to it. ``full_w``: of a GPU at full clock, with it a price has a scale;
    ``clocks_mhz``: what there is, highest last."""
    if policy == OURS:
        return priced(), Budget(joule_s=knob.price / (full_w + kind.slot_w))
    if policy == POWERFLOW:
        return powerflow(**knob.options), Budget()
    name, _, zeused = policy.partition("+")
    if zeused:
        return zeus(_CLOCKED[name](), **knob.options), Budget()
    mhz = clocks_mhz[max(0, len(clocks_mhz) - 1 - knob.options["below"])]
    return _CLOCKED[name](clock=mhz / clocks_mhz[-1]), Budget()
