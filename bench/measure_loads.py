"""Loads with a known truth for ``bench.measure``: families from which every run draws anew.

A load is an endless stream of segments of constant power. Families differ in what an estimator might wrongly take
for granted: that nothing happens between readings, that steps are not in step with the sensor, that the future
looks like the past. None of them is the process that ``joulewise.monitor.load`` assumes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Segment(NamedTuple):
    """Constant power for a while; ``busy`` is the share of it with kernels running."""

    duration_s: float
    power_w: float
    busy: float


IDLE_W, LIMIT_W = 75.0, 700.0
"""Of the virtual card that the loads run on: between an A100's idle and an H200's limit."""


def _level(draw: random.Random) -> float:
    """Power of some busy phase."""
    return draw.uniform(0.3, 1.0) * LIMIT_W


def _low(draw: random.Random) -> tuple[float, float]:
    """Power and busy share of a quiet phase: idle, or kernels that draw little."""
    if draw.random() < 0.5:
        return IDLE_W * draw.uniform(1.0, 1.3), 0.0
    return draw.uniform(0.2, 0.6) * LIMIT_W, 1.0


def _step(draw: random.Random, step_s: float) -> list[Segment]:
    """One step of two to four phases, the last of them often a quiet one."""
    shares = [draw.uniform(0.2, 1.0) for _ in range(draw.randint(2, 4))]
    phases = [Segment(step_s * share / sum(shares), _level(draw), 1.0) for share in shares]
    if draw.random() < 0.7:
        phases[-1] = Segment(phases[-1].duration_s, *_low(draw))
    return phases


def constant(draw: random.Random) -> Iterator[Segment]:
    """One power, with the ripple of kernels of a few milliseconds."""
    power_w = _level(draw)
    while True:
        yield Segment(0.004, power_w * 1.01, 1.0)
        yield Segment(0.004, power_w * 0.99, 1.0)


def square(draw: random.Random) -> Iterator[Segment]:
    """Two levels, a fixed period between 20 ms and 3 s."""
    period_s, share = math.exp(draw.uniform(math.log(0.02), math.log(3.0))), draw.uniform(0.2, 0.8)
    high, low = Segment(period_s * share, _level(draw), 1.0), Segment(period_s * (1.0 - share), *_low(draw))
    while True:
        yield high
        yield low


def in_step(draw: random.Random) -> Iterator[Segment]:
    """Steps at or within 5 % of a small multiple of 100 ms (98, 100, 103, 199, 205 ms …), with no jitter."""
    wide = draw.uniform(-0.05, 0.05)
    near = draw.choice([0.0, 0.1 * wide, wide, wide])
    phases = _step(draw, 0.1 * draw.choice([1, 1, 2, 3]) * (1.0 + near))
    draw.shuffle(phases)
    while True:
        yield from phases


def in_step_jittered(draw: random.Random) -> Iterator[Segment]:
    """The same with steps that vary by 0.3 to 5 %."""
    near, spread = draw.uniform(-0.05, 0.05), math.exp(draw.uniform(math.log(0.003), math.log(0.05)))
    phases = _step(draw, 0.1 * draw.choice([1, 1, 2, 3]) * (1.0 + near))
    while True:
        factor = math.exp(draw.gauss(0.0, spread))
        for phase in phases:
            yield phase._replace(duration_s=phase.duration_s * factor)


def bursty(draw: random.Random) -> Iterator[Segment]:
    """Bursts with pauses, both of random length around 10 to 500 ms: a loader that cannot keep up."""
    on_s, off_s = (math.exp(draw.uniform(math.log(0.01), math.log(0.5))) for _ in range(2))
    power_w, (low_w, low_busy) = _level(draw), _low(draw)
    while True:
        yield Segment(draw.expovariate(1.0 / on_s) + 1e-3, power_w * draw.uniform(0.9, 1.0), 1.0)
        yield Segment(draw.expovariate(1.0 / off_s) + 1e-3, low_w, low_busy)


def training(draw: random.Random) -> Iterator[Segment]:
    """Steps of 50 ms to 2 s in phases, with slowly wandering length, rare loader stalls and evaluations."""
    step_s = math.exp(draw.uniform(math.log(0.05), math.log(2.0)))
    phases, wander, step = _step(draw, step_s), 0.0, 0
    every, stall = draw.randint(30, 300), draw.uniform(0.0, 0.02)
    while True:
        wander = 0.95 * wander + draw.gauss(0.0, 0.01)
        for phase in phases:
            yield Segment(
                phase.duration_s * math.exp(wander), phase.power_w * (1.0 + draw.gauss(0.0, 0.01)), phase.busy
            )
        step += 1
        if draw.random() < stall:
            yield Segment(draw.uniform(0.05, 1.0), IDLE_W * 1.2, 0.0)
        if step % every == 0:
            yield Segment(draw.uniform(0.5, 3.0), 0.6 * phases[0].power_w, 1.0)


def heavy_tailed(draw: random.Random) -> Iterator[Segment]:
    """Steps whose length has a Pareto tail: mostly short, now and then ten times longer."""
    shortest_s, tail = math.exp(draw.uniform(math.log(0.01), math.log(0.2))), draw.uniform(1.3, 2.5)
    while True:
        longer = min(30.0, draw.paretovariate(tail))
        for phase in _step(draw, shortest_s):
            yield phase._replace(duration_s=phase.duration_s * longer)


def wandering(draw: random.Random) -> Iterator[Segment]:
    """Power that wanders with a memory of 30 ms to 3 s: autocorrelated, no steps."""
    memory_s = math.exp(draw.uniform(math.log(0.03), math.log(3.0)))
    level_w, spread_w, state = _level(draw), draw.uniform(20.0, 150.0), 0.0
    keep = math.exp(-0.005 / memory_s)
    while True:
        state = keep * state + math.sqrt(1.0 - keep**2) * draw.gauss(0.0, 1.0)
        yield Segment(0.005, min(LIMIT_W * 1.05, max(IDLE_W, level_w + spread_w * state)), 1.0)


def ramps(draw: random.Random) -> Iterator[Segment]:
    """Power that climbs over seconds to a minute and falls back: nothing is stationary."""
    while True:
        low_w, high_w = sorted((_level(draw), _level(draw)))
        length_s = draw.uniform(2.0, 60.0)
        for i in range(int(length_s / 0.02)):
            yield Segment(0.02, low_w + (high_w - low_w) * i * 0.02 / length_s, 1.0)


FAMILIES: dict[str, Callable[[random.Random], Iterator[Segment]]] = {
    family.__name__: family
    for family in (
        constant,
        square,
        in_step,
        in_step_jittered,
        bursty,
        training,
        heavy_tailed,
        wandering,
        ramps,
    )
}
