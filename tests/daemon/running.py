"""A daemon that runs, for tests: a real process on the virtual GPUs of a spawned node, in folders of its own.

    with spawn("sim:h200*2") as node, running_daemon(node, tmp_path) as daemon:
        connection = daemon.connect()
        lease = RemoteLease.take(node.client().uuids, {"power_limit_w"}, socket=daemon.socket)

``daemon.kill()`` is SIGKILL, ``daemon.restart()`` starts it again with the same folders. Other users may reach the
socket: its folders are 0755.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joulewise.device.node import RunningNode
from joulewise.device.remote import DaemonClient
from joulewise.device.vnvml_layout import VnvmlState

START_S = 30.0
"""A daemon is ready in some hundred milliseconds; a box that runs other tests besides may need longer."""


class RunningDaemon:
    """The process and its folders."""

    def __init__(
        self, node: RunningNode, folder: Path, site: str | Path | None, flags: list[str], environ: Mapping[str, str]
    ) -> None:
        self.node = node
        self.folder = folder
        self.socket = folder / "run" / "daemon.sock"
        self.state = folder / "state"
        self.grants = folder / "grants"
        self.audit = folder / "log" / "audit.jsonl"
        self.site: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.prefix: list[str] = []
        """Put before ``python -m joulewise.daemon``: another program that starts it."""
        self._flags = flags
        self._environ = dict(environ)
        for each in (self.socket.parent, self.audit.parent):
            each.mkdir(mode=0o755, exist_ok=True)
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.grants.mkdir(mode=0o700, exist_ok=True)
        if isinstance(site, Path):
            self.site = site
        elif site is not None:
            self.site = folder / "site.toml"
            self.write_site(site)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def write_site(self, text: str) -> None:
        """Other rules, in force after ``hang_up`` (SIGHUP) or a restart."""
        assert self.site is not None
        self.site.write_text(text, encoding="utf-8")
        self.site.chmod(0o644)

    def command(self) -> list[str]:
        """What starts it."""
        paths = {"--socket": self.socket, "--state": self.state, "--grants": self.grants, "--audit": self.audit}
        words = [word for flag, path in paths.items() for word in (flag, str(path))]
        site = ["--site", str(self.site)] if self.site is not None else []
        return [*self.prefix, sys.executable, "-m", "joulewise.daemon", *words, *site, *self._flags]

    def start(self) -> None:
        """Start it and wait until it serves."""
        assert self.process is None
        reads, writes = os.pipe()
        try:
            with (self.folder / "stderr").open("ab") as stderr:
                self.process = subprocess.Popen(
                    [*self.command(), "--ready-fd", str(writes)],
                    pass_fds=(writes,),
                    env={**self.node.environment(), **self._environ},
                    stderr=stderr,
                )
            os.close(writes)
            writes = -1
            os.set_blocking(reads, False)
            deadline_s = time.monotonic() + START_S
            while True:
                try:
                    said = os.read(reads, 16)
                except BlockingIOError:
                    assert time.monotonic() < deadline_s, self.stderr()
                    time.sleep(0.005)
                    continue
                break
            if said != b"ready\n":
                code = self.process.wait(START_S)
                self.process = None
                raise AssertionError(f"the daemon ended with {code}: {self.stderr()}")
        finally:
            os.close(reads)
            if writes >= 0:
                os.close(writes)

    def stderr(self) -> str:
        """What it has said so far."""
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL: nothing is tidied up."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def hang_up(self) -> None:
        """SIGHUP: read the site file again."""
        self.signal(signal.SIGHUP)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, most_s: float = START_S) -> int:
        """Until it has ended; its exit code."""
        assert self.process is not None
        code = self.process.wait(most_s)
        self.process = None
        return code

    def restart(self) -> None:
        """Start it again, after killing it if it still runs."""
        if self.process is not None:
            self.kill()
        self.start()

    def connect(self) -> DaemonClient:
        """A connection of this process; to be closed."""
        return DaemonClient(self.socket)

    def audited(self, **fields: Any) -> list[dict[str, Any]]:
        """The lines of the audit log in which all ``fields`` are so."""
        if not self.audit.exists():
            return []
        lines = [json.loads(line) for line in self.audit.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]


@contextmanager
def running_daemon(
    node: RunningNode,
    folder: Path,
    *,
    site: str | Path | None = None,
    flags: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
    start: bool = True,
) -> Iterator[RunningDaemon]:
    """Run a daemon on ``node`` with its files under ``folder`` while the context lasts.

    ``site`` is the text of a site file, or a path to one; without it the default rules hold.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may set GPUs, and its daemon serves several users")
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for each in (folder, *folder.parents):  # pytest's folders are for their owner only; other users are clients here
        if each.stat().st_uid == os.getuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o055)
    daemon = RunningDaemon(node, folder, site, flags or [], environ or {})
    try:
        if start:
            daemon.start()
        yield daemon
    finally:
        if daemon.process is not None:
            if daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGCONT)
                daemon.process.terminate()
                try:
                    daemon.process.wait(START_S)
                except subprocess.TimeoutExpired:
                    daemon.process.kill()
            daemon.process.wait()


def until(true: Callable[[], Any], most_s: float = 10.0, *, what: str = "") -> float:
    """Wait until ``true()`` is so; how many seconds that took. AssertionError after ``most_s``."""
    start_s = time.monotonic()
    while not true():
        assert time.monotonic() - start_s < most_s, f"not so after {most_s} s: {what or true}"
        time.sleep(0.001)
    return time.monotonic() - start_s


class Words:
    """The hardware as it is: what NVML cannot show (locks) is read from the virtual GPUs' own memory."""

    def __init__(self, node: RunningNode) -> None:
        self._state = VnvmlState.open(node.directory)

    def limit_w(self, index: int = 0) -> float:
        """The power limit that was last asked for."""
        return self._state.read_control(index).power_limit_mw / 1000

    def sm_lock(self, index: int = 0) -> tuple[int, int] | None:
        """The lock of the SM clock, lowest and highest MHz; None if there is none."""
        lock = self._state.read_control(index).sm_lock_mhz
        return lock if lock is None else (int(lock[0]), int(lock[1]))

    def close(self) -> None:
        self._state.close()
