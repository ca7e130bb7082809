"""``joulewise run --set`` as a user has it: GPUs, daemon, joulewise and the command are processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.remote import RemoteLease
from tests import preloaded
from tests.daemon.running import RunningDaemon, Words, running_daemon, until

PYTHON = sys.executable
LIMIT = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0)))"
STAYS = ["sh", "-c", "echo ready; exec sleep 60"]
SITE_CAP_W = 650.0


def command(*flags: str, run: list[str]) -> list[str]:
    return ["run", *flags, "--", *run]


class Stage:
    """Virtual GPUs that somebody has capped, and two roads to them: through the daemon, or as root without one."""

    def __init__(self, node: RunningNode, breaker: NodeClient, daemon: RunningDaemon, words: Words, environ) -> None:
        self.node, self.breaker, self.daemon, self.words = node, breaker, daemon, words
        self._environ = node.environment(environ)

    def reset(self) -> None:
        self.breaker.fault(0, "foreign", power_limit_w=SITE_CAP_W)
        assert self.hardware() == (SITE_CAP_W, None)

    def hardware(self) -> tuple[float, tuple[int, int] | None]:
        return self.words.limit_w(0), self.words.sm_lock(0)

    def begin_daemon(self) -> None:
        """It runs, whichever road the test before took."""
        if self.daemon.process is None:
            self.daemon.start()

    def start(self, words: list[str], *, road: str = "daemon") -> preloaded.Command:
        environ = {**self._environ, "JOULEWISE_SOCKET": str(self.daemon.socket)}
        if road == "daemon":
            self.begin_daemon()
        module = "joulewise"
        if road == "guardian":
            if self.daemon.process is not None:  # it keeps all others from its GPUs, whatever their folders
                self.daemon.stop()
            # In a folder of its own where root's leases are kept, so that the machine's is left alone.
            environ["JOULEWISE_SOCKET"] = "/nowhere/daemon.sock"
            module = "tests.cli.with_own_state"
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return preloaded.Command(*words, module=module, env=environ, start_new_session=True, **pipes)

    def run(self, *flags: str, run: list[str], road: str = "daemon") -> tuple[int, str, str]:
        with self.start(command("--gpu", "nvml:0", *flags, run=run), road=road) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def stage(virtual_nvml, tmp_path_factory) -> Iterator[Stage]:
    if os.geteuid() != 0:
        pytest.skip("only root may set GPUs, virtual ones too")
    with ExitStack() as ending:
        node = ending.enter_context(spawn("sim:h200*2"))
        breaker = ending.enter_context(node.client())
        daemon = ending.enter_context(running_daemon(node, tmp_path_factory.mktemp("stage")))
        words = ending.enter_context(closing(Words(node)))
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        environ = {**kept, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        yield Stage(node, breaker, daemon, words, environ)


ROADS = pytest.mark.parametrize("road", ["daemon", "guardian"])


@ROADS
def test_what_was_set_is_in_force_meanwhile_and_back_afterwards(stage, road):
    stage.reset()
    code, out, err = stage.run(
        "--set", "power_limit_w=300", "--set", "sm_mhz=1200", "--json", "-", run=[PYTHON, "-c", LIMIT], road=road
    )
    assert code == 0, err
    seen, _, result = out.splitlines()
    assert seen == "300000"
    assert stage.hardware() == (SITE_CAP_W, None)
    assert err.splitlines()[-2:] == [
        "  SM clock at most 1200 MHz, unlocked again",
        "  power limit 300 W, restored to 650 W",
    ]
    written = json.loads(result)["set"]
    assert written["requested"] == {"power_limit_w": 300, "sm_mhz": 1200}
    assert {each["knob"]: each["ending"] for each in written["restored"]} == {
        "power_limit_w": "restored",
        "sm_mhz": "reset",
    }


@ROADS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_joulewise_ends_the_gpu_is_as_before(stage, road, number):
    stage.reset()
    argv = command("--gpu", "nvml:0", "--set", "power_limit_w=300,sm_mhz=1200", run=STAYS)
    with stage.start(argv, road=road) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            assert (stage.words.limit_w(0), stage.words.sm_lock(0)[1]) == (300.0, 1200)
            os.kill(process.pid, number)
            until(lambda: stage.hardware() == (SITE_CAP_W, None), 60.0, what="everything is back")
            process.wait(120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the command outlives a joulewise that was killed
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)


def test_the_commands_own_exit_code_is_kept(stage):
    stage.reset()
    assert stage.run("--set", "power_limit_w=300", run=["sh", "-c", "exit 7"])[0] == 7
    assert stage.hardware() == (SITE_CAP_W, None)


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        ("power_limit_w=100", 2, "power_limit_w=100 on GPU-"),
        ("power=300", 2, "no knob is called 'power'"),
        ("power_limit_w=nan", 2, "must be more than 0 W"),
        ("power_limit_w=300,sm_mhz", 2, "'sm_mhz' is no KNOB=VALUE"),
    ],
)
@ROADS
def test_what_cannot_be_set_is_one_line_and_the_command_is_not_started(stage, tmp_path, road, wanted, code, message):
    stage.reset()
    mark = tmp_path / "started"
    ended, out, err = stage.run("--set", wanted, run=["touch", str(mark)], road=road)
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert message in err
    assert not mark.exists()
    assert stage.hardware() == (SITE_CAP_W, None)


def test_what_someone_else_holds_is_refused_and_they_are_named(stage, tmp_path):
    stage.reset()
    stage.begin_daemon()
    mark = tmp_path / "started"
    with RemoteLease.take(stage.breaker.uuids[:1], ["power_limit_w"], reason="mine", socket=stage.daemon.socket):
        code, _, err = stage.run("--set", "power_limit_w=300", run=["touch", str(mark)])
    assert (code, err.count("\n"), mark.exists()) == (1, 1, False)
    assert f"pid {os.getpid()}" in err
    assert "'mine'" in err


def test_a_command_that_is_not_there_leaves_the_gpu_alone(stage):
    stage.reset()
    code, _, err = stage.run("--set", "power_limit_w=300", run=["no-such-command"])
    assert (code, err) == (127, "joulewise: command not found: no-such-command; check the name after '--'\n")
    assert stage.hardware() == (SITE_CAP_W, None)


def test_what_someone_else_sets_meanwhile_stays_and_is_said(stage):
    stage.reset()
    with stage.start(command("--gpu", "nvml:0", "--set", "power_limit_w=300", run=STAYS)) as process:
        assert process.stdout.readline() == "ready\n"
        stage.breaker.fault(0, "foreign", power_limit_w=250.0)
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert "  power limit 300 W, left at 250 W, which someone else had set meanwhile\n" in err
    assert stage.words.limit_w(0) == 250.0


WAITS = ["sh", "-c", "echo ready; read line; exit 5"]


def losing(stage: Stage, lose, tmp_path: Path, road: str = "daemon") -> tuple[str, str, dict]:
    """A run that loses what it had set by ``lose``, and goes on until it has said so."""
    stage.reset()
    argv = command("--gpu", "nvml:0", "--set", "power_limit_w=300", "--json", str(tmp_path / "result.json"), run=WAITS)
    with stage.start(argv, road=road) as process:
        assert process.stdout.readline() == "ready\n"
        lose()
        said = process.stderr.readline()  # while the command runs
        assert process.poll() is None
        _, err = process.communicate("\n", timeout=120)
    assert process.returncode == 5
    written = json.loads((tmp_path / "result.json").read_text())
    assert 0 <= written["set"]["held_s"] < written["duration_s"]
    assert f"in force for the first {written['set']['held_s']:.1f} of {written['duration_s']:.1f} s only, " in err
    return said, err, written["set"]


def test_a_lease_that_an_admin_ends_is_said_when_it_happens_and_in_the_result(stage, tmp_path):
    def end() -> None:
        with stage.daemon.connect() as root:
            (held,) = root.leases()
            root.end(held["lease"], "maintenance")

    said, err, written = losing(stage, end, tmp_path)
    assert said.startswith("joulewise: power_limit_w=300 is no longer in force: ")
    assert "maintenance" in said
    assert "maintenance" in written["ended_early"]
    assert err.count("maintenance") == 1  # once more in the summary, and not thrice
    assert "power limit 300 W, restored to 650 W" in err


@ROADS
def test_what_someone_else_sets_during_a_run_is_said_when_it_happens_and_in_the_result(stage, tmp_path, road):
    said, err, written = losing(stage, lambda: stage.breaker.fault(0, "foreign", power_limit_w=250.0), tmp_path, road)
    assert "somebody else has set 250 W" in said
    assert "somebody else has set 250 W" in written["ended_early"]
    assert err.count("which someone else had set meanwhile") == 1


def test_a_run_that_keeps_what_it_set_has_held_it_throughout(stage):
    stage.reset()
    _, out, err = stage.run("--set", "power_limit_w=300", "--json", "-", run=["sleep", "1"])
    written = json.loads(out.splitlines()[-1])
    assert (written["set"]["held_s"], written["set"]["ended_early"]) == (written["duration_s"], None)
    assert "in force" not in err


def test_what_a_bmc_holds_lower_is_said_as_what_was_in_force(stage):
    stage.reset()
    stage.breaker.fault(0, "bmc", limit_w=400.0)
    try:
        _, _, err = stage.run("--set", "power_limit_w=500", run=["true"])
    finally:
        stage.breaker.fault(0, "bmc", limit_w=None)
    assert "  power limit 500 W (400 W in force), restored to 650 W" in err


def test_the_command_goes_on_when_the_daemon_dies_and_the_summary_says_so(stage):
    stage.reset()
    with stage.start(command("--gpu", "nvml:0", "--set", "power_limit_w=300", run=WAITS)) as process:
        assert process.stdout.readline() == "ready\n"
        stage.daemon.restart()  # killed, and started again: it gives back what the first one had set
        until(lambda: stage.hardware() == (SITE_CAP_W, None), 60.0, what="everything is back")
        _, err = process.communicate("\n", timeout=120)
    assert process.returncode == 5
    assert "power_limit_w=300 is no longer in force: the daemon on " in err
    assert "power limit 300 W, whether it came back is not known: see 'joulewise doctor'" in err
    assert " s only, the daemon on " in err


def test_a_virtual_gpu_of_our_own_is_set_without_daemon_or_root_folders(virtual_nvml, environ, tmp_path):
    words = command("--gpu", "sim:h200", "--set", "power_limit_w=300", run=[PYTHON, "-c", LIMIT])
    # A daemon that the user has for other GPUs does not know this one, and is not asked.
    elsewhere = {**environ, "JOULEWISE_SOCKET": str(tmp_path / "other.sock")}
    ran = preloaded.run(*words, env=elsewhere)
    assert (ran.returncode, ran.stdout) == (0, "300000\n")
    assert ran.stderr.splitlines()[-1] == "  power limit 300 W, restored to 700 W"


def test_a_recording_cannot_be_set(recording, environ, tmp_path):
    words = command(
        "--gpu", f"replay:{recording}", "--set", "power_limit_w=300", run=["touch", str(tmp_path / "started")]
    )
    ran = preloaded.run(*words, env=environ)
    assert (ran.returncode, ran.stderr.count("\n"), (tmp_path / "started").exists()) == (1, 1, False)
    assert "joulewise can set NVIDIA's only" in ran.stderr
