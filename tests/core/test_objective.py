import math

import pytest

from joulewise.core.frontier import Frontier, Point
from joulewise.core.objective import Budget, Ed2p, Edp, MinEnergy, Weighted

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
