"""A process that writes as a tuner's desk does: read, decide, append after what was read; on a conflict, again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from joulewise.core.event import Event, Expired

SOURCE = Path(__file__).parents[2] / "src"
STREAM = "one"
# Says each of its events once, whatever happens to the others or to the server.
_WRITER = f"""
import sys, time
from joulewise.core.errors import NotKept
from joulewise.core.event import Expired
from joulewise.store import open_store
url, writer, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
journal = open_store(url).journal({STREAM!r})
for number in range(many):
    mine = Expired(float(number), writer, "x")
    while True:
        try:
            known = [event for _, event in journal.read()]
            if mine not in known:
                journal.append(mine, after=len(known))
            break
        except NotKept:
            time.sleep(0.005)
"""


def started(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], env={**os.environ, "PYTHONPATH": str(SOURCE)})


def writer(url: str, number: int, many: int) -> subprocess.Popen[bytes]:
    """Writes ``Expired`` of trial ``number`` at times 0, 1, … below ``many``."""
    return started(_WRITER, url, str(number), str(many))


def written_by(number: int, read: list[tuple[int, Event]]) -> list[float]:
    """The times of this writer's events, in the order of the journal."""
    return [event.time_s for _, event in read if isinstance(event, Expired) and event.trial == number]


def wait_until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
