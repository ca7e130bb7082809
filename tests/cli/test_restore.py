"""``joulewise restore`` with a daemon that lives, one that was killed, and none: each a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from joulewise.core.knob import Setting
from joulewise.daemon import grants
from joulewise.daemon.grants import Grant
from joulewise.device.lease import Owner
from joulewise.device.node import NodeClient, spawn
from joulewise.device.remote import RemoteLease
from joulewise.device.saved import Entry, Saved
from tests import preloaded
from tests.daemon.running import RunningDaemon, Words, running_daemon, until
from tests.daemon.someone import Someone

SITE_CAP_W = 650.0
SITE = """
[baseline."*"]
memory_mhz = 1593
[[rule]]
users = "*"
needs = "nothing"
"""
SETTING = Setting(power_limit_w=300, sm_mhz=1200)


class Stage:
    def __init__(self, breaker: NodeClient, daemon: RunningDaemon, words: Words, environ: dict[str, str]) -> None:
        self.breaker, self.daemon, self.words, self.environ = breaker, daemon, words, environ
        self.uuids = breaker.uuids

    def reset(self) -> None:
        if self.daemon.process is None:
            self.daemon.start()
        for index in range(2):
            self.breaker.fault(index, "foreign", power_limit_w=SITE_CAP_W)

    def hardware(self, index: int = 0) -> tuple[float, tuple[int, int] | None]:
        return self.words.limit_w(index), self.words.sm_lock(index)

    def lease(self, *uuids: str) -> RemoteLease:
        lease = RemoteLease.take(uuids or self.uuids, list(SETTING), socket=self.daemon.socket)
        lease.apply(SETTING)
        return lease

    def restore(self, *flags: str) -> subprocess.CompletedProcess[str]:
        paths = {"--state": self.daemon.state, "--grants": self.daemon.grants, "--socket": self.daemon.socket}
        paths["--site"] = self.daemon.site
        words = [str(word) for flag, path in paths.items() if flag not in flags for word in (flag, path)]
        return preloaded.run("restore", *words, *flags, env=self.environ)


@pytest.fixture(scope="module")
def stage(virtual_nvml) -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("only root may set GPUs, virtual ones too")
    with ExitStack() as ending:
        # Not in pytest's folder, which every session that begins closes to other users again.
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-restore-")))
        node = ending.enter_context(spawn("sim:h200*2"))
        breaker = ending.enter_context(node.client())
        daemon = ending.enter_context(running_daemon(node, folder / "daemon", site=SITE))
        words = ending.enter_context(closing(Words(node)))
        environ = node.environment({**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")})
        yield Stage(breaker, daemon, words, environ)


def test_a_living_daemon_is_asked_to_end_its_leases(stage):
    stage.reset()
    lease = stage.lease()
    assert stage.hardware()[0] == 300.0
    ran = stage.restore()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "2 GPUs: SM clock at most 1200 MHz, unlocked again",
        "2 GPUs: power limit 300 W, restored to 650 W",
    ]
    assert [stage.hardware(index) for index in range(2)] == [(SITE_CAP_W, None)] * 2
    until(lambda: not lease.alive)
    assert "an administrator ended it: joulewise restore" in lease.release().why
    again = stage.restore()
    assert (again.returncode, again.stdout) == (0, "nothing to restore; no lease is held\n")
    named = stage.restore("--gpu", "nvml:1")
    assert (named.returncode, named.stdout) == (0, "nothing to restore; the daemon holds no such lease\n")


def test_only_the_gpu_that_was_named(stage):
    stage.reset()
    with stage.lease(stage.uuids[0]) as first, stage.lease(stage.uuids[1]) as second:
        assert stage.restore("--gpu", "nvml:0").returncode == 0
        assert (stage.hardware(0), stage.hardware(1)[0]) == ((SITE_CAP_W, None), 300.0)
        until(lambda: not first.alive)
        assert second.alive
        assert stage.restore("--gpu", stage.uuids[1]).returncode == 0
        assert stage.hardware(1) == (SITE_CAP_W, None)


def test_what_a_killed_daemon_left_is_given_back_from_its_files_and_the_second_time_nothing_is_done(stage):
    stage.reset()
    lease = stage.lease()
    stage.daemon.kill()
    assert stage.hardware()[0] == 300.0
    ran = stage.restore("--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert told["daemon"] is False
    assert {(each["knob"], each["ending"]) for each in told["restored"]} == {
        ("power_limit_w", "restored"),
        ("sm_mhz", "reset"),
    }
    assert [stage.hardware(index) for index in range(2)] == [(SITE_CAP_W, None)] * 2
    again = stage.restore()
    assert (again.returncode, again.stdout, again.stderr) == (0, "nothing to restore\n", "")
    lease.release()


def test_a_gpu_that_cannot_be_given_back_is_a_failure_until_it_can(stage):
    stage.reset()
    lease = stage.lease(stage.uuids[0])
    stage.daemon.kill()
    stage.breaker.fault(0, "lost")
    ran = stage.restore()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "power limit 300 W, NOT restored yet: " in ran.stderr
    assert "Traceback" not in ran.stderr
    stage.breaker.clear(0)
    assert stage.restore().returncode == 0
    assert stage.hardware() == (SITE_CAP_W, None)
    lease.release()


def test_what_someone_else_has_set_since_is_left_and_said(stage):
    stage.reset()
    lease = stage.lease(stage.uuids[0])
    stage.daemon.kill()
    stage.breaker.fault(0, "foreign", power_limit_w=250.0)
    ran = stage.restore()
    assert ran.returncode == 0
    assert "power limit 300 W, left at 250 W, which someone else had set meanwhile" in ran.stderr
    assert stage.hardware() == (250.0, None)
    lease.release()


def test_a_site_file_that_cannot_be_read_keeps_nothing_from_coming_back(stage, tmp_path):
    stage.reset()
    lease = stage.lease(stage.uuids[0])
    stage.daemon.kill()
    bad = tmp_path / "site.toml"
    bad.write_text("nonsense = true\n")
    ran = stage.restore("--site", str(bad))
    assert ran.returncode == 0
    assert "the site's baseline is not known, clocks are unlocked instead" in ran.stderr
    assert stage.hardware() == (SITE_CAP_W, None)
    lease.release()


def test_a_lease_of_a_living_process_is_left_to_it(stage, tmp_path):
    stage.reset()
    code = (
        "import sys\nfrom pathlib import Path\nfrom joulewise.core.knob import Setting\n"
        "from joulewise.device.local import LocalLease\nfrom joulewise.device.nvml_controls import NvmlControls\n"
        "controls, state = [NvmlControls(sys.argv[1])], Path(sys.argv[2])\n"
        "lease = LocalLease.take(controls, ['power_limit_w'], state=state, guard=False)\n"
        "lease.apply(Setting(power_limit_w=300))\nprint('set', flush=True)\nsys.stdin.read()"
    )
    stage.daemon.stop()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    argv = [sys.executable, "-c", code, stage.uuids[0], str(stage.daemon.state)]
    with subprocess.Popen(argv, env=stage.environ, **pipes) as holder:
        assert holder.stdout.readline() == "set\n"
        ran = stage.restore()
        assert (ran.returncode, ran.stdout) == (0, "")
        assert f"{stage.uuids[0]} is in the hands of pid {holder.pid}" in ran.stderr
        assert stage.hardware()[0] == 300.0
        assert stage.restore("--gpu", stage.uuids[0]).returncode == 1
        stage.daemon.start()
        ran = stage.restore()
        assert (ran.returncode, ran.stdout) == (0, "")
        assert f"{stage.uuids[0]} is in the hands of pid {holder.pid}" in ran.stderr
        assert stage.restore("--gpu", stage.uuids[0]).returncode == 1
        stage.daemon.stop()
        holder.kill()
    assert stage.restore().returncode == 0
    assert stage.hardware() == (SITE_CAP_W, None)


def test_what_may_not_be_read_is_not_taken_for_nothing(tmp_path, environ):
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    command = [sys.executable, "-m", "joulewise", "restore", "--state", str(state), "--socket", str(tmp_path / "none")]
    without_rights = ["setpriv", "--bounding-set=-all", *command]
    ran = subprocess.run(without_rights, env=environ, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"joulewise: what leases had set is kept in {state}, which only root may read; use 'sudo'\n"


def grant(stage: Stage, job: str, uid: int, *gpus: str) -> None:
    made = Grant(f"slurm-{job}", uid, gpus, None, None, time.time() + 600, job)
    grants.add(stage.daemon.grants, made)


def test_a_job_takes_its_grant_and_its_caps_along_and_no_one_elses(stage):
    stage.reset()
    grant(stage, "7", 12345, stage.uuids[0])
    grant(stage, "8", 12346, stage.uuids[1])
    with stage.lease(stage.uuids[1]) as others:
        ran = stage.restore("--job", "7", "--json")
        assert ran.returncode == 0
        assert json.loads(ran.stdout)["removed_grants"] == ["slurm-7"]
        assert others.alive
        assert stage.hardware(1)[0] == 300.0
    assert [each.name for each in grants.read(stage.daemon.grants)[0]] == ["slurm-8"]
    assert stage.restore("--job", "8").returncode == 0
    assert stage.restore("--job", "8").returncode == 0


def test_a_job_that_ends_after_the_daemon_gets_its_gpus_back(stage):
    stage.reset()
    lease = stage.lease(stage.uuids[0])
    grant(stage, "9", 12345, stage.uuids[0])
    stage.daemon.kill()
    ran = stage.restore("--job", "9")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert stage.hardware() == (SITE_CAP_W, None)
    lease.release()


def test_a_lease_that_rests_on_the_jobs_grant_on_its_second_gpu_only_ends_with_the_job(stage):
    stage.reset()
    grant(stage, "10", 12345, stage.uuids[1])
    with Someone(12345) as user:
        user("connect", str(stage.daemon.socket))
        lease = user.ask("take", gpus=list(stage.uuids), knobs=["power_limit_w"], ttl_s=30)["ok"]["lease"]
        user.ask("apply", lease=lease, setting={"power_limit_w": 400})
        other = user.ask("take", gpus=[stage.uuids[0]], knobs=["sm_mhz"], ttl_s=30)["ok"]["lease"]  # by the site's rule
        ran = stage.restore("--job", "10")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert [stage.words.limit_w(index) for index in range(2)] == [SITE_CAP_W] * 2  # on return
        assert user.ask("beat", lease=lease)["error"] == "LeaseLost"
        assert "ok" in user.ask("release", lease=other)


def test_what_a_living_daemon_cannot_give_back_is_a_failure_until_it_can(stage):
    stage.reset()
    lease = stage.lease(stage.uuids[0])
    stage.daemon.kill()
    stage.breaker.fault(0, "unsupported", groups=["LIMIT_SET"])
    stage.daemon.start()
    for flags in ([], ["--gpu", stage.uuids[0]]):
        ran = stage.restore(*flags)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert stage.uuids[0] in ran.stderr
        assert "the daemon goes on trying" in ran.stderr
    assert stage.restore("--gpu", stage.uuids[1]).returncode == 0
    told = json.loads(stage.restore("--json").stdout)
    assert list(told["pending"]) == [stage.uuids[0]]
    stage.breaker.clear(0)
    until(lambda: stage.restore().returncode == 0, 30.0)
    assert stage.words.limit_w(0) == SITE_CAP_W
    lease.release()


GONE = "GPU-deadbeef-0000-4000-8000-000000000001"


@pytest.fixture
def gone(stage) -> Iterator[str]:
    """A GPU that was taken out while somebody had set it."""
    stage.reset()
    owner = Owner("lease-old-1", 1000, 42, "python")
    with closing(Saved.open(stage.daemon.state, GONE)) as saved:
        saved.save(Entry.new("power_limit_w", 700.0, owner, 5.0), Entry.new("sm_mhz", None, owner, 5.0))
        saved.intend("power_limit_w", 300.0)
        saved.stand("memory_mhz", 1593.0)
    yield GONE
    (stage.daemon.state / f"{GONE}.jsonl").unlink(missing_ok=True)


def test_what_is_kept_of_a_gpu_that_is_gone_is_a_failure_with_the_daemon_alive_or_dead(stage, gone):
    told = []
    for _ in range(2):
        for flags in ([], ["--gpu", gone], ["--gpu", "GPU-dead"]):
            ran = stage.restore(*flags)
            assert (ran.returncode, ran.stdout) == (1, "")
            assert ran.stderr.count(f"'joulewise restore --forget {gone}'") == 1
            told.append(ran.stderr)
        if stage.daemon.process is not None:
            stage.daemon.stop()
    assert len(set(told)) == 1


def test_what_is_kept_of_a_gpu_that_is_gone_can_be_dropped_and_is_said(stage, gone):
    ran = stage.restore("--forget", "GPU-dead")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{gone}: dropped power limit (set to 300 W, 700 W before) of uid 1000 pid 42 (python)",
        f"{gone}: dropped SM clock (not set) of uid 1000 pid 42 (python)",
        f"{gone}: dropped the standing memory clock at most 1593 MHz",
    ]
    assert stage.restore().returncode == 0
    again = stage.restore("--forget", "GPU-dead")
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    assert "keeps nothing of a GPU 'GPU-dead'" in again.stderr


def test_a_file_that_cannot_be_read_can_be_dropped_too(stage, gone):
    file = stage.daemon.state / f"{gone}.jsonl"
    file.write_bytes(b"nonsense\n")
    told = json.loads(stage.restore("--forget", gone, "--json").stdout)
    assert told == {"gpu": gone, "dropped": [], "standing": {}, "damaged": True}
    assert not file.exists()
    for aside in stage.daemon.state.glob("*.corrupt-*"):
        aside.unlink()


def test_what_a_living_daemon_keeps_is_not_dropped(stage):
    stage.reset()
    with stage.lease(stage.uuids[0]):
        ran = stage.restore("--forget", stage.uuids[0])
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"is in the hands of pid {stage.daemon.pid}" in ran.stderr
        assert "nothing was dropped" in ran.stderr
        assert stage.hardware()[0] == 300.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--forget", "GPU-1", "--gpu", "nvml:0"], "--forget goes alone"),
        (["--forget", ""], "keeps nothing of a GPU ''"),
        (["--gpu", "sim:h200"], "only NVIDIA GPUs of this machine can be named here"),
        (["--job", "../7"], "--job '../7' must be 1 to 100 letters"),
    ],
)
def test_what_makes_no_sense_is_refused(stage, flags, message):
    ran = stage.restore(*flags)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert message in ran.stderr
