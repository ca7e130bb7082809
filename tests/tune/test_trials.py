"""The candidates of a job: granted error, given up for a while, gone back to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from joulewise.core.block import Block
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.core.objective import MinEnergy
from joulewise.tune.choice import weigh
from joulewise.tune.guard import AlphaBudget
from joulewise.tune.trial import Trial
from joulewise.tune.trials import LEAST_SHUNNED_S, Trials

BASE: Point[Any] = Point(1.0, 300.0, DEFAULT)
FAST, MIDDLE, SLOW = (Setting(sm_mhz=mhz) for mhz in (1800.0, 1650.0, 1500.0))
OBJECTIVE = MinEnergy(0.05)


def trials() -> Trials:
    return Trials(OBJECTIVE, AlphaBudget(0.05))


def block(setting: Setting, unit_s: float, unit_j: float) -> Block:
    return Block(setting, 0.0, 10 * unit_s, 10.0, 10 * unit_s, 10 * unit_j, 0.1, 0.002)


def compared(each: Trials, setting: Setting, *, slowdown: float, saving: float, pairs: int = 8) -> Trial:
    trial = each.begin(setting, None)
    for number in range(pairs):
        wobble = 1.0 + 0.001 * (-1) ** number
        trial.add(block(setting, (1.0 + slowdown) * wobble, 300.0 * (1.0 - saving)), block(DEFAULT, 1.0, 300.0))
    return trial


def test_all_candidates_together_are_granted_no_more_than_the_jobs_error() -> None:
    each = trials()
    assert sum(each.begin(Setting(sm_mhz=1500.0 + n), None).alpha for n in range(50)) <= 0.05
    assert [trial.number for trial in each] == list(range(50))


def test_the_best_that_was_kept_is_fallen_back_on() -> None:
    each = trials()
    compared(each, FAST, slowdown=0.01, saving=0.05)
    compared(each, MIDDLE, slowdown=0.03, saving=0.10)
    best = each.best_kept(100.0)
    assert best is not None
    assert best.setting == MIDDLE
    assert each.fallback(100.0) is best


def test_before_anything_is_kept_what_nothing_speaks_against_is_fallen_back_on() -> None:
    each = trials()
    unsure = compared(each, MIDDLE, slowdown=0.0499, saving=0.10, pairs=4)
    assert unsure.verdict.kept is None
    assert each.best_kept(100.0) is None
    assert each.fallback(100.0) is unsure
    each.give_up(unsure, 100.0)
    assert each.fallback(100.0) is None


def test_a_setting_that_was_given_up_is_shunned_with_all_that_is_slower_and_thought_of_again_later() -> None:
    each = trials()
    trial = compared(each, MIDDLE, slowdown=0.08, saving=0.10)
    each.give_up(trial, 100.0)
    time = np.array([[1.01, 1.04, 1.09]])
    worth = weigh([FAST, MIDDLE, SLOW], time, 0.9 * np.ones_like(time), OBJECTIVE, BASE)
    assert each.out(worth, 150.0) == {MIDDLE, SLOW}
    assert each.out(worth, 201.0) == set()
    assert each.refused() == [MIDDLE]
    assert each.going(MIDDLE) is None
    assert each.shun(FAST, 1.0) == LEAST_SHUNNED_S


def test_what_has_few_pairs_does_not_overrule_the_belief() -> None:
    each = trials()
    compared(each, FAST, slowdown=0.01, saving=0.05, pairs=3)
    compared(each, MIDDLE, slowdown=0.03, saving=0.10, pairs=4)
    known = each.known()
    assert set(known) == {MIDDLE}
    (log_time, _), (log_energy, _) = known[MIDDLE]
    assert log_time == pytest.approx(math.log(1.03), abs=1e-3)
    assert log_energy == pytest.approx(math.log(0.9), abs=1e-3)


def test_half_way_between_two_settings_is_proposed_if_it_can_be_set() -> None:
    each = trials()
    space = Space({"sm_mhz": Choices(1200.0, 1980.0, 15.0)})
    assert each.between(space, 0.0) == []
    compared(each, FAST, slowdown=0.01, saving=0.05)
    compared(each, SLOW, slowdown=0.04, saving=0.06)
    assert each.between(space, 0.0) == [Setting(sm_mhz=1650.0)]


def test_after_a_shift_nothing_is_known_but_numbers_go_on() -> None:
    each = trials()
    compared(each, FAST, slowdown=0.01, saving=0.05)
    each.forget()
    assert len(each) == 0
    assert each.begin(FAST, None).number == 1
