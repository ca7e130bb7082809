"""What settings are worth by joint draws: values, chances, probes, for every objective."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.block import Block
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.objective import Budget, Ed2p, Edp, MinEnergy, Money, Objective, Weighted, Within
from joulewise.tune.choice import Worth, best_probe, held_share, log_cost_ratio, unbounded, weigh

BASE: Point[Any] = Point(1.0, 300.0, DEFAULT)
SETTINGS = [Setting(sm_mhz=mhz) for mhz in (1800.0, 1600.0, 1400.0)]
# Two draws: on the second one everything is slower.
TIME = np.array([[1.01, 1.03, 1.08], [1.02, 1.06, 1.16]])
ENERGY = np.array([[0.95, 0.90, 0.85], [0.96, 0.92, 0.88]])


def test_on_a_draw_that_breaks_the_bound_a_setting_gains_only_for_a_part_of_the_time() -> None:
    worth = weigh(SETTINGS, TIME, ENERGY, MinEnergy(0.05), BASE)
    second = (0.10 + (5 / 6) ** 2 * 0.08) / 2
    third = ((5 / 8) ** 2 * 0.15 + (5 / 16) ** 2 * 0.12) / 2
    assert worth.value == pytest.approx([0.045, second, third])
    assert worth.chance == pytest.approx([1.0, 0.5, 0.0])
    assert worth.best() == 1
    assert worth.best(least_chance=0.9) == 0
    assert worth.best(without=SETTINGS[:2], least_chance=0.1) is None


def test_what_is_not_known_well_counts_against_settings_near_the_bound() -> None:
    sure = weigh(SETTINGS, TIME, ENERGY, MinEnergy(0.05), BASE)
    unsure = weigh(SETTINGS, TIME, ENERGY, MinEnergy(0.05), BASE, margin=0.025)
    assert unsure.value[0] == sure.value[0]
    assert unsure.value[1] < sure.value[1]
    assert unsure.chance.tolist() == sure.chance.tolist()


def test_trying_a_setting_cannot_lose_what_one_goes_back_to() -> None:
    worth = weigh(SETTINGS, TIME, ENERGY, MinEnergy(0.05), BASE)
    second = (0.05 + (5 / 6) ** 2 * 0.08 - 0.04) / 2
    assert worth.upside(0) == pytest.approx([0.0, second, ((5 / 8) ** 2 * 0.15 - 0.05) / 2])


@given(st.floats(0.0, 0.5), st.floats(0.001, 0.1))
def test_the_share_that_may_be_held_keeps_the_bound(slowdown: float, bound: float) -> None:
    share = float(held_share(np.array([slowdown]), bound)[0])
    assert 0.0 <= share <= 1.0
    assert share * slowdown <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "objective",
    [MinEnergy(0.05), Edp(), Ed2p(), Weighted(0.5, 700.0), Money(3.0, 0.2), Within(Edp(), max_slowdown=0.05)],
)
def test_gains_are_what_the_objective_says(objective: Objective) -> None:
    worth = weigh(SETTINGS, TIME, ENERGY, objective, BASE)
    plain = unbounded(objective)
    for draw in range(2):
        for index in range(3):
            point = Point(TIME[draw, index] * BASE.time_s, ENERGY[draw, index] * BASE.energy_j, DEFAULT)
            cost = objective.cost(point, BASE)
            gain = 1.0 - plain.cost(point, BASE) / plain.cost(BASE, BASE)
            share = (0.05 / (TIME[draw, index] - 1.0)) ** 2 if math.isinf(cost) else 1.0
            assert worth.gain[draw, index] == pytest.approx(share * gain)


def test_where_a_budget_forbids_the_default_anything_allowed_is_better() -> None:
    worth = weigh(SETTINGS, TIME, ENERGY, Within(Weighted(0.0, 700.0), Budget(power_w=270.0)), BASE)
    assert worth.floor == -1.0
    assert worth.best() == 1  # the first still draws too much on one draw; the second is faster than the third
    assert worth.value[1] < 0


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_log_cost_ratios_ignore_bounds_and_vanish_at_the_baseline(time: float, energy: float) -> None:
    point = Point(BASE.time_s * time, BASE.energy_j * energy, DEFAULT)
    assert log_cost_ratio(MinEnergy(0.0), point, BASE) == pytest.approx(math.log(energy), abs=1e-9)
    assert log_cost_ratio(Within(Edp(), max_slowdown=0.01), point, BASE) == pytest.approx(
        math.log(time * energy), abs=1e-9
    )
    assert log_cost_ratio(Money(3.0, 0.2), BASE, BASE) == pytest.approx(0.0, abs=1e-12)


def uncertain(count: int = 256) -> Worth:
    """Half of the draws say that everything is within the bound, half that nothing below 1700 MHz is."""
    clocks = np.linspace(1950.0, 1200.0, 26)
    share = np.where(np.arange(count) % 2 == 0, 0.05, 0.9)[:, None]
    time = share * 1980.0 / clocks + 1.0 - share
    energy = time * (0.3 + 0.7 * (clocks / 1980.0) ** 2)
    return weigh([Setting(sm_mhz=float(mhz)) for mhz in clocks], time, energy, MinEnergy(0.05), BASE)


def block(error: float) -> Block:
    return Block(DEFAULT, 0.0, 3.0, 12.0, 3.0, 900.0, 900.0 * error, error)


def probe(worth: Worth, bound: float = 0.05, probed: tuple[Setting, ...] = ()) -> int | None:
    return best_probe(worth, block(0.005), bound, probed=probed, probe_s=2.0, ahead_s=600.0)


def test_the_probe_tells_the_draws_apart_and_is_no_deeper_than_it_must_be() -> None:
    worth = uncertain()
    index = probe(worth)
    assert index is not None
    apart = worth.log_time[1, index] - worth.log_time[0, index]
    assert apart > 0.03  # several standard errors of a probe
    tight = probe(worth, bound=0.005)
    assert tight is not None
    assert worth.settings[tight]["sm_mhz"] >= worth.settings[index]["sm_mhz"]


def test_nothing_is_probed_when_all_draws_agree() -> None:
    worth = uncertain()
    sure = Worth(worth.settings, worth.log_time[::2], worth.log_energy[::2], worth.gain[::2], worth.allowed[::2])
    assert probe(sure, probed=(worth.settings[3],)) is None
    assert probe(sure) is not None  # a law alone is never trusted
