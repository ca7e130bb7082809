"""``joulewise model``: a sweep becomes a model that loads, and a bad file becomes one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.device.vnvml_structs import MAX_SM_CLOCKS
from joulewise.model import catalog
from joulewise.model.physics import Load, operate

TRUTH = catalog.load("a40").chip


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two kinds of work over clocks and limits, as a user would write them down."""
    lines = ["series, lock_mhz,limit_w,time_s,power_w,remark"]
    for name, load in (("net", Load(0.2, 0.9, 280.0, 0.03)), ("gather", Load(0.1, 0.3, 160.0))):
        for lock_mhz in (600, 900, 1200, 1500, 1740):
            seen = operate(TRUTH, load, lock_mhz=lock_mhz, limit_w=300.0)
            lines.append(f"{name},{lock_mhz},300,{seen.step_s:.6f},{seen.average_power_w:.3f},")
        for limit_w in (120, 160, 200, 250):
            seen = operate(TRUTH, load, limit_w=limit_w)
            lines.append(f"{name},,{limit_w},{seen.step_s:.6f},{seen.average_power_w:.3f},by limit")
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("model", *args))])
    return int(ended.value.code or 0)


def test_a_sweep_becomes_a_model_file_that_loads(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.toml"
    assert called("fit", sweep, "--name", "My GPU", "-o", target, "--starts", 3) == 0
    out, err = capsys.readouterr()
    assert "time within" in out
    assert "columns remark are not used" in err
    model = catalog.load(str(target))
    assert model.name == "My GPU"
    assert model.sm_mhz.high == 1740.0
    assert model.sm_mhz.all()[-1] == 1740.0
    assert model.sm_mhz.low <= 600.0
    assert len(model.sm_mhz.all()) <= MAX_SM_CLOCKS  # or no simulator could run it
    assert (model.power_limit_w.low, model.default_limit_w) == (120.0, 300.0)
    assert model.fit.points == 18
    assert model.fit.time_mape is not None
    assert model.fit.time_mape < 1.0
    assert any("heat, sensors" in line for line in model.borrowed)
    half = operate(model.chip, Load(0.2, 0.9, 280.0), lock_mhz=870.0)
    assert half.step_s == pytest.approx(0.38, rel=0.01)


def test_what_is_held_stays_as_in_the_model_it_is_like(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("fit", sweep, "--name", "a40", "--like", "a40", "--hold", "idle_w", "--starts", 2, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["law"]["idle_w"] == TRUTH.idle_w
    assert answer["sm_mhz"] == {"low": 210.0, "high": 1740.0}
    assert set(answer["loads"]) == {"net", "gather"}
    assert answer["fit"]["power_mape"] < 1.0


def test_without_an_output_the_model_goes_to_stdout(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("fit", sweep, "--name", "b", "--starts", 1) == 0
    assert catalog.parse(capsys.readouterr().out, key="b").name == "b"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("", "needs the columns time_s and power_w"),
        ("time_s,limit_w\n1,2\n", "needs the columns time_s and power_w"),
        ("time_s,power_w\n1,2\n", "has none of lock_mhz"),
        ("time_s,power_w,limit_w\n", "no rows"),
        ("time_s,power_w,limit_w\n1,2,300\n1,many,300\n", "line 3: power_w='many' is not a number above 0"),
        ("time_s,power_w,limit_w\n-1,2,300\n", "line 2: time_s='-1' is not a number above 0"),
        ("time_s,power_w,limit_w\n1,,300\n", "line 2: time_s and power_w (or energy_j) must be given"),
        ("time_s,power_w,lock_mhz\n1,2,300\n", "1 points cannot fix a chip"),
        ("\x00\x01\x02", "cannot be read|needs the columns"),
    ],
)
def test_a_bad_sweep_is_one_line_with_a_way_out(
    text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_text(text)
    assert called("fit", path, "--name", "x") in (1, 2)
    err = capsys.readouterr().err.strip()
    assert len(err.splitlines()) == 1
    assert any(part in err for part in complaint.split("|"))


def test_unknown_names_are_refused(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("fit", sweep, "--name", "x", "--like", "z9000") == 2
    assert called("fit", sweep, "--name", "x", "--hold", "colour") == 2
    assert called("fit", sweep, "--name", "x", "--sm-max", 900) == 2
    assert called("fit", sweep, "--name", "x", "--starts", 1, "-o", tmp_path / "no" / "where.toml") == 2
    assert called("show", "z9000") == 2
    err = capsys.readouterr().err
    for words in ("called 'z9000'", "--hold colour", "above 900; give --sm-max", "cannot write"):
        assert words in err


def test_energy_may_stand_for_power(tmp_path: Path) -> None:
    from joulewise.cli.model import read_sweep

    path = tmp_path / "energy.csv"
    path.write_text("time_s,energy_j,limit_w\n2,300,250\n")
    [series], ignored = read_sweep(path)
    assert series.points[0].power_w == 150.0
    assert ignored == []


def test_the_list_names_every_model_and_show_gives_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("list") == 0
    listed = capsys.readouterr().out
    assert all(key in listed for key in catalog.names())
    assert called("list", "--json") == 0
    assert [model["model"] for model in json.loads(capsys.readouterr().out)["models"]] == list(catalog.names())
    assert called("show", "a40") == 0
    assert catalog.parse(capsys.readouterr().out, key="a40") == catalog.load("a40")
    assert called("show", "NVIDIA A40", "--json") == 0
    assert json.loads(capsys.readouterr().out)["model"] == "a40"


@pytest.mark.parametrize("columns", [80, 40, 24])
def test_on_a_narrow_terminal_the_list_leaves_columns_out_and_cuts_no_number(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert called("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    a40 = next(line.split() for line in lines if line.startswith("a40 "))
    assert a40[:3] == ["a40", "210–1740", "100–300"][: 3 if columns >= 40 else 2]
    assert ("idle W" in lines[0]) == (columns == 80)


def test_too_few_sweeps_train_nothing_and_say_what_is_needed(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xgboost")
    target = tmp_path / "boosted.json"
    assert called("train", sweep.parent, "-o", target) in (1, 2)
    assert "0 programs of 0 benchmarks with counters; at least 30 of 5" in capsys.readouterr().err
    assert not target.exists()


def test_sweeps_with_counters_become_a_predictor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boosted = pytest.importorskip("joulewise.model.boosted")
    pytest.importorskip("xgboost")
    lines = ["benchmark,kernel,argNo,core_frequency,memory_frequency,time,average_power,DRAMA,SMACT"]
    for number in range(40):
        dram = number / 40.0
        for clock in (900, 1200, 1500, 1740):
            seen = operate(TRUTH, Load(0.1, 0.98 - 0.95 * dram, 180.0), lock_mhz=clock)
            lines.append(
                f"b{number % 6},k,{number},{clock},7000,{seen.step_s:.6f},{seen.average_power_w:.3f},{dram},0.9"
            )
    (tmp_path / "profile.csv").write_text("\n".join(lines) + "\n")
    target = tmp_path / "mine.json"
    assert called("train", tmp_path, "-o", target, "--gpu", "a40") == 0
    assert "40 programs of 6 benchmarks" in capsys.readouterr().out
    assert "sm_share" in boosted.load(target).targets


@pytest.mark.parametrize(
    "text", [",".join(["column" * 20] * 500) + "\n1\n", f"time_s,power_w,limit_w\n1,{'many' * 20_000},300\n"]
)
def test_whatever_a_sweep_holds_what_is_said_of_it_is_a_line_to_read(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert called("fit", path, "--name", "x") == 2
    assert len(capsys.readouterr().err) < 1000 + len(str(path))
