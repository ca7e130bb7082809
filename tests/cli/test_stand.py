"""``joulewise stand`` against a daemon in a process of its own."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from joulewise.cli.stand import stand as verb
from joulewise.core.errors import NotPermitted
from joulewise.core.knob import Setting
from joulewise.device.node import spawn
from joulewise.device.remote import RemoteLease
from tests import preloaded
from tests.daemon.running import RunningDaemon, Words, running_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what stands is root's to say")


class Stage:
    def __init__(self, daemon: RunningDaemon, uuids: tuple[str, ...], words: Words, environ: dict[str, str]) -> None:
        self.daemon, self.uuids, self.words, self._environ = daemon, uuids, words, environ

    def __call__(self, *flags: str) -> subprocess.CompletedProcess[str]:
        paths = ["--socket", str(self.daemon.socket), "--state", str(self.daemon.state)]
        return preloaded.run("stand", *flags, *paths, env=self._environ)


@pytest.fixture(scope="module")
def stand(virtual_nvml, tmp_path_factory) -> Iterator[Stage]:
    with ExitStack() as ending:
        node = ending.enter_context(spawn("sim:h200*2"))
        client = ending.enter_context(node.client())
        daemon = ending.enter_context(running_daemon(node, tmp_path_factory.mktemp("stage")))
        words = ending.enter_context(closing(Words(node)))
        environ = node.environment({**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")})
        yield Stage(daemon, client.uuids, words, environ)


def test_a_clock_stands_through_leases_and_restarts_until_it_is_ended(stand):
    ran = stand("sm_mhz=1410", "--gpu", "nvml:0-1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"SM clock at most 1410 MHz stands on {', '.join(stand.uuids)}\n"
    with RemoteLease.take(stand.uuids[:1], ["sm_mhz"], socket=stand.daemon.socket) as lease:
        lease.apply(Setting(sm_mhz=990))
        assert stand.words.sm_lock(0)[1] == 990
    assert [stand.words.sm_lock(index)[1] for index in range(2)] == [1410, 1410]
    stand.daemon.restart()
    assert json.loads(stand("--json").stdout) == {"standing": {uuid: {"sm_mhz": 1410.0} for uuid in stand.uuids}}
    assert stand("--list").stdout.splitlines() == [f"{uuid}: SM clock at most 1410 MHz" for uuid in sorted(stand.uuids)]
    ended = stand("--end", "--gpu", "nvml:all", "--json")
    assert json.loads(ended.stdout)["setting"] == {"sm_mhz": None, "memory_mhz": None}
    assert [stand.words.sm_lock(index) for index in range(2)] == [None, None]
    assert stand().stdout == "no clock stands\n"


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["power_limit_w=300", "--gpu", "nvml:0"], 2, "power_limit_w cannot stand"),
        (["sm_mhz=9999", "--gpu", "nvml:0"], 2, "sm_mhz=9999"),
        (["sm_mhz", "--gpu", "nvml:0"], 2, "stand 'sm_mhz' is no KNOB=VALUE"),
        (["sm_mhz=1410"], 2, "which GPUs?"),
        (["--gpu", "nvml:0"], 2, "but no clock"),
        (["sm_mhz=1410", "--list", "--gpu", "nvml:0"], 2, "--list goes alone"),
        (["--end", "power_limit_w", "--gpu", "nvml:0"], 2, "no clock is called so"),
    ],
)
def test_what_cannot_stand_is_refused_in_one_line_and_nothing_stands(stand, flags, code, message):
    ran = stand(*flags)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (code, "", 1)
    assert message in ran.stderr
    assert stand().stdout == "no clock stands\n"


def test_without_a_daemon_nothing_can_be_made_to_stand(stand):
    stand.daemon.stop()
    ran = stand("sm_mhz=1410", "--gpu", "nvml:0")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "no daemon answers" in ran.stderr
    stand.daemon.start()


def test_a_user_is_told_that_it_is_roots():
    os.seteuid(12345)
    try:
        with pytest.raises(NotPermitted) as refused:
            verb(None)
    finally:
        os.seteuid(0)
    assert "root's to see and to say" in str(refused.value)
