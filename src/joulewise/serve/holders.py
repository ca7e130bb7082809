"""Who holds which GPU, as the machine's daemon says, whom anybody may ask; and what was written to GPUs, as its audit
log says to those who may read it.

For ``live`` and ``metrics``. Where there is no daemon, or its log is not ours to read, nothing is known, and nothing is
said. What it is not: a lease, or anything that sets.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import MEMORY_MHZ, POWER_LIMIT_W, SM_MHZ
from joulewise.core.parsing import json_value
from joulewise.device.remote_client import DaemonClient

AUDIT: Final = Path("/var/log/joulewise/audit.jsonl")
"""Where the daemon writes by default."""
_ANSWER_S: Final = 1.0
_MOST_BYTES: Final = 4 << 20
"""Read at once; the rest the next time."""
_KNOBS: Final = frozenset(knob.name for knob in (SM_MHZ, MEMORY_MHZ, POWER_LIMIT_W))


def holders(socket: Path | None = None) -> Mapping[str, str] | None:
    """GPU → who holds a lease on it, in words; None where no daemon answers within a second."""
    try:
        with DaemonClient(socket, answer_s=_ANSWER_S) as daemon:
            held = daemon.leases()
    except JoulewiseError:
        return None
    found: dict[str, str] = {}
    for lease in held:
        for gpu in lease["gpus"]:
            found[gpu] = f"{found[gpu]}; {_who(lease)}" if gpu in found else _who(lease)
    return found


def _who(lease: Mapping[str, Any]) -> str:
    if lease.get("uid") is None:
        return "somebody unknown"
    command = f" ({lease['command']})" if lease.get("command") else ""
    return f"uid {lease['uid']} pid {lease['pid']}{command}"


class Writes:
    """Writes to GPUs since it was first asked, counted from the audit log at ``path`` as it grows, by (knob, result).

    ``result`` is ok, restored, refused or failed. Lines that were there before are not counted, so that a restart of
    ours is a counter's reset and never counts an act twice. A log that is moved away is read to its end first. Safe
    with several threads; nothing raises.
    """

    def __init__(self, path: Path = AUDIT) -> None:
        self._path = path
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._rest = b""
        self._begun = False

    def counts(self) -> Mapping[tuple[str, str], int] | None:
        """(knob, result) → how many; None where the log cannot be read."""
        with self._lock:
            if self._file is None:
                self._open(at_end=not self._begun)
                self._begun = True
            if self._file is None:
                return None
            self._read(self._file)
            if self._moved(self._file):
                self.close()
                self._open(at_end=False)
                if self._file is not None:
                    self._read(self._file)
            return dict(self._counts)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file, self._rest = None, b""

    def _open(self, *, at_end: bool) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if at_end:
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self.close()

    def _moved(self, file: int) -> bool:
        """Whether the path leads to another file by now: the log was begun anew."""
        try:
            there, here = self._path.stat(), os.fstat(file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _read(self, file: int) -> None:
        try:
            text = self._rest + os.read(file, _MOST_BYTES)
        except OSError:
            return
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            self._counts.update(_acts(line))


def _acts(line: bytes) -> list[tuple[str, str]]:
    """The writes that one line of the log tells of; none where it tells of something else, or makes no sense."""
    try:
        act = json_value(line)
        op, result = act["op"], str(act["result"])
    except (ValueError, KeyError, TypeError):
        return []
    if op not in ("apply", "restore"):
        return []
    asked = act.get("after")
    named = asked if isinstance(asked, dict) else str(act.get("knob", "")).split(",")
    ended = _restored(result) if op == "restore" else _applied(result, changed="before" in act)
    return [(knob, ended) for knob in named if knob in _KNOBS and ended]


def _restored(result: str) -> str:
    """``unchanged`` and ``foreign`` are endings in which nothing had to be, or was, written."""
    word = result.partition(":")[0]
    return "" if word in ("unchanged", "foreign") else "failed" if word == "failed" else "restored"


def _applied(result: str, *, changed: bool) -> str:
    """An apply under which no knob had to change is one line of all knobs of its lease, without what was before."""
    if result == "ok":
        return "ok" if changed else ""
    return "failed" if result.partition(":")[0] in ("GpuError", "GpuLost") else "refused"
