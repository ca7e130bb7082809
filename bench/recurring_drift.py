"""A recurring job whose data drift: real trainings on sliding slices of a stream, in the manner of Zeus's Capriccio.

The model is logistic regression by stochastic gradient descent, in numpy; its convergence is real. The stream's share
of wrong labels changes half-way: where labels are wrong a small batch's steps are too noisy for the target and large
sizes are best; where they are right small ones need fewer epochs. One stream goes each way, a slice a recurrence. Every
slice is trained with every batch size and four seeds; what an epoch costs comes from the table of one virtual GPU.

Regret counts from the first slice with changed data, against the one batch size that is best over all slices from
there on, in its runs. Zeus has its sliding window (10 costs an arm). A reset in a series that does not drift is false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from bench.recurring_laws import epoch_costs, random_job
from bench.recurring_ours import Ours
from bench.recurring_play import play
from bench.recurring_series import Series, Spread, Told, job_of
from bench.recurring_traces import Truth
from joulewise.core import knob
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.tune.series_baselines import Aborted, Allowed, Job, Run, SeriesPolicy, Zeus

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
DEFAULT = 128
"""Reaches the target before and after the drift."""
SLICES = 80
DRIFT = 40
"""The first slice with changed samples: late enough for Zeus to have ended its pruning (two rounds of eight sizes)."""
STEP = 1024
"""Samples by which the window slides: the change is complete four slices later."""
TRAIN, VALIDATE, FEATURES = 4096, 1024, 32
TARGET = 0.93
"""Validation accuracy, on true labels."""
MAX_EPOCHS = 60
TRAININGS = 4
"""Seeds of each slice and batch size."""
RATE = 0.3
"""Learning rate at a batch size of 32."""
WINDOW = 10
PATIENCE = 5
"""Runs of a recurrence that do not reach the target before Zeus is helped out; it would take 20 and end."""
STATIONARY = 100
"""Series in which a reset is false."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Stream:
    """A stream of samples by its name: the share of wrong labels before and after, and the seed of its draws."""

    name: str
    before: float
    after: float
    seed: int

    def slices(self) -> tuple[Array, Array, Array, Array]:
        """Training samples and labels, validation samples and true labels; the first axis is the slice."""
        rng = np.random.default_rng((self.seed, 30))
        length = TRAIN + VALIDATE
        count = (SLICES - 1) * STEP + length
        # Features of unlike scale, so that the problem is not solved by its first few steps.
        samples = (rng.normal(size=(count, FEATURES)) * np.geomspace(1.0, 0.3, FEATURES)).astype(np.float32)
        direction = rng.normal(size=FEATURES).astype(np.float32)
        true = (samples @ direction > 0).astype(np.float32)
        # The last samples of slice DRIFT are the first that are changed.
        changed = np.arange(count) >= (DRIFT - 1) * STEP + length
        wrong = rng.random(count) < np.where(changed, self.after, self.before)
        shown = np.where(wrong, 1.0 - true, true).astype(np.float32)
        rows = np.arange(SLICES)[:, None] * STEP + np.arange(length)
        # Which of a slice's samples validate is drawn, so that both parts are of the same age.
        rows = rng.permuted(rows, axis=1)
        train, validate = rows[:, :TRAIN], rows[:, TRAIN:]
        return samples[train], shown[train], samples[validate], true[validate]


STREAMS = (Stream("labels get worse", 0.02, 0.20, 1), Stream("labels get better", 0.20, 0.02, 2))


