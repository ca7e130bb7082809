"""The Slurm prolog and epilog as slurmd runs them: shell scripts with SLURM_ variables and no search path."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from joulewise import native
from joulewise.device.node import RunningNode, spawn
from tests.daemon.running import RunningDaemon, Words, running_daemon
from tests.daemon.someone import Someone

SLURM = Path(__file__).parents[2] / "packaging" / "slurm"
UID = 12345


class Slurmd:
    """Runs the two scripts for a job, on a node whose joulewise keeps its files in folders of the test."""

    def __init__(self, node: RunningNode, daemon: RunningDaemon, folder: Path) -> None:
        self.daemon = daemon
        self._virtual = {name: node.environment({})[name] for name in ("JOULEWISE_VNVML", "LD_LIBRARY_PATH")}
        self.joulewise = folder / "joulewise"
        grants = f"--grants {shlex.quote(str(daemon.grants))}"
        owed = f"--state {shlex.quote(str(daemon.state))} --socket {shlex.quote(str(daemon.socket))}"
        self.joulewise.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *restore*) set -- "$@" {owed};; esac\n'
            f'exec {shlex.quote(sys.executable)} -m joulewise "$@" {grants}\n'
        )
        self.joulewise.chmod(0o755)

    def __call__(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        given = {**self._virtual, "JOULEWISE": str(self.joulewise), **environ}
        return subprocess.run([str(SLURM / script)], env=given, capture_output=True, text=True, timeout=60)

    def grants(self) -> dict[str, dict[str, object]]:
        return {path.stem: json.loads(path.read_text()) for path in self.daemon.grants.glob("*.json")}


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[Slurmd, tuple[str, ...], Words]]:
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if os.geteuid() != 0:
        pytest.skip("only root runs a prolog")
    with ExitStack() as ending:
        # Not in pytest's folder, which every session that begins closes to other users again.
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-")))
        node = ending.enter_context(spawn("sim:h200*4"))
        daemon = ending.enter_context(running_daemon(node, folder / "daemon", site="rule = []\n"))
        with node.client() as client:
            uuids = client.uuids
        yield Slurmd(node, daemon, folder), uuids, ending.enter_context(closing(Words(node)))


def job(number: str, gpus: str, **more: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": number, "SLURM_JOB_UID": str(UID), "SLURM_JOB_GPUS": gpus, **more}


def test_the_prolog_gives_the_jobs_user_the_jobs_gpus_until_the_jobs_end(stage):
    slurmd, uuids, _ = stage
    end = int(time.time()) + 7200
    ran = slurmd("prolog.sh", **job("101", "0,2-3", SLURM_JOB_END_TIME=str(end)))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    made = slurmd.grants()["slurm-101"]
    assert (made["uid"], made["job"], made["gpus"]) == (UID, "101", [uuids[0], uuids[2], uuids[3]])
    assert made["expires_unix_s"] == pytest.approx(end + 600, abs=30)
    second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    wanted = "/system.slice/slurmstepd.scope/job_101" if second else f"/slurm/uid_{UID}/job_101"
    assert made["cgroup"] == wanted
    ran = slurmd("epilog.sh", **job("101", "0,2-3"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert slurmd.grants() == {}


def test_a_lease_by_right_of_the_grant_ends_with_the_epilog(stage):
    slurmd, uuids, words = stage
    with Someone(UID) as user:
        user("connect", str(slurmd.daemon.socket))
        refused = user.ask("take", gpus=[uuids[1]], knobs=["power_limit_w"], ttl_s=30)
        assert refused["error"] == "NotPermitted"
        assert slurmd("prolog.sh", **job("102", "1", JOULEWISE_CGROUP="none")).returncode == 0
        lease = user.ask("take", gpus=[uuids[1]], knobs=["power_limit_w"], ttl_s=30)["ok"]["lease"]
        assert "ok" in user.ask("apply", lease=lease, setting={"power_limit_w": 400})
        assert words.limit_w(1) == 400.0
        assert slurmd("epilog.sh", **job("102", "1")).returncode == 0
        assert words.limit_w(1) == 700.0  # on return, not some time later: the next job may start now
        assert user.ask("take", gpus=[uuids[1]], knobs=["power_limit_w"], ttl_s=30)["error"] == "NotPermitted"


def test_the_epilog_gives_back_what_a_daemon_that_died_had_set(stage):
    slurmd, uuids, words = stage
    slurmd("prolog.sh", **job("103", "2", JOULEWISE_CGROUP="none"))
    with Someone(UID) as user:
        user("connect", str(slurmd.daemon.socket))
        lease = user.ask("take", gpus=[uuids[2]], knobs=["power_limit_w", "sm_mhz"], ttl_s=30)["ok"]["lease"]
        user.ask("apply", lease=lease, setting={"power_limit_w": 400, "sm_mhz": 1200})
        slurmd.daemon.kill()
    assert words.limit_w(2) == 400.0
    assert slurmd("epilog.sh", **job("103", "2")).returncode == 0
    assert (words.limit_w(2), words.sm_lock(2)) == (700.0, None)
    slurmd.daemon.start()


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_a_job_without_gpus_is_none_of_our_business(stage, script):
    slurmd, _, _ = stage
    ran = slurmd(script, SLURM_JOB_ID="104", SLURM_JOB_UID=str(UID), JOULEWISE="/nowhere/joulewise")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_prolog_that_cannot_give_does_not_fail_the_job(stage):
    slurmd, _, _ = stage
    ran = slurmd("prolog.sh", **job("105", "0", JOULEWISE="/nowhere/joulewise"))
    assert ran.returncode == 0
    assert "no grant for job 105; it runs, but may not set its GPUs" in ran.stderr


def test_an_epilog_without_joulewise_drains_the_node_only_if_something_is_left_there(stage, tmp_path):
    slurmd, uuids, _ = stage
    folders = {"JOULEWISE_STATE": str(tmp_path / "state"), "JOULEWISE_GRANTS": str(tmp_path / "grants")}
    missing = job("105", "0", JOULEWISE="/nowhere/joulewise", **folders)
    assert slurmd("epilog.sh", **missing).returncode == 0  # no folders at all
    for folder in ("state", "grants"):
        (tmp_path / folder).mkdir()
    ran = slurmd("epilog.sh", **missing)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    for left in (tmp_path / "state" / f"{uuids[0]}.jsonl", tmp_path / "grants" / "slurm-105.json"):
        left.touch()
        ran = slurmd("epilog.sh", **missing)
        assert ran.returncode == 1
        assert f"{left} is there, but /nowhere/joulewise is not" in ran.stderr
        left.unlink()


def test_an_epilog_that_cannot_give_back_drains_the_node(stage):
    slurmd, _, _ = stage
    assert slurmd("epilog.sh", **job("106", "0", JOULEWISE="false")).returncode != 0


def test_what_slurm_says_is_never_run_as_a_command(stage, tmp_path):
    slurmd, _, _ = stage
    trap = tmp_path / "trap"
    evil = f"1; touch {trap}; $(touch {trap})"
    slurmd("prolog.sh", **job(evil, evil, SLURM_JOB_END_TIME=evil))
    slurmd("epilog.sh", **job(evil, evil))
    assert not trap.exists()
    assert slurmd.grants() == {}


def test_where_the_scheduler_sets_clocks_a_job_only_claims_its_gpus(stage, tmp_path):
    slurmd, uuids, _ = stage
    settings = tmp_path / "slurm.env"
    settings.write_text("JOULEWISE_MANAGED=1\n")
    managed = {"JOULEWISE_SETTINGS": str(settings)}
    ran = slurmd("prolog.sh", **job("107", "0-1", **managed))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    made = slurmd.grants()["slurm-107"]
    assert (made["job"], made["gpus"], made["knobs"]) == ("107", [uuids[0], uuids[1]], {})
    assert slurmd("epilog.sh", **job("107", "0-1", **managed)).returncode == 0
    assert slurmd.grants() == {}
    ran = slurmd("prolog.sh", **job("108", "0", JOULEWISE_MANAGED="1", JOULEWISE="/nowhere/joulewise"))
    assert ran.returncode == 0
    assert "no claim for job 108; it runs, but the scheduler cannot set its GPUs" in ran.stderr


@pytest.mark.parametrize(
    ("script", "name"), [("suspend.sh", "JOULEWISE_POWER_OFF"), ("resume.sh", "JOULEWISE_POWER_ON")]
)
def test_the_power_programs_give_each_node_to_the_sites_own_command(tmp_path, script, name):
    said = tmp_path / "said"
    board = tmp_path / "board"
    board.write_text(f'#!/bin/sh\necho "$@" >> {said}\n[ "$1" != n2 ]\n')
    hostnames = tmp_path / "scontrol"
    hostnames.write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n")
    for each in (board, hostnames):
        each.chmod(0o755)
    text = (SLURM / script).read_text()
    program = tmp_path / script
    program.write_text(text.replace("PATH=/usr/sbin", f"PATH={tmp_path}:/usr/sbin"))
    program.chmod(0o755)
    settings = tmp_path / "slurm.env"
    settings.write_text(f"{name}={board}\n")

    def run(**environ):
        return subprocess.run([program, "n[1-3]"], env=environ, capture_output=True, text=True, timeout=60, check=False)

    ran = run(JOULEWISE_SETTINGS=str(settings))
    assert said.read_text().split() == ["n1", "n2", "n3"]
    assert ran.returncode == 1
    assert f"'{board} n2' failed with 1" in ran.stderr
    ran = run(JOULEWISE_SETTINGS="/nowhere")
    assert ran.returncode == 1
    assert f"{name} names no command in /nowhere; n[1-3] stays as it is" in ran.stderr
