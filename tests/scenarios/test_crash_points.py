"""R3: the daemon dies at any line between "save" and "acknowledge"; what it leaves is what was there before.

A chain of daemons on one GPU: each first gives back what the one before it owed, which is looked at, then serves a
client until it dies at its own line. The GPU has a site's cap that is not the vendor's default; its SM clock goes back
to a lock that stands, its memory clock to no lock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bench.control_stage import Talk
from joulewise.device.node import spawn
from joulewise.device.vnvml_layout import VnvmlState
from tests.scenarios.client import ROOT
from tests.scenarios.staging import SITE, SITE_CAP_W
from tests.tiers import sample

SHM = Path("/dev/shm")
"""A death takes nothing of what was written, whether or not it is on a disk: no need to wait for one."""
POINTS = 60
"""Of some hundred for each act."""
STANDS_MHZ = 1305
KNOBS = ["power_limit_w", "sm_mhz", "memory_mhz"]
# A line is counted the first time it runs: from each of these acts on, so that what they share is met in all of them.
FROM = {
    "take": "daemon/service.py:request",
    "apply": "daemon/tenure.py:_apply",
    "release": "daemon/service.py:_release",
}
SETTINGS = (
    {"power_limit_w": 400, "sm_mhz": 1200, "memory_mhz": 2201},
    {"power_limit_w": 500, "sm_mhz": 900},
    {"memory_mhz": 3201},
)


class Chain:
    """One GPU and the daemons that follow each other on it."""

    def __init__(self, folder: Path, uuid: str, words: VnvmlState, after: str, crasher: subprocess.Popen[str]) -> None:
        self.folder, self.uuid, self._after = folder, uuid, after
        self._words, self._crasher = words, crasher
        self.report = folder / "lines"
        (folder / "site.toml").write_text(SITE)
        places = {"socket": "daemon.sock", "state": "state", "grants": "grants", "audit": "audit.jsonl"}
        self._arguments = [f"--{flag}={folder / place}" for flag, place in {**places, "site": "site.toml"}.items()]

    def hardware(self) -> tuple[float, object, object]:
        control = self._words.read_control(0)
        return control.power_limit_mw / 1000, control.sm_lock_mhz, control.memory_lock_mhz

    def start(self, at: int) -> Talk:
        """The next daemon, which will die at its ``at``-th line; a connection to it."""
        assert self._crasher.stdin is not None
        order = {
            "at": at,
            "arguments": self._arguments,
            "report": str(self.report) if at == 0 else None,
            "after": self._after,
        }
        self._crasher.stdin.write(json.dumps(order) + "\n")
        self._crasher.stdin.flush()
        self.pid = self._told()["pid"]
        deadline_s = time.monotonic() + 20.0
        while True:
            try:
                return Talk(self.folder / "daemon.sock")
            except OSError:
                assert time.monotonic() < deadline_s
                time.sleep(0.002)

    def kill(self) -> None:
        """The daemon's end, if it has not died at its line."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert self._told()["killed"]

    def _told(self) -> dict[str, int]:
        assert self._crasher.stdout is not None
        return dict(json.loads(self._crasher.stdout.readline()))

    def settled(self, before: tuple[float, object, object]) -> bool:
        """Whether the GPU comes to be as before, within two seconds."""
        deadline_s = time.monotonic() + 2.0
        while self.hardware() != before:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.001)
        return True


@contextmanager
def _ended_if_it_fails(crasher: subprocess.Popen[str]) -> Iterator[None]:
    """A failure ends the crasher and its daemon, which would be waited for for ever."""
    try:
        yield
    except BaseException:
        os.killpg(crasher.pid, signal.SIGKILL)
        raise


def _serve(talk: Talk, uuid: str) -> int:
    """A client's life; how many of its requests were answered."""
    answered = 0
    with suppress(ConnectionError, BrokenPipeError, TimeoutError):
        lease = talk("take", gpus=[uuid], knobs=KNOBS, ttl_s=60)["lease"]
        answered += 1
        for setting in SETTINGS:
            talk("apply", lease=lease, setting=setting)
            answered += 1
        talk("release", lease=lease)
        answered += 1
    return answered


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("may_set")
@pytest.mark.parametrize(("first", "after"), FROM.items())
def test_at_whatever_line_the_daemon_dies_the_gpu_is_as_before(first: str, after: str, scenario):
    what = f"daemon killed at lines run from the first {first} on"
    shown = scenario("R3", what, criterion="earlier state after every crash point")
    with (
        tempfile.TemporaryDirectory(prefix="joulewise-", dir=SHM if SHM.is_dir() else None) as name,
        spawn("sim:h200") as node,
        node.client() as breaker,
        VnvmlState.open(node.directory) as words,
        subprocess.Popen(
            [sys.executable, "-m", "tests.scenarios.crasher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=node.environment(),
            cwd=ROOT,
            start_new_session=True,
        ) as crasher,
        _ended_if_it_fails(crasher),
    ):
        breaker.fault(0, "foreign", power_limit_w=SITE_CAP_W)
        before = (SITE_CAP_W, (345, STANDS_MHZ), None)
        chain = Chain(Path(name), breaker.uuids[0], words, after, crasher)
        with chain.start(0) as talk:
            talk("stand", gpus=[chain.uuid], setting={"sm_mhz": STANDS_MHZ})
        chain.kill()
        # Once without a death, to know the lines.
        chain.report.unlink(missing_ok=True)
        with chain.start(0) as talk:
            assert _serve(talk, chain.uuid) == 5
            served = len(chain.report.read_text().splitlines())
            assert chain.hardware() == before
        chain.kill()
        lines = chain.report.read_text().splitlines()
        points = sample(range(1, len(lines) + 1), POINTS, of=f"R3 {first}")
        died = changed = 0
        last = "none"
        for at in points:
            with chain.start(at) as talk:
                assert chain.settled(before), f"after a death at {last} the GPU has {chain.hardware()}"
                died += _serve(talk, chain.uuid) < 5
            chain.kill()
            changed += chain.hardware() != before
            last = lines[at - 1]
        with chain.start(0):
            assert chain.settled(before), f"after a death at {last} the GPU has {chain.hardware()}"
        chain.kill()
        assert crasher.stdin is not None
        crasher.stdin.close()
    # Lines after the last answer are met too, by whoever has not been killed before; of those up to it, threads do not
    # always run the same in the same order.
    assert died > 0.9 * sum(at <= served for at in points)
    assert changed > 0.1 * len(points)  # deaths that found nothing to give back show nothing
    shown.saw(f"{died} crash points, {changed} of them with the hardware changed: as before after every one")
