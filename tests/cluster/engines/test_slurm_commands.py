"""Slurm's commands where no process can be started: Slurm counts as away, and the scheduler lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# A process of its own, since it uses up what it may have. Its scheduler's engine asks Slurm in each pass.
SCHEDULING = """
import json, os, resource, sys
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import first_come, toy_job
from joulewise.cluster.state import Kind

what, limit = sys.argv[2], {"descriptors": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}[sys.argv[2]]
commands = SlurmCommands({"PATH": sys.argv[1]})

class Asking(SimulatedEngine):
    def wait(self, longest_s):
        commands.run("sinfo", "--version")
        return super().wait(longest_s)

rig = Rig([Kind("toy", 1, 8, 60.0, 300.0, 15.0, 300.0, 780.0, 1980.0)], [toy_job("a", 2, work=1e9)], first_come)
rig.scheduler._sight.engine.__class__ = Asking
if what == "processes":
    os.setresuid(65534, 65534, 65534)
told = []
for most in (None, 0, None):
    soft, hard = resource.getrlimit(limit)
    if most is not None:
        resource.setrlimit(limit, (most, hard))
    for _ in range(3):
        rig.look()
    told.append(rig.scheduler.status().engine)
    resource.setrlimit(limit, (soft, hard))
print(json.dumps(told))
"""


@pytest.mark.parametrize("what", ["descriptors", "processes"])
def test_where_no_process_can_be_started_the_engine_is_away_until_it_can(what: str) -> None:
    if what == "processes" and os.geteuid() != 0:
        pytest.skip("takes root, to be a user whose processes are counted")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o755)
        program = Path(folder) / "sinfo"
        program.write_text("#!/bin/sh\necho slurm 22.05.8\n")
        program.chmod(0o755)
        ended = subprocess.run(
            [sys.executable, "-c", SCHEDULING, folder, what], capture_output=True, text=True, check=False, cwd=ROOT
        )
    assert ended.returncode == 0, ended.stderr[-500:]
    before, meanwhile, after = json.loads(ended.stdout)
    assert (before, after) == ("", "")
    assert meanwhile.startswith("'sinfo' cannot be started: ")
    assert "\n" not in meanwhile
