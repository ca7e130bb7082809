"""What is believed of a running job: how long and how much energy its work takes at settings it was never run at.

What it is: a Bayesian belief, told one block of work after another. The law of ``model/physics`` is the prior, with
what differs between cards and loads unknown (``model/hypotheses``); blocks relative to the default make some draws
likely (``model/draws``); what the law cannot say is a smooth departure (``model/discrepancy``), so that a measured
setting also corrects its neighbours. A GPU that the catalogue does not know is a generic chip with broad priors.

What it is not: a tuner (``tune/job`` chooses) or a guarantee (``tune/guard`` judges what was measured, not believed).

The belief is a function of what was told, whatever was asked in between; the draws are made when somebody asks, and
kept until blocks say something new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT, MEMORY_MHZ, POWER_LIMIT_W, SM_MHZ, Setting, Space
from joulewise.model.catalog import GpuModel
from joulewise.model.discrepancy import Departure
from joulewise.model.draws import posterior
from joulewise.model.evidence import Evidence, Row, alike
from joulewise.model.hypotheses import CARD, LOAD, Hypotheses, Outcomes
from joulewise.model.learnt import Learnt, LearntPoint, LoadPrior

__all__ = ["Belief", "Learnt", "LearntPoint", "LoadPrior", "Prediction"]

Array = NDArray[Any]

_DRAWS = 400
# What the law leaves open: 1.8 % in time and 1.3 % in power over 1,607 points of 4 GPUs, loads fitted; kernels mixed,
# voltage bent and cards apart (model/truth) come on top. These sizes make 90 % intervals cover 90 % of the measured
# tables and rich cards of bench.belief.
_TIME_DEPARTS = Departure(0.03)
_POWER_DEPARTS = Departure(0.06)
_GAIN = 0.05  # of the power sensor, and of what differs between cards in it
_CLOCK = 0.015  # of a clock seen under the power limit: it wanders, and kernels settle on clocks of their own
_LEAST_MEMORY = 0.5  # of the highest memory clock; below lie the clocks of idle boards


@dataclass(frozen=True, slots=True)
class Prediction:
    """Settings relative to the default: ratios, one standard error of each, and joint draws (draws × settings)."""

    time: Array
    time_error: Array
    energy: Array
    energy_error: Array
    time_draws: Array
    energy_draws: Array

    def chance_within(self, bound: float) -> Array:
        """For each setting, the believed probability that it is at most ``bound`` slower than the default."""
        return np.asarray((self.time_draws <= 1.0 + bound).mean(axis=0))


@dataclass(frozen=True, slots=True)
class _Fit:
    """Draws, and what they were made from."""

    rows: tuple[Row, ...]
    laws: Hypotheses
    z: Array
    ceiling_x: float
    time_misses: Array  # draws × rows: what each draw leaves unexplained
    power_misses: Array
    features: Array
    misfit: float


class Belief:
    """What is believed of one job on one kind of GPU (`gpus` of them, doing the same).

    `default_limit_w` is the limit in force when nothing is set; None: the model's, else the highest that may be set.
    `learnt` is an earlier run of the same work (its points are believed, a little less than new ones), or what other
    jobs taught about this card. Deterministic: the same blocks and seed give the same answers.
    """

    def __init__(
        self,
        space: Space,
        *,
        model: GpuModel | None,
        default_limit_w: float | None,
        gpus: int = 1,
        prior: LoadPrior | None = None,
        learnt: Learnt | None = None,
        seed: int = 0,
    ) -> None:
        self.space = space
        self._model = model
        self._limit_w = default_limit_w or _usual_limit_w(space, model)
        self._gpus = gpus
        self._prior = prior
        self._former = learnt or Learnt()
        self._told = Evidence(self._former)
        self._rows = self._told.rows()  # as they were when a block last said something new
        self._seed = seed
        self._fitted: _Fit | None = None

    def tell(self, block: Block) -> None:
        """Take a block of work into account. Blocks of other phases are other jobs: never tell them here."""
        if block.energy_j > 0:
            self._told.add(block, block.power_w / self._gpus)
            rows = self._told.rows()
            if not alike(self._rows, rows):
                self._rows, self._fitted = rows, None

    def predict(self, settings: Sequence[Setting]) -> Prediction:
        """What is believed of `settings`, relative to the default. Any setting may be asked about."""
        fit = self._fit()
        asked = [DEFAULT, *settings]
        said = fit.laws.at(fit.z, asked, ceiling_x=fit.ceiling_x)
        features = _features(said, asked, fit.laws)[1:]
        log_time, log_power = np.log(said.time), np.log(said.power_w)
        time = log_time[:, 1:] - log_time[:, :1]
        power = log_power[:, 1:] - log_power[:, :1]
        # The same normal numbers at every call: settings keep their order when they are asked about again.
        random = np.random.default_rng(self._seed + 1)
        time += _departed(_TIME_DEPARTS, fit, fit.time_misses, _time_noise(fit.rows), features, random)
        power += _departed(_POWER_DEPARTS, fit, fit.power_misses, _power_noise(fit.rows), features, random)
        time_draws, energy_draws = np.exp(time), np.exp(time + power)
        return Prediction(
            time_draws.mean(axis=0),
            time_draws.std(axis=0),
            energy_draws.mean(axis=0),
            energy_draws.std(axis=0),
            time_draws,
            energy_draws,
        )

    @property
    def misfit(self) -> float:
        """How badly the law, departures allowed for, explains what was told: root mean square of the standardised
        misses of the better half of the draws. About 1 or less is usual; above 3 the law is refuted."""
        return self._fit().misfit

    @property
    def default_mhz(self) -> float:
        """The SM clock that the job runs at when nothing is set: seen, or believed."""
        if (seen_mhz := self._told.default_mhz) is not None:
            return seen_mhz
        fit = self._fit()
        said = fit.laws.at(fit.z, [DEFAULT], ceiling_x=fit.ceiling_x)
        return float(np.median(said.x)) * fit.laws.sm_max_mhz

    def settings(self, bound: float) -> list[Setting]:
        """Settings worth considering within a slowdown bound (infinite: none), the deepest last in each group.

        SM clocks below what the default reaches, with and without a lower memory clock; power limits below the
        default's. What is sure to be far beyond the bound is left out.
        """
        knobs = self.space.knobs
        found: list[Setting] = []
        memories: list[float | None] = [None]
        if (memory := knobs.get(MEMORY_MHZ.name)) is not None:
            memories += [v for v in sorted(memory.all(), reverse=True)[1:] if v >= _LEAST_MEMORY * memory.high]
        clocks: list[float | None] = [None]
        if (sm := knobs.get(SM_MHZ.name)) is not None:
            below = [
                v for v in sorted(sm.all(), reverse=True) if 0.4 * self.default_mhz <= v < 0.997 * self.default_mhz
            ]
            clocks += list(_thinned(below, 48))
        for memory_mhz in memories:
            for sm_mhz in clocks:
                values = {SM_MHZ.name: sm_mhz, MEMORY_MHZ.name: memory_mhz}
                found.append(Setting(**{name: value for name, value in values.items() if value is not None}))
        if (limit := knobs.get(POWER_LIMIT_W.name)) is not None:
            highest_w = min(self._default_limit_w(), limit.high)
            steps = [limit.snap(limit.low + (highest_w - limit.low) * i / 20) for i in range(19, -1, -1)]
            found += [Setting(power_limit_w=v) for v in steps if v < highest_w]
        found = [setting for setting in dict.fromkeys(found) if setting]
        if not found or math.isinf(bound):
            return found
        said = self.predict(found)
        hopeful = said.time - 2.0 * said.time_error <= 1.0 + 2.0 * bound + 0.02
        return [setting for setting, keep in zip(found, hopeful, strict=True) if keep]

    def with_net(self, setting: Setting, *, margin: float = 0.08) -> Setting:
        """`setting` with a power limit just above the busy power that it is believed to need: a net under the lock,
        which changes nothing unless the job does. As it was where a limit cannot be set, is set already, or would not
        be below the default's."""
        limit = self.space.knobs.get(POWER_LIMIT_W.name)
        if limit is None or POWER_LIMIT_W.name in setting:
            return setting
        fit = self._fit()
        busy_w = fit.laws.at(fit.z, [setting], ceiling_x=fit.ceiling_x).busy_w[:, 0]
        net_w = float(np.quantile(busy_w, 0.95)) * (1.0 + margin)
        net_w = limit.snap(max(net_w, limit.low)) if limit.step else max(round(net_w), limit.low)
        highest_w = min(self._default_limit_w(), limit.high)
        return setting.with_(power_limit_w=float(net_w)) if net_w < 0.97 * highest_w else setting

    def learnt(self) -> Learnt:
        """What there is to remember of this job and this card."""
        fit = self._fit()
        value = fit.laws.values(fit.z)
        middle = {
            dial.name: (float(np.median(value[dial.name])), float(max(fit.z[:, i].std(), 0.02)))
            for i, dial in enumerate(fit.laws.dials)
        }
        points, power_w = self._told.learnt()
        return Learnt(
            power_w=power_w,
            points=points,
            card={dial.name: middle[dial.name] for dial in CARD},
            load={dial.name: middle[dial.name] for dial in LOAD},
            activity=dict(self._former.activity),
        )

    def renewed(self) -> Belief:
        """A fresh belief of another job on the same card: what was learnt of the card stands, the points go."""
        return Belief(
            self.space,
            model=self._model,
            default_limit_w=self._limit_w,
            gpus=self._gpus,
            learnt=self.learnt().of_card(),
            seed=self._seed,
        )

    def _default_limit_w(self) -> float:
        return self._limit()[0]

    def _limit(self) -> tuple[float, float]:
        """The default power limit of one GPU, and how unsure it is, in logarithms (0: as told)."""
        mine = [row for row in self._rows if row.session == 0]
        first = next((row for row in mine if not row.setting), mine[0] if mine else None)
        power_w = math.exp(first.log_power) if first is not None else None
        if self._limit_w is None:  # nobody says; busy boards are at or somewhat below theirs
            return (1.2 * power_w if power_w is not None else 300.0), 0.2
        if power_w is None or power_w < 1.05 * self._limit_w:
            return self._limit_w, 0.0
        return 1.03 * power_w, 0.08  # the board takes more than it was said to: it may well be at its true limit

    def _fit(self) -> _Fit:
        if self._fitted is None:
            self._fitted = self._drawn(self._rows)
        return self._fitted

    def _drawn(self, rows: tuple[Row, ...]) -> _Fit:
        card = {} if self._former.points else self._former.card
        limit_w, unsure = self._limit()
        laws = Hypotheses(self.space, self._model, limit_w, unsure=unsure, prior=self._prior, card=card)
        ceiling_x = _ceiling_x(rows, laws)
        settings = [row.setting for row in rows]
        if not rows:
            z = laws.mean + laws.spread * np.random.default_rng(self._seed).normal(size=(_DRAWS, len(laws.mean)))
            nothing = np.zeros((_DRAWS, 0))
            return _Fit(rows, laws, z, ceiling_x, nothing, nothing, np.zeros((0, 3)), 0.0)
        first = laws.at(laws.mean[None, :], [DEFAULT, *settings], ceiling_x=ceiling_x)
        features = _features(first, [DEFAULT, *settings], laws)[1:]
        session = np.array([row.session for row in rows])
        same = (session[:, None] == session[None, :]).astype(float)
        time_whiten = _whitener(_TIME_DEPARTS.covariance(features, features) + 100.0 * same + _time_noise(rows))
        gain = _GAIN**2 * np.ones_like(same)
        power_whiten = _whitener(_POWER_DEPARTS.covariance(features, features) + gain + _power_noise(rows))
        log_time = np.array([row.log_time for row in rows])
        log_power = np.array([row.log_power for row in rows])
        # Under a limit the clock is the limiter's answer; elsewhere it says that the limit does not bite.
        clocked = np.array([row.sm_mhz is not None for row in rows])
        log_x = np.array([math.log((row.sm_mhz or 1.0) / laws.sm_max_mhz) for row in rows])

        def misses(z: Array) -> tuple[Array, Array, Array]:
            said = laws.at(z, settings, ceiling_x=ceiling_x)
            by_clock = np.where(clocked, (log_x - np.log(said.x)) / _CLOCK, 0.0)
            return log_time - np.log(said.time), log_power - np.log(said.power_w), by_clock

        def squares(z: Array) -> Array:
            by_time, by_power, by_clock = misses(z)
            return np.asarray(
                ((by_time @ time_whiten.T) ** 2).sum(axis=1)
                + ((by_power @ power_whiten.T) ** 2).sum(axis=1)
                + (by_clock**2).sum(axis=1)
            )

        z = posterior(lambda z: -0.5 * squares(z), laws.mean, laws.spread, count=_DRAWS, seed=self._seed)
        by_time, by_power, _ = misses(z)
        features = _features(laws.at(z, [DEFAULT, *settings], ceiling_x=ceiling_x), [DEFAULT, *settings], laws)[1:]
        told = 2 * len(rows) - len(set(session.tolist())) + int(clocked.sum())
        misfit = math.sqrt(float(np.median(squares(z))) / max(told, 1))
        return _Fit(rows, laws, z, ceiling_x, by_time, by_power, features, misfit)


