"""bench.recurring_gpu plays grid and recurrences fairly, keeps to its time, and counts what it measured."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from bench.recurring_gpu import RECURRENCE_SEEDS, Result, measured
from bench.recurring_gpu_score import Expected, Price, Ran, figures
from bench.recurring_gpu_stage import OutOfTime, Training
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform

ROOT = Path(__file__).parents[2]
PRICE = Price(eta=0.5, max_power_w=100.0)
TRAINING = Training((8, 16, 32, 64, 128), 8, 0.001, 20, 1.7, width=16, depth=1, length=16, texts=256)
EPOCHS = {8: 4, 16: 4, 32: 5, 64: 8, 128: 14}
EPOCH_S = {8: 4.0, 16: 2.0, 32: 1.0, 64: 0.8, 128: 0.7}


def ran(batch_size: int, duration_s: float, outcome: Outcome = Outcome.REACHED, seed: int = 1) -> Ran:
    """At 50 W, so that a second costs 25 + 50 J."""
    return Ran(batch_size, seed, outcome, 4, duration_s, 50.0 * duration_s, 1.0, "counter", (2.0, 1.0), ())


class Law:
    """A stage whose epochs are a law and whose time passes only in runs; one seed in three takes an epoch more."""

    def __init__(self, seconds: float) -> None:
        self.training, self.platform, self.left_s = TRAINING, Platform("law", 1, 100.0), seconds
        self.seeds: list[int] = []

    def run(self, batch_size, seed, go_on=lambda *_: True, target=None):
        self.seeds.append(seed)
        needed = EPOCHS[batch_size] + (seed % 3 == 0)
        epoch_s, epochs, outcome = EPOCH_S[batch_size], 0, Outcome.STOPPED_EARLY
        profile = (EpochCost(epoch_s, 50.0 * epoch_s),)
        while epochs < needed:
            epochs += 1
            self.left_s -= epoch_s
            if self.left_s <= 0:
                raise OutOfTime
            if epochs == needed:
                outcome = Outcome.REACHED
            elif not go_on(epochs, profile):
                break
        took_s = epochs * epoch_s
        return Ran(batch_size, seed, outcome, epochs, took_s, 50.0 * took_s, 1.0, "counter", (2.0, 1.0), profile)

    def warm_up(self):
        self.left_s -= sum(EPOCH_S.values())


def played(seconds: float, tmp_path: Path) -> tuple[Law, Result]:
    stage, result = Law(seconds), Result({}, TRAINING, PRICE, tmp_path / "result.json")
    measured(stage, result, rounds=3, recurrences=20)
    return stage, result


def test_a_size_pays_for_its_runs_that_do_not_get_there():
    row = Expected.of([ran(8, 2.0), ran(8, 6.0, Outcome.FAILED)], PRICE)
    assert (row.reached, row.duration_s, row.energy_j, row.cost) == (1, 8.0, 400.0, 600.0)


def test_a_size_that_never_gets_there_is_no_oracle_however_short_its_runs():
    found = figures([ran(8, 4.0), ran(16, 0.1, Outcome.FAILED)], [], 8, PRICE)
    assert found["oracle_batch_size"] == 8
    assert Expected.of([ran(16, 0.1, Outcome.FAILED)], PRICE).cost == math.inf


def test_figures_are_what_they_are_by_hand():
    grid = [ran(8, 4.0), ran(8, 6.0), ran(16, 2.0), ran(16, 3.0)]
    recurrences = [[ran(8, 5.0)], [ran(32, 1.0, Outcome.STOPPED_EARLY), ran(8, 5.0)], *[[ran(16, 2.5)]] * 5]
    found = figures(grid, recurrences, 8, PRICE)
    assert found["oracle_batch_size"] == 16
    assert found["oracle_cost"] == pytest.approx(0.5)
    assert found["regret_optimal_runs"] == pytest.approx(23.5 / 2.5 - 7)
    # The mean of 2 and 3 s has a standard error of 0.5 s: a fifth of the oracle's cost, over 9.4 optimal runs.
    assert found["regret_error"] == pytest.approx(23.5 / 2.5 * 0.2)
    assert found["cumulative_cost"] == pytest.approx(23.5 / 35.0)
    assert found["last5_over_oracle"] == pytest.approx(1.0)
    assert found["worst_recurrence"] == pytest.approx(1.2)
    assert found["energy_saved_j"] == pytest.approx(50.0 * (35.0 - 23.5))
    assert found["grid_round_optimal_runs"] == pytest.approx(15.0 / 2 / 2.5)
    assert found["trials"] == 8


def test_what_cannot_be_compared_yet_is_not():
    assert figures([], [], 8, PRICE) == {"grid_runs": 0, "recurrences": 0}
    assert "oracle_cost" not in figures([ran(16, 2.0)], [[ran(16, 2.0)]], 8, PRICE)


def test_with_time_enough_all_is_run_in_turns_and_the_tuner_finds_the_cheapest_size(tmp_path):
    stage, result = played(10_000.0, tmp_path)
    assert result.left_out == []
    assert [len(result.recurrences), len(result.grid)] == [20, 15]
    rounds = [place for place, seed in enumerate(stage.seeds) if seed < RECURRENCE_SEEDS]
    assert rounds != list(range(15)), "the grid was run in one piece"
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["figures"]["oracle_batch_size"] == 32
    assert found["recurrences"][0]["trials"][0]["batch_size"] == TRAINING.default
    assert found["figures"]["last5_over_oracle"] < 1.2
    for recurrence in found["recurrences"]:
        assert [trial["outcome"] for trial in recurrence["trials"]].index("reached") == len(recurrence["trials"]) - 1


def test_short_time_costs_rounds_of_the_grid_and_no_recurrence(tmp_path):
    _, result = played(260.0, tmp_path)
    assert len(result.recurrences) == 20
    assert 5 <= len(result.grid) < 15
    assert any("rounds of the grid" in line for line in result.left_out)


def test_when_the_time_is_over_what_was_measured_is_kept_and_the_rest_named(tmp_path):
    _, result = played(90.0, tmp_path)
    found = json.loads((tmp_path / "result.json").read_text())
    assert 0 < len(found["recurrences"]) < 20
    assert found["left_out"] == result.left_out
    assert any(f"{20 - len(found['recurrences'])} of 20 recurrences" in line for line in found["left_out"])
    assert found["figures"]["recurrences"] == len(found["recurrences"])


@pytest.mark.exhaustive
def test_on_the_processor_it_really_trains_and_calls_its_joules_modelled(peers_python, tmp_path):
    out, target = tmp_path / "result.json", 3.4
    small = ["--batch-sizes", "8..128", "--default", "8", "--lr", "0.003", "--width", "16", "--depth", "1"]
    small += [
        "--length",
        "16",
        "--texts",
        "128",
        "--max-epochs",
        "16",
        "--target",
        str(target),
        "--seeds",
        "1",
        "--recurrences",
        "8",
    ]
    ended = subprocess.run(
        [str(peers_python), "-m", "bench.recurring_gpu", "--cpu", *small, "--out", str(out), "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    assert json.loads(ended.stdout)["figures"] == found["figures"]
    assert "modelled" in found["provenance"]["gpu"]
    assert found["provenance"]["command"].endswith("--json")
    assert found["left_out"] == []
    assert sorted(run["batch_size"] for run in found["grid"]) == [8, 16, 32, 64, 128]
    assert len(found["recurrences"]) == 8
    runs = found["grid"] + [trial for each in found["recurrences"] for trial in each["trials"]]
    seeds = [run["seed"] for run in runs if run["seed"] >= RECURRENCE_SEEDS]
    assert len(set(seeds)) == len(seeds)
    for run in runs:
        assert (run["losses"][-1] <= target) == (run["outcome"] == "reached")
        assert len(run["losses"]) == run["epochs"] <= 16
        assert run["source"] == "modelled"
        assert 50 < run["energy_j"] / run["duration_s"] < 130  # a virtual H200 at rest
        assert run["cost"] == pytest.approx(0.5 * run["energy_j"] + 350.0 * run["duration_s"], rel=1e-4)
    for each in found["recurrences"]:
        assert each["trials"][-1]["outcome"] == "reached"
        assert each["cost"] == pytest.approx(sum(trial["cost"] for trial in each["trials"]), rel=1e-4)
    needed = {run["batch_size"]: run["epochs"] for run in found["grid"]}
    assert needed[8] < needed[128], "a larger batch takes more epochs to the same loss"
