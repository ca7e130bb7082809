"""What moves in a virtual GPU: its state, the stretches in which nothing changes, and the work that is waited for.

Plain records; ``device/board`` moves them, ``device/news`` keeps copies to go back to.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from joulewise.core.measurement import Throttle
from joulewise.device.operating import Demand, Range
from joulewise.model.physics import Load


@dataclass(slots=True, eq=False)
class Job:
    """Work that somebody waits for: loads, done one after another. Times are None until they are known."""

    loads: tuple[Load, ...]
    pid: int = 0
    start_s: float = -math.inf
    """Not before this moment."""
    queued_s: float = math.inf
    """When it was handed in."""
    started_s: float | None = None
    finished_s: float | None = None
    energy_j: float | None = None
    """What the board drew while it ran."""


@dataclass(slots=True)
class State:
    """Everything that moves. Its containers are never changed in place, so a shallow copy is a checkpoint."""

    time_s: float
    temperature_c: float
    limiter_w: float  # the average on which the limiter acts
    heat_s: float  # when heat takes its next step
    heat_energy_j: float = 0.0  # the trace's energy at its last
    asked: Demand = field(default_factory=Demand)
    in_force: Demand = field(default_factory=Demand)  # clocks arrive later than they were asked for
    arriving: tuple[tuple[float, str, Range | None], ...] = ()  # (when, knob, value), soonest first
    residents: Mapping[int, int] = field(default_factory=dict)  # pid → bytes of GPU memory
    queue: tuple[Job, ...] = ()
    phase: int = 0  # of the first job in the queue
    playing: int | None = None  # the playlist's phase under way; else it is the queue's turn
    played: int = 0
    plays: bool = False  # until the playlist's process is detached
    remaining: float = 1.0  # of the phase under way
    started_energy_j: float = 0.0
    steps: int = 0
    throttled_s: tuple[float, float] = (0.0, 0.0)
    activity_s: tuple[float, ...] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span in which nothing changes."""

    start_s: float
    end_s: float
    power_w: float
    sm_mhz: float
    memory_mhz: float
    throttle: frozenset[Throttle]
    drive_w: float  # what the limiter sees
    busy: float = 0.0
    step_s: float | None = None  # time of the whole phase at these clocks; None: nothing runs
    phase_ends: bool = False
    settles_w: float | None = None  # the limiter's average at the end, where it bites then
    activity: tuple[float, ...] = (0.0, 0.0, 0.0)  # shares of time: busy, SM-bound, memory-bound

    def left(self, remaining: float, time_s: float) -> float:
        """What is left at ``time_s`` of a phase of which ``remaining`` was left at the start."""
        return remaining if self.step_s is None else max(0.0, remaining - (time_s - self.start_s) / self.step_s)


def take_back(state: State, jobs: Collection[Job]) -> None:
    """Remove jobs from the queue; one that is under way is broken off."""
    if state.playing is None and state.queue and state.queue[0] in jobs:
        state.phase, state.remaining = 0, 1.0
    state.queue = tuple(job for job in state.queue if job not in jobs)


def throttled_s(state: State, stretch: Stretch) -> tuple[float, float]:
    """Seconds so far in which the power limit, and heat, held the clock down; ``stretch`` is under way."""
    lived_s = state.time_s - stretch.start_s
    capped_s, hot_s = state.throttled_s
    return (
        capped_s + lived_s * (Throttle.POWER_CAP in stretch.throttle),
        hot_s + lived_s * (Throttle.HEAT in stretch.throttle),
    )


def activity_s(state: State, stretch: Stretch) -> tuple[float, ...]:
    """Seconds so far with any kernel running, bound by the SMs, bound by memory; ``stretch`` is under way."""
    lived_s = state.time_s - stretch.start_s
    return tuple(total + rate * lived_s for total, rate in zip(state.activity_s, stretch.activity, strict=True))
