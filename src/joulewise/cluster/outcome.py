"""What came of a simulated cluster: every job, every joule, and the pictures' data.

What it is: plain results, and the meter that makes them. The whole cluster's draw is a step function of time, kept part
by part; energies are its exact integrals. What it is not: a comparison of policies (``bench``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from joulewise.core.knob import Setting


@dataclass(slots=True)
class Parts:
    """Watts or joules of a cluster by part. ``jobs``: GPUs at work; ``starts``: GPUs held while their job starts;
    ``idle``: free GPUs of powered nodes; ``hosts``: powered nodes without GPUs; ``sleeping``; ``boots``."""

    jobs: float = 0.0
    starts: float = 0.0
    idle: float = 0.0
    hosts: float = 0.0
    sleeping: float = 0.0
    boots: float = 0.0

    @property
    def whole(self) -> float:
        """All parts together."""
        return self.jobs + self.starts + self.idle + self.hosts + self.sleeping + self.boots

    def as_dict(self) -> dict[str, float]:
        """By name, for tables and JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What came of a job. ``energy_j``: its GPUs at work and starting, and its share of hosts while it held GPUs.
    ``started_s`` and ``ended_s`` are None where that never came."""

    name: str
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    energy_j: float
    gpu_s: float
    restarts: int
    deadline_s: float | None = None
    tenant: str = ""

    @property
    def jct_s(self) -> float | None:
        """Completion time: from submission to end."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s


@dataclass(frozen=True, slots=True)
class Span:
    """A job that ran in one way on some nodes for a while; ``start_s`` of it at first did no work."""

    job: str
    from_s: float
    to_s: float
    gpus: int
    nodes: int
    setting: Setting
    kind: str
    start_s: float


@dataclass(frozen=True, slots=True)
class Moment:
    """From this time on, until the next moment: GPUs that jobs hold, powered nodes, and the whole cluster's draw."""

    time_s: float
    gpus: int
    nodes: int
    watts: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation, from the first submission (``begun_s``) until nothing was to come (``ended_s``)."""

    jobs: tuple[JobOutcome, ...]
    energy_j: Parts
    begun_s: float
    ended_s: float
    rounds: int
    boots: int
    tail_w: float
    """What the cluster draws for ever after."""
    series: Sequence[Moment]
    spans: Sequence[Span]

    @property
    def jct_s(self) -> float:
        """Mean completion time of the jobs that ended; nan if none did."""
        times = [job.jct_s for job in self.jobs if job.jct_s is not None]
        return fmean(times) if times else float("nan")

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Jobs that never ended."""
        return tuple(job.name for job in self.jobs if job.ended_s is None)

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max((job.ended_s for job in self.jobs if job.ended_s is not None), default=self.begun_s) - self.begun_s

    def energy_until_j(self, time_s: float) -> float:
        """Of the whole cluster from the first submission until ``time_s``, before or after the end: the same horizon
        for every policy."""
        if time_s >= self.ended_s:
            return self.energy_j.whole + (time_s - self.ended_s) * self.tail_w
        return self.energy_between_j(self.begun_s, time_s)

    def energy_between_j(self, from_s: float, to_s: float) -> float:
        """Of the whole cluster between two times, by its series."""
        whole = 0.0
        for at, moment in enumerate(self.series):
            until_s = self.series[at + 1].time_s if at + 1 < len(self.series) else max(to_s, moment.time_s)
            whole += moment.watts * max(0.0, min(until_s, to_s) - max(moment.time_s, from_s))
        return whole


class Meter:
    """Integrates a cluster's draw. Set ``watts``' parts after ``advance`` to the moment from which they hold."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s
        self.watts = Parts()
        self.joules = Parts()
        self.series: list[Moment] = []

    def advance(self, time_s: float) -> None:
        """Count what was drawn up to ``time_s``."""
        took_s = time_s - self.time_s
        if took_s > 0:
            watts, joules = self.watts, self.joules
            joules.jobs += watts.jobs * took_s
            joules.starts += watts.starts * took_s
            joules.idle += watts.idle * took_s
            joules.hosts += watts.hosts * took_s
            joules.sleeping += watts.sleeping * took_s
            joules.boots += watts.boots * took_s
            self.time_s = time_s

    def note(self, gpus: int, nodes: int) -> None:
        """Put the present draw into the series; the last word of a moment stands."""
        moment = Moment(self.time_s, gpus, nodes, self.watts.whole)
        if self.series and self.series[-1].time_s == self.time_s:
            self.series[-1] = moment
        else:
            self.series.append(moment)
