"""Counters as a prior: what the shipped predictor says, and how another one is trained, or refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, ModelError
from joulewise.model import boosted, catalog, physics
from joulewise.model.physics import Load

pytest.importorskip("xgboost")

# As DCGM shows them on real codes: a copy kernel, and a dense product on the ordinary pipes.
STREAMING = {"sm": 0.98, "occupancy": 0.85, "tensor": 0.0, "dram": 0.88, "fp64": 0.0, "fp32": 0.06, "fp16": 0.0}
DENSE = {"sm": 0.99, "occupancy": 0.55, "tensor": 0.0, "dram": 0.05, "fp64": 0.0, "fp32": 0.6, "fp16": 0.0}


def test_the_shipped_predictor_tells_streaming_from_arithmetic() -> None:
    streaming, dense = boosted.prior(STREAMING, 0.75), boosted.prior(DENSE, 0.75)
    assert streaming is not None
    assert dense is not None
    assert streaming.mean["sm_share"] < 0.5 < 0.8 < dense.mean["sm_share"]
    assert 0.0 < streaming.spread["sm_share"] < 2.4  # surer than knowing nothing
    assert "138 measured programs" in dense.says


def test_the_shipped_predictor_says_where_it_comes_from() -> None:
    about = boosted.shipped().provenance
    assert about["examples"] == 138
    assert len(next(iter(about["files"].values()))) == 64
    assert {"date", "gpus", "points", "xgboost", "cross_validation"} <= about.keys()
    for target in boosted.shipped().targets.values():
        assert target.error < 0.9 * target.spread


def test_missing_counters_and_power_are_unknown_not_zero() -> None:
    partly = boosted.prior({"dram": 0.9}, None)
    assert partly is not None
    assert 0.0 < partly.mean["sm_share"] < 1.0
    assert boosted.prior({}, 0.5) is None
    assert boosted.prior({"colour": 0.5}, 0.5) is None


def test_without_xgboost_there_is_no_prior_and_one_note() -> None:
    code = (
        "import sys, logging; sys.modules['xgboost'] = None; logging.basicConfig(level=logging.INFO)\n"
        "from joulewise.model import boosted\n"
        "assert boosted.prior({'dram': 0.9}, 0.5) is None and boosted.prior({'dram': 0.1}, 0.5) is None\n"
        "try: boosted.train(__import__('pathlib').Path('.'))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.count("xgboost is not installed") == 1
    assert ran.stdout.startswith("ModelError training needs xgboost")
    assert "joulewise[boosted]" in ran.stdout


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty programs of eight benchmarks on an A40, of which DRAM activity tells the clock sensitivity."""
    folder = tmp_path_factory.mktemp("sweeps")
    lines = ["gpu,benchmark,series,lock_mhz,time_s,power_w,sm,dram"]
    chip = catalog.load("a40").chip
    for number in range(40):
        dram = (number * 7 % 40) / 40.0
        load = Load(0.1, sm_share=0.98 - 0.95 * dram, dynamic_w=180.0)
        for i, clock in enumerate((1740, 1500, 1260, 1020)):
            seen = physics.operate(chip, load, lock_mhz=float(clock))
            counters = f"0.95,{dram}" if i == 0 else ","
            lines.append(f"a40,b{number % 8},p{number},{clock},{seen.step_s:.6f},{seen.average_power_w:.3f},{counters}")
    (folder / "a40.csv").write_text("\n".join(lines) + "\n")
    (folder / "notes.csv").write_text("what,why\nother,thing\n")
    return folder


def test_a_predictor_is_trained_saved_and_used(sweeps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = boosted.train(sweeps, date="2026-01-02")
    assert made.provenance["files"].keys() == {"a40.csv"}
    assert made.provenance["gpus"] == ["NVIDIA A40"]
    assert made.targets["sm_share"].error < 0.6 * made.targets["sm_share"].spread
    made.save(tmp_path / "mine.json")
    assert boosted.load(tmp_path / "mine.json") == made
    monkeypatch.setenv("JOULEWISE_BOOSTED", str(tmp_path / "mine.json"))
    low, high = (boosted.prior({"sm": 0.95, "dram": dram}, None) for dram in (0.05, 0.9))
    assert low is not None
    assert high is not None
    assert low.mean["sm_share"] > 0.8 > 0.35 > high.mean["sm_share"]
    assert "40 measured programs" in low.says


def test_a_file_that_cannot_be_used_is_said_and_the_shipped_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"format": "another"}))
    with pytest.raises(BadSpec, match="no fitted predictor"):
        boosted.load(bad)
    monkeypatch.setenv("JOULEWISE_BOOSTED", str(bad))
    prior = boosted.prior(DENSE, 0.75)
    assert prior is not None
    assert "138" in prior.says
    assert "JOULEWISE_BOOSTED" in caplog.text


def test_a_model_that_xgboost_refuses_is_said_once_and_gives_no_prior(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in order, but for the models in it: damaged, or of a version that this xgboost cannot read."""
    path = tmp_path / "other.json"
    targets = {name: replace(target, booster=b"not a model") for name, target in boosted.shipped().targets.items()}
    boosted.Boosted(targets, boosted.shipped().provenance).save(path)
    monkeypatch.setenv("JOULEWISE_BOOSTED", str(path))
    assert boosted.prior(DENSE, 0.75) is None
    assert boosted.prior(DENSE, 0.75) is None
    assert caplog.text.count("activity counters give no prior: XGBoostError") == 1


def test_too_little_to_learn_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="0 programs of 0 benchmarks"):
        boosted.train(tmp_path)
    with pytest.raises(BadSpec, match="is not a folder"):
        boosted.train(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ("p,1500,fast,200,0.5", "time_s='fast'"),
        ("p,1500,,200,0.5", "must be given"),
        ("p,1500,1,-3,0.5", "power_w='-3'"),
        ("p,1500,1,0,0.5", "above 0"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, cells: str, why: str) -> None:
    (tmp_path / "x.csv").write_text(f"series,lock_mhz,time_s,power_w,sm\n{cells}\n")
    with pytest.raises(BadSpec, match=f"x.csv line 2.*{why}"):
        boosted.train(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_shipped_fit_can_be_made_again(data: Path, tmp_path: Path) -> None:
    name = "rtx8000-dvfs-microbenchmark-profile.csv"
    (tmp_path / name).write_bytes((data / "dvfs" / name).read_bytes())
    made = boosted.train(tmp_path, gpu="rtx8000")
    shipped = boosted.shipped()
    assert made.provenance["files"] == shipped.provenance["files"]
    assert made.targets.keys() == shipped.targets.keys()
    for key, target in made.targets.items():  # to the rounding of another machine
        assert target.error == pytest.approx(shipped.targets[key].error, rel=0.1)
