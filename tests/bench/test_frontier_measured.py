"""The bench of measured iterations: it keeps to what it may know, and foretells truths that are not its own law."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench import frontier_measured
from bench.frontier_measured_clocks import Ends, clocks, fitting
from bench.frontier_measured_fit import Fitted, Iteration, Pipeline
from bench.frontier_measured_law import StageLaw
from joulewise.model import catalog
from joulewise.model.physics import Load
from joulewise.plan.schedules_named import named

Array = NDArray[Any]
GPU = catalog.load("a100")
TOP_MHZ = GPU.chip.sm_max_mhz


def law(full_s: Array, *, averaging: float = 0.5, dynamic_w: tuple[float, float] = (380.0, 430.0)) -> StageLaw:
    return StageLaw(
        chip=GPU.chip,
        load=Load(1.0, np.array([0.93, 0.88]), np.array(dynamic_w)),  # type: ignore[arg-type]
        full_s=full_s,
        cap_w=300.0,
        averaging=averaging,
        agility=0.2,
        wait_w=84.0,
        rest_w=130.0,
    )


UNEVEN_S = np.array([[0.045, 0.130], [0.036, 0.108], [0.040, 0.108]])


def test_a_stage_that_waits_keeps_a_higher_clock_under_the_same_limit() -> None:
    full_x = law(UNEVEN_S).full_x
    assert (full_x < 1.0).all()
    assert (full_x[1] > 1.01 * full_x[0]).all()
    assert law(UNEVEN_S, averaging=0.0).full_x[1] == pytest.approx(full_x[0], rel=0.02)


def test_the_kind_that_draws_less_keeps_a_higher_clock() -> None:
    full_x = law(UNEVEN_S).full_x
    assert (full_x[:, 0] > full_x[:, 1]).all()


def test_a_clock_beyond_what_the_limit_gives_changes_nothing() -> None:
    one = law(UNEVEN_S)
    held_mhz = one.full_x * TOP_MHZ
    assert one.time_s(np.full_like(UNEVEN_S, TOP_MHZ)) == pytest.approx(UNEVEN_S)
    assert one.time_s(held_mhz) == pytest.approx(UNEVEN_S)
    assert one.energy_j(held_mhz) == pytest.approx(one.energy_j(np.full_like(UNEVEN_S, TOP_MHZ)))
    assert (one.time_s(0.95 * held_mhz) > UNEVEN_S).all()


def test_without_a_limit_that_bites_the_clock_is_the_highest() -> None:
    assert law(UNEVEN_S, dynamic_w=(150.0, 150.0)).full_x == pytest.approx(np.ones((3, 2)))


@given(st.lists(st.floats(1000.0, TOP_MHZ), min_size=3, max_size=3))
def test_the_clocks_behind_a_mean_clock_have_that_mean(asked: list[float]) -> None:
    one, mean_mhz = law(UNEVEN_S), np.array(asked)
    ends = Ends(np.array([1050.0, 1060.0, 1065.0]), np.array([1300.0, 1085.0, 1095.0]), 0)
    had = clocks(one, ends, mean_mhz, fitting(one, ends, mean_mhz))
    assert had.weight.sum(axis=0) == pytest.approx(np.ones(3))
    assert had.mean(had.mhz).mean(axis=1) == pytest.approx(mean_mhz)
    assert had.mhz.max() <= TOP_MHZ + 1e-6


HELD_MHZ = np.array([[1190.0, 1160.0], [1215.0, 1180.0], [1210.0, 1180.0]])
"""In truth, with nothing set: the first stage never waits."""


def true_time_s(full_s: Array, mhz: Array, held_mhz: Array) -> Array:
    """Not the law's form: a power of the clock."""
    return np.asarray(full_s * (held_mhz / np.minimum(mhz, held_mhz)) ** np.array([0.9, 0.75]))


def true_power_w(mhz: Array, held_mhz: Array) -> Array:
    """Neither: no knee."""
    return np.asarray(95.0 + 215.0 * (np.minimum(mhz, held_mhz) / 1190.0) ** 2.3)


def true_iteration(pipeline: Pipeline, mhz: Array, at_full: Array | float = 0.0) -> Iteration:
    """With a share of the operations of each rank at full clock, as where the pipeline fills and drains."""
    full_s, held_mhz, rest_s = UNEVEN_S, HELD_MHZ, 0.3
    usual_s = true_time_s(full_s, mhz, held_mhz)
    share = np.broadcast_to(np.asarray(at_full, dtype=float), len(full_s))[:, None]
    mean_s = (1.0 - share) * usual_s + share * full_s
    time_s = pipeline.played_s(np.where(share > 0, full_s, usual_s)) + rest_s
    busy_j = (1.0 - share) * usual_s * true_power_w(mhz, held_mhz) + share * full_s * true_power_w(held_mhz, held_mhz)
    waiting_s = len(full_s) * (time_s - rest_s) - pipeline.microbatches * mean_s.sum()
    energy_j = pipeline.microbatches * busy_j.sum() + 84.0 * waiting_s + 150.0 * len(full_s) * rest_s
    mean_mhz = ((1.0 - share) * mhz + share * TOP_MHZ).mean(axis=1)
    return Iteration(time_s, float(energy_j), mean_mhz, mean_s, usual_s)


