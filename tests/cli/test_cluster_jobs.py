"""Jobs of a trace made ready: laws, sizes, truths that differ from each other and from what is believed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cli.cluster_gpus import racks
from joulewise.cli.cluster_jobs import Knowledge, at_load, offered, sized
from joulewise.cli.cluster_laws import LAWS, JobTruth
from joulewise.cluster.state import Way
from joulewise.cluster.traces import TraceJob, read_trace
from joulewise.core.knob import Setting

A100 = racks("sim:a100-sxm*64")
BOTH = racks("sim:a100-sxm*16,v100*16")


def truth(network: str = "bert", *, batch: int = 128, name: str = "a", seed: int = 0) -> JobTruth:
    return JobTruth.of(LAWS[network], batch, {rack.kind.name: rack for rack in BOTH}, seed, name)


def test_a_job_alone_on_what_it_asked_for_takes_as_long_as_it_did() -> None:
    jobs = sized([TraceJob("a", 0.0, 8, 3600.0, "bert"), TraceJob("b", 10.0, 3, 500.0)], A100, seed=0)
    for each in jobs:
        assert each.gpu_s / each.job.gpus == pytest.approx(each.job.duration_s)


def test_two_jobs_of_one_law_differ_and_one_seed_gives_one_job() -> None:
    way = Way(4, 1.0, 1.0, kind="a100-sxm")
    one, same, other = truth(name="a").unit(way, 1), truth(name="a").unit(way, 1), truth(name="b").unit(way, 1)
    assert one == same
    assert one[0] != pytest.approx(other[0], rel=0.001)


@given(
    network=st.sampled_from(sorted(LAWS)),
    gpus=st.sampled_from([1, 2, 4, 8]),
    mhz=st.sampled_from([705.0, 900.0, 1100.0, 1300.0]),
    name=st.text("abc", max_size=3),
)
def test_a_lower_clock_is_slower_and_draws_less_and_a_spread_job_is_not_quicker(
    network: str, gpus: int, mhz: float, name: str
) -> None:
    job = truth(network, name=name)
    full_s, full_j = job.unit(Way(gpus, 1.0, 1.0, kind="a100-sxm"), 1)
    slow_s, slow_j = job.unit(Way(gpus, 1.0, 1.0, Setting(sm_mhz=mhz), "a100-sxm"), 1)
    assert slow_s > full_s
    assert slow_j / slow_s < full_j / full_s
    assert full_j / full_s < gpus * 440.0  # a board of 400 W; cards leak by a fifth more
    assert job.unit(Way(gpus, 1.0, 1.0, kind="a100-sxm"), min(gpus, 2))[0] >= full_s


def test_the_law_of_a_network_is_that_of_the_fitted_constants() -> None:
    # bert, 128 samples on 4 GPUs of one node: 48.6 + 1.832·32 and 65.2 + 1.639·2 ms, γ 2.61, but for scatter.
    grad_s, sync_s, gamma = 0.0486 + 0.001832 * 32, 0.0652 + 0.001639 * 2, 2.61
    law_s = (grad_s**gamma + sync_s**gamma) ** (1 / gamma)
    seen = [truth(name=f"{number}").unit(Way(4, 1.0, 1.0, kind="a100-sxm"), 1)[0] for number in range(200)]
    assert math.exp(sum(math.log(each / law_s) for each in seen) / len(seen)) == pytest.approx(1.0, abs=0.03)


def test_a_slower_gpu_takes_longer_where_jobs_compute() -> None:
    job = truth("vgg16")
    assert job.seconds("v100", 1) == pytest.approx(job.seconds("a100-sxm", 1) * 312 / 112, rel=0.01)


def test_a_load_is_what_is_offered_afterwards() -> None:
    jobs = sized(
        [TraceJob(f"{at}", 100.0 * at, 4, 900.0 + at, deadline_s=100.0 * at + 1000) for at in range(9)], A100, 0
    )
    moved = at_load(jobs, A100, 0.7)
    assert offered(moved, A100) == pytest.approx(0.7)
    assert moved[0].job.submitted_s == 0.0
    assert all(each.job.deadline_s == pytest.approx(each.job.submitted_s + 1000) for each in moved)


def test_what_is_believed_after_the_probes_is_near_the_truth_but_not_it() -> None:
    jobs = sized([TraceJob("a", 0.0, 8, 3600.0, "resnet50"), TraceJob("b", 5.0, 8, 3600.0, "resnet50")], A100, seed=1)
    first, second = Knowledge(jobs, A100, 1, 0.5).submissions()
    assert first.work > jobs[0].work  # it pays for the probes
    believed = {way.gpus: way.unit_s for way in first.belief.ways() if not way.setting}
    assert {1, 2, 4, 8} <= set(believed)
    for gpus, unit_s in believed.items():
        real_s, _ = first.truth.unit(Way(gpus, 1.0, 1.0, kind="a100-sxm"), -(-gpus // 8))
        assert unit_s == pytest.approx(real_s, rel=0.25)
        assert unit_s != real_s
    assert second.belief.work_left(0.0) != second.work


def test_runs_do_not_learn_from_each_other() -> None:
    jobs = sized([TraceJob("a", 0.0, 4, 3600.0, "gpt2")], A100, seed=0)
    known = Knowledge(jobs, A100, 0, 0.0)
    one, two = known.submissions()[0], known.submissions()[0]
    before = two.belief.ways()
    one.belief.tell(one.belief.ways()[0], 1, 99.0, 99.0)
    assert two.belief.ways() is before


def test_a_job_on_several_kinds_has_the_ways_of_all_and_keeps_them_while_nothing_is_learnt() -> None:
    jobs = sized([TraceJob("a", 0.0, 2, 3600.0, "gpt2")], BOTH, seed=0)
    belief = Knowledge(jobs, BOTH, 0, 0.0).submissions()[0].belief
    ways = belief.ways()
    assert {way.kind for way in ways} == {"a100-sxm", "v100"}
    assert belief.ways() is ways
    on_v100 = next(way for way in ways if way.kind == "v100" and way.gpus == 2)
    belief.tell(on_v100, 1, on_v100.unit_s * 2, on_v100.unit_j * 2)
    assert belief.ways() is not ways


def test_a_weight_of_the_trace_reaches_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("name,submitted_s,gpus,duration_s,model,weight\na,0,1,60,bert,2.5\nb,0,1,60,bert,\n")
    known = Knowledge(sized(read_trace(path), A100, seed=0), A100, 0, 0.0)
    assert [each.weight for each in known.submissions()] == [2.5, 1.0]
