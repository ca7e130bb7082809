"""The table itself: it must not call a scenario shown that was not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.scenario_table", "-p", "no:cacheprovider"]
TRIED = """
import pytest

def test_one(scenario):
    scenario("R1", "kill", criterion="≤ 1 s").saw("12 ms")

@pytest.mark.parametrize("part", [1, 2])
def test_parts(scenario, part):
    scenario("R2", f"part {part}", criterion="both").saw("half")
    assert part == 1

def test_skipped(scenario):
    scenario("R3", "crash", criterion="all")
    pytest.skip("no root")

@pytest.fixture
def broken():
    raise RuntimeError

def test_broken(scenario, broken):
    scenario("R4", "never got here", criterion="none")

@pytest.fixture
def ends_badly():
    yield
    raise RuntimeError

def test_ending(scenario, ends_badly):
    scenario("R5", "fails in its tear-down", criterion="none").saw("fine so far")
"""


def test_what_failed_was_skipped_or_never_ran_does_not_count_as_passed_also_over_several_processes(tmp_path: Path):
    (tmp_path / "test_tried.py").write_text(TRIED)
    ran = subprocess.run(
        [*PYTEST, "-c", "/dev/null", "--rootdir", str(tmp_path), "--scenarios", "table.json", "test_tried.py"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    table = json.loads((tmp_path / "table.json").read_text())
    wanted = {"R1": "passed", "R2": "failed", "R3": "skipped", "R5": "failed", "R6": "not run", "?": "failed"}
    assert {name: table["results"][name] for name in wanted} == wanted
    assert table["results"]["R4"] == "not run"  # its test failed before it could say what it shows: the "?"
    assert table["scenarios_passed"] == 1
    assert table["scenarios_failed"] == len(table["results"]) - 1
    assert "12 ms" in ran.stdout
    assert f"1 of {len(table['results'])} scenarios passed" in ran.stdout
