"""``joulewise plan profile``: an unchanged torchrun job is measured, and what comes out makes a plan."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.plan import plan_files
from tests import preloaded
from tests.frameworks.installed import python_path
from tests.peers.conftest import PEERS, ROOT, absent
from tests.scenarios.staging import staged

EXAMPLE = ROOT / "examples" / "train_pipeline.py"
LONGEST_S = 170.0


def joulewise(*arguments: str, cwd: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return preloaded.run(*arguments, cwd=cwd, env=environ, timeout=LONGEST_S)


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_a_job_that_knows_nothing_of_it_is_measured_and_a_plan_can_be_made_of_it(tmp_path: Path) -> None:
    torchrun = PEERS / "bin" / "torchrun"
    if not torchrun.exists():
        absent(f"{PEERS.name} has no torchrun; 'make peers' installs it")
    (tmp_path / "site").mkdir()
    with staged("sim:a100-sxm*2", speed=12.0, cards=3) as stage:
        environ = {**stage.environment(), "PYTHONPATH": python_path(tmp_path / "site")}
        environ |= {"OMP_NUM_THREADS": "1", "JOULEWISE_HOME": f"{tmp_path}"}
        train = [f"{torchrun}", "--nproc-per-node", "2", f"{EXAMPLE}", "--plain", "--iterations", "48"]
        done = joulewise(
            *("plan", "profile", "--json", "--out", "stages.json", "--", *train),
            *("--microbatches", "2", "--seconds", "0.3"),
            cwd=tmp_path,
            environ=environ,
        )
        assert done.returncode == 0, done.stderr
        assert all(lock is None for _, lock, _ in stage.all_hardware())
    said = json.loads(done.stdout.splitlines()[-1])
    assert "iteration  47  loss" in done.stdout
    assert said["gpu"] == "NVIDIA A100-SXM4-80GB"
    assert 50.0 < said["blocking_w"] < 110.0
    assert said["switch_s"] > 0
    words = shlex.split(said["solve"])
    solved = joulewise(*words[1:], cwd=tmp_path, environ=environ)
    assert solved.returncode == 0, solved.stderr
    plan = plan_files.read(tmp_path / "stages.plan.json")
    assert plan.profile.stages == 2
    assert plan.schedule.microbatches == 2
    assert plan.points[-1].energy_j < 0.95 * plan.baseline.energy_j
    # A forward of the first stage takes 0.3 s at the highest clock, give or take what the card is.
    assert plan.profile.options[0, "forward"][0].time_s == pytest.approx(0.3, rel=0.1)
    assert plan.identity.unstated() == []


def test_a_command_without_a_pipeline_leaves_nothing_and_is_told(tmp_path: Path, environ: dict[str, str]) -> None:
    done = joulewise("plan", "profile", "--", sys.executable, "-c", "print('hello')", cwd=tmp_path, environ=environ)
    assert done.returncode == 1
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("joulewise: nothing was measured: no process stepped a schedule")
    assert not list(tmp_path.glob("profile*"))


def test_the_commands_own_exit_code_is_kept(tmp_path: Path, environ: dict[str, str]) -> None:
    done = joulewise("plan", "profile", "--", sys.executable, "-c", "exit(7)", cwd=tmp_path, environ=environ)
    assert done.returncode == 7
    assert done.stderr == (
        "joulewise: nothing was measured: the command ended with exit code 7 before it was measured\n"
    )
    gone = joulewise("plan", "profile", "--", "no-such-command", cwd=tmp_path, environ=environ)
    assert gone.returncode == 127
    assert "command not found" in gone.stderr


def test_a_profile_that_would_be_read_as_something_else_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    done = joulewise("plan", "profile", "--out", "p.csv", "--", "true", cwd=tmp_path, environ=environ)
    assert done.returncode == 2
    assert "name it p.csv.json" in done.stderr
    nowhere = joulewise("plan", "profile", "--out", "no/p.json", "--", "true", cwd=tmp_path, environ=environ)
    assert nowhere.returncode == 2
    assert "--out no/p.json cannot be written" in nowhere.stderr
