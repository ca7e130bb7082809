import math

import pytest

from joulewise.core.frontier import Frontier, Point
from joulewise.core.objective import Budget, Ed2p, Edp, MinEnergy, Money, Weighted, Within, slowdown_bound

BASELINE = Point(10.0, 5000.0, "default")
FRONTIER = Frontier([BASELINE, Point(10.1, 4500, "a"), Point(10.4, 4000, "b"), Point(14, 3500, "c")])


@pytest.mark.parametrize(
    ("objective", "choice"),
    [
        (MinEnergy(0.0), "default"),
        (MinEnergy(0.02), "a"),
        (MinEnergy(0.05), "b"),
        (MinEnergy(1.0), "c"),
        (Weighted(1.0, 700), "c"),
        (Weighted(0.0, 700), "default"),
        (Edp(), "b"),
        (Ed2p(), "b"),
    ],
)
def test_each_objective_picks_its_point(objective, choice):
    assert FRONTIER.best(lambda point: objective.cost(point, BASELINE)).setting == choice


def test_a_point_beyond_the_bound_costs_infinitely_much():
    assert math.isinf(MinEnergy(0.02).cost(Point(10.3, 1, "x"), BASELINE))


def test_zeus_cost_is_in_joules():
    assert Weighted(0.5, 700).cost(BASELINE, BASELINE) == 0.5 * 5000 + 0.5 * 700 * 10


@pytest.mark.parametrize(
    "build", [lambda: MinEnergy(-0.1), lambda: Weighted(1.1, 700), lambda: Weighted(0.5, 0), lambda: Budget(power_w=0)]
)
def test_nonsense_is_refused_with_its_value(build):
    with pytest.raises(ValueError, match="not"):
        build()


def test_a_budget_allows_what_stays_inside_all_its_limits():
    assert Budget().allows(BASELINE)
    assert Budget(deadline_s=10, energy_j=5000, power_w=500).allows(BASELINE)
    assert not Budget(deadline_s=9.9).allows(BASELINE)
    assert not Budget(energy_j=4999).allows(BASELINE)
    assert not Budget(power_w=499).allows(BASELINE)


def test_money_counts_gpu_hours_electricity_and_the_rest_of_the_node():
    money = Money(gpu_hour_price=3.0, kwh_price=0.30, host_w=500.0, gpus=2)
    hour = Point(3600.0, 3.6e6, "one hour at 1 kW")
    assert money.cost(hour, hour) == pytest.approx(2 * 3.0 + 0.30 * (1.0 + 0.5))


def test_five_percent_slower_rarely_pays_in_money():
    money = Money(gpu_hour_price=3.0, kwh_price=0.30)
    default = Point(3600.0, 0.7 * 3.6e6, "default")
    thrifty = Point(3600.0 * 1.05, 0.7 * 3.6e6 * 0.8, "a fifth less energy")
    assert money.cost(thrifty, default) > money.cost(default, default)


def test_an_objective_within_a_budget_forbids_what_lies_outside():
    baseline = Point(1.0, 600.0, "default")
    capped = Within(Edp(), Budget(power_w=500.0), max_slowdown=0.1)
    assert capped.cost(baseline, baseline) == math.inf
    assert capped.cost(Point(1.05, 500.0, "ok"), baseline) == pytest.approx(525.0)
    assert capped.cost(Point(1.2, 400.0, "slow"), baseline) == math.inf
    assert slowdown_bound(capped) == 0.1
    assert slowdown_bound(Within(MinEnergy(0.02), max_slowdown=0.1)) == 0.02
    assert slowdown_bound(Edp()) == math.inf
