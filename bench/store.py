"""What does a store of many runs and readings cost to keep, to look at, and to draw from?

A store is filled with runs as ``joulewise run`` leaves them, tuned and not, finished and killed, and with one reading a
second of each. Then a process of its own, as a server is one, looks at it: the overview (totals, the latest eight, the
first page) the first time ever, when nothing is remembered; in a fresh process afterwards; and again and again. And it
draws a run of ordinary length and one of a million readings, all of it and one hour of it.

``runs``, ``readings``, ``blocks``: what is in it; ``file_mib``, ``reading_bytes`` its size, all and a reading's part;
``write_us`` processor time to keep one reading, ``append_ms`` to write again a block that grows, as a running command
does every few seconds; ``folded_s`` processor time of the first look until every journal is folded, ``first_look_ms``
of the first answer of it; ``overview_cold_ms`` of the first overview of a fresh process, ``overview_ms`` the median of
the next ones; ``overview_peak_mib`` the most memory of that process, ``overview_growth_mib`` what of it the looks took;
``run_ms``, ``long_run_ms``, ``hour_ms`` to draw one GPU's curve; ``draw_growth_mib`` peak growth of the drawing.
Processor seconds, not the clock's: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from joulewise.core.block import Block, Role
from joulewise.core.decision import Decision, Expectation
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, to_json
from joulewise.core.knob import DEFAULT, Setting
from joulewise.store import Database, Sample, SqliteStore, open_store
from joulewise.store.views import measured_stream

ROOT = Path(__file__).parents[1]
START_S = 1.7e9
LONG = "long"
_TUNED_SHARE, _KILLED_SHARE = 0.4, 0.05
_GPU = "GPU-00000000-0000-0000-0000-000000000001"
_HELD = Setting(sm_mhz=1500)
_BLOCKS = 40  # that a tuner saw of each run: a few minutes' worth


def journal(name: str, luck: random.Random, *, tuned: bool, killed: bool) -> list[Event]:
    """What is kept of one run."""
    facts = {
        "command": ["python", "train.py", "--layers", str(luck.randrange(100))],
        "gpu_names": ["NVIDIA H200"],
        "gpus": [_GPU],
        "unix_s": 0.0,
        "virtual": True,
        "tuned": tuned,
        "bound": 0.02,
        "seed": 1,
    }
    events: list[Event] = [Began(0.0, name, facts)]
    now_s = 0.0
    for number in range(_BLOCKS if tuned else 0):
        held = number % 4 != 0
        setting, role = (_HELD, Role.HOLD) if held else (DEFAULT, Role.PROOF)
        events.append(Decided(now_s, Decision(setting, "it saves most", Expectation(0.0, 0.0))))
        duration_s = 20.0 * (1.008 if held else 1.0) * (1 + luck.gauss(0, 0.002))
        energy_j = 9000.0 * (0.92 if held else 1.0) * (1 + luck.gauss(0, 0.004))
        block = Block(setting, now_s, now_s + duration_s, 80, duration_s, energy_j, 0.002 * energy_j, 0.002)
        now_s += duration_s
        events.append(Seen(now_s, role, block))
    if not killed:
        if tuned:
            events.append(Proven(now_s, -0.08, 0.002, 0.008, 0.001))
        used = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0}
        events.append(Finished(now_s, "ended", {} if tuned else {"measured": used}))
    return events


def filled(store: SqliteStore, runs: int, readings: int, long: int, seed: int) -> dict[str, float]:
    """Fill it; what keeping cost."""
    luck = random.Random(seed)
    kept, took_s, each = store.readings(), 0.0, readings // runs
    names = [f"2026-{number:06d}" for number in range(runs)]
    for first in range(0, runs, 500):
        rows = [row for number in range(first, min(runs, first + 500)) for row in _rows(names[number], number, luck)]
        with store.database.writing() as connection:
            connection.executemany("INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)", rows)
    for number, name in enumerate(names):
        samples = list(_samples(START_S + 2000.0 * number, each, luck))
        begun_s = time.process_time()
        kept.write(name, _GPU, samples)
        took_s += time.process_time() - begun_s
    kept.write(LONG, _GPU, list(_samples(START_S, long, luck)))
    grows = list(_samples(START_S, 900, luck))
    kept.write("growing", _GPU, grows[:700])
    begun_s = time.process_time()
    for place in range(700, 900, 5):
        kept.write("growing", _GPU, grows[place : place + 5])
    append_s = (time.process_time() - begun_s) / 40
    kept.forget("growing")
    store.database.change("UPDATE readings SET at = last_s", {})  # nobody is heard of now
    return {"write_us": 1e6 * took_s / max(1, runs * each), "append_ms": 1e3 * append_s}


def _rows(name: str, number: int, luck: random.Random) -> Iterator[tuple[str, int, str, float, str]]:
    tuned = luck.random() < _TUNED_SHARE
    killed = luck.random() < _KILLED_SHARE
    at_s = START_S + 2000.0 * number
    for place, event in enumerate(journal(name, luck, tuned=tuned, killed=killed), start=1):
        if isinstance(event, Began):
            event = Began(at_s, name, event.facts)
        yield name, place, type(event).__name__, at_s + place, to_json(event)
    if tuned and not killed:
        used = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0}
        event = Finished(at_s, "ended", {"measured": used})
        yield measured_stream(name), 1, "Finished", at_s + 1000.0, to_json(event)


def _samples(start_s: float, count: int, luck: random.Random) -> Iterator[Sample]:
    """A power that wanders as a training job's does, with what else a GPU tells."""
    power_w, heat_c = 520.0, 60.0
    for second in range(count):
        power_w += 0.2 * (520.0 - power_w) + luck.gauss(0, 12.0)
        heat_c += 0.01 * (40.0 + power_w / 20.0 - heat_c)
        busy = 0.97 + 0.03 * luck.random()
        mhz = 1500.0 if second % 300 > 20 else 1755.0
        yield Sample(start_s + second + 0.02 * luck.random(), power_w, mhz, 2619.0, round(heat_c), busy, 700.0)


