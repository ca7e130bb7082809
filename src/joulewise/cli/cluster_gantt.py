"""Who ran when, as lanes to be drawn: one a job, its spans with their GPUs and clock, the waiting between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from joulewise.cli.cluster_scene import Scene
from joulewise.cluster.outcome import Outcome, Span
from joulewise.core.units import format_duration
from joulewise.report.plan_colours import hue

LOWEST = 0.5
"""The clock at the cold end of the colours, against the highest."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A job that ran in one way for a while. ``clock``: against the highest of its GPU."""

    from_s: float
    to_s: float
    gpus: int
    kind: str
    clock: float

    @property
    def colour(self) -> str:
        """Cold is slow, warm is fast."""
        return hue((self.clock - LOWEST) / (1.0 - LOWEST))

    @property
    def says(self) -> str:
        """In words."""
        took = format_duration(self.to_s - self.from_s)
        return f"{self.gpus} × {self.kind} at {self.clock * 100:.0f} % of the clock for {took}"


@dataclass(frozen=True, slots=True)
class Lane:
    """One job, times since the first submission; ``ended_s`` None where it has not by then."""

    job: str
    gpus_asked: int
    submitted_s: float
    ended_s: float | None
    bars: tuple[Bar, ...]


def lanes(scene: Scene, outcome: Outcome, most: int, until_s: float) -> list[Lane]:
    """Of all jobs in order of submission, or of ``most`` of them, evenly; nothing after ``until_s``."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in outcome.spans:
        spans[span.job].append(span)
    top_mhz = {rack.kind.name: rack.model.chip.sm_max_mhz for rack in scene.racks}
    asked = {each.job.name: each.job.gpus for each in scene.jobs}
    step = max(1.0, len(outcome.jobs) / most)
    shown = [outcome.jobs[int(at * step)] for at in range(min(most, len(outcome.jobs)))]
    begun_s = outcome.begun_s
    found = []
    for job in shown:
        bars = tuple(
            Bar(
                span.from_s - begun_s,
                min(span.to_s - begun_s, until_s),
                span.gpus,
                span.kind,
                min(1.0, span.setting.get("sm_mhz", top_mhz[span.kind]) / top_mhz[span.kind]),
            )
            for span in spans[job.name]
            if span.from_s - begun_s < until_s
        )
        ended_s = None if job.ended_s is None or job.ended_s - begun_s > until_s else job.ended_s - begun_s
        found.append(Lane(job.name, asked[job.name], job.submitted_s - begun_s, ended_s, bars))
    return found
