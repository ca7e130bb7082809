import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAD = """
import pytest

@pytest.mark.xdist_group("g")
@pytest.mark.parametrize("who", ["a@b", "c"])
def test_grouped(who):
    assert who == "c"

def test_plain():
    raise AssertionError

@pytest.mark.xdist_group("g")
def test_good():
    pass
"""


def pytested(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """A pytest of its own, which knows nothing of the one that runs this."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_try", f"--rootdir={folder}", *words]
    environ["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_whatever_failed_is_tried_again_in_a_group_or_not(tmp_path):
    (tmp_path / "test_bad.py").write_text(BAD)
    first = pytested(tmp_path, "-n", "2", "--dist", "loadgroup")
    assert first.returncode == 1
    assert "2 failed, 2 passed" in first.stdout
    again = pytested(tmp_path, "--last-failed", "--last-failed-no-failures", "none")
    assert again.returncode == 1
    assert "2 failed" in again.stdout
    assert "passed" not in again.stdout


def test_the_second_try_is_of_what_the_first_one_failed():
    makefile = (ROOT / "Makefile").read_text()
    assert "--last-failed --last-failed-no-failures none" in makefile
    assert '"tests.second_try"' in (ROOT / "tests" / "conftest.py").read_text()
