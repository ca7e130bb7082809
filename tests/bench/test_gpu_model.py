"""The bench of the law works on files it has never seen, and on the public ones reaches what it must."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bench import gpu_model, public_sweeps
from joulewise.core.errors import BadSpec
from joulewise.model.fit import Point, Series
from joulewise.model.physics import Chip, Load, operate

# A GPU that is in no catalogue.
STRANGER = Chip(
    sm_max_mhz=2200.0,
    memory_max_mhz=1000.0,
    sm_floor=0.15,
    static_w=60.0,
    idle_w=55.0,
    deep_idle_w=20.0,
    volt_knee=0.6,
    volt_floor=0.6,
    overlap=1.8,
)


def write(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def draw_loads(count: int, draw: np.random.Generator) -> list[Load]:
    return [
        Load(
            gpu_s=float(draw.uniform(5.0, 50.0)),
            sm_share=float(draw.uniform(0.4, 1.0)),
            dynamic_w=float(draw.uniform(150.0, 420.0)),
            host_s=float(draw.uniform(0.0, 10.0)),
        )
        for _ in range(count)
    ]


@pytest.fixture
def zeus_file(tmp_path: Path) -> Path:
    draw = np.random.default_rng(1)
    rows: list[list[object]] = []
    for index, load in enumerate(draw_loads(9, draw)):
        for limit_w in (120, 160, 200, 240, 280, 320, 360):
            seen = operate(STRANGER, load, limit_w=limit_w)
            noise = np.exp(0.01 * draw.normal(size=2))
            rows.append(
                [
                    f"set{index // 3}",
                    "net",
                    2 ** (index % 3),
                    "sgd",
                    limit_w,
                    *(seen.step_s, seen.average_power_w) * noise,
                ]
            )
    columns = ["dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power"]
    return write(tmp_path / "summary_power_stranger.csv", columns, rows)


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    draw = np.random.default_rng(2)
    rows: list[list[object]] = []
    for name, load in zip("abc", draw_loads(3, draw), strict=True):
        for clock in (1000, 1300, 1600, 1900, 2200):
            for limit_w in (150, 250, 350):
                seen = operate(STRANGER, load, lock_mhz=clock, limit_w=limit_w)
                watt_hours = seen.energy_j / 3600.0
                if name == "c":  # energy and time in rows of their own
                    rows.append(["X", name, "", clock, limit_w, watt_hours, "", ""])
                    rows.append(["X", name, "", clock, limit_w, "", "", seen.step_s])
                else:
                    rows.append(["X", name, "", clock, limit_w, watt_hours, seen.step_s, ""])
    rows.append(["X", "timeless", "", 1000, 150, 1.0, "", ""])
    columns = ["gpu", "bench", "mem_clock", "sm_clock", "power_limit", "energy", "time", "total_time_seconds"]
    return write(tmp_path / "grid.csv", columns, rows)


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    draw = np.random.default_rng(3)
    rows: list[list[object]] = []
    for index, load in enumerate(draw_loads(6, draw)):
        for clock in (800, 1200, 1600, 2000, 2200):
            seen = operate(STRANGER, load, lock_mhz=clock)
            rows.append([f"app{index}", "kernel", "in0", clock, 1000, seen.step_s, seen.average_power_w])
    columns = ["benchmark", "kernel", "argNo", "core_frequency", "memory_frequency", "time", "average_power"]
    return write(tmp_path / "sweep.csv", columns, rows)


def test_a_gpu_and_workloads_never_seen_give_all_figures(
    zeus_file: Path, grid_file: Path, sweep_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decisions = tmp_path / "decisions.jsonl"
    options = ["--zeus", zeus_file, "--grid", grid_file, "--sweep", sweep_file, "--decisions", decisions, "--json"]
    assert gpu_model.main([*map(str, options), "--starts", "4"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    for question in ("zeus", "zeus3", "grid", "sweep"):
        assert 0.0 < figures[f"{question}_time_mape"] < 4.0
        assert 0.0 < figures[f"{question}_power_mape"] < 4.0
    assert figures["zeus3_time_mape"] < figures["zeus3_interpolated_time_mape"]
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    guesses = [line for line in lines if line["question"] == "zeus3"]
    assert len(guesses) == 9 * 4
    assert all(len(line["seen"]) == 3 and line["limit_w"] not in [s[0] for s in line["seen"]] for line in guesses)
    errors = [abs(line["predicted_time_s"] / line["time_s"] - 1.0) for line in guesses]
    assert 100.0 * np.mean(errors) == pytest.approx(figures["zeus3_time_mape"], abs=1e-3)


def test_one_workload_alone_is_predicted_from_its_seen_points_only(zeus_file: Path) -> None:
    only = [one for one in public_sweeps.zeus(zeus_file) if one.name.startswith("set0")]
    guesses = list(gpu_model.three_seen("stranger", only, 2))
    assert len(guesses) == 3 * 4
    assert gpu_model.mape(guesses)[0] < 10.0


def test_only_the_lowest_middle_and_highest_limits_are_seen() -> None:
    limits = (300.0, 100.0, 250.0, 150.0, 200.0)
    seen, rest = gpu_model.split(Series("a", tuple(Point(1.0, 1.0, limit_w=w) for w in limits)))
    assert [p.limit_w for p in seen.points] == [100.0, 200.0, 300.0]
    assert [p.limit_w for p in rest.points] == [150.0, 250.0]


def test_energy_and_time_in_rows_of_their_own_are_joined(grid_file: Path) -> None:
    series = {one.name: one for one in public_sweeps.grid(grid_file)}
    assert {name: len(one.points) for name, one in series.items()} == {"a": 15, "b": 15, "c": 15}
    assert all(50.0 < p.power_w < 400.0 for p in series["c"].points)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dataset,network\nx,y\n", "has no column 'batch_size'"),
        ("", "has no column 'dataset'"),
        (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\na,b,1,c,100,x,50\n",
            "time_per_epoch='x' is not a number",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_status_two(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert gpu_model.main(["--zeus", str(path)]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_without_data_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    with pytest.raises(BadSpec, match="JOULEWISE_DATA is not set"):
        public_sweeps.data_folder()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_public_series_are_told_as_well_as_promised(data: Path) -> None:
    tally = gpu_model.run(
        sorted(data.glob("zeus/summary_power_*.csv")),
        data / "dvfs/a100_clock_powerlimit_grid.csv",
        sorted(data.glob("dvfs/rtx8000-dvfs-*-profile.csv")),
        starts=4,
    )
    figures = gpu_model.figures(tally.guesses)
    # Wanted: the fit within 2.5 / 2.0 %. Few starts here, so the prediction gets a little more than the full bench.
    assert figures["zeus_time_mape"] <= 2.5
    assert figures["zeus_power_mape"] <= 2.0
    assert figures["zeus3_time_mape"] <= 3.3
    assert figures["zeus3_power_mape"] <= 2.4
    assert figures["zeus3_time_mape"] < 0.5 * figures["zeus3_interpolated_time_mape"]
    assert figures["grid_time_mape"] <= 1.0
    assert figures["grid_power_mape"] <= 1.5
    assert figures["sweep_time_mape"] <= 1.5
    assert figures["sweep_power_mape"] <= 2.8
