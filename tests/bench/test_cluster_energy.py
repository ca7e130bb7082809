"""The energy bench's own parts: truths, loads, and the comparison at equal energy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import cluster
from bench.cluster_energy_compare import Curve, Spot, energies_of, energy_ratio, geometric_mean, interval, ratio, ratios
from bench.cluster_energy_loads import Case, cases, read_window
from bench.cluster_energy_policies import knobs_of
from bench.cluster_energy_power import POWERS
from bench.cluster_energy_run import CaseKey, Piece, play
from bench.cluster_truth import Scatter, Tables
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting

ALIKE = Scatter(0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def a100(data: Path) -> Tables:
    return Tables("a100", data)


@pytest.fixture(scope="module")
def t4(data: Path) -> Tables:
    return Tables("t4", data)


def way(gpus: int, mhz: float | None = None) -> Way:
    return Way(gpus, 1.0, 1.0, Setting() if mhz is None else Setting(sm_mhz=mhz))


def test_at_full_clock_a_job_runs_as_fast_as_the_table_says(a100: Tables) -> None:
    truth = a100.truth("bert", 64, "any", "note", scatter=ALIKE)
    assert truth.unit(way(8), 1)[0] == pytest.approx(1 / 11.0601732061343)
    assert truth.unit(way(64), 8)[0] == pytest.approx(1 / 9.24585886691227)


def test_between_measured_counts_a_job_is_between_their_speeds(t4: Tables) -> None:
    truth = t4.truth("cifar10", 2048, "any", "note", scatter=ALIKE)
    four, six, eight = (truth.unit(way(gpus), -(-gpus // 4))[0] for gpus in (4, 6, 8))
    assert four > six > eight


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("gpu", ["a100", "t4"])
def test_a_lower_clock_takes_longer_and_draws_less(gpu: str, power: str, request: pytest.FixtureRequest) -> None:
    tables: Tables = request.getfixturevalue(gpu)
    for model, speed in tables.speeds.items():
        truth = tables.truth(model, speed.batches[0], "any", power)
        for gpus in (1, 4, 16):
            seen = [truth.unit(way(gpus, mhz), -(-gpus // speed.per_node)) for mhz in tables.clocks_mhz]
            times = [unit_s for unit_s, _ in seen]
            watts = [unit_j / unit_s for unit_s, unit_j in seen]
            assert times == sorted(times, reverse=True)
            assert watts == sorted(watts)


def test_a_job_on_more_nodes_than_it_needs_is_never_faster(a100: Tables, t4: Tables) -> None:
    for tables in (a100, t4):
        for model, speed in tables.speeds.items():
            truth = tables.truth(model, speed.batches[0], "any", "note")
            for gpus in (2, 4, 8):
                packed = -(-gpus // speed.per_node)
                assert truth.unit(way(gpus), packed + 1)[0] >= truth.unit(way(gpus), packed)[0]
    spread = t4.truth("bert", 384, "any", "note", scatter=ALIKE)
    assert spread.unit(way(4), 2)[0] > 1.1 * spread.unit(way(4), 1)[0]


def test_jobs_of_one_model_differ_and_each_is_the_same_every_time(a100: Tables) -> None:
    one, again, other = (a100.truth("gpt2", 128, name, "mixture").unit(way(8), 1) for name in ("one", "one", "other"))
    assert one == again
    assert one[0] != other[0]
    assert one[1] / one[0] != other[1] / other[0]


def test_a_job_takes_the_same_time_under_both_power_laws(a100: Tables) -> None:
    note, mixture = (a100.truth("vgg16", 64, "job", power).unit(way(4, 1005), 1) for power in POWERS)
    assert note[0] == mixture[0]
    assert note[1] != mixture[1]


def test_a_model_without_a_table_is_refused_by_name(a100: Tables) -> None:
    with pytest.raises(BadSpec, match="no a100 table for model 'llama'; there are bert"):
        a100.truth("llama", 64, "job", "note")
    with pytest.raises(BadSpec, match="no power law"):
        a100.truth("bert", 64, "job", "guess")


# ---- loads ----------------------------------------------------------------------------------------------------------


def offered(case: Case) -> float:
    span_s = case.jobs[-1].submitted_s - case.jobs[0].submitted_s
    demand = sum(job.gpus * job.work * job.truth.seconds(job.gpus) for job in case.jobs)
    return demand / (span_s * case.kind.gpus)


def test_every_load_is_the_one_asked_for_on_the_same_cluster(data: Path) -> None:
    trace = str(data / "cluster" / "elasticflow" / "elastic" / "cluster03.csv")
    found = cases(trace, data, count=60, sigmas=(0.5,), powers=("note",))
    assert [case.load for case in found] == [0.5, 0.9, 1.1]
    for case in found:
        assert offered(case) == pytest.approx(case.load)
    assert len({case.kind for case in found}) == 1
    assert found[0].kind.gpus >= max(job.gpus for job in found[0].jobs)


def test_a_trace_without_models_gets_them_by_seed_and_keeps_its_durations(data: Path) -> None:
    trace = str(data / "cluster" / "elasticflow" / "raw" / "cluster10.csv")
    (case,) = cases(trace, data, loads=(0.9,), sigmas=(0.0,), powers=("note",))
    (again,) = cases(trace, data, loads=(0.9,), sigmas=(0.0,), powers=("note",))
    assert [job.truth.model for job in case.jobs] == [job.truth.model for job in again.jobs]
    assert len({job.truth.model for job in case.jobs}) == 6
    _, recorded = read_window(trace, None)
    for job, row in zip(case.jobs, recorded, strict=True):
        assert row.duration_s is not None
        assert job.work * job.truth.seconds(job.gpus) == pytest.approx(row.duration_s * job.truth.speed_factor)


def test_a_workload_of_pollux_runs_on_t4_for_as_long_as_it_was_validated(data: Path) -> None:
    trace = str(data / "cluster" / "pollux" / "workloads" / "workload-6.csv")
    (case,) = cases(trace, data, loads=(0.9,), sigmas=(0.0,), powers=("note",))
    assert case.gpu == "t4"
    (work,) = {job.work for job in case.jobs if job.truth.batch == 384}
    assert work == pytest.approx(480.0)


def test_sizes_are_predicted_with_the_error_asked_for(data: Path) -> None:
    trace = str(data / "cluster" / "elasticflow" / "elastic" / "cluster06.csv")
    found = cases(trace, data, count=300, loads=(0.9,), powers=("note",))
    for case in found:
        logs = [math.log(job.guess / job.work) for job in case.jobs]
        spread = math.sqrt(sum(value * value for value in logs) / len(logs))
        assert spread == pytest.approx(case.sigma, rel=0.15)


def test_a_cluster_that_is_too_small_for_a_job_is_refused(data: Path) -> None:
    trace = str(data / "cluster" / "elasticflow" / "elastic" / "cluster03.csv")
    with pytest.raises(BadSpec, match=r"asks for \d+ GPUs, the cluster has 8"):
        cases(trace, data, gpus=8)
    with pytest.raises(BadSpec, match="whole number of nodes"):
        cases(trace, data, gpus=100)


# ---- equal energy ---------------------------------------------------------------------------------------------------

SPOTS = st.lists(
    st.builds(Spot, st.floats(1.0, 1e9), st.floats(1.0, 1e6)), min_size=1, max_size=12, unique_by=lambda spot: spot
)


@given(SPOTS)
def test_a_curve_only_falls_and_no_run_lies_below_it(spots: list[Spot]) -> None:
    curve = Curve.of(spots)
    times = [spot.jct_s for spot in curve.spots]
    assert times == sorted(times, reverse=True)
    for spot in spots:
        assert curve.jct_s(spot.energy_j) <= spot.jct_s * (1 + 1e-9)


@given(SPOTS, SPOTS)
def test_swapping_two_policies_inverts_every_ratio(one: list[Spot], two: list[Spot]) -> None:
    a, b = Curve.of(one), Curve.of(two)
    for forth, back in zip(ratios(a, b), ratios(b, a), strict=True):
        assert forth * back == pytest.approx(1.0)


def test_a_policy_that_is_twice_as_fast_at_every_energy_has_a_ratio_of_two() -> None:
    slow = Curve.of([Spot(100.0, 80.0), Spot(150.0, 60.0), Spot(300.0, 40.0)])
    fast = Curve.of([Spot(100.0, 40.0), Spot(150.0, 30.0), Spot(300.0, 20.0)])
    assert ratio(slow, fast) == pytest.approx(2.0)
    assert len(energies_of(slow, fast)) == 9


def test_policies_whose_energies_never_meet_are_compared_where_the_frugal_one_could_not_spend_more() -> None:
    frugal, lavish = Curve.of([Spot(50.0, 30.0), Spot(60.0, 20.0)]), Curve.of([Spot(100.0, 80.0), Spot(200.0, 40.0)])
    found = ratios(lavish, frugal)
    assert found[0] == pytest.approx(4.0)
    assert found[-1] == pytest.approx(2.0)


def test_a_policy_that_needs_a_third_less_at_every_time_has_an_energy_ratio_of_three_halves() -> None:
    dear = Curve.of([Spot(150.0, 80.0), Spot(300.0, 60.0), Spot(450.0, 40.0)])
    cheap = Curve.of([Spot(100.0, 80.0), Spot(200.0, 60.0), Spot(300.0, 40.0)])
    assert energy_ratio(dear, cheap) == pytest.approx(1.5)


def test_the_interval_holds_the_mean_and_is_a_point_for_blocks_that_agree() -> None:
    blocks = {"a": [1.1, 1.3], "b": [1.5, 1.2], "c": [1.0, 1.1]}
    low, high = interval(blocks)
    assert low < geometric_mean([value for values in blocks.values() for value in values]) < high
    low, high = interval({"a": [1.2], "b": [1.2]})
    assert low == pytest.approx(1.2)
    assert high == pytest.approx(1.2)


# ---- the entry ------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_whole_bench_runs_on_a_few_jobs_and_says_what_it_must(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULEWISE_DATA", str(data))
    trace = str(data / "cluster" / "pollux" / "workloads" / "workload-6.csv")
    decisions, picture = tmp_path / "decisions.jsonl", tmp_path / "picture.png"
    asked = ["energy", "--trace", trace, "--jobs", "16", "--loads", "0.9", "--only", "powerflow", "tiresias", "--json"]
    assert cluster.main([*asked, "--decisions", str(decisions), "--plot", str(picture)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {
        "jct_ratio_powerflow",
        "jct_ratio_powerflow_min",
        "jct_ratio_strongest_max",
        "jct_ratio_strongest_mean",
        "budget_overrun",
        "fragmentation_kwh_saved",
    } <= said["figures"].keys()
    (case,) = said["cases"]
    for runs in case["runs"].values():
        for run in runs:
            # Over one horizon all parts, the sleep after the end included, are the whole.
            assert sum(run["parts_kwh"].values()) <= run["energy_kwh"] * (1 + 1e-9)
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    work = {line["submission"]["name"]: line["submission"]["work"] for line in lines if "submission" in line}
    assert len(work) == 16
    assert {line["job"] for line in lines if "job" in line} == work.keys()
    assert picture.stat().st_size > 10_000


def test_every_policy_gets_the_same_jobs_and_a_run_can_be_repeated(data: Path) -> None:
    trace = str(data / "cluster" / "elasticflow" / "elastic" / "cluster10.csv")
    key = CaseKey(trace, data, 1.1, 0.5, "mixture", count=15)
    (once,), (again,), (other,) = (
        play(Piece(key, policy, knobs_of(policy)[:1])) for policy in ("priced", "priced", "srtf+zeus")
    )
    assert (once.jct_s, once.energy_j, once.boots) == (again.jct_s, again.energy_j, again.boots)
    assert once.unfinished == other.unfinished == 0
    assert once.jct_s != other.jct_s


def test_a_policy_or_file_that_is_not_there_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULEWISE_DATA", str(data))
    assert cluster.main(["energy", "--trace", "nowhere.csv"]) == 2
    assert "nowhere.csv cannot be read: no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cluster.main(["energy", "--trace", "nowhere.csv", "--only", "magic"])
    assert "no policy is called magic" in capsys.readouterr().err


def test_a_question_that_there_is_not_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["weather"]) == 2
    assert "'weather' is not one of fidelity, models, energy, speed" in capsys.readouterr().err
    assert cluster.main([]) == 2
