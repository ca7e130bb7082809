"""What does an ask for the next trial cost a recurring job that has run very often?

A job's journal is filled with so many runs, each handed out and told. Then a desk that knows it all is asked again and
again; and a new process, as the next night's run is one, opens the store and asks for the first time.

``ask_ms``: the median of 20 asks; ``first_ask_ms`` of a new process, from opening the store on, the least of three (a
new process may be charged for what others did to the caches); ``replay_ms``: to know the job from its journal alone,
which the snapshot of an earlier desk spares. Processor time, not the clock's: the machine may be shared.

python -m bench.desk [--runs 10000] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from joulewise.core.event import Asked, Event, Told, to_json
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.store import Database, SqliteStore
from joulewise.tune.desk import Desk

ROOT = Path(__file__).parents[1]
JOB = Recurring("nightly", (8, 16, 32, 64), 32, 10, "val_acc>=0.84")
PLATFORM = Platform("NVIDIA H200", 1, 700.0)
STREAM = f"series/{JOB.name}"
_COST = EpochCost(10.0, 5000.0)


def filled(store: SqliteStore, runs: int) -> Desk:
    """A job that has run so often, and a desk that knows it; what it knows is kept as a snapshot."""
    desk = Desk.of(store, JOB.name)
    desk.register(JOB)
    events: list[Event] = []
    for trial in range(runs):
        size = JOB.batch_sizes[trial % 4]
        now_s = 100.0 * trial
        expires_s, key = now_s + 600, f"k{trial}"
        events.append(
            Asked(now_s, trial, f"r{trial}", size, PLATFORM, Purpose.BEST, "best known", expires_s, "me", key)
        )
        epochs = 3 + (trial * 7919) % 5
        events.append(Told(now_s + 50, trial, Outcome.REACHED, epochs, 10.0 * epochs, 5000.0 * epochs, (_COST,)))
    rows = [
        (STREAM, number, type(event).__name__, event.time_s, to_json(event))
        for number, event in enumerate(events, start=2)
    ]
    with store.database.writing() as connection:
        connection.executemany("INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)", rows)
    desk.knows(runs)
    return desk


def first_ask(file: Path, name: str) -> float:
    """Processor milliseconds of an ask in this process, which has asked nothing yet."""
    return _cpu_ms(lambda: Desk.of(SqliteStore(Database(file)), JOB.name).ask(name, PLATFORM))


def _cpu_ms(what: Callable[[], object]) -> float:
    began_s = time.process_time()
    what()
    return 1e3 * (time.process_time() - began_s)


def _of_a_new_process(file: Path, name: str) -> float:
    command = [sys.executable, "-m", "bench.desk", "--first", name, "--file", str(file)]
    return float(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.first:
        print(first_ask(options.file, options.first))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.db"
        store = SqliteStore(Database(file))
        desk = filled(store, options.runs)
        asks = [partial(desk.ask, f"r{number}", PLATFORM) for number in range(20)]
        figures = {
            "runs": options.runs,
            "ask_ms": statistics.median(map(_cpu_ms, asks)),
            "first_ask_ms": min(_of_a_new_process(file, f"new{number}") for number in range(3)),
            "replay_ms": _cpu_ms(lambda: Desk(store.journal(STREAM)).knows(0)),
        }
        store.close()
    for name, value in figures.items():
        print(f"{name:13s} {value:9.1f}")
    if options.json:
        print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
