"""A candidate's pairs: kept, refused, not judged yet; by time where there is a bound, by cost where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.objective import Budget, Edp, MinEnergy, Objective, Within
from joulewise.tune.trial import Trial

SETTING = Setting(sm_mhz=1500.0)


def tried(
    objective: Objective,
    *,
    slowdown: float,
    power: float,
    pairs: int = 12,
    spread: float = 0.005,
    base_w: float = 500.0,
) -> Trial:
    random = np.random.default_rng(1)
    trial = Trial(SETTING, 0, 0.05, objective)
    for _ in range(pairs):
        noise = np.exp(spread * random.normal(size=2))
        candidate = Block(SETTING, 0.0, 2.0, 10.0, 2.0 * (1 + slowdown) * noise[0], 0.0, 0.0, spread)
        joules = power * base_w * candidate.duration_s
        candidate = Block(SETTING, 0.0, 2.0, 10.0, candidate.duration_s, joules, 0.005 * joules, spread)
        reference = Block(DEFAULT, 2.0, 4.0, 10.0, 2.0 * noise[1], base_w * 2.0 * noise[1], 5.0, spread)
        trial.add(candidate, reference)
    return trial


def test_a_candidate_well_within_the_bound_is_kept() -> None:
    trial = tried(MinEnergy(0.05), slowdown=0.02, power=0.8)
    assert trial.verdict.kept is True
    assert trial.slowdown[0] == pytest.approx(0.02, abs=0.006)
    assert trial.gain == pytest.approx(1 - 1.02 * 0.8, abs=0.01)
    assert trial.chance > 0.99


def test_a_candidate_beyond_the_bound_is_not() -> None:
    trial = tried(MinEnergy(0.05), slowdown=0.09, power=0.8)
    assert trial.verdict.kept is False
    assert trial.chance < 0.01


def test_one_on_the_bound_is_not_judged() -> None:
    assert tried(MinEnergy(0.05), slowdown=0.05, power=0.8, pairs=6).verdict.kept is None


def test_without_a_bound_the_cost_must_fall() -> None:
    assert tried(Edp(), slowdown=0.05, power=0.8).verdict.kept is True
    assert tried(Edp(), slowdown=0.20, power=0.9).verdict.kept is False


def test_a_budget_that_only_the_candidate_keeps_is_judged_block_by_block() -> None:
    objective = Within(Edp(), Budget(power_w=450.0))
    assert tried(objective, slowdown=0.3, power=0.85).verdict.kept is True
    assert tried(objective, slowdown=0.3, power=0.95).verdict.kept is False
    assert tried(objective, slowdown=0.3, power=0.85, pairs=2).verdict.kept is None


def test_what_was_kept_is_not_any_more_when_it_becomes_clearly_slower() -> None:
    trial = tried(MinEnergy(0.05), slowdown=0.02, power=0.8)
    slow = Block(SETTING, 0.0, 2.0, 10.0, 2.4, 900.0, 5.0, 0.005)
    plain = Block(DEFAULT, 2.0, 4.0, 10.0, 2.0, 1000.0, 5.0, 0.005)
    trial.add(slow, plain)
    assert trial.verdict.kept is True
    trial.add(slow, plain)
    assert trial.verdict.kept is False


def test_a_candidate_given_up_stays_given_up() -> None:
    trial = tried(MinEnergy(0.05), slowdown=0.02, power=0.8)
    trial.given_up = True
    assert trial.verdict.kept is False


def test_few_pairs_are_weighed_against_what_was_believed_and_many_overrule_it() -> None:
    prior = ((0.03, 0.005), (-0.1, 0.01))
    noisy = [
        (
            Block(SETTING, 0.0, 2.0, 10.0, 2.0 * 1.01, 800.0, 4.0, 0.01),
            Block(DEFAULT, 2.0, 4.0, 10.0, 2.0, 1000.0, 5.0, 0.01),
        )
    ]
    trial = Trial(SETTING, 0, 0.05, MinEnergy(0.05), prior)
    assert trial.known == prior
    for candidate, reference in noisy * 3:
        trial.add(candidate, reference)
    assert 0.012 < trial.known[0][0] < 0.03
    for candidate, reference in noisy * 60:
        trial.add(candidate, reference)
    assert trial.known[0][0] == pytest.approx(np.log(1.01), abs=0.001)


def test_what_a_setting_costs_at_most_comes_down_with_the_pairs() -> None:
    few, many = (tried(MinEnergy(0.05), slowdown=0.02, power=0.8, pairs=pairs) for pairs in (4, 40))
    assert few.upper > many.upper > many.slowdown[0]
    assert many.upper == pytest.approx(0.02, abs=0.005)
