"""Multi-objective search over a finite list of schedules: which to measure next, and when to stop.

What it is: ask/tell for time and energy at once. The time of a candidate is believed lognormal, its energy normal
around a line in its time (waiting costs static power) with a departure of its own (``tune/pareto_belief``). Each ask
names the candidate whose measurement is expected to add most to the hypervolume of the believed frontier
(``tune/pareto_gain``: a true expectation, over both objectives). New candidates come first, since they also tell about
their neighbours; when none promises enough any more, members of the frontier and those that may belong there are
measured again, as far as noise may have misled; when that promises too little too, it stops, and in any case after as
many measurements as there are candidates: all of them once can be had without a search. A ``prior`` (from the
simulator, or from another partition or shape by ``transfer``) becomes the belief's mean, from which they may depart.

Deterministic: the same seed and the same asks and tells give the same asks. Candidates that were asked and not yet told
count as if measured at their expected value, so that several GPUs can search together. What it is not: a measurer, and
nothing here knows what the columns mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.decision import Decision
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.tune.pareto_belief import Belief, Column, Foreseen, Space, Value
from joulewise.tune.pareto_gain import expected_improvement, hypervolume, improvement, non_dominated

Array = NDArray[Any]

__all__ = ["Column", "ParetoSearch", "Prior"]

_MARGIN = 0.1  # the reference point lies this share beyond the nadir of the believed frontier
_POOL = 64  # candidates among which each member of the first design is the farthest from those before
_PATIENCE = 3  # asks in a row that promise too little before it stops; one may be a lapse of the cloud
# Measuring every candidate once adds 1/candidates of the hypervolume on average. What promises less than this share of
# that is not worth a measurement, however short the list: on 19 to 43 schedules, a tolerance made for hundreds asked
# for the whole list and more. Lists of 160 and longer are left to their tolerance.
_WORTH = 1.0 / 32.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Seconds and joules of every candidate, as something else expects them. Their scales need not be right."""

    time_s: Array
    energy_j: Array


@dataclass(frozen=True, slots=True)
class _View:
    """What is believed now: about all candidates, and the frontier of those measured."""

    time: Foreseen  # of the logarithm
    energy: Foreseen  # at the expected time
    time_s: Array
    energy_j: Array
    front: list[int]
    reference: Array

    @property
    def points(self) -> Array:
        """The frontier's expected seconds and joules."""
        return np.column_stack([self.time_s[self.front], self.energy_j[self.front]])


