"""``joulewise leases`` against a daemon in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from joulewise.cli.leases import every, lines
from joulewise.core.errors import NoDaemon, NotPermitted
from joulewise.core.knob import Setting
from joulewise.device.node import spawn
from joulewise.device.remote import RemoteLease
from tests import preloaded
from tests.daemon.running import running_daemon

HELD = {
    "lease": "lease-1",
    "uid": 1000,
    "pid": 42,
    "command": "python",
    "reason": "a sweep",
    "gpus": ["GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2", "GPU-cccccccc-3"],
    "knobs": ["power_limit_w", "sm_mhz"],
    "stage": "held",
    "left_s": 28.0,
    "ttl_s": 30.0,
    "settings": {"GPU-aaaaaaaa-1": {"power_limit_w": 300.0}, "GPU-bbbbbbbb-2": {"power_limit_w": 300.0}},
    "because": "grant slurm-7",
}


def test_a_lease_says_who_what_and_until_when():
    assert lines(HELD) == [
        "lease-1  uid 1000 pid 42 (python): a sweep",
        "  2 GPUs (GPU-aaaaaaaa, GPU-bbbbbbbb): power limit 300 W, SM clock as before",
        "  GPU-cccccccc-3: power limit and SM clock as before",
        "  28.0 s left unless renewed, by right of grant slurm-7",
    ]


def test_a_lease_that_ends_says_why():
    assert lines({**HELD, "stage": "ending", "why": "its owner died"})[-1] == "  ending: its owner died"


def test_who_holds_what_is_what_the_daemon_says(virtual_nvml, tmp_path, environ):
    def asked(*flags: str) -> subprocess.CompletedProcess[str]:
        named = {**environ, "JOULEWISE_SOCKET": str(daemon.socket)}
        return preloaded.run("leases", *flags, "--state", daemon.state, env=named)

    with spawn("sim:h200") as node, node.client() as client, running_daemon(node, tmp_path) as daemon:
        assert asked().stdout == "no lease is held\n"
        with RemoteLease.take(client.uuids, ["power_limit_w"], reason="a sweep", socket=daemon.socket) as lease:
            lease.apply(Setting(power_limit_w=300))
            shown = asked()
            assert (shown.returncode, shown.stderr) == (0, "")
            assert f"{lease.name}  uid " in shown.stdout
            assert f"  {client.uuids[0]}: power limit 300 W\n" in shown.stdout
            (held,) = json.loads(asked("--json").stdout)["leases"]
            assert held["reason"] == "a sweep"
            assert held["settings"] == {client.uuids[0]: {"power_limit_w": 300.0}}
        assert json.loads(asked("--json", "--socket", str(daemon.socket)).stdout) == {"leases": []}


LOCAL = """
import sys
from pathlib import Path
from joulewise.core.knob import Setting
from joulewise.device.local import LocalLease
from joulewise.device.nvml_controls import NvmlControls
controls = [NvmlControls(sys.argv[1])]
lease = LocalLease.take(controls, ["power_limit_w"], state=Path(sys.argv[2]), reason="mine", guard=False)
lease.apply(Setting(power_limit_w=300))
print("set", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root holds leases without a daemon")
def test_root_sees_leases_without_the_daemon_and_what_dead_ones_left(virtual_nvml, tmp_path, environ):
    with spawn("sim:h200") as node, node.client() as client, running_daemon(node, tmp_path, start=False) as daemon:
        named = node.environment({**environ, "JOULEWISE_SOCKET": str(daemon.socket)})

        def asked() -> list[dict[str, object]]:
            ran = preloaded.run("leases", "--json", "--state", daemon.state, env=named)
            assert (ran.returncode, ran.stderr) == (0, "")
            return json.loads(ran.stdout)["leases"]

        assert asked() == []
        argv = [sys.executable, "-c", LOCAL, client.uuids[0], str(daemon.state)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(argv, env=named, **pipes) as holder:
            assert holder.stdout.readline() == "set\n"
            (held,) = asked()
            assert (held["pid"], held["stage"], held["reason"]) == (holder.pid, "local", "mine")
            assert held["settings"] == {client.uuids[0]: {"power_limit_w": 300.0}}
            assert lines(held)[-1] == "  held without the daemon, until its process ends"
            daemon.start()
            assert asked() == [held]
            daemon.stop()
            holder.kill()
        (left,) = asked()
        assert (left["lease"], left["stage"]) == (held["lease"], "owed")
        assert "joulewise restore" in lines(left)[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_without_a_daemon_it_says_so_in_one_line_to_those_who_may_not_read_the_files(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o000)
    with pytest.raises(NoDaemon) as none, as_user(12345, tmp_path):
        every(tmp_path / "none.sock", state)
    assert str(none.value).startswith(f"no daemon answers on {tmp_path / 'none.sock'} (")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_socket_that_is_closed_to_us_is_not_called_absent(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(NotPermitted) as refused, as_user(12345, tmp_path):
        every(closed / "daemon.sock", tmp_path / "state")
    assert "uid 12345 may not reach the daemon's socket" in str(refused.value)


@contextmanager
def as_user(uid: int, folder: Path) -> Iterator[None]:
    """Somebody else for a while, for whom the way to ``folder`` is open."""
    for each in (folder, *folder.parents[:-1]):
        if each.stat().st_uid == 0:
            each.chmod(each.stat().st_mode | 0o055)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