def test_plans_of_a_truth_that_the_law_cannot_represent_are_foretold() -> None:
    nothing = Iteration(1.0, 1.0, np.full(3, TOP_MHZ), UNEVEN_S, UNEVEN_S)
    dag = named("1f1b", stages=3, microbatches=16, ask=False).dag
    bare = Pipeline(dag, 16, GPU, 83.64, np.array([0.93, 0.88]), nothing, nothing, np.full(3, 1050.0))
    unset = true_iteration(bare, np.full((3, 2), TOP_MHZ))
    fast_mhz = np.array([[1230.0, 1200.0], [1050.0, 1050.0], [1050.0, 1050.0]])
    known = replace(bare, unset=unset, fastest=true_iteration(bare, fast_mhz, np.array([0.0, 0.08, 0.08])))
    fitted = Fitted(known)
    for slowest_mhz in (1050.0, 1090.0, 1130.0):
        truth = true_iteration(bare, np.array([[slowest_mhz] * 2, [1050.0] * 2, [1050.0] * 2]))
        said = fitted.predict(truth.mean_mhz)
        assert said.time_s == pytest.approx(truth.time_s, rel=0.02)
        assert said.energy_j == pytest.approx(truth.energy_j, rel=0.03)
        assert abs(said.time_s - truth.time_s) <= 3.0 * said.time_error_s
    # The calibration itself comes back, whatever the law misses.
    again = fitted.predict(known.fastest.mean_mhz)
    assert again.time_s == pytest.approx(known.fastest.time_s, rel=1e-9)
    assert again.energy_j == pytest.approx(known.fastest.energy_j, rel=1e-9)


def one_workload(data: Path, folder: Path, factor: float) -> Path:
    """The folder with BERT alone, times and energies of the rows that are predicted multiplied."""
    for name in ("measured_frontiers.csv", "instruction_times.csv"):
        with (data / "perseus" / name).open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["model"].startswith("bert")]
        last = max(int(row["plan"]) for row in rows if row["system"] == "perseus")
        for row in rows:
            if "iter_time_s" in row and (row["system"] != "perseus" or 0 < int(row["plan"]) < last):
                for column in ("iter_time_s", "iter_energy_J"):
                    row[column] = str(factor * float(row[column]))
        (folder / "perseus").mkdir(parents=True, exist_ok=True)
        with (folder / "perseus" / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    (folder / "perseus" / "stage_profile").symlink_to(data / "perseus" / "stage_profile")
    return folder


def test_nothing_of_a_predicted_plan_but_its_clocks_is_used(data: Path, tmp_path: Path) -> None:
    said = []
    for name, factor in (("true", 1.0), ("false", 3.0)):
        (workload,) = frontier_measured.read(one_workload(data, tmp_path / name, factor), ["A100"])
        _, plans = frontier_measured.scored(workload)
        said.append([each.said for each in plans])
    assert len(said[0]) == 28
    assert said[0] == said[1]


@pytest.mark.exhaustive
def test_measured_iterations_are_foretold_within_two_and_three_percent(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frontier_measured.main(["--json", "--data", str(data)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    names = [name for name in figures if name.endswith("_time_mape") and name.startswith("measured_")]
    assert len(names) == 5  # four workloads, and all plans
    for name in names:
        assert figures[name] <= 2.0
        assert figures[name.replace("_time_", "_energy_")] <= 3.0
    assert figures["measured_time_mape"] < 0.5 * figures["as_fastest_time_mape"]
    assert min(figures["time_within_2_errors"], figures["energy_within_2_errors"]) >= 0.85


def test_a_jump_to_other_kernels_does_not_hide_how_times_follow_the_clock(tmp_path: Path) -> None:
    lines = ["stage,instruction,frequency,time,energy"]
    for clock in range(900, 1500, 15):
        for kind, share in (("forward", 0.8), ("backward", 0.5)):
            time_s = 0.1 * (share * 1485.0 / clock + 1.0 - share)
            jump = 0.93 if kind == "backward" and clock < 1000 else 1.0
            lines.append(f"0,{kind},{clock},{jump * time_s},10.0")
    path = tmp_path / "profile.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert frontier_measured.sm_share(path) == pytest.approx([0.8, 0.5], abs=0.04)


def test_a_folder_without_the_files_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frontier_measured.main(["--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
