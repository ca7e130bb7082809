"""A virtual Slurm site: jobs see their node's virtual GPUs, claims come and go, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from joulewise.cluster.engine import Order
from joulewise.cluster.engines.slurm import SlurmEngine
from joulewise.core.errors import MissingPart
from joulewise.testing.slurm_site import slurm_site

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm"), pytest.mark.usefixtures("virtual_nvml", "may_set")]

LONGEST_S = 90.0

STARTER = """
import sys, time
from pathlib import Path
from joulewise.testing.slurm_site import slurm_site
with slurm_site(Path(sys.argv[1]), nodes=1, gpus=1) as site:
    site.commands.run("sbatch", "--gres=gpu:1", "--output=/dev/null", "--wrap", "srun sleep 987")
    while "RUNNING" not in site.commands.run("squeue", "-h", "-o", "%T"):
        time.sleep(0.1)
    print("ready", flush=True)
    time.sleep(600)
"""


def until(so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LONGEST_S
    while not so():
        assert time.monotonic() < deadline_s, f"not so after {LONGEST_S} s"
        time.sleep(0.05)


def about(folder: str) -> list[str]:
    """Processes whose command line or environment names a folder."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and int(each.name) != os.getpid():
            try:
                said = (each / "cmdline").read_bytes() + (each / "environ").read_bytes()
            except OSError:
                continue
            if folder.encode() in said:
                found.append(f"{each.name}: {said[:200]!r}")
    return found


def test_where_there_is_no_pytest_it_serves_all_the_same():
    without = "import sys; sys.modules['pytest'] = None; import joulewise.testing.slurm_stack"
    subprocess.run([sys.executable, "-c", without], check=True)


def test_a_job_sees_its_nodes_gpus_and_claims_them_and_its_energy_is_in_accounting() -> None:
    with tempfile.TemporaryDirectory(prefix="jw-site-", dir="/tmp") as folder:
        with ExitStack() as ending:
            try:
                site = ending.enter_context(slurm_site(Path(folder), nodes=2, gpus=2, accounting=True))
            except MissingPart as missing:
                pytest.skip(str(missing))
            engine = SlurmEngine(commands=site.commands, poll_s=0.3)
            assert engine.ready() == ()
            engine.take(1)
            script = Path(folder) / "look.py"
            script.write_text(
                "import json, os, time\n"
                "from pynvml import *\n"
                "nvmlInit()\n"
                "names = [nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(i)) for i in range(nvmlDeviceGetCount())]\n"
                "open('seen', 'w').write(json.dumps([names, os.environ['CUDA_VISIBLE_DEVICES'],"
                " os.environ['JOULEWISE_NODE_GPUS']]))\n"
                "time.sleep(3)\n"
            )
            order = Order("look", (sys.executable, str(script)), 1, directory=folder)
            identity = engine.submit(order)
            engine.start("look", {"n2": 1})
            seen = Path(folder) / "seen"

            def shown() -> bool:
                engine.wait(0.3)
                return seen.exists() and seen.stat().st_size > 0

            until(shown)
            node = site.nodes["n2"]
            assert node.simulator is not None
            with node.simulator.client() as client:
                uuids = client.uuids
            assert json.loads(seen.read_text()) == [list(uuids), "0", "0"]
            (claim,) = [json.loads(path.read_text()) for path in node.grants.glob("*.json")]
            assert (claim["job"], claim["gpus"], claim["knobs"]) == (identity, [uuids[0]], {})
            assert list(site.nodes["n1"].grants.glob("*.json")) == []
            engine.account("look", 12.5)

            def over() -> bool:
                engine.wait(0.3)
                return engine.jobs()[0].state == "ended"

            until(over)
            until(lambda: not list(node.grants.glob("*.json")))
            engine.account("look", 81.5)
            said = lambda: site.commands.run("sacct", "-X", "-n", "-P", "-o", "jobid,admincomment")  # noqa: E731
            until(lambda: said().strip() == f"{identity}|joulewise energy_j=81.5")
        assert about(folder) == []


def test_a_starter_that_is_killed_leaves_no_process() -> None:
    with tempfile.TemporaryDirectory(prefix="jw-site-", dir="/tmp") as folder:
        starter = subprocess.Popen([sys.executable, "-c", STARTER, folder], stdout=subprocess.PIPE, text=True)
        try:
            assert starter.stdout is not None
            if starter.stdout.readline() != "ready\n":
                pytest.skip("Slurm is not all here; 'make system' installs it")
            assert len(about(folder)) >= 6
            starter.send_signal(signal.SIGKILL)
            starter.wait()
            until(lambda: not about(folder))
        finally:
            starter.kill()
            starter.wait()
            starter.stdout.close()
