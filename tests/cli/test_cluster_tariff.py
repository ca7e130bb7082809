"""``joulewise cluster simulate --tariff``: grams or money beside kWh, with and without regard to the hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.clusters import SMALL, called, one_line, written


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("trace") / "trace.csv", 16)


@pytest.fixture
def tariff(tmp_path: Path) -> Path:
    path = tmp_path / "grams.json"
    path.write_text(json.dumps([400.0, 100.0] * 12), encoding="utf-8")
    return path


def test_a_budget_under_a_tariff_is_shown_beside_one_that_counts_every_joule_alike(
    trace: Path, tariff: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("simulate", trace, *SMALL, "--energy-budget", "60kWh/day", "--tariff", tariff, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    with_it, without = said["policies"]
    assert (with_it["policy"], without["policy"]) == ("priced", "priced, no tariff")
    assert with_it["over_budget"] == 0.0
    assert with_it["cost_unit"] == "g"
    grams = {each["policy"]: each["cost"] / (each["energy_j"] / 3.6e6) for each in said["policies"]}
    assert grams["priced"] < grams["priced, no tariff"]  # g/kWh
    assert any("250 g/kWh on average" in line for line in said["assumed"])


def test_without_a_budget_the_tariff_only_counts(
    trace: Path, tariff: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert called("simulate", trace, *SMALL, "--tariff", tariff) == 0
    shown = capsys.readouterr().out
    assert " kg " in shown
    assert "no tariff" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_tariff_that_makes_no_sense_is_one_line(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[1, 2]", encoding="utf-8")
    assert called("simulate", trace, *SMALL, "--tariff", bad) == 2
    assert "makes no sense" in one_line(capsys)
