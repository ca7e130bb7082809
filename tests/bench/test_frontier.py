"""The bench of frontiers: its baseline is the published one, its pipelines are those meant, its figures are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import frontier, frontier_lowtime, frontier_stragglers, public_sweeps
from bench.frontier_cases import Case, profiled, synthetic
from bench.frontier_lowtime import Lowtime
from joulewise.core.errors import MissingPart


def lowtime(case: Case, unit_s: float, *, filter_effective: bool, limit_s: float = 120.0) -> Lowtime:
    try:
        return frontier_lowtime.run(case, unit_s, limit_s=limit_s, filter_effective=filter_effective)
    except MissingPart as missing:
        pytest.skip(str(missing))


def test_the_synthetic_family_is_the_published_one() -> None:
    row = frontier.solved(synthetic(4, 8), repeats=1)
    assert len(row.case.options) == 64
    # 431 steps were published, in microseconds; slopes that are equal on paper must stay equal.
    assert len(row.frontier) == pytest.approx(431, abs=2)
    frontier.bound(row)
    assert row.lp_gap is not None
    assert row.lp_gap <= 1e-6
    assert [decision["pipeline"] for decision in row.decisions] == ["4x8"] * 20


def test_a_profile_of_strangers_gives_the_figures_that_were_promised(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "perseus" / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv"
    decisions = tmp_path / "plans.jsonl"
    arguments = ["--json", "--profile", str(path), "--microbatches", "12", "--decisions", str(decisions)]
    assert frontier.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert {"vertices", "cpu_s", "lp_gap", "intrinsic_saving"} <= set(figures)
    # Another implementation found 536 vertices and 16.1 %.
    assert figures["vertices"] == pytest.approx(536, abs=2)
    assert figures["intrinsic_saving"] == pytest.approx(0.161, abs=0.001)
    assert 0.157 <= figures["intrinsic_saving_rounded"] <= figures["intrinsic_saving"]
    assert figures["lp_gap"] <= 1e-6
    assert len(decisions.read_text().splitlines()) == 20


def test_our_frontier_is_below_the_published_one_in_the_median(data: Path) -> None:
    folder = data / "perseus"
    row = frontier.solved(profiled(folder / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv", 12, 83.64), repeats=1)
    differences = frontier.published_differences(row, folder / "emulated_frontier" / "gpt3-175b+a100_sxm_mb12.csv")
    assert len(differences) > 500
    assert sorted(differences)[len(differences) // 2] <= 0
    assert max(differences) <= 0.025


def test_a_profile_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frontier.main(["--json", "--profile", str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_python_without_lowtime_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match="make peers"):
        frontier_lowtime.run(synthetic(2, 2), 0.006, limit_s=1.0, python=tmp_path / "python")


@pytest.mark.exhaustive
def test_lowtimes_plans_never_beat_ours_at_their_true_time() -> None:
    row = frontier.solved(synthetic(4, 8), repeats=1)
    found = lowtime(row.case, 0.006, filter_effective=True)
    assert found.finished
    assert len(found.points) == pytest.approx(144, abs=2)
    frontier.reprice(row, found)
    assert row.margin is not None
    assert row.margin > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_lowtime_as_we_run_it_reproduces_its_published_frontier(data: Path) -> None:
    folder = data / "perseus"
    case = profiled(folder / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv", 12, 83.64)
    found = lowtime(case, 0.001, filter_effective=False, limit_s=2.0)  # of about 7; the bench itself runs to the end
    path = folder / "emulated_frontier" / "gpt3-175b+a100_sxm_mb12.csv"
    published = [(float(row["time"]), float(row["energy"])) for row in public_sweeps.rows_of(path, "time", "energy")]
    assert len(found.points) >= 50
    for (time_s, energy_j), (said_s, said_j) in zip(found.points, published, strict=False):
        assert time_s == pytest.approx(said_s, abs=1e-9)
        assert energy_j == pytest.approx(said_j, rel=1e-6)


def test_straggler_savings_of_measured_iterations_are_the_published_ones(data: Path) -> None:
    workloads = frontier_stragglers.read(data / "perseus" / "measured_frontiers.csv")
    assert {(work.gpu, work.model) for work in workloads} == set(frontier_stragglers.PUBLISHED)
    for work in workloads:
        published = frontier_stragglers.PUBLISHED[work.gpu, work.model]
        for ratio, said in zip(frontier_stragglers.RATIOS, published, strict=True):
            # Their baseline is one of two warm-ups, ours their mean.
            assert 100 * work.saving(ratio) == pytest.approx(said, abs=0.4)


def test_a_grid_of_slopes_is_scored_against_the_exact_frontier() -> None:
    case = synthetic(4, 8)
    exact, coarse = frontier.solved(case, repeats=1), frontier.solved(case, repeats=1, slope_grid=50.0)
    assert len(coarse.frontier) < len(exact.frontier) / 4
    assert 1e-7 < frontier.grid_error(exact, coarse) < 0.01
