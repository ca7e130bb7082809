"""What a tuner sees ahead: every setting's worth, by the belief or, where that is refuted, by local search.

What it is: the measured blocks of one job put on one level (drift between then and now is not a property of settings),
told to the belief and kept for ``tune/search``; and `Worth` and frontiers made of either. What it is not: a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.block import Block
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import DEFAULT, SM_MHZ, Setting
from joulewise.core.objective import Objective, slowdown_bound
from joulewise.model.dvfs import Belief
from joulewise.tune import search
from joulewise.tune.choice import Worth, weigh
from joulewise.tune.search import Measured
from joulewise.tune.trial import Ratio

Array = NDArray[Any]


def _told(draws: Array, column: int, measured: Ratio) -> Array:
    """Joint draws of ratios (draws × settings), after one setting's was measured: it has that value and error, and the
    others move with it as far as they went together."""
    logs = np.log(draws)
    own = logs[:, column]
    spread = own.std()
    if not spread > 0:
        logs[:, column] = measured[0]
        return np.asarray(np.exp(logs))
    apart = own - own.mean()
    alike = apart @ (logs - logs.mean(axis=0)) / (apart @ apart)
    shift = measured[0] - own.mean() + apart * (measured[1] / spread - 1.0)
    return np.asarray(np.exp(logs + shift[:, None] * alike))


@dataclass(slots=True)
class _Mean:
    """Precision-weighted mean of logarithms."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, error: float) -> None:
        weight = 1.0 / (error**2 + 1e-8)
        self.weight += weight
        self.value += (value - self.value) * weight / self.weight

    @property
    def error(self) -> float:
        return 1.0 / math.sqrt(self.weight)


class Outlook:
    """One job as far as it is known. Baseline blocks come first; before the first there is nothing to see."""

    def __init__(self, belief: Belief, objective: Objective, *, seed: int) -> None:
        self.belief = belief
        self.objective = objective
        self.bound = slowdown_bound(objective)
        self.baseline: list[Block] = []
        self._seed = seed
        self._measured: dict[Setting, tuple[_Mean, _Mean]] = {}

    def add_baseline(self, block: Block) -> None:
        """A block with nothing set."""
        self.baseline.append(block)
        self.belief.tell(block)

    def add_probe(self, block: Block) -> None:
        """A block of a setting, soon after the baseline."""
        self._learn(block, self.baseline[-1])
        self.belief.tell(block)

    def add_pair(self, candidate: Block, reference: Block) -> None:
        """Two blocks side by side, one with nothing set. The belief hears of the candidate as if it had been measured
        at the time of the first baseline block."""
        self._learn(candidate, reference)
        first = self.baseline[0]
        time, power = first.unit_s / reference.unit_s, first.power_w / reference.power_w
        energy_j = candidate.energy_j * time * power
        self.belief.tell(
            replace(
                candidate,
                duration_s=candidate.duration_s * time,
                energy_j=energy_j,
                energy_error_j=energy_j * math.hypot(candidate.power_error, reference.power_error),
                time_error=math.hypot(candidate.time_error, reference.time_error),
            )
        )

    def _learn(self, block: Block, reference: Block) -> None:
        time, energy = self._measured.setdefault(block.setting, (_Mean(), _Mean()))
        time_error = math.hypot(block.time_error, reference.time_error)
        time.add(math.log(block.unit_s / reference.unit_s), time_error)
        power_error = math.hypot(block.power_error, reference.power_error)
        energy.add(math.log(block.unit_j / reference.unit_j), math.hypot(time_error, power_error))

    @property
    def base(self) -> Point[Setting]:
        """A unit of work with nothing set."""
        return Point(self.baseline[0].unit_s, self.baseline[0].unit_j, DEFAULT)

    @property
    def unit_s(self) -> float:
        """Seconds of a unit of work with nothing set."""
        return self.baseline[-1].unit_s

    @property
    def time_error(self) -> float:
        """One relative standard error of that, all baseline blocks together."""
        return 1.0 / math.sqrt(sum(block.time_error**-2 for block in self.baseline))

    @property
    def refuted(self) -> bool:
        """Whether what was measured refutes the law. Two settings can be explained by anything."""
        return len(self._measured) >= 3 and self.belief.misfit > search.REFUTED

    def weigh(
        self,
        also: Sequence[Setting] = (),
        known: Mapping[Setting, tuple[Ratio, Ratio]] | None = None,
        margin: float = 0.0,
    ) -> Worth | None:
        """What settings are worth, ``also`` among them; None where nothing can be set. ``known`` are logarithms of
        time and energy with their errors, by pairs: the setting's own pairs overrule what is believed of it."""
        refuted = self.refuted
        settings = self.belief.settings(math.inf if refuted else self.bound)
        settings += [setting for setting in dict.fromkeys(also) if setting and setting not in settings]
        if not settings:
            return None
        if refuted:
            measured = {
                setting: Measured(time.value, time.error, energy.value, energy.error)
                for setting, (time, energy) in self._measured.items()
            }
            time, energy = search.draws(measured, settings, self._default(), seed=self._seed)
        else:
            said = self.belief.predict(settings)
            time, energy = said.time_draws, said.energy_draws
        for setting, (log_time, log_energy) in (known or {}).items():
            column = settings.index(setting)
            time, energy = _told(time, column, log_time), _told(energy, column, log_energy)
        return weigh(settings, time, energy, self.objective, self.base, margin=margin)

    def _default(self) -> Setting:
        """What the knobs are when nothing is set: the clock that the job reaches by itself, the highest of the rest."""
        highest = {name: choices.high for name, choices in self.belief.space.knobs.items()}
        return Setting(**{**highest, SM_MHZ.name: self.belief.default_mhz})

    def frontier(self) -> Frontier[Setting]:
        """Time and energy of a unit of work under every setting worth considering. ValueError before the baseline."""
        if not self.baseline:
            raise ValueError("no frontier before the baseline was measured")
        points = [self.base]
        if (worth := self.weigh()) is not None:
            points += worth.points(self.base)
        return Frontier(points)

    def renew(self) -> None:
        """The job changed a lot: what is known of the card stands, the rest is measured anew."""
        self.belief = self.belief.renewed()
        self.baseline.clear()
        self._measured.clear()
