"""``joulewise leases`` against a daemon in a process of its own."""

import json
import subprocess
import sys

import pytest

from joulewise.cli import main
from joulewise.cli.leases import lines
from joulewise.core.knob import Setting
from joulewise.device.node import spawn
from joulewise.device.remote import RemoteLease
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
        command = [sys.executable, "-m", "joulewise", "leases", *flags]
        named = {**environ, "JOULEWISE_SOCKET": str(daemon.socket)}
        return subprocess.run(command, env=named, capture_output=True, text=True, timeout=60)

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


def test_without_a_daemon_it_says_so_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["leases", "--socket", str(tmp_path / "none.sock")])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"joulewise: no daemon answers on {tmp_path / 'none.sock'} (No such file")
