"""From a few clocks to options: how near the law is on cards that it cannot represent, and the pace of a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.core.timeline import VirtualTime
from joulewise.device.gpu import GpuInfo
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.physics import Load, Operation
from joulewise.model.truth import RichLaw
from joulewise.plan.profile import Profile
from joulewise.plan.schedules_named import named
from joulewise.tune.follow_profile import Seen, options, paced, probes

CARDS = [(gpu, seed) for gpu in ("h200", "a100-sxm", "v100") for seed in (0, 1)]


def info_of(gpu: str) -> GpuInfo:
    return VirtualGpu(catalog.load(gpu), time=VirtualTime()).info


def at(gpu: str, seed: int, load: Load, setting: Setting) -> Operation:
    """The truth of a card."""
    model = catalog.load(gpu)
    law = RichLaw(model.chip, seed)
    clock = setting.get("sm_mhz")
    return law.operate(model.chip, load, lock_mhz=clock, limit_w=model.default_limit_w, temperature_c=50.0)


@pytest.mark.parametrize(("gpu", "seed"), CARDS)
def test_between_measured_clocks_the_law_is_near_the_truth_and_says_how_near(gpu: str, seed: int) -> None:
    model, info = catalog.load(gpu), info_of(gpu)
    load = Load(0.25, 0.7, 0.6 * model.default_limit_w, dram_share=0.15)
    rows = []
    for setting in probes(info, model.sm_mhz.high):
        true = at(gpu, seed, load, setting)
        rows.append(
            Seen(setting, 12, true.step_s, 0.002 * true.step_s, true.average_power_w, 0.01 * true.average_power_w)
        )
    found = options({(0, "forward"): rows}, info)[0, "forward"]
    assert len(found) > 15
    assert found[0].setting == DEFAULT
    for point in found:
        true = at(gpu, seed, load, point.setting)
        assert point.time_s == pytest.approx(true.step_s, rel=0.01)
        assert point.energy_j == pytest.approx(true.energy_j, rel=0.045)
        assert point.energy_error_j > 0
    within = [abs(p.energy_j - at(gpu, seed, load, p.setting).energy_j) < 2.5 * p.energy_error_j for p in found]
    assert sum(within) > 0.8 * len(found)


def test_six_settings_are_measured_spread_over_the_clocks_and_nothing_set_at_both_ends() -> None:
    found = probes(info_of("h200"), 1980.0)
    clocks = [setting["sm_mhz"] for setting in found[1:-1]]
    assert found[0] == found[-1] == DEFAULT
    assert len(set(clocks)) == 5
    assert min(clocks) == pytest.approx(0.5 * 1980, rel=0.02)
    assert all(clock in catalog.load("h200").sm_mhz for clock in clocks)


@pytest.mark.parametrize("space", [Space(), Space({"sm_mhz": Choices.of([1000.0, 1005.0])})])
def test_a_gpu_whose_clock_cannot_be_set_is_nothing_to_plan(space: Space) -> None:
    with pytest.raises(BadSpec):
        probes(replace(info_of("h200"), space=space), 1005.0)


def test_without_a_measurement_of_nothing_set_there_are_no_options() -> None:
    with pytest.raises(BadSpec, match="nothing set"):
        options({(0, "forward"): [Seen(Setting(sm_mhz=1500), 4, 0.1, 0.001, 300.0, 3.0)]}, info_of("h200"))


def test_a_transfer_takes_what_makes_the_schedule_as_long_as_it_was() -> None:
    schedule = named("1f1b", stages=4, microbatches=4, ask=False)
    options_ = (Point(0.1, 30.0, DEFAULT), Point(0.2, 20.0, Setting(sm_mhz=1005)))
    profile = Profile({(stage, kind): options_ for stage in range(4) for kind in ("forward", "backward")})
    whole_s = max(start_s + 0.1 for start_s in schedule.dag.starts_s([0.1] * len(schedule.dag.operations)))
    assert paced(schedule, profile, whole_s).transfer_s == 0.0
    assert paced(schedule, profile, 0.8 * whole_s).transfer_s == 0.0
    slower = paced(schedule, profile, 1.05 * whole_s)
    starts_s = slower.dag.starts_s([0.1] * len(slower.dag.operations))
    assert slower.transfer_s > 0
    assert max(starts_s) + 0.1 == pytest.approx(1.05 * whole_s, rel=1e-6)
