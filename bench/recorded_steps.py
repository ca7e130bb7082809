"""Recorded step times, cleaned as the tuner cleans them, and replayed so that they still hang together.

Used by benches that need the noise of real jobs: the autocorrelation, drifts and tails of ``bench/results/h200/steps``.
"""

from __future__ import annotations

import csv
import gzip
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FOLDER = Path(__file__).parent / "results" / "h200" / "steps"
TOGETHER_S = 0.02
"""Shorter steps are taken together, as ``monitor/steplog`` does."""
_WARM = 5  # first steps left out: compilation and autotuning
_STALL = 3.0  # a step of so many medians is a stall


@dataclass(frozen=True, slots=True)
class Recording:
    """One program's clean steps in order, seconds each."""

    name: str
    steps_s: Array

    @property
    def usual_s(self) -> float:
        """Median step."""
        return float(np.median(self.steps_s))

    def together(self) -> Array:
        """Step times after short steps are joined: the mean of each group."""
        count = max(1, round(TOGETHER_S / self.usual_s))
        usable = self.steps_s[: self.steps_s.size // count * count]
        return np.asarray(usable.reshape(-1, count).mean(axis=1))


def load(folder: Path = FOLDER) -> list[Recording]:
    """Every recording of a folder, by name. FileNotFoundError where there is none."""
    paths = sorted(folder.glob("*.steps.csv.gz"))
    if not paths:
        raise FileNotFoundError(f"no *.steps.csv.gz in {folder}; see bench/record_steps.py")
    return [Recording(path.name.split(".")[0], clean(path)) for path in paths]


def clean(path: Path) -> Array:
    """Durations of steps that follow a step (so none holds an evaluation), without warm-up and stalls."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        marks = [(float(row["end_s"]), row["kind"]) for row in csv.DictReader(file) if row["kind"] != "part"]
    steps = [now - before for (before, _), (now, kind) in itertools.pairwise(marks) if kind == "step"]
    times_s = np.array(steps[_WARM:])
    # A running median, so that a batch that doubles is no stall.
    width = min(101, times_s.size)
    padded = np.pad(times_s, (width - 1, 0), mode="edge")
    usual_s = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return np.asarray(times_s[times_s <= _STALL * usual_s])


def pair_means(
    steps_s: Array, *, length: int, pairs: int, replays: int, run: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Mean step time of the first and the second place of each pair, (replays × pairs), from resampled steps.

    A circular block bootstrap: ``run`` pairs in a row are as they were recorded, then another place of the recording
    goes on, so that steps hang together within and between neighbouring pairs.
    """
    size = steps_s.size
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([steps_s, steps_s]))])
    starts = rng.integers(0, size, (replays, -(-pairs // run)))
    within = (2 * length * np.arange(run))[None, None, :]
    first = ((starts[:, :, None] + within) % size).reshape(replays, -1)[:, :pairs]
    whole, rest = divmod(length, size)  # a place longer than the recording goes round it

    def mean(begin: npt.NDArray[np.int64]) -> Array:
        value: Array = (total[begin + rest] - total[begin] + whole * total[size]) / length
        return value

    return mean(first), mean((first + length) % size)