# ---- looks, each in a process of its own ----------------------------------------------------------------------------


def look(file: Path, what: str, times: int) -> dict[str, float]:
    """What the parent asked for, measured in this process."""
    from joulewise.report.summaries import Summaries

    store = open_store(file)
    summaries = Summaries(store, fresh_s=0.0)
    before_mib = _peak_mib()
    took_ms: list[float] = []

    def overview() -> None:
        begun_s = time.process_time()
        summaries.totals()
        summaries.page(0, 8)
        summaries.page(0, 50)
        took_ms.append(1e3 * (time.process_time() - begun_s))

    if what == "first":
        begun_s = time.process_time()
        overview()
        while not summaries.refresh():
            pass
        return {"first_look_ms": took_ms[0], "folded_s": time.process_time() - begun_s}
    if what == "overview":
        for _ in range(times):
            overview()
        rest = sorted(took_ms[1:])
        figures = {"overview_cold_ms": took_ms[0], "overview_ms": rest[len(rest) // 2]}
        return {**figures, "overview_growth_mib": _peak_mib() - before_mib, "overview_peak_mib": _peak_mib()}
    readings, figures = store.readings(), {}
    ordinary = "2026-000003"
    for name, stream, from_s, to_s in (
        ("run_ms", ordinary, None, None),
        ("long_run_ms", LONG, None, None),
        ("hour_ms", LONG, START_S + 36_000.0, START_S + 39_600.0),
    ):
        begun_s = time.process_time()
        for _ in range(times):
            curve = readings.read(stream, _GPU, from_s, to_s, most_points=600)
        assert 0 < len(curve.time_s) <= 600
        assert not curve.damaged
        figures[name] = 1e3 * (time.process_time() - begun_s) / times
    return {**figures, "draw_growth_mib": _peak_mib() - before_mib}


def _peak_mib() -> float:
    """The most memory that this process ever had; not its parent's before it became this one, as ``ru_maxrss``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) / 1024.0
    raise RuntimeError("/proc/self/status does not tell the peak of memory; this bench needs Linux")


def _looked(file: Path, what: str, times: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.store", "--look", what, "--file", str(file), "--times", str(times)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def measured(file: Path, runs: int, readings: int, long: int, *, times: int, seed: int) -> dict[str, float]:
    """Fill ``file`` and look at it."""
    store = SqliteStore(Database(file))
    figures = {"runs": float(runs), "readings": float(readings + long)}
    figures |= filled(store, runs, readings, long, seed)
    ((blocks, size),) = store.database.select("SELECT COUNT(*), SUM(LENGTH(coarse) + LENGTH(detail)) FROM readings", {})
    store.close()
    figures |= {"blocks": blocks, "reading_bytes": size / (readings + long)}
    for what in ("first", "overview", "draw"):
        print(f"{what} …", file=sys.stderr, flush=True)
        figures |= _looked(file, what, times)
    figures["file_mib"] = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*")) / 2**20
    assert all(math.isfinite(value) for value in figures.values())
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--readings", type=int, default=10_000_000, help="of all runs together")
    parser.add_argument("--long", type=int, default=1_000_000, help="readings of one more, long run")
    parser.add_argument("--times", type=int, default=7, help="looks, of which the median is told")
    parser.add_argument("--seed", type=int, default=1, help="draws runs and readings")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--look", help=argparse.SUPPRESS)  # what the process that looks is started with
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look:
        print(json.dumps(look(options.file, options.look, options.times)))
        return 0
    with tempfile.TemporaryDirectory(prefix="jw-store-") as folder:
        file = Path(folder) / "joulewise.db"
        figures = measured(file, options.runs, options.readings, options.long, times=options.times, seed=options.seed)
    for name, value in figures.items():
        print(f"{name:<24}{value:.4g}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
