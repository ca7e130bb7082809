"""What the bench of control stands on: a node of virtual GPUs, a daemon that serves it, bare connections to it.

Three kinds of processes, as in life: the simulator, the daemon, and clients. ``Talk`` knows the protocol and no more,
so that it can also say what no honest client would.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joulewise.core.units import watts_from_milliwatts
from joulewise.device.node import RunningNode, spawn
from joulewise.device.vnvml_layout import VnvmlState

# No pace to wait for, and leases that live through an accelerated day without a beat.
SITE = """
ttl_most_s = 1e6
[pace]
writes_per_s = 1e6
burst = 1e6
"""
_LONGEST_START_S = 20.0


class Refused(Exception):
    """What the daemon answered instead: ``kind`` is a class of ``core.errors``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Talk:
    """One bare connection, one request at a time; events that come in between are kept."""

    def __init__(self, path: Path, *, timeout_s: float = 10.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.events: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._unread = b""

    def __call__(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises Refused."""
        number = next(self._ids)
        self.socket.sendall(json.dumps({"id": number, "op": op, **fields}).encode() + b"\n")
        while True:
            message = self.hear()
            if "event" in message:
                self.events.append(message)
            elif message.get("id", number) != number:
                raise ConnectionError(f"request {number} was answered by {message}")
            elif "error" in message:
                raise Refused(message["error"], message["message"])
            else:
                return dict(message["ok"])

    def refused(self, op: str, **fields: Any) -> Refused:
        """The refusal that this must meet; AssertionError if it is granted."""
        try:
            answer = self(op, **fields)
        except Refused as refusal:
            return refusal
        raise AssertionError(f"{op} {fields} was not refused: {answer}")

    def hear(self) -> dict[str, Any]:
        """The next line, whatever it is. ConnectionError when the daemon has hung up."""
        while b"\n" not in self._unread:
            received = self.socket.recv(65536)
            if not received:
                raise ConnectionError("the daemon has hung up")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))

    def close(self) -> None:
        """Hang up. Idempotent."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stage:
    """A node and its daemon, while ``staged`` lasts."""

    def __init__(self, node: RunningNode, words: VnvmlState, uuids: tuple[str, ...], home: Path, pid: int) -> None:
        self.node, self.uuids, self.daemon_pid = node, uuids, pid
        self.home, self.socket = home, home / "daemon.sock"
        self._words = words

    def limit_w(self, index: int) -> float:
        """The limit that the driver holds, seen behind everybody's back."""
        return watts_from_milliwatts(self._words.read_control(index).power_limit_mw)

    def talk(self) -> Talk:
        """A bare connection."""
        return Talk(self.socket)


@contextmanager
def staged(spec: str, *, speed: float = 1.0) -> Iterator[Stage]:
    """Virtual GPUs as ``spec`` says and a daemon that serves them, each in a process of its own."""
    with ExitStack() as ending:
        home = Path(tempfile.mkdtemp(prefix="joulewise-"))
        ending.callback(shutil.rmtree, home, ignore_errors=True)
        node = ending.enter_context(spawn(spec, speed=speed))
        with node.client() as client:
            uuids = client.uuids
        words = ending.enter_context(VnvmlState.open(node.directory))
        process = ending.enter_context(_daemon(node, home))
        yield Stage(node, words, uuids, home, process.pid)


@contextmanager
def _daemon(node: RunningNode, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    (home / "site.toml").write_text(SITE, encoding="utf-8")
    places = {
        "socket": "daemon.sock",
        "state": "state",
        "grants": "grants",
        "audit": "audit.jsonl",
        "site": "site.toml",
    }
    flags = [word for flag, place in places.items() for word in (f"--{flag}", str(home / place))]
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "joulewise.daemon", *flags, "--ready-fd", str(write_end)],
        env=node.environment(),
        pass_fds=(write_end,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as ready:
            if not ready.readline():
                raise RuntimeError(f"the daemon ended at once, with exit code {process.wait(_LONGEST_START_S)}")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def memory_mib(pid: int) -> float:
    """What a process keeps in memory (RSS)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