def _usual_limit_w(space: Space, model: GpuModel | None) -> float | None:
    if model is not None:
        return model.default_limit_w
    limit = space.knobs.get(POWER_LIMIT_W.name)
    return limit.high if limit is not None else None


def _ceiling_x(rows: Sequence[Row], laws: Hypotheses) -> float:
    """The clock that the GPU reaches by itself where no limit holds it: seen at the default, else the maximum."""
    free = [row.sm_mhz for row in rows if not row.setting and row.sm_mhz is not None and not row.capped]
    return min(1.0, max(free) / laws.sm_max_mhz) if free else 1.0


def _features(said: Outcomes, settings: Sequence[Setting], laws: Hypotheses) -> Array:
    """Where settings lie for `Departure`, relative to the first of them, the default."""
    log_x = np.log(said.x).mean(axis=0)
    memory_max = laws.memory_max_mhz
    log_y = np.array([math.log(min(1.0, s.get(MEMORY_MHZ.name, memory_max) / memory_max)) for s in settings])
    asked = np.array([math.log(min(1.0, s.get(SM_MHZ.name, laws.sm_max_mhz) / laws.sm_max_mhz)) for s in settings])
    held = np.where(said.capped.mean(axis=0) > 0.5, np.maximum(asked - log_x, 0.0), 0.0)
    columns = np.stack([log_x, log_y, held], axis=1)
    return np.asarray(columns - columns[0])


