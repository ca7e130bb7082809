"""What an epoch costs: in every currency, on one GPU and on eight, measured and guessed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.series import EpochCost, Platform
from joulewise.tune.series_price import Costs, Price
from tests.tune.series_jobs import A40, SIZES, V100, epoch, job

LOW = Setting(power_limit_w=150)
LOWER = Setting(power_limit_w=100)


def price(**objective: object) -> Price:
    return Price(job(objective=objective))


def costs(currency: Price | None = None, platform: Platform = V100) -> Costs:
    return Costs(SIZES, 32, currency if currency is not None else price(), platform)


@pytest.mark.parametrize(
    ("eta", "joules"), [(0.0, 250.0 * 10.0), (1.0, 1000.0), (0.5, 0.5 * 1000.0 + 0.5 * 250.0 * 10.0)]
)
def test_zeus_weighs_energy_and_the_time_at_the_highest_power(eta, joules):
    assert price(what="zeus", eta=eta).of(EpochCost(10.0, 1000.0), V100) == pytest.approx(joules)


def test_half_and_half_is_the_default():
    assert price().of(EpochCost(10.0, 1000.0), V100) == price(what="zeus", eta=0.5).of(EpochCost(10.0, 1000.0), V100)


def test_energy_counts_joules_and_knows_how_long_a_run_may_take():
    slow = price(what="energy", max_slowdown=0.1)
    assert slow.of(EpochCost(10.0, 1000.0), Platform("unknown")) == 1000.0
    assert slow.most_s(100.0) == pytest.approx(110.0)
    assert price(what="energy", deadline_s=50.0).most_s(100.0) == 50.0
    assert price(what="energy", deadline_s=500.0, max_slowdown=0.1).most_s(100.0) == pytest.approx(110.0)
    assert price(what="energy").most_s(100.0) == math.inf


def test_money_pays_every_gpu_by_the_hour_and_the_host_with_it():
    money = price(what="money", gpu_hour_price=2.0, kwh_price=0.3, host_w=400.0)
    an_hour = EpochCost(3600.0, 8 * 3.6e6)  # 8 kWh
    assert money.of(an_hour, Platform("H200", 8)) == pytest.approx(16.0 + 0.3 * 8.4)


@pytest.mark.parametrize(
    "objective",
    [
        {"what": "speed"},
        {"what": "zeus", "eta": 1.1},
        {"what": "zeus", "eta": "much"},
        {"what": "zeus", "et": 0.5},
        {"what": "energy", "max_slowdown": -0.1},
        {"what": "energy", "deadline_s": math.nan},
        {"what": "money", "gpu_hour_price": -1.0},
        {"what": "money", "kwh_price": math.inf},
    ],
)
def test_what_is_no_objective_is_refused_by_name(objective):
    with pytest.raises(BadSpec, match="is no objective of a recurring job"):
        price(**objective)


def test_time_has_no_price_where_the_highest_power_is_unknown():
    with pytest.raises(BadSpec, match="max_power_w"):
        price(eta=0.5).of(EpochCost(1.0, 1.0), Platform("unknown"))
    assert price(eta=1.0).of(EpochCost(1.0, 7.0), Platform("unknown")) == 7.0


@given(st.integers(2, 16), st.floats(0.0, 1.0))
def test_the_same_curve_on_many_gpus_gives_the_same_choice(gpus, eta):
    """Zeus, D7: energy summed over the ranks and one GPU's power make another η of it."""
    curve = ((DEFAULT, 10.0, 250.0), (LOW, 11.5, 150.0), (LOWER, 17.0, 100.0))
    alone, many = price(eta=eta), Platform("V100", gpus, 250.0 * gpus)
    one = [EpochCost(time_s, power_w * time_s, setting) for setting, time_s, power_w in curve]
    all_of_them = [EpochCost(time_s, gpus * power_w * time_s, setting) for setting, time_s, power_w in curve]
    for single, together in zip(one, all_of_them, strict=True):
        assert alone.of(together, many) == pytest.approx(gpus * alone.of(single, V100))
    small, large = costs(alone), costs(alone, many)
    small.learn(2, one)
    large.learn(2, all_of_them)
    chosen = small.cheapest(2, 10.0, math.inf), large.cheapest(2, 10.0, math.inf)
    assert chosen[0].setting == chosen[1].setting


