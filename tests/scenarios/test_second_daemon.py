"""R30: a second daemon, or a process of root's with other folders, is refused by name; the first goes on untouched."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from joulewise.device.node import spawn
from tests.daemon.running import RunningDaemon, Words
from tests.scenarios.staging import SITE, SITE_CAP_W, Stage, staged, until

KNOBS = ["power_limit_w"]
WHAT = "a second daemon"
CRITERION = "refused by pid, time and socket; the first untouched; caps come back"
LOCAL = """
import json, sys
from pathlib import Path
from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import Setting
from joulewise.device.local import LocalLease
from joulewise.device.nvml_controls import NvmlControls
uuid, state, limit_w = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
try:
    lease = LocalLease.take([NvmlControls(uuid)], ["power_limit_w"], state=state, guard=False)
    lease.apply(Setting(power_limit_w=limit_w))
except JoulewiseError as error:
    print(json.dumps([type(error).__name__, str(error)]), flush=True)
else:
    print(json.dumps(["set", ""]), flush=True)
    sys.stdin.read()
    lease.release()
"""


def second(stage: Stage, folder: Path, *, same: tuple[str, ...] = ()) -> RunningDaemon:
    """A daemon that has not been started, on the same GPUs, with folders of its own but for those that are the same."""
    folder.mkdir(mode=0o755)
    daemon = RunningDaemon(stage.node, folder, SITE, [], {})
    for name in same:
        setattr(daemon, name, getattr(stage.daemon, name))
    return daemon


def kill(daemon: RunningDaemon) -> None:
    """End a daemon that a test has not ended."""
    if daemon.process is not None:
        daemon.kill()


def ran(daemon: RunningDaemon, **environ: str) -> subprocess.CompletedProcess[str]:
    """A daemon that ends by itself."""
    environment = {**daemon.node.environment(), **environ}
    return subprocess.run(daemon.command(), env=environment, capture_output=True, text=True, timeout=60)


def local(stage: Stage, state: Path, limit_w: float) -> subprocess.Popen[str]:
    """A process of root's that sets the first GPU by itself."""
    command = [sys.executable, "-c", LOCAL, stage.uuids[0], str(state), str(limit_w)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=stage.node.environment(), text=True, **pipes)


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    kind, message = json.loads(process.stdout.readline())
    return kind, message


@pytest.mark.parametrize(
    "same",
    [("socket",), ("state",), (), ("socket", "state")],
    ids=["socket", "state", "GPUs alone", "socket and state"],
)
def test_a_second_daemon_is_refused_by_name_and_the_first_goes_on(same: tuple[str, ...], tmp_path: Path, scenario):
    shown = scenario("R30", f"{WHAT} with the same {' and '.join(same) or 'GPUs'}", criterion=CRITERION)
    with staged("sim:h200*2") as stage:
        before = stage.cap()
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=KNOBS)
        client("apply", power_limit_w=400)
        inode = stage.daemon.socket.stat().st_ino
        files = {path: path.stat().st_mtime_ns for path in stage.daemon.state.glob("*.jsonl")}
        writes = stage.writes()
        refused = ran(second(stage, tmp_path / "second", same=same))
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, the daemon on "
        who = rf"in the hands of pid {stage.daemon.pid} \(\S+\) {since}{re.escape(str(stage.daemon.socket))}; stop that"
        assert re.search(who, line), line
        assert stage.daemon.socket.stat().st_ino == inode
        assert {path: path.stat().st_mtime_ns for path in stage.daemon.state.glob("*.jsonl")} == files
        assert stage.writes() == writes
        client("apply", power_limit_w=300)
        client("release")
        assert stage.all_hardware() == before
        shown.saw("refused, exit 1")


def test_a_daemon_of_other_gpus_is_refused_a_socket_that_is_in_use(stage: Stage, tmp_path: Path, scenario):
    shown = scenario("R30", f"{WHAT} with the same socket, of other GPUs", criterion=CRITERION)
    with spawn("sim:h200") as others:
        rival = second(stage, tmp_path / "second", same=("socket",))
        rival.node = others
        refused = ran(rival)
    assert refused.returncode == 1
    assert f"the socket {stage.daemon.socket} is in the hands of pid {stage.daemon.pid} " in refused.stderr
    assert len(stage.ask("hello")["gpus"]) == len(stage.uuids)
    shown.saw("refused, exit 1")


def test_a_daemon_from_before_there_were_locks_keeps_its_socket(tmp_path: Path):
    with spawn("sim:h200") as node, socket.socket(socket.AF_UNIX) as listener:
        rival = RunningDaemon(node, tmp_path, SITE, [], {})
        listener.bind(str(rival.socket))
        listener.listen(1)
        refused = ran(rival)
        assert refused.returncode == 1
        assert f"the socket {rival.socket} is in the hands of pid {os.getpid()} " in refused.stderr
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(rival.socket))


