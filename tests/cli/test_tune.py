"""``joulewise run --tune`` as a user has it: virtual GPUs, joulewise and the command are processes of their own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.device.node import spawn
from joulewise.report import frame
from joulewise.store import Database, SqliteJournal, views
from tests import preloaded
from tests.daemon.running import Words, running_daemon, until

PYTHON = sys.executable
ROOT = Path(__file__).parents[2]
TRAIN = str(ROOT / "examples" / "train_virtual.py")
NOT_MINE = 54321  # a user that is nobody here


@pytest.fixture
def environ(environ, tmp_path):
    return {**environ, "JOULEWISE_HOME": str(tmp_path / "home"), "JOULEWISE_SOCKET": str(tmp_path / "none.sock")}


def tune(*flags, run, environ, gpu=("--gpu", "sim:h200", "--speed", "20")):
    return preloaded.run("run", *gpu, "--tune", *flags, "--", *run, env=environ)


def script(tmp_path, text):
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(text))
    file.chmod(0o644)
    return [PYTHON, str(file)]


# What is wrong is said before the command starts.


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tune", "--set", "sm_mhz=1200"], "--tune and --set cannot be had together"),
        (["--max-slowdown", "2%"], "--max-slowdown is about tuning; add --tune"),
        (["--dry-run"], "--dry-run is about tuning"),
        (["--tune", "--max-slowdown", "-1%"], "outside 0 to 100%"),
        (["--tune", "--max-slowdown", "nan"], "no slowdown; write 2% or 0.02"),
        (["--tune", "--max-slowdown", "300%"], "outside 0 to 100%"),
        (["--tune", "--objective", "speed"], "none of energy, money, edp, ed2p, zeus"),
        (["--tune", "--report", "/nowhere/at/all.html"], "--report /nowhere/at/all.html cannot be written"),
        (["--tune", "--objective", "money"], "needs --gpu-hour-price and --kwh-price"),
        (["--tune", "--report", "foo.txt"], "name it foo.txt.html"),
    ],
)
def test_a_bad_wish_is_one_line_and_nothing_is_started(flags, says, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", *flags, "--", "touch", str(tmp_path / "started")])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.err.count("\n")) == (2, 1)
    assert says in captured.err
    assert not (tmp_path / "started").exists()


def test_the_report_shares_its_file_with_nobody(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--tune", "--report", str(tmp_path / "x.html"), "--json", str(tmp_path / "x.html"), "--", "true"])
    assert ended.value.code == 2
    assert "--json and --report both name" in capsys.readouterr().err


def test_only_virtual_gpus_can_be_sped_up(recording, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--gpu", f"replay:{recording}", "--speed", "20", "--", "true"])
    assert ended.value.code == 2
    assert "--speed 20 is for virtual GPUs" in capsys.readouterr().err


# A command that cannot be tuned runs as ever, and a line says why.


def test_a_machine_without_a_gpu_runs_the_command_untuned(environ, tmp_path):
    hidden = {**environ, "JOULEWISE_POWERCAP_ROOT": str(tmp_path / "none"), "CUDA_VISIBLE_DEVICES": ""}
    ran = tune(run=["sh", "-c", "echo ran; exit 3"], environ=hidden, gpu=())
    assert (ran.returncode, ran.stdout) == (3, "ran\n")
    assert "not tuned: there is no GPU" in ran.stderr


def test_a_command_that_never_uses_a_gpu_is_let_be(virtual_nvml, environ):
    ran = tune(run=["sh", "-c", "exit 5"], environ=environ)
    assert ran.returncode == 5
    assert "joulewise: not tuned: the command ended without having used a GPU (virtual, sim:h200); a " in ran.stderr
    assert "'joulewise sim --couple torch' or joulewise.device.work.work: docs/virtual-gpus.md" in ran.stderr


def test_a_command_that_ends_before_it_can_be_measured_is_said_so(virtual_nvml, environ, tmp_path):
    job = script(tmp_path, "from joulewise.device.work import work\nfor _ in range(3): work('transformer')")
    ran = tune("--json", "-", run=job, environ=environ)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout.splitlines()[-1])["tune"]
    assert answer["held"] is None
    assert answer["untuned"]
    assert f"not tuned: {answer['untuned']}" in ran.stderr


def test_a_command_that_goes_into_the_background_is_told_about(virtual_nvml, environ, tmp_path):
    job = script(
        tmp_path,
        """
        import os, sys
        from joulewise.device.work import work
        reads, writes = os.pipe()
        if os.fork():
            os.read(reads, 1)  # it is at work
            os._exit(0)
        os.setsid()
        sys.stdout.close(); os.close(1); os.close(2)
        for step in range(2000):
            work('transformer')
            if step == 20: os.write(writes, b'.')
        """,
    )
    ran = tune(run=job, environ=environ)
    assert ran.returncode == 0
    assert "the command went into the background: process" in ran.stderr
    assert "run it in the foreground" in ran.stderr


def test_mig_is_never_set(virtual_nvml, environ, tmp_path):
    with spawn("sim:h200") as node, node.client() as breaker:
        breaker.fault(0, "mig")
        ran = tune(run=["true"], environ=node.environment(environ), gpu=())
    assert ran.returncode == 0
    assert "not tuned: 0 NVIDIA H200: MIG is on" in ran.stderr


JOB = """
import os, sys, joulewise
from joulewise.device.work import launch
print(os.getpid(), flush=True)
for _ in range(int(sys.argv[1])):
    launch([(0.25, 0.6, 350.0)])
    joulewise.step()