def _time_noise(rows: Sequence[Row]) -> Array:
    return np.diag([row.time_error**2 for row in rows])


def _power_noise(rows: Sequence[Row]) -> Array:
    return np.diag([row.power_error**2 for row in rows])


def _whitener(covariance: Array) -> Array:
    """A matrix that turns misses of this covariance into independent ones of size 1."""
    tiny = 1e-10 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance + tiny)))


def _departed(
    law: Departure, fit: _Fit, misses: Array, noise: Array, features: Array, random: np.random.Generator
) -> Array:
    """Draws of the departure at `features`, given what each draw of the law missed at the measured settings."""
    own = law.covariance(features, features)
    shift: Any = 0.0
    if len(fit.rows):
        # The level of each run is unknown: an offset of its own, wide for time, and as wide for power, where the law's
        # draws hold the absolute power to the sensor's gain already.
        session = np.array([row.session for row in fit.rows])
        level = 100.0 * (session[:, None] == session[None, :])
        seen = law.covariance(fit.features, fit.features) + noise + level
        cross = law.covariance(features, fit.features)
        gain = np.linalg.solve(seen, cross.T).T
        own = own - gain @ cross.T
        shift = misses @ gain.T
    spread = np.linalg.cholesky(own + (1e-12 + 1e-6 * law.size**2) * np.eye(len(own)))
    return np.asarray(shift + random.normal(size=(len(fit.z), len(own))) @ spread.T)


def _thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` of `values`, evenly."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