def epochs_to_target(piece: tuple[Stream, int]) -> NDArray[np.int64]:
    """Train every slice of a stream with a batch size: slice × seed → epochs; 0 where it never got there."""
    stream, size = piece
    rng = np.random.default_rng((stream.seed, size, 31))
    parts = [np.repeat(part, TRAININGS, axis=0) for part in stream.slices()]
    samples, labels, held_out, truth = parts
    # The rate follows the size, less than linearly: between the rules for plain and for adaptive descent.
    rate = np.float32(RATE * (size / 32) ** 0.25 / size)
    weights = np.zeros((len(samples), FEATURES), np.float32)
    needed = np.zeros(len(samples), np.int64)
    active = np.arange(len(samples))
    for epoch in range(1, MAX_EPOCHS + 1):
        order = np.argsort(rng.random((len(active), TRAIN), np.float32), axis=1)
        now = weights[active]
        for first in range(0, TRAIN, size):
            chosen = order[:, first : first + size]
            batch, wanted = samples[active[:, None], chosen], labels[active[:, None], chosen]
            score = np.clip(np.matmul(batch, now[:, :, None])[:, :, 0], -30.0, 30.0)
            error = 1.0 / (1.0 + np.exp(-score)) - wanted
            now -= rate * np.matmul(error[:, None, :], batch)[:, 0, :]
        weights[active] = now
        right = (np.matmul(held_out[active], now[:, :, None])[:, :, 0] > 0) == (truth[active] > 0.5)
        reached = right.mean(axis=1) >= TARGET
        needed[active[reached]] = epoch
        active = active[~reached]
        if not len(active):
            break
    return needed.reshape(SLICES, TRAININGS)


def drifting(stream: Stream, needed: dict[int, NDArray[np.int64]]) -> list[Truth]:
    """A truth for each slice, from the trainings of every size."""
    max_power_w, profiles = epoch_costs(SIZES, np.random.default_rng(5))
    return [
        Truth(
            *("virtual", stream.name.replace(" ", "-"), DEFAULT, MAX_EPOCHS, max_power_w),
            epochs={size: tuple(int(path) or None for path in needed[size][slice_]) for size in SIZES},
            profiles=profiles,
        )
        for slice_ in range(SLICES)
    ]


class Windowed(Zeus):
    """Zeus with its sliding window of costs, and spared from ending: after five vain runs the default finishes.

    As Zeus stands its series ends here almost always: its bound is twice the cheapest recurrence ever, which harder
    slices cannot meet. Here the bound, too, is that of the last few recurrences, and of the default's alone once that
    had to finish one.
    """

    def __init__(self, job: Job, seed: int) -> None:
        super().__init__(job, seed, window=WINDOW)
        self._totals: list[float] = []
        self._vain: Counter[int] = Counter()
        self._paid: dict[int, float] = {}

    def ask(self, recurrence: int) -> Run:
        """As Zeus, for a while."""
        if self._vain[recurrence] < PATIENCE:
            return super().ask(recurrence)
        return Run(-1, recurrence, self.job.default, knob.DEFAULT, reason="nothing else has reached the target")

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:
        """As Zeus; the default goes on to its end."""
        return Allowed(knob.DEFAULT, self.job.max_epochs) if run.number < 0 else super().allow(run, profile)

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:
        """As Zeus; then the bound is set anew. Where all sizes are pruned it begins again."""
        cost = self.job.cost(duration_s, energy_j)
        self._paid[run.recurrence] = self._paid.get(run.recurrence, 0.0) + cost
        reached = outcome is Outcome.REACHED
        self._vain[run.recurrence] += not reached
        if run.number >= 0:
            try:
                super().tell(run, outcome, epochs=epochs, duration_s=duration_s, energy_j=energy_j)
            except Aborted:
                self.begin_again()
        if reached:
            if run.number < 0:
                self._totals = [cost]
            else:
                self._totals = [*self._totals, self._paid[run.recurrence]][-WINDOW:]
            self.bound.least = min(self._totals)


@dataclass(frozen=True, slots=True)
class Drifted:
    """One policy through one stream with one seed; regret is None where it gave up."""

    told: Told
    regret: float | None
    resets: int = 0


def best_after(truths: Sequence[Truth]) -> tuple[int, list[float]]:
    """The size of least expected cost over all slices after the drift, and what it costs in each."""

    def costs(size: int) -> list[float]:
        """A slice on which no training got there costs what its failures did, as nothing is known of a success."""
        return [
            min(truth.expected_cost(size), truth.max_epochs * truth.epoch_cost(truth.cheapest(size)) * TRAININGS)
            for truth in truths[DRIFT:]
        ]

    size = min(SIZES, key=lambda size: sum(costs(size)))
    return size, costs(size)