"""
AS_SOMEONE = [PYTHON, str(Path(__file__).with_name("as_someone.py")), str(NOT_MINE)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set virtual GPUs, or become another user")


class Stage:
    """A virtual GPU that lives twenty times as fast, its daemon, and a user who is not root."""

    def __init__(self, ending, environ):
        # Not in pytest's folders: whoever starts another pytest closes those to other users.
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-tune-")))
        folder.chmod(0o755)
        self.node = ending.enter_context(spawn("sim:h200", speed=20))
        self.daemon = ending.enter_context(running_daemon(self.node, folder / "daemon"))
        self.words = ending.enter_context(closing(Words(self.node)))
        (folder / "user").mkdir()
        os.chown(folder / "user", NOT_MINE, NOT_MINE)
        (folder / "job.py").write_text(JOB)
        (folder / "job.py").chmod(0o644)
        self.folder = folder / "user"
        socket = {"JOULEWISE_SOCKET": str(self.daemon.socket), "JOULEWISE_HOME": str(self.folder)}
        self.environ = {**self.node.environment(environ), **socket}
        # By a shell: whether this user may execute root's interpreter, only trying tells.
        self.job = ["sh", "-c", 'exec "$0" "$@"', PYTHON, str(folder / "job.py")]

    def start(self, *flags, steps=0, run=(), before=AS_SOMEONE, **environ):
        argv = [*before, PYTHON, "-m", "joulewise", "run", *flags, "--", *(run or (*self.job, str(steps)))]
        return subprocess.Popen(
            argv,
            env={**self.environ, **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hardware(self):
        return self.words.limit_w(0), self.words.sm_lock(0)


@pytest.fixture
def stage(virtual_nvml, environ):
    with ExitStack() as ending:
        yield Stage(ending, environ)


@needs_root
def test_without_rights_the_command_runs_and_gets_advice(stage):
    with stage.start("--tune", steps=150, JOULEWISE_SOCKET="/nowhere/daemon.sock") as ran:
        _, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    assert err.startswith("joulewise: would set ")
    assert "not tuned: setting GPUs takes root, or the daemon" in err
    assert stage.daemon.audited(op="take") == []


@needs_root
def test_a_second_tuner_leaves_the_gpu_to_the_first(stage):
    with stage.start("--set", "sm_mhz=1500", run=["sh", "-c", "echo up; exec sleep 60"], before=[]) as first:
        try:
            assert first.stdout.readline() == "up\n"
            with stage.start("--tune", steps=200, before=[]) as second:
                _, err = second.communicate(timeout=120)
        finally:
            first.terminate()
            first.communicate()
    assert second.returncode == 0, err
    said = [line for line in err.splitlines() if f"pid {first.pid}" in line]
    assert said[-1].startswith("joulewise: not tuned: SM clock of GPU-")
    assert len(said) <= 2  # once when it happened, once at the end
    assert "not tuned: nothing" not in err
    assert "joulewise verify" not in err


@needs_root
def test_a_gpu_without_activity_counters_is_tuned_all_the_same(stage):
    with stage.node.client() as breaker:
        breaker.fault(0, "unsupported", groups=["gpm"])
    with stage.start("--tune", "--json", "-", steps=400, before=[]) as ran:
        out, err = ran.communicate(timeout=120)
    assert ran.returncode == 0, err
    answer = json.loads(out.splitlines()[-1])["tune"]
    assert answer["untuned"] is None
    assert answer["changes"][0]["what"] == "baseline"
    assert {each["what"] for each in answer["changes"]} & {"probe", "verify"}


def test_a_store_that_cannot_be_used_costs_the_keeping_and_not_the_tuning(virtual_nvml, environ, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "joulewise.db").write_bytes(b"damaged" * 100)
    report = tmp_path / "r.html"
    job = [*script(tmp_path, JOB), "400", "--api-key", "SECRET123"]
    ran = tune("--json", "-", "--report", str(report), run=job, environ=environ)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "this run is not kept" in ran.stderr
    assert "joulewise verify" not in ran.stderr
    answer = json.loads(ran.stdout.splitlines()[-1])["tune"]
    assert answer["kept"] is False
    assert answer["changes"][0]["what"] == "baseline"  # the tuner went to work all the same
    page = report.read_text()
    assert "nobody can verify this page" in page
    assert "--api-key ***" in page
    assert "SECRET123" not in page
    checked = preloaded.run("verify", report, env=environ)
    assert checked.returncode == 2
    assert "journal could not be kept" in checked.stderr


def test_only_the_gpus_that_a_command_uses_are_tuned(virtual_nvml, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", environ["JOULEWISE_HOME"])
    job = script(tmp_path, JOB)
    ran = tune(run=[*job, "150"], environ=environ, gpu=("--gpu", "sim:h200*2", "--speed", "20"))
    assert ran.returncode == 0, ran.stderr
    (run,) = views.runs(Database())
    assert len(run.facts["gpus"]) == 1


@needs_root
@pytest.mark.slow
def test_a_user_without_roots_rights_tunes_through_the_daemon_and_a_kill_restores(stage):
    before = stage.hardware()
    with stage.start("--tune", "--max-slowdown", "10%", steps=100_000) as ran:
        job = int(ran.stdout.readline())
        try:
            until(lambda: stage.words.sm_lock(0) is not None, 120, what=stage.daemon.stderr())
            assert ran.poll() is None
            ran.kill()
            until(lambda: stage.hardware() == before, 120)
        finally:
            ran.kill()
            os.kill(job, signal.SIGKILL)  # the command outlives us, as it should
            ran.communicate()
    (run,) = views.runs(Database(stage.folder / "joulewise.db"))
    assert run.finished is None
    assert run.facts["gpu_names"] == ["NVIDIA H200"]


# And one that can.


@pytest.mark.slow
def test_a_job_is_tuned_reported_and_verified_and_the_gpu_is_as_before(virtual_nvml, environ, tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", environ["JOULEWISE_HOME"])
    report, result = tmp_path / "report.html", tmp_path / "result.json"
    flags = ["--max-slowdown", "5%", "--report", str(report), "--json", str(result), "--seed", "7"]
    flags += ["--kwh-price", "0.3", "--gpu-hour-price", "3", "--host-watts", "500"]
    job = [PYTHON, TRAIN, "--epochs", "1", "--steps", "800", "--workload", "transformer"]
    ran = tune(*flags, run=job, environ=environ)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(result.read_text())["tune"]
    assert answer["untuned"] is None
    assert {each["what"] for each in answer["changes"]} >= {"baseline", "verify"}
    assert ran.stderr.startswith(f"joulewise: {answer['headline']}")
    assert f"<h1>{frame.text(answer['headline'])}</h1>" in report.read_text()
    (run,) = views.runs(Database())
    assert run.name == answer["run"]
    assert (run.facts["seed"], run.facts["bound"], run.facts["kwh_price"]) == (7, 0.05, 0.3)
    assert run.finished is not None
    checked = preloaded.run("verify", report, env=environ)
    assert checked.returncode == 0, checked.stdout
    assert len(list(SqliteJournal(Database(), run.name).read())) > 10