def test_after_a_kill_the_next_daemon_takes_over_the_socket_and_gives_back(tmp_path: Path, scenario):
    shown = scenario("R30", f"{WHAT} after the first was killed", criterion=CRITERION)
    with staged("sim:h200*2") as stage, ExitStack() as ending:
        before = stage.cap()
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=KNOBS)
        client("apply", power_limit_w=400)
        stage.daemon.kill()
        assert stage.daemon.socket.exists()  # stale
        next_one = second(stage, tmp_path / "second", same=("socket", "state"))
        ending.callback(kill, next_one)
        next_one.start()
        until(lambda: stage.all_hardware() == before)
        again = stage.client()
        again("take", gpus=stage.uuids, knobs=KNOBS)
        again("apply", power_limit_w=300)
        again("release")
        assert stage.all_hardware() == before
        assert next_one.stop() == 0
        shown.saw("took over its socket, restored")


def test_what_a_killed_daemon_keeps_in_another_folder_is_owed_and_not_built_upon(tmp_path: Path, scenario):
    shown = scenario("R30", f"{WHAT} with another state folder after the first was killed", criterion=CRITERION)
    with staged("sim:h200*2") as stage, ExitStack() as ending:
        before = stage.cap()
        client = stage.client()
        client("take", gpus=stage.uuids[:1], knobs=KNOBS)
        client("apply", power_limit_w=400)
        stage.daemon.kill()
        next_one = second(stage, tmp_path / "second", same=("socket",))
        ending.callback(kill, next_one)
        next_one.start()
        heir = stage.client()
        refusal = heir.refused("take", gpus=stage.uuids[:1], knobs=KNOBS)
        assert refusal.kind == "NotSaved"
        assert f"'joulewise restore --state {stage.daemon.state}'" in refusal.message
        (owed,) = [each for each in stage.leases() if each["stage"] == "owed"]
        assert owed["gpus"] == [stage.uuids[0]]
        heir("take", gpus=stage.uuids[1:], knobs=KNOBS)
        command = [sys.executable, "-m", "joulewise", "restore", "--state", str(stage.daemon.state)]
        assert subprocess.run(command, env=stage.environment(), capture_output=True, timeout=60).returncode == 0
        assert stage.all_hardware() == before
        until(lambda: not [each for each in stage.leases() if each["stage"] == "owed"], 40.0)
        heir = stage.client()
        heir("take", gpus=stage.uuids, knobs=KNOBS)
        heir("apply", power_limit_w=300)
        heir("release")
        assert stage.all_hardware() == before
        assert next_one.stop() == 0
        shown.saw("owed and named until restored from there, then served")


def test_interleaved_caps_cannot_be_and_the_site_s_cap_comes_back(tmp_path: Path, scenario):
    shown = scenario("R30", "root's own processes with other state folders", criterion=CRITERION)
    with staged("sim:h200") as stage:
        before = stage.cap()
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=KNOBS)
        client("apply", power_limit_w=400)
        with local(stage, tmp_path / "own", 300.0) as process:
            kind, message = said(process)
        assert kind == "LeaseTaken"
        assert f"is in the hands of pid {stage.daemon.pid} " in message
        assert str(stage.daemon.socket) in message
        client("release")
        assert stage.daemon.stop() == 0
        with local(stage, tmp_path / "one", 400.0) as one:
            assert said(one) == ("set", "")
            with local(stage, tmp_path / "two", 300.0) as two:
                kind, message = said(two)
            assert (kind, f"is in the hands of pid {one.pid} " in message) == ("LeaseTaken", True)
            stage.daemon.start()
            assert stage.client().refused("take", gpus=stage.uuids, knobs=KNOBS).kind == "LeaseTaken"
            assert stage.hardware(0)[0] == 400.0
        assert stage.all_hardware() == before
        shown.saw(f"each refused by the holder's pid; back at {SITE_CAP_W:g} W")


def test_a_killed_process_s_cap_is_not_taken_for_the_site_s_by_one_with_another_folder(tmp_path: Path):
    with staged("sim:h200") as stage:
        before = stage.cap()
        assert stage.daemon.stop() == 0
        with local(stage, tmp_path / "one", 400.0) as one:
            assert said(one) == ("set", "")
            one.kill()
        with local(stage, tmp_path / "two", 300.0) as two:
            kind, message = said(two)
        assert (kind, f"'joulewise restore --state {tmp_path / 'one'}'" in message) == ("NotSaved", True)
        command = [sys.executable, "-m", "joulewise", "restore", "--state", str(tmp_path / "one")]
        assert subprocess.run(command, env=stage.environment(), capture_output=True, timeout=60).returncode == 0
        assert stage.all_hardware() == before
        with local(stage, tmp_path / "two", 300.0) as two:
            assert said(two) == ("set", "")
            assert Words(stage.node).limit_w() == 300.0
        assert stage.all_hardware() == before
