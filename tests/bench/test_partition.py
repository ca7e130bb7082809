"""bench.partition: its tables, its baseline, and that its figures come out of a small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import partition, partition_kareus
from bench.partition_made import made
from bench.partition_play import play
from bench.partition_sim import STAGE_FILE, clocked, measured, miss
from bench.partition_table import KAREUS_FILE, Table, read_kareus
from joulewise.core.errors import BadSpec


@pytest.fixture(scope="module")
def table(data: Path) -> Table:
    return read_kareus(data / KAREUS_FILE)


def test_the_measured_table_is_what_its_description_says(table: Table) -> None:
    assert len(table) == 640
    row = table.values.index((-1.0, -1.0, 20.0, 1024.0))
    assert table.means[row] == pytest.approx([3.194e-3, 0.946], rel=1e-3)
    fastest = int(np.argmin(table.means[:, 0]))
    assert table.values[fastest] == (2.0, 6.0, 9.0, 1024.0)
    assert table.means[fastest] == pytest.approx([2.670e-3, 0.928], rel=1e-3)
    assert table.evaluations(table.frontier) <= len(table.frontier)
    assert table.evaluations([row]) == len(table)


def test_kareus_search_spends_its_budget_and_no_candidate_twice(table: Table) -> None:
    run = list(partition_kareus.search(table, 0))
    assert len(run) == 96 + 4 * 32
    assert len({candidate for candidate, *_ in run}) == len(run)
    passes = [why for *_, why in run[96:128]]
    assert passes.count("static") == 6
    assert set(passes) >= {"static", "uncertainty"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ours_reaches_the_measured_frontier_with_half_of_kareus_evaluations(table: Table) -> None:
    ours = [play(table, "ours", seed, whole=False).evaluations for seed in range(3)]
    theirs = [play(table, "kareus", seed).evaluations for seed in range(3)]
    assert np.median(ours) <= np.median(theirs) / 2


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ours_gets_further_than_kareus_on_a_table_that_nobody_has_seen() -> None:
    unseen = made(2)
    ours, theirs = play(unseen, "ours", 0), play(unseen, "kareus", 0)
    assert len(ours.choices) < len(theirs.choices)
    assert ours.share > theirs.share
    assert ours.chosen_share > theirs.chosen_share
    lines = list(ours.lines(unseen))
    assert len(lines) == len(ours.choices) + 1
    assert lines[-1]["outcome"]["evaluations_to_99"] == ours.evaluations


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_simulator_predicts_a_window_and_clocks_it_was_not_fitted_to(table: Table, data: Path) -> None:
    rows, clocks = measured(table)[::2], clocked(data / STAGE_FILE)
    out = [(row.schedule.start, row.schedule.end) == (2, 5) for row in rows]
    time, energy = miss((rows, clocks, out))
    assert len(time) == 20
    assert np.abs(time).mean() < 0.03
    assert np.abs(energy).mean() < 0.04


def test_figures_come_out_as_json_with_every_choice_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    source = (data / KAREUS_FILE).read_text(encoding="utf-8").splitlines()
    small = tmp_path / "small.csv"
    small.write_text("\n".join([source[0], *source[1::16]]) + "\n", encoding="utf-8")
    decisions = tmp_path / "decisions.jsonl"
    options = ["--json", "--seeds", "1", "--no-simulator", "--data", str(small), "--decisions", str(decisions)]
    assert partition.main(options) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["evaluations"] <= 40
    assert figures["kareus_evaluations"] <= 40
    outcomes = [json.loads(line) for line in decisions.read_text(encoding="utf-8").splitlines()]
    assert sum("outcome" in line for line in outcomes) == 4


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "overlap_start,0:time (s)\n1,x\n"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadSpec):
        read_kareus(path)
    assert partition.main(["--data", str(path)]) == 2
    assert "bench.partition" in capsys.readouterr().err
