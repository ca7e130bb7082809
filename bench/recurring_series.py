"""Which series are played for ``bench.recurring``: policies by name on a truth, and the transfer from another GPU.

A piece of work is a series and some seeds; it is a plain function of them, so that any process may do it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bench.recurring_play import Played, play
from bench.recurring_score import Score
from bench.recurring_traces import Truth
from joulewise.core.series import Recurring
from joulewise.tune.series_baselines import Aborted, Default, Grid, Job, SeriesPolicy, Zeus

ETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
OVERLAP = 4


class Spread(Protocol):
    """A map over processes; what it is given must be able to travel there."""

    def __call__(self, work: Callable[[Any], Any], pieces: Sequence[Any], /) -> Iterator[Any]:
        """``work`` of every piece, in order."""
        ...


@dataclass(frozen=True)
class Series:
    """One kind of series on a truth. Two are the same if they say the same; truths are told apart by name and η."""

    kind: str
    """default, jit, grid, zeus, zeus4 (four overlapping runs), ours, ours4, transfer."""
    truth: Truth
    source: Truth | None = None
    """The GPU on which the job was learnt before, for a transfer."""

    @property
    def scored(self) -> Truth:
        """What is scored: in a transfer, the batch sizes that both GPUs know."""
        return self.truth if self.source is None else self.truth.only(self.source.sizes)

    @property
    def _key(self) -> tuple[str, str, float, str]:
        return self.kind, self.truth.name, self.truth.eta, self.source.name if self.source else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True)
class Told:
    """How a series went with one seed; ``played`` is None where the policy gave up, and ``says`` why."""

    seed: int
    played: Played | None
    says: str = ""

    def lines(self, series: Series) -> Iterator[str]:
        """Every run as a line of JSON."""
        head = {"pair": series.truth.name, "policy": series.kind, "eta": series.truth.eta, "seed": self.seed}
        if series.source:
            head["learnt_on"] = series.source.gpu
        if self.played is None:
            yield json.dumps({**head, "aborted": self.says}) + "\n"
            return
        for each in self.played.tries:
            yield json.dumps({**head, **dataclasses.asdict(replace(each, setting=dict(each.setting)))}) + "\n"  # type: ignore[arg-type]


def job_of(truth: Truth) -> Job:
    """What the baselines are told."""
    return Job(truth.sizes, truth.default, truth.max_epochs, truth.max_power_w, truth.eta)


def policy(kind: str, truth: Truth, seed: int) -> SeriesPolicy:
    """A fresh policy by its name."""
    match kind.rstrip("4"):
        case "default" | "jit":
            return Default(job_of(truth), just_in_time=kind == "jit")
        case "grid":
            limits = {point.setting for points in truth.profiles.values() for point in points}
            return Grid(job_of(truth), sorted(limits, key=lambda limit: -limit["power_limit_w"]))
        case "zeus":
            return Zeus(job_of(truth), seed)
        case "ours":
            from bench.recurring_ours import Ours

            return Ours(_named(truth, seed), truth.platform)
    raise ValueError(f"no policy is called {kind!r}")


def play_series(piece: tuple[Series, range]) -> list[Told]:
    """All seeds of a piece."""
    series, seeds = piece
    told = []
    for seed in seeds:
        try:
            told.append(Told(seed, _play(series, seed)))
        except Aborted as gave_up:
            told.append(Told(seed, None, str(gave_up)))
    return told


def scored(series: Series, told: Sequence[Told]) -> Score | None:
    """What those seeds are worth; None where the policy gave up with every one."""
    played = [each.played for each in told if each.played]
    return Score.of(series.scored, played, len(told) - len(played)) if played else None


def _play(series: Series, seed: int) -> Played:
    truth = series.scored
    if series.source is None:
        overlap = OVERLAP if series.kind.endswith("4") else 1
        return play(truth, policy(series.kind, truth, seed), seed, recurrences=truth.recurrences, overlap=overlap)
    from bench.recurring_ours import Ours

    before = replace(series.source.only(truth.sizes), default=truth.default)
    job = _named(truth, seed)
    learnt = Ours(job, before.platform)
    # Another seed than the second GPU's, or the same trainings would be drawn there again.
    play(before, learnt, seed + 1_000_000, recurrences=before.recurrences)
    now = Ours(job, truth.platform, tuner=learnt.tuner, begin=before.recurrences)
    return play(truth, now, seed, recurrences=truth.recurrences)


def _named(truth: Truth, seed: int) -> Recurring:
    """The job under a name of its own for each seed: a tuner's coins are its job's."""
    return replace(truth.job, name=f"{truth.job.name}-{seed}")
