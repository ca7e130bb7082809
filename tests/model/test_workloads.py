"""Workloads: the library, its scaling to GPUs, and the shape of the phases it yields."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.model import catalog, physics, workloads
from joulewise.model.families import FAMILIES
from joulewise.model.jitter import Jitter
from joulewise.model.workloads import Events, Phase, Workload

MODELS = {name: catalog.load(name) for name in ("h200", "v100", "a40")}
H200 = MODELS["h200"]
families = st.sampled_from(workloads.library())
seeds = st.integers(0, 2**31)


def default(phase: Phase, gpu: catalog.GpuModel = H200, lock_mhz: float | None = None) -> physics.Operation:
    return physics.operate(gpu.chip, phase.load, lock_mhz=lock_mhz, limit_w=gpu.default_limit_w)


def steps(workload: Workload, count: int) -> Iterator[list[Phase]]:
    """The first `count` steps, each with what happened since the one before."""
    phases = workload.phases()
    for _ in range(count):
        step: list[Phase] = []
        while not step or not step[-1].ends_step:
            step.append(next(phases))
        yield step


def bare(name: str, seed: int = 0) -> Workload:
    return replace(workloads.get(name, gpu=H200, seed=seed), events=Events())


def test_the_library_has_the_kinds_of_training_that_are_promised() -> None:
    promised = "cnn transformer gnn recommender rl diffusion lstm moe gan kmeans accumulation"
    assert set(promised.split()) <= set(workloads.library())


@pytest.mark.parametrize("name", workloads.library())
def test_a_family_is_consistent(name: str) -> None:
    family = FAMILIES[name]
    ordered = {part for stretch in family.order for part in stretch.parts}
    assert ordered == set(family.parts)
    assert family.evaluation_steps is None or family.evaluated in family.parts
    for part in family.parts.values():
        spans = (part.weight, part.sm_share, part.intensity, part.host, part.dram)
        assert all(0.0 <= low <= high for low, high in spans)
        assert part.sm_share[1] <= 1.0
        assert part.dram[1] <= 1.0


@settings(max_examples=60, deadline=None)
@given(families, seeds, st.sampled_from(sorted(MODELS)))
def test_every_load_is_within_what_the_law_can_mean(name: str, seed: int, model: str) -> None:
    gpu = MODELS[model]
    workload = workloads.get(name, gpu=gpu, seed=seed)
    for phase in itertools.islice(workload.phases(), 60):
        load = phase.load
        assert load.gpu_s >= 0.0
        assert load.host_s >= 0.0
        assert load.gpu_s + load.host_s > 0.0
        assert load.sm_share >= 0.0
        assert load.dram_share >= 0.0
        assert load.sm_share + load.dram_share <= 1.0 + 1e-12
        assert 0.0 <= load.dynamic_w <= 2.2 * (gpu.default_limit_w - gpu.chip.static_w)


@settings(max_examples=40, deadline=None)
@given(families, seeds, st.sampled_from(sorted(MODELS)), st.none() | st.floats(0.005, 20.0))
def test_a_nominal_step_takes_its_nominal_time_at_default_settings(
    name: str, seed: int, model: str, step_s: float | None
) -> None:
    gpu = MODELS[model]
    workload = workloads.get(name, gpu=gpu, seed=seed, step_s=step_s)
    taken_s = sum(default(phase, gpu).step_s for phase in workload.step())
    assert taken_s == pytest.approx(workload.nominal_step_s, rel=1e-9)
    if step_s is not None:
        assert workload.nominal_step_s == step_s


@pytest.mark.parametrize("name", workloads.library())
def test_phases_are_the_same_each_time_and_differ_by_seed(name: str) -> None:
    workload = workloads.get(name, gpu=H200, seed=5)
    first = list(itertools.islice(workload.phases(), 200))
    assert list(itertools.islice(workload.phases(), 200)) == first
    assert list(itertools.islice(workloads.get(name, gpu=H200, seed=5).phases(), 200)) == first
    assert list(itertools.islice(workloads.get(name, gpu=H200, seed=6).phases(), 200)) != first


@pytest.mark.parametrize("name", workloads.library())
def test_without_events_every_step_has_the_same_phases_in_order(name: str) -> None:
    workload = bare(name)
    assert [phase.name for phase in workload.step()] == list(workload.order)
    for step in steps(workload, 20):
        assert tuple(phase.name for phase in step) == workload.order
        assert [phase.ends_step for phase in step] == [False] * (len(step) - 1) + [True]


@pytest.mark.parametrize("name", [name for name in workloads.library() if FAMILIES[name].periodic])
def test_periodic_steps_stay_near_the_nominal_one(name: str) -> None:
    workload = bare(name)
    assert workload.periodic
    taken = np.array([sum(default(phase).step_s for phase in step) for step in steps(workload, 150)])
    assert np.median(taken) == pytest.approx(workload.nominal_step_s, rel=0.03)
    middle = np.percentile(taken, [10, 90]) / workload.nominal_step_s
    assert middle[0] > 0.85
    assert middle[1] < 1.15
    assert taken.std() > 0.0


def test_the_same_seed_is_the_same_work_on_every_gpu() -> None:
    for name in workloads.library():
        there, here = (workloads.get(name, gpu=MODELS[m], seed=9) for m in ("v100", "h200"))
        for part in there.loads:
            fractions = [
                workload.loads[part].dynamic_w / (gpu.default_limit_w - gpu.chip.static_w)
                for workload, gpu in ((there, MODELS["v100"]), (here, H200))
            ]
            assert fractions[0] == pytest.approx(fractions[1], rel=1e-9)
            assert there.loads[part].sm_share == here.loads[part].sm_share
        assert there.nominal_step_s == here.nominal_step_s


@pytest.mark.parametrize("model", ["h200", "v100", "a100-sxm", "b300"])
def test_language_models_run_into_the_default_power_limit(model: str) -> None:
    # Modern training is power-limited at default: an H200 ran a bf16 step at 705 W and 1590 of 1980 MHz.
    gpu = catalog.load(model)
    forward = [workloads.get("transformer", gpu=gpu, seed=seed).step()[0] for seed in range(12)]
    settled = [default(phase, gpu) for phase in forward]
    assert sum(operation.limited_by == "power" for operation in settled) >= 10
    slowest = min(operation.sm_mhz for operation in settled) / gpu.chip.sm_max_mhz
    assert 0.55 < slowest < 0.9


def slowdown_at_80_percent(name: str, seed: int) -> float:
    step = workloads.get(name, gpu=H200, seed=seed).step()
    slow_s, fast_s = (sum(default(p, lock_mhz=mhz).step_s for p in step) for mhz in (0.8 * 1980.0, None))
    return slow_s / fast_s


def test_launch_bound_and_dram_bound_work_feels_the_clock_less_than_dense_work() -> None:
    mean = {
        name: np.mean([slowdown_at_80_percent(name, seed) for seed in range(8)])
        for name in ("gnn", "recommender", "kmeans")
    }
    assert mean["gnn"] < mean["recommender"] < mean["kmeans"]
    assert mean["gnn"] < 1.06


def test_recommenders_feel_the_memory_clock_most() -> None:
    def mean_dram_share(name: str) -> float:
        shares = []
        for seed in range(8):
            loads = [phase.load for phase in workloads.get(name, gpu=H200, seed=seed).step()]
            shares.append(sum(x.gpu_s * x.dram_share for x in loads) / sum(x.gpu_s for x in loads))
        return float(np.mean(shares))

    others = [mean_dram_share(name) for name in workloads.library() if name not in ("recommender", "ncf")]
    assert mean_dram_share("recommender") > max(others)


def test_evaluation_checkpoint_stall_and_compile_occur_where_they_belong() -> None:
    workload = replace(
        workloads.get("accumulation", gpu=H200),
        events=replace(
            workloads.get("accumulation", gpu=H200).events,
            evaluation_every=3,
            evaluation_batches=4,
            checkpoint_every=5,
            stall_chance=0.3,
        ),
    )
    seen = list(steps(workload, 31))
    assert [phase.name for phase in seen[0][:2]] == ["compile", "compile"]
    count = Counter(phase.name for step in seen for phase in step)
    assert count["evaluation"] == 10 * 4
    assert count["checkpoint"] == 6
    assert 2 <= count["loader stall"] <= 20
    assert [phase.name for phase in seen[3][:4]] == ["evaluation"] * 4  # after the third step's end
    assert seen[5][0].name == "checkpoint"
    names = [phase.name for phase in seen[0] if phase.name != "compile"]
    assert all(phase.name != "compile" for step in seen[1:] for phase in step)
    assert names.count("forward") == names.count("backward") >= 4
    assert names.count("optimiser") == 1


def test_over_the_library_every_kind_of_phase_occurs() -> None:
    names = {
        phase.name for workload in workloads.draw(28, gpu=H200) for phase in itertools.islice(workload.phases(), 4000)
    }
    assert {"forward", "backward", "optimiser", "rollout", "experts forward", "generator", "discriminator"} <= names
    assert {"compile", "evaluation", "checkpoint", "loader stall"} <= names


def test_a_loader_stall_leaves_the_gpu_idle() -> None:
    stalled = replace(workloads.get("cnn", gpu=H200), events=Events(stall_chance=1.0))
    stall = next(iter(stalled.phases()))
    assert stall.name == "loader stall"
    operation = default(stall)
    assert operation.busy_s == 0.0
    assert operation.step_s >= stalled.nominal_step_s
    assert operation.average_power_w == pytest.approx(H200.chip.idle_w)


def test_shrinking_work_shrinks_and_starts_anew() -> None:
    workload = replace(bare("kmeans"), jitter=Jitter(spread=0.0))
    assert not workload.periodic
    busy = [sum(phase.load.gpu_s for phase in step) for step in steps(workload, 300)]
    ratios = np.array(busy[1:]) / np.array(busy[:-1])
    restarts = ratios > 1.0
    assert 1 <= restarts.sum() <= 30
    assert ratios[~restarts] == pytest.approx(workload.shrink)
    assert min(busy) > 0.1 * max(busy)


def test_random_routing_moves_experts_but_not_attention() -> None:
    workload = replace(bare("moe"), jitter=Jitter(spread=0.0))
    phases = list(itertools.islice(workload.phases(), 500))
    spread = {
        name: np.std(np.log([phase.load.gpu_s for phase in phases if phase.name == name]))
        for name in ("attention forward", "experts forward")
    }
    assert spread["attention forward"] == pytest.approx(0.0, abs=1e-12)
    assert spread["experts forward"] == pytest.approx(0.12, rel=0.3)


def test_a_rollout_leaves_the_gpu_mostly_idle_and_training_does_not() -> None:
    step = workloads.get("rl", gpu=H200).step()
    rollout, forward = default(step[0]), default(step[1])
    assert step[0].name == "rollout"
    assert rollout.busy_s / rollout.step_s < 0.15
    assert forward.busy_s / forward.step_s > 0.6
    assert rollout.average_power_w < 0.6 * forward.average_power_w


def test_drawing_71_gives_71_different_workloads_over_all_families() -> None:
    drawn = workloads.draw(71, gpu=H200, seed=3)
    assert len(drawn) == 71
    assert len({(w.name, w.nominal_step_s, tuple(w.loads.values())) for w in drawn}) == 71
    per_family = Counter(w.name for w in drawn)
    assert set(per_family) == set(workloads.library())
    assert max(per_family.values()) - min(per_family.values()) <= 1
    assert workloads.draw(71, gpu=H200, seed=3) == drawn
    assert workloads.draw(71, gpu=H200, seed=4) != drawn


def test_drawing_can_be_restricted_to_families() -> None:
    assert {w.name for w in workloads.draw(5, gpu=H200, names=["gan", "moe"])} == {"gan", "moe"}


def test_drawing_from_no_family_is_refused() -> None:
    with pytest.raises(BadSpec, match="no family to draw from"):
        workloads.draw(5, gpu=H200, names=[])


def test_without_a_gpu_an_h200_is_assumed() -> None:
    assert workloads.get("cnn", seed=2) == workloads.get("cnn", gpu=H200, seed=2)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadSpec, match=r"no workload is called 'resnet'; there are cnn, .*transformer"):
        workloads.get("resnet")


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_must_take_time(step_s: float) -> None:
    with pytest.raises(BadSpec, match="step_s="):
        workloads.get("cnn", step_s=step_s)
