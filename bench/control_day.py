"""Does the daemon stay as small and as idle as it began, over a day with 64 GPUs?

A simulator a thousand times as fast as the wall lets a day pass in a minute and a half. All the while leases come and
go on every GPU: some are released, some are left by a connection that ends, some lose their GPU's limit to somebody
else. ``scenarios`` R18 runs a part of a day; the bench a whole one.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.control_stage import Refused, Stage, cpu_s, descriptors, memory_mib, staged

GPUS = "sim:h200*64"
_WARM = 0.5
"""The part of the run after which memory must not grow any more: by then every GPU has had its thread and its file."""


@dataclass(frozen=True, slots=True)
class Day:
    """What was seen of the daemon over a day, or a part of one."""

    hours: float
    leases: int
    memory_mib: float
    growth_mib_per_day: float
    """The slope of a straight line through memory after warming up."""
    growth_mib: float
    """What that line gains from there to the end."""
    descriptors: tuple[int, int]
    """Fewest and most between leases, after warming up."""


def day(wall_s: float, *, speed: float = 1000.0, seed: int = 1) -> Day:
    """Live ``wall_s`` seconds at ``speed`` with a daemon."""
    draw = random.Random(seed)
    with staged(GPUS, speed=speed) as stage:
        begun_s = time.monotonic()
        samples: list[tuple[float, float, int]] = []
        leases = 0
        while (now_s := time.monotonic() - begun_s) < wall_s:
            leases += _one_lease(stage, draw)
            if not samples or now_s - samples[-1][0] >= wall_s / 200:
                fewest = min((open_ for *_, open_ in samples), default=0)
                samples.append((now_s, memory_mib(stage.daemon_pid), _descriptors_at_rest(stage, fewest)))
        kept = [sample for sample in samples if sample[0] >= _WARM * wall_s]
        slope_mib_per_s = _slope([(when_s, mib) for when_s, mib, _ in kept])
        return Day(
            hours=wall_s * speed / 3600.0,
            leases=leases,
            memory_mib=kept[-1][1],
            growth_mib_per_day=slope_mib_per_s * 86400.0 / speed,
            growth_mib=slope_mib_per_s * (kept[-1][0] - kept[0][0]),
            descriptors=(min(each for *_, each in kept), max(each for *_, each in kept)),
        )


def _one_lease(stage: Stage, draw: random.Random) -> int:
    """Somebody comes, sets a few things and goes, in one of the ways people go; how many leases that made."""
    gpus = draw.sample(stage.uuids, draw.choice((1, 1, 1, 2, 8)))
    with stage.talk() as talk:
        try:
            lease = talk("take", gpus=gpus, knobs=["power_limit_w", "sm_mhz"], ttl_s=draw.choice((30, 3600)))["lease"]
            for _ in range(draw.randrange(4)):
                talk("apply", lease=lease, setting={"power_limit_w": draw.randrange(300, 700)})
                talk("read", gpu=gpus[0])
            if draw.random() < 0.5:
                talk("release", lease=lease)
        except Refused as refusal:
            # The one before may not have gone yet, or ours may already have run out: a second is a millisecond here.
            if refusal.kind not in ("LeaseTaken", "LeaseLost"):
                raise
            return 0
    return 1


def _descriptors_at_rest(stage: Stage, fewest: int) -> int:
    """Open files when no connection is ours: the fewest of a few looks, since the last one takes a moment to close, on
    a busy machine a longer one; no more looks once they are as few as they ever were."""
    looks: list[int] = []
    while len(looks) < 100:
        looks.append(descriptors(stage.daemon_pid))
        if looks[-1] <= fewest:
            break
        time.sleep(0.003)
    return min(looks)


def cpu_share(wall_s: float) -> float:
    """Processor seconds a second of a daemon that looks after 64 leased GPUs once a second, in real time."""
    with staged(GPUS) as stage, stage.talk() as talk:
        lease = talk("take", gpus=list(stage.uuids), knobs=["power_limit_w"], ttl_s=1e5)["lease"]
        talk("apply", lease=lease, setting={"power_limit_w": 500})
        time.sleep(1.0)
        used_s, begun_s = cpu_s(stage.daemon_pid), time.monotonic()
        while time.monotonic() - begun_s < wall_s:
            time.sleep(1.0)
            talk("beat", lease=lease)
        return (cpu_s(stage.daemon_pid) - used_s) / (time.monotonic() - begun_s)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of a straight line through the points, as the median over pairs: one garbage collection must not tilt it."""
    return statistics.median(
        (late - early) / (late_s - early_s)
        for number, (early_s, early) in enumerate(points)
        for late_s, late in points[number + 1 :]
    )
