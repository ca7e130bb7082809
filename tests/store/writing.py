"""A process that writes as a tuner's desk does: read, decide, append after what was read; on a conflict, again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from joulewise.core.errors import NotKept
from joulewise.core.event import Event, Expired
from joulewise.store import open_store
from tests.preloaded import Command

ROOT = Path(__file__).parents[2]
STREAM = "one"


def started(script: str, *arguments: str, stdout: int | None = None) -> Command:
    """A process of its own that runs a script."""
    return Command(script, *arguments, module="tests.store.writing", cwd=ROOT, stdout=stdout)


def writer(url: str, number: int, many: int) -> Command:
    """Writes ``Expired`` of trial ``number`` at times 0, 1, … below ``many``."""
    return started("from tests.store.writing import write; write()", url, str(number), str(many))


def write() -> None:
    """Says each of its events once, whatever happens to the others or to the server."""
    url, writer, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    journal = open_store(url).journal(STREAM)
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


def written_by(number: int, read: list[tuple[int, Event]]) -> list[float]:
    """The times of this writer's events, in the order of the journal."""
    return [event.time_s for _, event in read if isinstance(event, Expired) and event.trial == number]


def wait_until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


if __name__ == "__main__":
    script = sys.argv.pop(1)
    exec(script)
