"""bench.online --sweep works on a stranger's file, charges every second, and on the public one reaches what it must."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench import online, online_sweep
from bench.online_table import DEFAULT, Job, JobEnded, Noise, tables
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting

CLOCKS = (900, 1080, 1260, 1440, 1530, 1620, 1710, 1800)


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    """Two applications on a GPU in no catalogue: one bound by memory, one by its clock."""
    path = tmp_path / "stranger.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["benchmark", "kernel", "argNo", "core_frequency", "memory_frequency", "time", "average_power"])
        for name, share in (("stream", 0.05), ("solve", 0.95)):
            for mhz in CLOCKS:
                x = mhz / CLOCKS[-1]
                slower = share / x + 1.0 - share
                writer.writerow([name, "k", "0", mhz, 7000, 3.0 * slower, 80.0 + 220.0 * x**2 / slower])
    return path


def test_a_table_knows_its_default_and_its_best_row(sweep_file: Path) -> None:
    stream, solve = tables(sweep_file)
    assert stream.top == Setting(sm_mhz=1800.0)
    assert (stream.slowdown(DEFAULT), stream.saving(DEFAULT)) == (0.0, 0.0)
    assert stream.best(0.05) == Setting(sm_mhz=1080.0)
    assert stream.best(0.02) == Setting(sm_mhz=1440.0)
    assert solve.best(0.02) == solve.top


def test_every_second_and_joule_of_a_job_is_charged(sweep_file: Path) -> None:
    stream, _ = tables(sweep_file)
    job = Job(stream, seed=0)
    slow = Setting(sm_mhz=900.0)
    seen = job.window(slow, 10.0)
    assert seen.unit_s / job.step_s == pytest.approx(1.05, rel=0.05)
    assert job.candidates == 1
    job.hold(DEFAULT)
    assert job.ended
    lost = 10.0 * (1.0 - 1.0 / 1.05)
    assert job.elapsed_s == pytest.approx(2000.0 + lost, abs=0.01)
    assert job.slowdown == pytest.approx(lost / 2000.0, rel=0.01)  # switches cost a little too
    assert job.probe_j == pytest.approx(10.0 * stream.at(slow)[1])
    with pytest.raises(JobEnded):
        job.window(DEFAULT, 1.0)


def test_the_noise_of_a_window_is_as_stated(sweep_file: Path) -> None:
    stream, _ = tables(sweep_file)
    job = Job(stream, seed=0, noise=Noise(wander=0.0), job_s=1e6)
    seen = [job.window(DEFAULT, 4.0).unit_s / job.step_s for _ in range(400)]
    spread = (sum((value - 1.0) ** 2 for value in seen) / len(seen)) ** 0.5
    assert spread == pytest.approx(0.005, rel=0.15)


def test_no_two_jobs_share_their_noise(sweep_file: Path) -> None:
    first = [Job(table, seed=seed).window(DEFAULT, 10.0).unit_s for table in tables(sweep_file) for seed in range(5)]
    assert len(set(first)) == 10
    again = [Job(table, seed=seed).window(DEFAULT, 10.0).unit_s for table in tables(sweep_file) for seed in range(5)]
    assert again == first


def test_a_setting_that_is_no_row_is_the_nearest_one(sweep_file: Path) -> None:
    stream, _ = tables(sweep_file)
    assert stream.row(Setting(sm_mhz=910.0)) == Setting(sm_mhz=900.0)


def test_the_bench_runs_on_a_strangers_file_and_its_decisions_can_be_scored_again(
    sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decisions = tmp_path / "decisions.jsonl"
    arguments = ["--sweep", str(sweep_file), "--json", "--repeat", "1", "--decisions", str(decisions)]
    assert online.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["over_bound"] == figures["over_bound_2pct"] == 0.0
    assert figures["oracle_share"] > 0.8
    by_name = {table.name: table for table in tables(sweep_file)}
    for line in decisions.read_text("utf-8").splitlines():
        told = json.loads(line)
        table = by_name[told["application"]]
        used_j = sum(seconds * table.at(Setting(**row))[1] for row, _, seconds in told["life"])
        assert 1.0 - used_j / (2000.0 * table.at(DEFAULT)[1]) == pytest.approx(told["saving"], abs=1e-4)


def test_a_file_that_is_no_sweep_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1,2\n", encoding="utf-8")
    assert online.main(["--sweep", str(bad)]) == 2
    assert "core_frequency" in capsys.readouterr().err
    with pytest.raises(BadSpec):
        tables(tmp_path / "none.csv")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_on_the_public_sweep_most_of_the_oracles_saving_is_had_and_no_bound_broken(data: Path) -> None:
    ours = online_sweep.methods(None, None, 0)["ours"]
    found = [
        online_sweep.score(table, "ours", ours, bound, 0)
        for table in tables(data / "dvfs/rtx8000-dvfs-real.csv")
        for bound in online_sweep.BOUNDS.values()
    ]
    for bound in online_sweep.BOUNDS.values():
        some = [outcome for outcome in found if outcome.bound == bound]
        assert online_sweep.share(some) > 0.85
        assert online_sweep.over(some) == 0.0
        assert max(outcome.held_slowdown for outcome in some) <= bound + 0.005


def test_a_core_and_memory_clock_table_with_nothing_to_save_is_left_alone(data: Path) -> None:
    (table,) = tables(data / "dvfs/titanX-caffe-googlenet.csv")
    assert set(table.top) == {"sm_mhz", "memory_mhz"}
    outcome = online_sweep.score(table, "ours", online_sweep.methods(None, None, 0)["ours"], 0.05, 0)
    assert outcome.oracle == 0.0
    assert outcome.saving > -0.003
    assert outcome.slowdown < 0.003