def test_the_setting_of_least_energy_in_time_is_chosen_not_the_lowest():
    """Zeus, D8."""
    mine = costs(price(what="energy", max_slowdown=0.1))
    mine.learn(2, [EpochCost(1.0, 300.0), EpochCost(1.05, 210.0, LOW), EpochCost(1.09, 220.0, LOWER)])
    most_s = mine.price.most_s(mine.untuned(2).duration_s * 10.0)
    assert mine.cheapest(2, 10.0, most_s).setting == LOW
    assert mine.cheapest(2, 10.0, 9.0) is None


def test_what_runs_untuned_is_what_was_measured_so_or_the_fastest():
    mine = costs()
    assert mine.untuned(2) is None
    mine.learn(2, [EpochCost(11.0, 210.0, LOW), EpochCost(17.0, 200.0, LOWER)])
    assert mine.untuned(2).setting == LOW
    mine.learn(2, [EpochCost(12.0, 300.0)])
    assert mine.untuned(2).setting == DEFAULT


def test_a_size_that_was_measured_costs_that_and_others_are_guessed_around_it():
    mine = costs()
    for size in (16, 64):
        mine.learn(SIZES.index(size), [epoch(size)])
    found = mine.belief({place: mine.cheapest(place, 1.0, math.inf) for place in mine.known}, None)
    for size in SIZES:
        place = SIZES.index(size)
        away = math.log(mine.price.of(epoch(size), V100)) - found.mean[place]
        assert abs(away) < (0.01 if size in (16, 64) else 3.0 * found.sd(place))
        assert (found.sd(place) < 0.01) == (size in (16, 64))


def test_sizes_compare_here_as_they_do_elsewhere_until_they_are_measured():
    there, here = costs(), costs(platform=A40)
    for place, size in enumerate(SIZES):
        there.learn(place, [epoch(size)])
    shape = there.belief({place: there.cheapest(place, 1.0, math.inf) for place in there.known}, None).mean
    here.learn(2, [epoch(32, A40)])
    told = here.belief({2: here.cheapest(2, 1.0, math.inf)}, shape)
    alone = here.belief({2: here.cheapest(2, 1.0, math.inf)}, None)
    truth = [math.log(here.price.of(epoch(size, A40), A40)) for size in SIZES]
    for place in (0, 5):
        assert abs(told.mean[place] - truth[place]) < 0.02
        assert told.sd(place) < alone.sd(place)


def test_a_first_epoch_costs_more_by_what_trying_settings_costs():
    mine = costs(price(eta=1.0))
    assert mine.surcharge() == 0.0
    mine.learn(2, [EpochCost(10.0, 300.0), EpochCost(11.0, 200.0, LOW)])
    assert mine.surcharge() == pytest.approx(250.0 / 200.0 - 1.0)


def test_a_machine_that_changed_is_believed_after_some_runs():
    mine = costs()
    mine.learn(2, [EpochCost(10.0, 1000.0)])
    for _ in range(15):
        mine.learn(2, [EpochCost(20.0, 3000.0)])
    assert mine.untuned(2).duration_s == pytest.approx(20.0, rel=0.01)
    assert mine.untuned(2).energy_j == pytest.approx(3000.0, rel=0.01)


def test_it_is_the_same_from_a_snapshot():
    mine = costs()
    mine.learn(2, [EpochCost(10.0, 1000.0, error_j=3.0), EpochCost(11.0, 800.0, LOW, 0.1)])
    mine.too_large = 4
    other = costs()
    other.load(json.loads(json.dumps(mine.to_json())))
    assert (other.profiles, other.too_large) == (mine.profiles, 4)
