"""Predictions of throughput and energy from public tables."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import cluster_models, cluster_tables
from bench.cluster_models import Guess, figures, left_out, some_counts, table, three_batches, three_settings
from joulewise.model import catalog
from joulewise.model.throughput import Spots
from joulewise.model.throughput_fit import Seen

CHIP = catalog.load("a100-sxm").chip


@pytest.mark.exhaustive
def test_the_a100_tables_are_told_within_five_per_cent_by_models_of_other_networks(data: Path):
    jobs = cluster_tables.a100(data)
    guesses = list(left_out(jobs, jobs, lambda _: CHIP, some_counts))
    assert {guess.job for guess in guesses} == {job.name for job in jobs}
    assert max(guess.spot[0] for guess in guesses) <= 32
    assert np.mean([guess.time_off for guess in guesses]) <= 0.05
    assert np.mean([held for guess in guesses for held in guess.covered]) >= 0.85


def test_a_prediction_depends_on_the_spots_shown_and_on_nothing_else_of_its_job(data: Path):
    jobs = [job for job in cluster_tables.a100(data) if job.name in ("bert", "gpt2", "vgg16")]
    first = jobs[0]
    hidden = ~some_counts(first.seen)
    changed = replace(
        first, seen=Seen(first.seen.spots, np.where(hidden, 3.0, 1.0) * first.seen.seconds, first.seen.joules)
    )
    plain = [g for g in left_out(jobs, jobs, lambda _: CHIP, some_counts) if g.job == first.name]
    other = [changed, *jobs[1:]]
    again = [g for g in left_out(other, other, lambda _: CHIP, some_counts) if g.job == first.name]
    assert [g.predicted_s for g in again] == [g.predicted_s for g in plain]
    assert [g.time_error for g in again] == [g.time_error for g in plain]


def test_clocks_of_a_stage_are_told_from_three(data: Path):
    chip = catalog.load("a100").chip
    stages = cluster_tables.stages(data, "a100", chip.sm_max_mhz)[:2]
    grid = cluster_tables.grid(data, chip.sm_max_mhz)
    guesses = list(left_out(stages, grid, lambda _: chip, three_settings))
    assert {guess.fitted for guess in guesses} == {3}
    assert np.mean([guess.time_off for guess in guesses]) <= 0.05
    assert np.mean([guess.energy_off for guess in guesses]) <= 0.06


def test_the_interpolated_t4_tables_are_accumulated_steps(data: Path):
    bert = next(job for job in cluster_tables.t4_table(data) if job.name == "bert")
    alone = bert.seen.spots.gpus == 1
    assert bert.seen.spots.steps[alone] == 31
    assert bert.seen.spots.batch[alone] == 12


def test_every_second_batch_is_shown_at_three_limits():
    rows = [(1, 1, batch, 0, 1.0, limit) for batch in (8, 16, 32, 64) for limit in (100, 150, 200, 250)]
    shown = three_settings(Seen(Spots.of(rows), np.ones(16), np.ones(16)))
    assert [rows[i][2:6:3] for i in np.flatnonzero(shown)] == [(b, w) for b in (8, 32) for w in (100, 200, 250)]


def test_a_count_that_was_not_measured_is_not_shown():
    rows = [(n, 1, batch, 0, 1.0, math.inf) for n in (1, 4) for batch in (8, 16, 32)]
    shown = three_batches(Seen(Spots.of(rows), np.ones(6), np.ones(6)))
    assert shown.tolist() == [True] * 3 + [False] * 3


def made_guesses() -> list[Guess]:
    spot = (2.0, 1.0, 8.0, 0.0, 1.0, math.inf)
    names = ("a100", "t4", "zeus", "stages", "t4-table", "t4-spread", "sweep")
    off = dict(zip(names, (1.02, 1.06, 1.03, 1.01, 1.5, 1.1, 1.02), strict=True))
    metered = ("zeus", "stages", "sweep")
    return [
        Guess(name, "gpu", "job", spot, 3, 1.0, 1.0 if name in metered else math.nan, factor, factor, 0.02, 0.02)
        for name, factor in off.items()
    ]


def test_the_headline_is_a_mean_of_three_groups_and_says_what_is_not_in_it():
    found = figures(made_guesses(), 4.0)
    assert found["throughput_mape"] == pytest.approx((2 + 50 + (3 + 1) / 2) / 3, abs=0.01)
    assert found["throughput_mape_t4_steps"] == pytest.approx((2 + 6 + (3 + 1) / 2) / 3, abs=0.01)
    assert found["energy_mape"] == pytest.approx(2.0)
    assert found["band_coverage"] == pytest.approx((100 + 0 + 100) / 3, abs=0.01)
    assert "job" in table(made_guesses(), {"{1,2}": made_guesses()})


def test_without_data_one_line_says_what_to_set(monkeypatch, capsys):
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    assert cluster_models.main(["--json"]) == 2
    assert "JOULEWISE_DATA is not set" in capsys.readouterr().err


def test_every_prediction_is_written_so_that_the_figures_can_be_made_again(monkeypatch, data, tmp_path, capsys):
    guesses = made_guesses()
    monkeypatch.setattr(cluster_models, "run", lambda *_: (guesses, {"{1,2}": guesses}, 4.0))
    decisions = tmp_path / "decisions.jsonl"
    assert cluster_models.main(["--json", "--decisions", str(decisions)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    rows = [json.loads(line) for line in decisions.read_text().splitlines()]
    t4 = [100 * abs(row["predicted_s"] / row["seconds"] - 1) for row in rows if row["table"] == "t4"]
    assert np.mean(t4) == pytest.approx(found["t4_mape"], abs=0.01)
    assert [row["joules"] for row in rows if row["table"] == "t4"] == [None]