def _through(piece: tuple[str, list[Truth], int]) -> Drifted:
    kind, truths, seed = piece
    ours = Ours(truths[0].job, truths[0].platform) if kind == "ours" else None
    policy: SeriesPolicy = ours or Windowed(job_of(truths[0]), seed)
    try:
        played = play(lambda recurrence: truths[recurrence], policy, seed, recurrences=SLICES)
    except Aborted as gave_up:
        return Drifted(Told(seed, None, str(gave_up)), None)
    _, optimal = best_after(truths)
    spent = played.spent()[2, DRIFT:]
    regret = float((spent.sum() - sum(optimal)) / np.mean(optimal))
    return Drifted(Told(seed, played), regret, ours.tuner.resets if ours else 0)


def _stationary(number: int) -> int:
    """How often a series that does not drift was taken for one that does."""
    # Other jobs than those of the laws' bench.
    truth = random_job(10_000 + number)
    ours = Ours(truth.job, truth.platform)
    play(truth, ours, number, recurrences=truth.recurrences)
    return ours.tuner.resets


def run(
    spread: Spread, seeds: int, out: Callable[..., None], decisions: TextIO | None = None
) -> dict[str, float | None]:
    """Train, play, and report."""
    pieces = [(stream, size) for stream in STREAMS for size in SIZES]
    trained = dict(zip(pieces, spread(epochs_to_target, pieces), strict=True))
    found: dict[str, list[list[Drifted]]] = {"ours": [], "zeus": []}
    for stream in STREAMS:
        truths = drifting(stream, {size: trained[stream, size] for size in SIZES})
        _show(stream, truths, out)
        for kind, drifted in found.items():
            drifted.append(list(spread(_through, [(kind, truths, seed) for seed in range(1, seeds + 1)])))
            if decisions:
                series = Series(kind, truths[0])
                decisions.writelines(line for each in drifted[-1] for line in each.told.lines(series))
            regret, gave_up = _mean(drifted[-1]), sum(each.regret is None for each in drifted[-1])
            resets = sum(each.resets for each in drifted[-1]) / seeds
            says = f", {resets:.2f} resets a series" if kind == "ours" else f", gave up {gave_up} of {seeds} times"
            out(f"  {kind}: {'-' if regret is None else f'{regret:.2f}'} optimal runs of regret after the drift{says}")
    false = list(spread(_stationary, range(STATIONARY)))
    out(f"  {sum(false)} false resets in {STATIONARY} series that do not drift")
    ours, zeus = ([_mean(drifted) for drifted in found[kind]] for kind in ("ours", "zeus"))
    return {
        "drift_regret": _over(ours),
        "zeus_drift_regret": _over(zeus),
        "drift_regret_worse_labels": ours[0],
        "drift_regret_better_labels": ours[1],
        "zeus_drift_regret_worse_labels": zeus[0],
        "zeus_drift_regret_better_labels": zeus[1],
        "zeus_drift_gave_up": float(sum(each.regret is None for drifted in found["zeus"] for each in drifted)),
        "drift_gave_up": float(sum(each.regret is None for drifted in found["ours"] for each in drifted)),
        "false_resets": float(sum(false)),
    }


def _show(stream: Stream, truths: Sequence[Truth], out: Callable[..., None]) -> None:
    """Epochs and cost by size, before and after."""
    out(f"{stream.name}: {SLICES} slices, changed from {DRIFT} on; best after: {best_after(truths)[0]}")
    for name, some in (("before", truths[:DRIFT]), ("after", truths[DRIFT + 4 :])):
        pooled = replace(
            some[0], epochs={size: tuple(path for truth in some for path in truth.epochs[size]) for size in SIZES}
        )
        shown = "  ".join(f"{size}: {pooled.expected_epochs(size):.1f}" for size in SIZES)
        out(f"  {name:<7} best {pooled.oracle[0]}; epochs {shown}")


def _mean(drifted: Sequence[Drifted]) -> float | None:
    regrets = [each.regret for each in drifted if each.regret is not None]
    return float(np.mean(regrets)) if regrets else None


def _over(values: Sequence[float | None]) -> float | None:
    """The mean over streams; None if a policy gave up throughout one."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