class ParetoSearch:
    """Search one list of candidates, each a row of values for ``columns``.

    ``tolerance``: stop when the best measurement is expected to add less than this share of the hypervolume (on short
    lists, than a share of what one of so few adds on average). ``most``: measurements in all, repeats among them;
    None: as many as there are candidates.
    Raises BadSpec where the list is empty, has twins, or does not fit the columns or the prior.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        candidates: Sequence[Sequence[Value]],
        *,
        seed: int,
        prior: Prior | None = None,
        tolerance: float = 2e-4,
        most_repeats: int = 4,
        most: int | None = None,
    ) -> None:
        _check(columns, candidates, prior)
        if most is not None and most < 1:
            raise BadSpec(f"a search needs at least one measurement, not {most}")
        self.columns, self.candidates = tuple(columns), tuple(tuple(row) for row in candidates)
        self._space = Space(columns, candidates)
        self._random = np.random.default_rng(seed)
        self._time, self._energy = Belief(self._space, self._random), Belief(self._space, self._random)
        self._prior, self._most_repeats = prior, most_repeats
        self._tolerance = max(tolerance, _WORTH / len(candidates))
        self._most = len(candidates) if most is None else most
        self._told: list[tuple[int, float, float]] = []
        self._pending: list[int] = []
        self._barred: set[int] = set()
        self._quiet = 0
        self._current: tuple[int, _View] | None = None
        self._design = self._first()

    def ask(self) -> Decision[int] | None:
        """The index of the candidate to measure next, with the reason; None when enough is known."""
        if len(self._told) + len(self._pending) >= self._most:
            return None
        known = {row for row, _, _ in self._told} | set(self._pending) | self._barred
        while self._design:
            row = self._design.pop(0)
            if row not in known:
                return self._asked(row, "first look: far from all others asked so far")
        if not self._told:
            return None if len(known) >= self._space.size else self._asked(self._any(known), "nothing measured yet")
        view = self._view(self._pending)
        gains = self._gains(view)
        whole = max(hypervolume(view.points, view.reference), 1e-300)
        fresh = np.array([row not in known for row in range(self._space.size)])
        again = np.array([self._may_repeat(row) for row in range(self._space.size)])
        new, repeat = (float(np.where(mask, gains, -1.0).max()) / whole for mask in (fresh, again))
        self._quiet = self._quiet + 1 if max(new, repeat) < self._tolerance else 0
        if self._quiet >= (_PATIENCE if new >= 0 else 1):  # with nothing new left there is nothing to be patient for
            return None
        if new >= self._tolerance or repeat < self._tolerance:
            row = int(np.argmax(np.where(fresh, gains, -1.0)))
            return self._asked(row, f"new: expected to add {new:.2%} to the frontier's hypervolume")
        row = int(np.argmax(np.where(again, gains, -1.0)))
        return self._asked(row, f"again: noise may hide {repeat:.2%} of the frontier's hypervolume")

    def tell(self, row: int, time_s: float, energy_j: float) -> None:
        """One measurement of candidate ``row``, asked for or not. Raises BadSpec for what cannot be one."""
        self._check_row(row)
        if not (math.isfinite(time_s) and math.isfinite(energy_j) and time_s > 0 and energy_j > 0):
            raise BadSpec(f"a measurement needs time and energy above 0, not {time_s} s and {energy_j} J; use bar()")
        if row in self._pending:
            self._pending.remove(row)
        self._told.append((row, time_s, energy_j))

    def bar(self, row: int) -> None:
        """Candidate ``row`` cannot run (out of memory, refused): never ask it again."""
        self._check_row(row)
        self._pending = [pending for pending in self._pending if pending != row]
        self._barred.add(row)

    @property
    def measurements(self) -> int:
        """How many have been told."""
        return len(self._told)

    def frontier(self) -> Frontier[int]:
        """The believed frontier among measured candidates, settings by index, with one standard error each.

        Raises BadSpec before anything was told.
        """
        if not self._told:
            raise BadSpec("no frontier before the first measurement; ask and tell first")
        view = self._view([])
        time_error = _deviation(view.time) * view.time_s
        energy_error = np.hypot(_deviation(view.energy), view.energy.slopes[:, 0].mean() * time_error)
        return Frontier(
            Point(
                float(view.time_s[row]),
                float(view.energy_j[row]),
                row,
                float(time_error[row]),
                float(energy_error[row]),
            )
            for row in view.front
        )

    def transfer(self, columns: Sequence[Column], candidates: Sequence[Sequence[Value]]) -> Prior:
        """What this search expects of other candidates with the same columns: a prior for another partition or shape.

        Values that this search never had count as the nearest that it had (ordered) or as the first (categories).
        """
        if [column.name for column in columns] != [column.name for column in self.columns]:
            raise BadSpec(f"columns {[c.name for c in columns]} are not {[c.name for c in self.columns]}: no transfer")
        view = self._view([])
        rows = [self._nearest(candidate) for candidate in candidates]
        return Prior(view.time_s[rows], view.energy_j[rows])

    def _nearest(self, candidate: Sequence[Value]) -> int:
        """The own candidate most like another list's."""

        def apart(own: Sequence[Value]) -> float:
            total = 0.0
            for column, a, b in zip(self.columns, own, candidate, strict=True):
                if column.scale == "category" or isinstance(a, str) or isinstance(b, str):
                    total += 4.0 * (a != b)
                else:
                    total += abs(math.log(a / b)) if column.scale == "log" else abs(a - b) / max(abs(a), abs(b), 1e-9)
            return total

        return min(range(len(self.candidates)), key=lambda row: apart(self.candidates[row]))

    def _first(self) -> list[int]:
        """The first design: what the prior thinks best, then candidates far from each other."""
        wanted = min(2 * len(self.columns) + 4, self._space.size)
        chosen: list[int] = []
        if self._prior is not None:
            best = non_dominated(np.column_stack([self._prior.time_s, self._prior.energy_j]))
            chosen = [best[i] for i in np.unique(np.linspace(0, len(best) - 1, wanted // 2).astype(int))]
        else:
            chosen = [int(self._random.integers(self._space.size))]
        while len(chosen) < wanted:
            pool = self._random.choice(self._space.size, size=min(_POOL, self._space.size), replace=False)
            pool = np.setdiff1d(pool, chosen)
            if len(pool):
                chosen.append(int(pool[np.argmax(self._space.far(chosen, pool))]))
        return chosen

    def _view(self, pending: Sequence[int]) -> _View:
        """The belief after all told; ``pending`` ones at what is expected of them."""
        if self._current is None or self._current[0] != len(self._told):
            self._current = len(self._told), self._learn(self._told)
        view = self._current[1]
        if not pending:
            return view
        return self._learn(
            [*self._told, *((row, float(view.time_s[row]), float(view.energy_j[row])) for row in pending)]
        )

    def _learn(self, data: Sequence[tuple[int, float, float]]) -> _View:
        rows = np.array([row for row, _, _ in data])
        time, energy = np.array([one[1] for one in data]), np.array([one[2] for one in data])
        everyone = np.arange(self._space.size)
        no_features = np.zeros((self._space.size, 0))
        log_prior, energy_prior = np.zeros(self._space.size), np.zeros(self._space.size)
        if self._prior is not None:
            log_prior = np.log(self._prior.time_s)
            energy_prior = self._prior.energy_j * (energy.sum() / self._prior.energy_j[rows].sum())
        self._time.learn(rows, np.log(time) - log_prior[rows], no_features[rows])
        foreseen = self._time.foresee(everyone, no_features)
        log_time = foreseen.mean + log_prior
        time_s = np.exp(log_time.mean(axis=0))
        # Energy is told its own time: what varies with it, at static power, need not be learnt candidate by candidate.
        centre, scale = float(time.mean()), max(float(time.std()), 1e-9 * float(time.mean()))
        self._energy.learn(rows, energy - energy_prior[rows], ((time - centre) / scale)[:, None])
        beyond = self._energy.foresee(everyone, ((time_s - centre) / scale)[:, None])
        energies = beyond.mean + energy_prior
        energy_j = energies.mean(axis=0)
        measured = np.unique(rows)
        front = [int(measured[i]) for i in non_dominated(np.column_stack([time_s[measured], energy_j[measured]]))]
        reference = (1.0 + _MARGIN) * np.array([time_s[front].max(), energy_j[front].max()])
        return _View(
            Foreseen(log_time, foreseen.variance, foreseen.noise, foreseen.slopes),
            Foreseen(energies, beyond.variance, beyond.noise, beyond.slopes / scale),
            time_s,
            energy_j,
            front,
            reference,
        )

    def _gains(self, view: _View) -> Array:
        """Expected growth of the believed frontier's hypervolume by one measurement of each candidate."""
        time_error, energy_error = _lesson(view.time), _lesson(view.energy)
        slope = view.energy.slopes[:, :1]
        gains = expected_improvement(
            view.points, view.reference, view.time.mean, time_error, view.energy.mean, energy_error, slope
        ).mean(axis=0)
        for place, row in enumerate(view.front):  # a member is worth what its own replacement may win beyond it
            others = np.delete(view.points, place, axis=0)
            one = np.s_[:, [row]]
            expected = expected_improvement(
                others,
                view.reference,
                view.time.mean[one],
                time_error[one],
                view.energy.mean[one],
                energy_error[one],
                slope,
            ).mean()
            gains[row] = max(0.0, expected - improvement(others, view.reference, view.time_s[row], view.energy_j[row]))
        return np.asarray(gains)

    def _may_repeat(self, row: int) -> bool:
        times = sum(1 for told, _, _ in self._told if told == row) + self._pending.count(row)
        return 0 < times <= self._most_repeats and row not in self._barred and row not in self._pending

    def _any(self, known: set[int]) -> int:
        return next(row for row in range(self._space.size) if row not in known)

    def _asked(self, row: int, reason: str) -> Decision[int]:
        self._pending.append(row)
        return Decision(row, reason)

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self._space.size:
            raise BadSpec(f"candidate {row} is outside 0–{self._space.size - 1}")


def _lesson(foreseen: Foreseen) -> Array:
    """Deviation of where one noisy measurement may move the mean: v/√(v + noise)."""
    return np.asarray(foreseen.variance / np.sqrt(foreseen.variance + foreseen.noise[:, None]))


def _deviation(foreseen: Foreseen) -> Array:
    """One deviation of the mixture over the cloud."""
    return np.asarray(np.sqrt(foreseen.variance.mean(axis=0) + foreseen.mean.var(axis=0)))


def _check(columns: Sequence[Column], candidates: Sequence[Sequence[Value]], prior: Prior | None) -> None:
    if not candidates or not columns:
        raise BadSpec("a search needs at least one column and one candidate")
    for row in candidates:
        if len(row) != len(columns):
            raise BadSpec(f"candidate {tuple(row)} has {len(row)} values for {len(columns)} columns")
    if len({tuple(row) for row in candidates}) != len(candidates):
        raise BadSpec("the same candidate is listed twice; each must be one row")
    for index, column in enumerate(columns):
        if column.scale == "category":
            continue
        for row in candidates:
            value = row[index]
            if isinstance(value, str) or not math.isfinite(value) or (column.scale == "log" and value <= 0):
                raise BadSpec(f"column {column.name!r} is {column.scale}: {value!r} has no place on it")
    if prior is not None:
        for values in (prior.time_s, prior.energy_j):
            if values.shape != (len(candidates),) or not (np.isfinite(values).all() and (values > 0).all()):
                raise BadSpec(f"a prior needs {len(candidates)} finite values above 0, of time and of energy")
