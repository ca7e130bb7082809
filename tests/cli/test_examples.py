"""The examples run, and say what they should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded

EXAMPLES = Path(__file__).parents[2] / "examples"


def joulewise(*args: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return preloaded.run(*args, env=environ)


def test_the_training_example_prints_like_training_and_uses_joules(environ, virtual_nvml):
    short = ["--epochs", "1", "--steps", "5", "--step-seconds", "0.1"]
    command = [sys.executable, str(EXAMPLES / "train_virtual.py"), *short]
    ran = joulewise("run", "--gpu", "sim:h200", "--", *command, environ=environ)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^epoch 1  step   5/5  loss \d\.\d{3}$", ran.stdout, re.MULTILINE)
    assert re.search(r"^joulewise: .* J in .*, \d+ W on average  NVIDIA H200 \(virtual\)$", ran.stderr, re.MULTILINE)


def test_the_training_example_says_in_one_line_that_it_needs_a_virtual_gpu(environ):
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_virtual.py")], env=environ, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "joulewise sim" in ran.stderr


def test_the_window_example_reports_every_step_and_the_whole(environ, virtual_nvml):
    ran = joulewise(
        "sim", "--gpu", "sim:h200", "--", sys.executable, str(EXAMPLES / "measure_window.py"), environ=environ
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == [*(f"step {n}" for n in range(3)), "epoch"]
    assert all("±" in line for line in lines[:4])


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_says_how_to_run_it(example):
    assert f"examples/{example}" in (EXAMPLES / example).read_text()


def test_the_ten_lines_of_the_readme_are_those_of_their_example():
    readme = (EXAMPLES.parent / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0] for line in block.splitlines() if line]
    example = [line.partition("  #")[0] for line in (EXAMPLES / "ten_lines.py").read_text().splitlines()]
    assert len(lines) == 10
    assert [line for line in lines if line not in example] == []
