"""Tests marked ``alone`` wait until everything else of the run has ended, and all run in one run of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import sample

ROOT = Path(__file__).parents[1]
BARE = {"PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
SUITE = """
import os, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def shared():
    yield
    time.sleep(0.2)
    note("ended")

def note(what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{what}\\n")

@pytest.mark.alone
@pytest.mark.parametrize("number", range(2))
def test_alone(number):
    note(f"alone {number}")

@pytest.mark.stack
@pytest.mark.xdist_group("site")
def test_stack():
    note("stack")

@pytest.mark.parametrize("number", range(BESIDE))
def test_beside(number, shared):
    time.sleep(0.05)
    note("beside")
    CRASHES
"""
CONFTEST = """
def pytest_configure(config):
    for mark in ("alone", "stack"):
        config.addinivalue_line("markers", mark)
"""


def notes(folder: Path, beside: int, workers: int, *, crashes: str = "") -> tuple[str, list[str]]:
    """What pytest prints of a suite of its own, and what its tests noted."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE.replace("BESIDE", str(beside)).replace("CRASHES", crashes))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "tests.alone_last", f"--rootdir={folder}"]
    done = subprocess.run(
        [*command, "-n", str(workers), "--dist", "loadgroup"],
        cwd=folder,
        env={**BARE, "PYTHONPATH": str(ROOT), "NOTES": str(folder / "notes")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr, (folder / "notes").read_text().splitlines()


@pytest.mark.sampled
@pytest.mark.parametrize(("beside", "workers"), sample([(12, 3), (1, 3), (3, 1), (0, 2)], 2, of="runs with workers"))
def test_they_run_when_the_others_and_what_they_shared_have_ended(beside: int, workers: int, tmp_path: Path) -> None:
    said, noted = notes(tmp_path, beside, workers)
    assert f"{beside + 3} passed" in said
    assert [each for each in noted if each != "ended"][-3:] == ["alone 0", "alone 1", "stack"]
    first = noted.index("alone 0")
    # The last of the workers keeps what it shares to its end.
    assert noted[first:].count("ended") <= 1
    assert noted[first:].count("beside") == 0


def test_they_run_also_where_a_worker_died_before_them(tmp_path: Path) -> None:
    once = f"Path({str(tmp_path / 'died')!r})"
    dies = f"number == 3 and not {once}.exists() and ({once}.touch(), os._exit(1))"
    said, noted = notes(tmp_path, 8, 2, crashes=dies)
    assert "1 failed" in said
    assert (noted.count("alone 0"), noted.count("alone 1"), noted.count("stack")) == (1, 1, 1)
    assert "beside" not in noted[noted.index("alone 0") :]
