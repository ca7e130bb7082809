"""The two tiers: samples are drawn by a seed, and what is skipped is said in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUITE = """
import os, pytest
from tests.tiers import examples, sample

def test_draws():
    print("drew", sample(range(100), 3, "things"), examples(50))

@pytest.mark.skipif(True, reason="only root may set")
def test_sets(): ...

@pytest.mark.skipif(True, reason="it takes root to be several users")
def test_several(): ...

def test_database():
    pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")

def test_import():
    pytest.importorskip("nowhere")
"""


def said(folder: Path, *words: str, **environ: str) -> str:
    """What pytest prints of a suite of its own."""
    (folder / "test_suite.py").write_text(SUITE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for name in ("SEED", "TESTS", "CI"):
        kept.pop(name, None)
    kept["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of what such a run costs is plugins that it has no use for
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.tiers", f"--rootdir={folder}", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def drawn(shown: str) -> str:
    return next(line for line in shown.splitlines() if "drew" in line)


def test_the_seed_that_is_printed_draws_the_same_again(tmp_path: Path) -> None:
    first = said(tmp_path)
    (seed,) = (line.split("SEED=")[1] for line in first.splitlines() if "SEED=" in line)
    assert drawn(said(tmp_path, SEED=seed)) == drawn(first)
    assert drawn(said(tmp_path, SEED=str(int(seed) + 1))) != drawn(first)


def test_under_ci_the_seed_is_the_commits(tmp_path: Path) -> None:
    assert drawn(said(tmp_path, CI="true")) == drawn(said(tmp_path, CI="true"))


def test_in_test_all_everything_is_taken(tmp_path: Path) -> None:
    shown = said(tmp_path, TESTS="all")
    assert f"drew {list(range(100))} 50" in shown
    assert "ran whole" in shown


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]], ids=["here", "two workers"])
def test_what_was_skipped_is_one_line_and_says_how_to_have_it(workers: list[str], tmp_path: Path) -> None:
    (line,) = (line for line in said(tmp_path, *workers).splitlines() if line.startswith("skipped 4: "))
    assert "2 take root (several users, GPUs that are set): run them in a container" in line
    assert "1 PostgreSQL is not installed (Debian: apt-get install postgresql)" in line
    assert "1 without nowhere: pip install -e '.[dev]'" in line
