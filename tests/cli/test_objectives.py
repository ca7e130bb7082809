import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cli.objectives import Wanted, slowdown
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Choices, Space
from joulewise.core.objective import Budget, Ed2p, Edp, MinEnergy, Money, Weighted, Within
from joulewise.device.gpu import GpuInfo

IDLE = GpuInfo("GPU-1", "NVIDIA H200", 0, "nvml", idle_power_w=76.0)
GPU = GpuInfo("GPU-1", "NVIDIA H200", 0, "nvml", space=Space({"power_limit_w": Choices(200, 700, 1)}))


def objective(*args, gpus=(GPU,), **flags):
    return Wanted.of(*args, **flags).objective(gpus)


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.02", 0.02), (" 1.5 % ", 0.015), ("0", 0.0), ("1", 1.0)])
def test_a_slowdown_is_a_share_or_has_a_percent_sign(text, value):
    assert slowdown(text) == pytest.approx(value)


@given(st.floats(0, 1))
def test_every_share_reads_the_same_both_ways(share):
    assert slowdown(f"{share!r}") == share
    assert slowdown(f"{share * 100!r}%") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "2%%", "2% more", "-1", "-1%", "101%", "1000", "1e400"])
def test_an_absurd_slowdown_is_refused_with_what_to_write(text):
    with pytest.raises(BadSpec, match=r"2% or 0\.02"):
        slowdown(text)


def test_a_bare_number_above_1_is_asked_about_instead_of_guessed():
    with pytest.raises(BadSpec, match="for 2 percent write 2%"):
        slowdown("2")


def test_the_default_is_least_energy_within_2_percent():
    assert objective(None, None) == MinEnergy(0.02)
    assert objective("energy", "5%") == MinEnergy(0.05)
    assert Wanted.of(None, None).says() == "least energy, at most 2.0 % slower"


def test_other_objectives_have_a_bound_only_where_one_is_written():
    assert objective("edp", None) == Edp()
    assert objective("ed2p", "5%") == Within(Ed2p(), Budget(), 0.05)
    assert objective("zeus:0.7", None) == Weighted(0.7, 700)
    assert objective("zeus", None, eta=0.2, gpus=(GPU, GPU)) == Weighted(0.2, 1400)
    assert objective("zeus", None) == Weighted(0.5, 700)


def test_money_counts_every_gpu_and_the_host():
    wanted = objective("money", None, gpu_hour_price=3.0, kwh_price=0.3, host_watts=900, gpus=(GPU, GPU))
    assert wanted == Money(3.0, 0.3, 900, 2)


def test_a_budget_alone_means_as_fast_as_it_allows():
    assert objective(None, None, power_budget=500) == Within(Weighted(0.0, 700), Budget(power_w=500), math.inf)
    assert objective("energy", "2%", energy_budget=90) == Within(MinEnergy(0.02), Budget(energy_j=90), 0.02)
    assert Wanted.of(None, None, power_budget=500).says() == "fastest, at most 500 W"


@pytest.mark.parametrize(
    ("args", "flags", "says"),
    [
        (("speed", None), {}, "none of energy, money"),
        (("edp:2", None), {}, "none of energy, money"),
        (("zeus:x", None), {}, "no number"),
        (("zeus:2", None), {}, "outside 0"),
        (("zeus:0.5", None), {"eta": 0.4}, "both name eta"),
        (("energy", None), {"eta": 0.4}, "belongs to --objective zeus"),
        (("money", None), {"kwh_price": 0.3}, "needs --gpu-hour-price"),
        ((None, None), {"kwh_price": -1.0}, "--kwh-price -1"),
        ((None, None), {"host_watts": math.nan}, "--host-watts nan"),
        ((None, None), {"power_budget": 0.0}, "--power-budget 0"),
        ((None, None), {"energy_budget": math.inf}, "--energy-budget inf"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(args, flags, says):
    with pytest.raises(BadSpec, match=says):
        Wanted.of(*args, **flags)


def test_an_objective_that_needs_a_limit_nobody_knows_says_so():
    with pytest.raises(BadSpec, match="power limits"):
        objective("zeus", None, gpus=(GpuInfo("GPU-1", "X", 0, "amd"),))


def test_what_was_said_is_kept_as_plain_facts():
    assert Wanted.of("money", "5%", gpu_hour_price=3.0, kwh_price=0.3).facts() == {
        "objective": "money",
        "gpu_hour_price": 3.0,
        "kwh_price": 0.3,
    }


def test_a_power_budget_that_no_gpu_could_keep_to_is_refused():
    with pytest.raises(BadSpec, match=r"--power-budget 50 is no more than an idle GPU draws here \(76 W\)"):
        Wanted.of(None, None, power_budget=50.0).objective([IDLE])
    Wanted.of(None, None, power_budget=80.0).objective([GPU])
