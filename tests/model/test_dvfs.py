"""The belief of a job: what it says of settings that it never saw, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.model import catalog, physics, workloads
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief, Learnt, LoadPrior
from joulewise.model.physics import Load
from joulewise.model.truth import RichLaw
from tests.tiers import examples

H200 = catalog.load("h200")
PROBES = (Setting(sm_mhz=1725.0), Setting(sm_mhz=1380.0))
LOCKS = [Setting(sm_mhz=float(clock)) for clock in range(1260, 1980, 60)]


def block(
    setting: Setting, unit_s: float, power_w: float, *, error: float = 0.003, sm_mhz: float | None = None,
    capped: bool | None = None, gpus: int = 1,
) -> Block:  # fmt: skip
    energy_j = 20.0 * unit_s * power_w * gpus
    return Block(
        setting, 0.0, 20.0 * unit_s, 20.0, 20.0 * unit_s, energy_j, error * energy_j, error,
        sm_mhz=sm_mhz, power_capped=capped,
    )  # fmt: skip


def law_block(load: Load, setting: Setting, *, model: GpuModel = H200, noise: float = 0.0, gpus: int = 1) -> Block:
    """A block as the plain law has it, with a little noise."""
    seen = physics.operate(
        model.chip,
        load,
        lock_mhz=setting.get("sm_mhz"),
        memory_mhz=setting.get("memory_mhz"),
        limit_w=setting.get("power_limit_w", model.default_limit_w),
    )
    capped = seen.limited_by in ("power", "floor")
    return block(
        setting, seen.step_s * math.exp(noise), seen.average_power_w, sm_mhz=seen.sm_mhz, capped=capped, gpus=gpus
    )


def belief_of(load: Load, *settings: Setting, model: GpuModel | None = H200, seed: int = 0) -> Belief:
    belief = Belief(H200.space, model=model, default_limit_w=700.0, seed=seed)
    for setting in settings:
        belief.tell(law_block(load, setting))
    return belief


COMPUTE = Load(gpu_s=0.2, sm_share=0.92, dynamic_w=420.0, host_s=0.02, dram_share=0.05)
STREAM = Load(gpu_s=0.1, sm_share=0.1, dynamic_w=330.0, dram_share=0.8)
HOST = Load(gpu_s=0.05, sm_share=0.7, dynamic_w=350.0, host_s=0.2)
HUNGRY = Load(gpu_s=0.2, sm_share=0.95, dynamic_w=1100.0)


@pytest.mark.parametrize("load", [COMPUTE, STREAM, HOST, HUNGRY], ids=["compute", "stream", "host", "hungry"])
@pytest.mark.parametrize("model", [H200, None], ids=["known", "stranger"])
def test_two_probes_tell_the_other_clocks(load: Load, model: GpuModel | None) -> None:
    belief = belief_of(load, DEFAULT, *PROBES, model=model)
    said = belief.predict(LOCKS)
    base = law_block(load, DEFAULT)
    time = np.array([law_block(load, s).unit_s / base.unit_s for s in LOCKS])
    energy = np.array([law_block(load, s).unit_j / base.unit_j for s in LOCKS])
    assert np.abs(said.time / time - 1.0).max() < 0.02
    assert np.abs(said.energy / energy - 1.0).max() < 0.04
    assert belief.misfit < 2.0


def test_probes_make_the_belief_surer() -> None:
    spreads = []
    belief = Belief(H200.space, model=H200, default_limit_w=700.0)
    for setting in (DEFAULT, *PROBES):
        spreads.append(float(belief.predict(LOCKS).time_error.mean()))
        belief.tell(law_block(COMPUTE, setting))
    spreads.append(float(belief.predict(LOCKS).time_error.mean()))
    assert spreads[0] > spreads[2] > spreads[3]
    assert spreads[3] < 0.01


def settled(
    card: RichLaw, model: GpuModel, work: workloads.Workload, setting: Setting
) -> tuple[float, float, float, bool]:
    """A step on a rich card: seconds, watts, MHz while busy, and whether the cap holds it."""
    limit_w = model.default_limit_w
    parts = [
        card.operate(model.chip, phase.load, lock_mhz=setting.get("sm_mhz"), limit_w=limit_w) for phase in work.step()
    ]
    time_s, busy_s = sum(p.step_s for p in parts), sum(p.busy_s for p in parts)
    capped_s = sum(p.busy_s for p in parts if p.limited_by == "power")
    clock = sum(p.busy_s * p.sm_mhz for p in parts) / busy_s
    return time_s, sum(p.energy_j for p in parts) / time_s, clock, capped_s > 0.3 * busy_s


def test_intervals_are_honest_where_the_truth_is_none_that_the_law_can_represent() -> None:
    inside, missed = [], []
    for key, count in (("h200", 8), ("v100", 8)):
        model = catalog.load(key)
        high = model.sm_mhz.high
        asked = [Setting(sm_mhz=model.sm_mhz.snap(share * high)) for share in (0.95, 0.9, 0.83, 0.79, 0.75, 0.65)]
        seen = [DEFAULT, *(Setting(sm_mhz=model.sm_mhz.snap(share * high)) for share in (0.87, 0.7))]
        for number, work in enumerate(workloads.draw(count, gpu=model, seed=5)):
            card = RichLaw(model.chip, seed=number)

            belief = Belief(model.space, model=model, default_limit_w=model.default_limit_w)
            random = np.random.default_rng(number)
            for setting in seen:
                time_s, power_w, clock, capped = settled(card, model, work, setting)
                noisy_s = time_s * math.exp(0.003 * random.normal())
                belief.tell(block(setting, noisy_s, power_w, sm_mhz=clock, capped=capped))
            said = belief.predict(asked)
            base_s, base_w, *_ = settled(card, model, work, DEFAULT)
            truth = np.array([settled(card, model, work, s)[:2] for s in asked]) / (base_s, base_w)
            for draws, ratio in ((said.time_draws, truth[:, 0]), (said.energy_draws, truth.prod(axis=1))):
                low, high_end = np.quantile(draws, [0.05, 0.95], axis=0)
                inside += list((low <= ratio) & (ratio <= high_end))
            missed += list(np.abs(said.time / truth[:, 0] - 1.0))
    assert np.mean(inside) >= 0.85  # 0.9 is claimed
    assert np.mean(missed) < 0.015


def test_a_ceiling_above_the_clock_that_the_cap_leaves_changes_nothing() -> None:
    belief = belief_of(HUNGRY, DEFAULT, *PROBES)
    capped_mhz = law_block(HUNGRY, DEFAULT).sm_mhz
    assert capped_mhz is not None
    assert belief.default_mhz == pytest.approx(capped_mhz)
    above = Setting(sm_mhz=H200.sm_mhz.snap(capped_mhz + 200.0))
    said = belief.predict([above])
    assert said.time[0] == pytest.approx(1.0, abs=0.01)
    assert said.energy[0] == pytest.approx(1.0, abs=0.01)
    assert all(setting.get("sm_mhz", 0.0) < capped_mhz for setting in belief.settings(0.05))


def test_candidates_can_be_set_and_lie_below_the_default() -> None:
    belief = belief_of(COMPUTE, DEFAULT, *PROBES)
    found = belief.settings(math.inf)
    assert len(found) == len(set(found)) < 150
    for setting in found:
        assert setting
        H200.space.check(setting)
        assert setting.get("power_limit_w", 0.0) < 700.0
    kinds = {tuple(setting) for setting in found}
    assert kinds == {("sm_mhz",), ("memory_mhz",), ("sm_mhz", "memory_mhz"), ("power_limit_w",)}
    within = belief.settings(0.02)
    assert set(within) < set(found)
    assert min(belief.predict(within).time) < 1.02


def test_a_lower_memory_clock_pays_for_work_that_does_not_need_it() -> None:
    lower = Setting(memory_mhz=2201.0)
    for load, pays in ((COMPUTE, True), (STREAM, False)):
        belief = belief_of(load, DEFAULT, *PROBES, lower)
        said = belief.predict([lower.with_(sm_mhz=1800.0), Setting(sm_mhz=1800.0)])
        assert (said.energy[0] < said.energy[1]) == pays


def test_a_net_lies_above_what_the_setting_needs_and_below_the_default() -> None:
    belief = belief_of(COMPUTE, DEFAULT, *PROBES)
    setting = Setting(sm_mhz=1500.0)
    net = belief.with_net(setting)
    H200.space.check(net)
    busy = physics.operate(H200.chip, COMPUTE, lock_mhz=1500.0).busy_power_w
    assert busy < net["power_limit_w"] < 1.3 * busy
    said = belief.predict([setting, net])
    assert said.time[1] == pytest.approx(said.time[0], rel=0.005)
    assert belief.with_net(Setting(power_limit_w=400.0)) == Setting(power_limit_w=400.0)
    hungry = belief_of(HUNGRY, DEFAULT, *PROBES)
    assert hungry.with_net(Setting(sm_mhz=1980.0)) == Setting(sm_mhz=1980.0)  # it would not be below the default


def test_what_is_asked_in_between_changes_nothing() -> None:
    asked, silent = (Belief(H200.space, model=H200, default_limit_w=700.0, seed=4) for _ in range(2))
    random = np.random.default_rng(2)
    for setting in (DEFAULT, *PROBES, *(DEFAULT, PROBES[0]) * 10):
        told = law_block(COMPUTE, setting, noise=0.005 * random.normal())
        for belief in (asked, silent):
            belief.tell(told)
        asked.predict(asked.settings(0.02))
    a, b = asked.predict(LOCKS), silent.predict(LOCKS)
    assert np.array_equal(a.time_draws, b.time_draws)
    assert np.array_equal(a.energy_draws, b.energy_draws)


def test_several_gpus_that_do_the_same_are_believed_like_one() -> None:
    one, four = (Belief(H200.space, model=H200, default_limit_w=700.0, gpus=gpus) for gpus in (1, 4))
    for setting in (DEFAULT, *PROBES):
        one.tell(law_block(COMPUTE, setting))
        four.tell(law_block(COMPUTE, setting, gpus=4))
    assert four.predict(LOCKS).energy == pytest.approx(one.predict(LOCKS).energy, rel=0.01)


@pytest.mark.parametrize(
    ("times", "powers"),
    [((0.9, 0.75), (500.0, 400.0)), ((1.5, 3.0), (500.0, 400.0)), ((1.05, 1.2), (690.0, 780.0))],
    ids=["slower clocks are faster", "time triples", "slower clocks take more power"],
)
def test_what_no_law_allows_refutes_it(times: tuple[float, float], powers: tuple[float, float]) -> None:
    belief = Belief(H200.space, model=H200, default_limit_w=700.0)
    belief.tell(block(DEFAULT, 1.0, 600.0))
    for setting, unit_s, power_w in zip(PROBES, times, powers, strict=True):
        belief.tell(block(setting, unit_s, power_w))
    assert belief.misfit > 3.0


def test_a_measured_setting_is_believed_whatever_the_law_says() -> None:
    belief = belief_of(COMPUTE, DEFAULT, *PROBES)
    odd = Setting(sm_mhz=1560.0)
    base, plain = law_block(COMPUTE, DEFAULT), law_block(COMPUTE, odd)
    before = belief.predict([odd]).time[0]
    for _ in range(5):
        belief.tell(replace(plain, duration_s=1.02 * plain.duration_s, energy_j=1.02 * plain.energy_j))
    after = belief.predict([odd]).time[0]
    assert before == pytest.approx(plain.unit_s / base.unit_s, rel=0.005)
    assert after == pytest.approx(1.02 * plain.unit_s / base.unit_s, rel=0.008)


def test_the_same_work_again_begins_where_it_ended() -> None:
    learnt = Learnt.from_json(belief_of(COMPUTE, DEFAULT, *PROBES).learnt().to_json())
    fresh = Belief(H200.space, model=H200, default_limit_w=700.0)
    again = Belief(H200.space, model=H200, default_limit_w=700.0, learnt=learnt)
    for belief in (fresh, again):
        belief.tell(law_block(COMPUTE, DEFAULT, noise=0.01))
    base = law_block(COMPUTE, DEFAULT)
    truth = np.array([law_block(COMPUTE, s).unit_s / base.unit_s for s in LOCKS])
    assert np.abs(again.predict(LOCKS).time / truth - 1.0).max() < 0.02
    assert again.predict(LOCKS).time_error.mean() < 0.4 * fresh.predict(LOCKS).time_error.mean()


def test_a_card_is_known_by_another_jobs_probes() -> None:
    leaky = replace(H200, chip=replace(H200.chip, static_w=1.4 * H200.chip.static_w, idle_w=1.4 * H200.chip.idle_w))
    teacher = Belief(H200.space, model=H200, default_limit_w=700.0)
    for setting in (DEFAULT, *PROBES, Setting(sm_mhz=1200.0), Setting(sm_mhz=1560.0)):
        teacher.tell(law_block(COMPUTE, setting, model=leaky))
    card = teacher.learnt().of_card()
    assert not card.points
    assert card.card["static_w"][0] > 1.05 * H200.chip.static_w
    belief = Belief(H200.space, model=H200, default_limit_w=700.0, learnt=card)
    belief.tell(law_block(STREAM, DEFAULT, model=leaky))
    assert belief.learnt().card["static_w"][0] > 1.02 * H200.chip.static_w


def test_a_prior_moves_the_belief_before_any_probe() -> None:
    said = {}
    for sm_share in (0.1, 0.95):
        prior = LoadPrior({"sm_share": sm_share}, {"sm_share": 0.5})
        belief = Belief(H200.space, model=H200, default_limit_w=700.0, prior=prior)
        belief.tell(block(DEFAULT, 0.2, 450.0))
        said[sm_share] = belief.predict([Setting(sm_mhz=1500.0)]).time[0]
    assert said[0.1] < 1.1 < said[0.95]


any_setting = st.fixed_dictionaries(
    {},
    optional={
        "sm_mhz": st.sampled_from([345.0, 900.0, 1500.0, 1980.0]),
        "memory_mhz": st.sampled_from([2201.0, 3201.0]),
        "power_limit_w": st.floats(200.0, 700.0),
    },
).map(lambda values: Setting(**values))
any_block = st.builds(
    lambda setting, unit_s, power_w, error, clock, capped: block(
        setting, unit_s, power_w, error=error, sm_mhz=clock, capped=capped
    ),
    any_setting,
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e5),
    st.floats(0.0, 2.0),
    st.none() | st.floats(0.0, 3000.0),
    st.none() | st.booleans(),
)


@pytest.mark.sampled
@settings(max_examples=examples(8, 0.5), deadline=None)
@given(st.lists(any_block, max_size=6), st.booleans())
def test_whatever_is_told_the_answers_are_numbers(blocks: list[Block], known: bool) -> None:
    belief = Belief(H200.space, model=H200 if known else None, default_limit_w=700.0 if known else None)
    for one in blocks:
        belief.tell(one)
    said = belief.predict([DEFAULT, Setting(sm_mhz=1500.0), Setting(power_limit_w=300.0)])
    for numbers in (said.time_draws, said.energy_draws, said.time_error, said.energy_error):
        assert np.isfinite(numbers).all()
    assert (said.time_draws > 0).all()
    assert np.isfinite(belief.misfit)
    assert Learnt.from_json(belief.learnt().to_json()) == belief.learnt()
    for setting in belief.settings(0.02)[:5]:
        H200.space.check(belief.with_net(setting))


@pytest.mark.parametrize("clock", [0.0, 5e-324, 1e-200])
def test_a_clock_that_no_gpu_runs_at_is_not_believed(clock: float) -> None:
    belief = Belief(H200.space, model=H200, default_limit_w=700.0)
    belief.tell(block(DEFAULT, 1.0, 500.0, sm_mhz=clock))
    assert np.isfinite(belief.predict([Setting(sm_mhz=1500.0)]).time_draws).all()
    assert belief.learnt().points[0].sm_mhz is None


def test_a_gpu_of_which_nothing_is_known_can_be_believed_in() -> None:
    space = Space({"sm_mhz": Choices(300.0, 1800.0, 15.0)})
    belief = Belief(space, model=None, default_limit_w=None)
    assert np.isfinite(belief.predict([Setting(sm_mhz=1500.0)]).time).all()
    for clock, unit_s, power_w in ((1800.0, 1.0, 200.0), (1500.0, 1.12, 150.0), (1200.0, 1.30, 115.0)):
        belief.tell(block(Setting(sm_mhz=clock) if clock < 1800.0 else DEFAULT, unit_s, power_w))
    said = belief.predict([Setting(sm_mhz=1350.0)])
    assert 1.16 < said.time[0] < 1.24
    assert {tuple(setting) for setting in belief.settings(0.1)} == {("sm_mhz",)}


def test_a_board_that_takes_more_than_its_limit_is_not_disbelieved() -> None:
    belief = Belief(H200.space, model=H200, default_limit_w=400.0)
    belief.tell(block(DEFAULT, 1.0, 500.0))
    belief.tell(block(Setting(sm_mhz=1725.0), 1.1, 420.0))
    assert belief.misfit < 2.0
    assert belief.predict([Setting(sm_mhz=1605.0)]).time[0] > 1.1


def test_only_power_limits_can_be_set_and_are_offered() -> None:
    space = Space({"power_limit_w": Choices(200.0, 700.0)})
    belief = Belief(space, model=H200, default_limit_w=700.0)
    for setting in (DEFAULT, Setting(power_limit_w=550.0), Setting(power_limit_w=400.0)):
        belief.tell(law_block(HUNGRY, setting))
    found = belief.settings(0.1)
    assert found
    assert {tuple(setting) for setting in found} == {("power_limit_w",)}
    base = law_block(HUNGRY, DEFAULT)
    said = belief.predict([Setting(power_limit_w=475.0)])
    assert said.time[0] == pytest.approx(law_block(HUNGRY, Setting(power_limit_w=475.0)).unit_s / base.unit_s, rel=0.02)


def test_a_renewed_belief_keeps_the_card_and_forgets_the_job() -> None:
    before = belief_of(HOST, DEFAULT, *PROBES)
    after = before.renewed()
    assert after.learnt().points == ()
    for setting in (DEFAULT, *PROBES):
        after.tell(law_block(COMPUTE, setting))
    slow = Setting(sm_mhz=1380.0)
    truth = law_block(COMPUTE, slow).unit_s / law_block(COMPUTE, DEFAULT).unit_s
    assert float(after.predict([slow]).time[0]) == pytest.approx(truth, rel=0.02)
