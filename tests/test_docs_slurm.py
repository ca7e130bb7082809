"""What the pages tell people to do on Slurm, done on a real Slurm of two virtual nodes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from joulewise.cluster.scheduler_status import Status
from joulewise.core.errors import MissingPart
from joulewise.serve.cluster_client import ClusterClient
from joulewise.testing.slurm_site import SlurmSite, slurm_site
from joulewise.testing.slurm_site_parts import free_ports
from tests.docs_desk import Desk, instead
from tests.docs_pages import ROOT, blocks
from tests.docs_rules import scene, wrong
from tests.frameworks.installed import python_path

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.usefixtures("virtual_nvml", "may_set"),
]

LONGEST_S = 120.0


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory(prefix="jw-docs-", dir="/tmp") as folder, ExitStack() as ending:
        try:
            made = ending.enter_context(slurm_site(Path(folder), nodes=2, gpus=4, speed=20.0))
        except MissingPart as missing:
            pytest.skip(str(missing))
        yield made


@pytest.fixture
def desk(site: SlurmSite, tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.environ |= {"SLURM_CONF": site.environment["SLURM_CONF"]}
    return made


def test_a_jobs_script_measures_tunes_and_leaves_its_report(desk: Desk) -> None:
    (script,) = [each.text for each in blocks(ROOT / "docs" / "howto" / "slurm.md") if "#SBATCH" in each.text]
    (desk.folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
    said = desk.type("sbatch --wait --output job.out job.sh")
    told = (desk.folder / "job.out").read_text()
    assert said.code == 0, f"{said}\n{told}"
    number = said.words.split()[-1]
    assert f"the report is {number}.html" in told
    assert "4 × NVIDIA A100-SXM4-80GB (virtual)" in told
    assert (desk.folder / f"{number}.html").stat().st_size > 5_000


@pytest.mark.exhaustive
def test_torchrun_on_two_nodes_is_measured_on_each(site: SlurmSite, tmp_path: Path, peers_python: Path) -> None:
    desk = Desk(tmp_path, python=peers_python)  # of PyTorch only the launcher: what it launches need not load it
    (tmp_path / "installed").mkdir()
    (port,) = free_ports(1)
    desk.environ |= {
        "SLURM_CONF": site.environment["SLURM_CONF"],
        "PYTHONPATH": python_path(tmp_path / "installed"),
        "HEAD": f"127.0.0.1:{port}",
    }
    ((command, _),) = [each for each in scene("slurm") if "torchrun" in each[0].text]
    smaller = {
        "^srun": "srun --nodes 2 --gres=gpu:1",
        "--nnodes 4": "--nnodes 2",
        "--nproc-per-node 8": "--nproc-per-node 1",
    }
    said = desk.type(instead(command.text, smaller))
    assert said.code == 0, said
    assert said.words.count("epoch 3 val_acc") == 2
    assert said.words.count("W on average  NVIDIA A100-SXM4-80GB (virtual)") == 2


@pytest.mark.exhaustive
def test_a_partition_is_run_as_its_page_says(site: SlurmSite, desk: Desk) -> None:
    (port,) = free_ports(1)
    server = f"http://127.0.0.1:{port}"
    desk.environ["JOULEWISE_HOME"] = str(desk.folder / "home")  # and not this machine's own socket
    desk.environ |= {"JOULEWISE_CLUSTER": server, "JOULEWISE_POWERCAP_ROOT": str(desk.folder / "no-rapl")}
    played = [(command, rule) for command, rule in scene("slurm") if not command.text.startswith("srun")]
    tokens = [command.text for command, _ in played if "serve token" in command.text]
    for text in tokens:
        said = desk.type(f"umask 077; {text}")
        assert said.code == 0, said
    desk.environ["JOULEWISE_TOKEN"] = (desk.folder / "operator.token").read_text().strip()
    ups = [command.text for command, _ in played if "cluster up" in command.text]
    (agent,) = [command.text for command, _ in played if "cluster agent" in command.text]
    asked = [each for each in played if each[0].text.split()[2] in ("submit", "cap")]
    with desk.left_running(f"{ups[0]} --port {port}", ready="scheduling on unix:"), ExitStack() as ending:
        for name, node in site.nodes.items():
            here = {r"\$\(hostname -s\)": name, "http://head:8746": server}
            here |= {"/etc/joulewise/cluster.token": str(desk.folder / f"{name}.token")}
            own = f"--socket {node.socket} --grants {node.grants} --state {node.folder / 'agent'} --host-watts 400"
            assert node.simulator is not None
            there = desk.beside(node.simulator.environment(desk.environ))
            ending.enter_context(there.left_running(f"{instead(agent, here)} {own}", ready=""))
        until(desk, heard)
        for command, rule in asked:
            said = desk.type(command.text)
            assert wrong(said, command, rule) == []
            if "submit" in command.text:
                until(desk, ended)


def until(desk: Desk, so: Callable[[Status], bool]) -> None:
    """Wait until the cluster's status is so."""
    deadline_s = time.monotonic() + LONGEST_S
    client = ClusterClient(desk.environ["JOULEWISE_CLUSTER"], desk.environ["JOULEWISE_TOKEN"])
    while not so(status := client.status()):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.2)


def heard(status: Status) -> bool:
    return all(node.power_w is not None for node in status.nodes)


def ended(status: Status) -> bool:
    return all(job.state == "ended" for job in status.jobs if job.name == "night-7")
