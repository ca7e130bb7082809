"""What does a lease through the daemon cost, and how soon is everything back when its owner dies?

On virtual GPUs, with client, daemon and simulator as separate processes. Round trips are the client library's own
(``RemoteGpu.read``, ``RemoteLease.apply``: rights, pace, journal, write, read-back and audit), next to the same in this
process (``LocalLease``) and to two HTTP servers on a Unix socket, kept-alive: one that makes the bare driver calls (no
rights, lease, journal or audit: a floor for HTTP, not a peer) and one with the same keeper and journal. The contenders
take turns in blocks, so that a busy machine is busy for all of them.

``read_p50_us``, ``read_p99_us``, ``write_p50_us``, ``write_p99_us`` through the daemon; ``local_…`` in this process;
``http_…`` over HTTP with bare driver calls, ``http_keeper_…`` with the keeper; ``restore_p50_ms``, ``restore_p99_ms``
from SIGKILL of a client to the limit of before, seen behind the driver, over 100 deaths, ``restore_crowd_…`` the same
beside 200 busy connections on 64 GPUs, ``restore_64_gpus_ms`` median for one client that held all of them;
``day_growth_mib``, ``day_descriptors_growth`` over an accelerated day; ``daemon_cpu_share`` at one look a second on 64
GPUs; ``scenarios_passed``, ``scenarios_failed`` of the scenario tests, and times that these see but do not judge:
``crowd_p99_ms`` of an honest client beside 1,000 abused connections, ``beside_lost_p99_ms``, ``…_unsupported_…``,
``…_no_permission_…``, ``…_hung_…`` of the users of seven GPUs beside a sick one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import control_clients
from bench.control_day import cpu_share, day
from bench.control_http import Connection
from bench.control_stage import Stage, staged
from joulewise.core.knob import Setting

ROOT = Path(__file__).parents[1]
_CLIENTS = [sys.executable, "-I", "-S", control_clients.__file__]
_SHOWING = ("tests/scenarios", "tests/daemon/test_model.py")
_CROWD, _PERIOD_S = 200, 0.2  # connections, and how often each asks: a thousand requests a second


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


# ---- round trips -----------------------------------------------------------------------------------------------------


@contextmanager
def _http(stage: Stage, kind: str, uuid: str) -> Iterator[Connection]:
    """A connection to an HTTP server of the given kind, in a process of its own."""
    path = stage.home / f"{kind}.sock"
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.control_http", kind, uuid, str(path), str(stage.home / f"{kind}-state")],
        env=stage.node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        connection = Connection(path)
        yield connection
        connection.close()
    finally:
        process.stdin.close()
        process.wait(10.0)
        process.stdout.close()


def round_trips(count: int) -> dict[str, float]:
    """Median and 99th percentile of reads and writes, each way of doing them on a GPU of its own."""
    from joulewise.device.local import LocalLease
    from joulewise.device.nvml_controls import NvmlControls
    from joulewise.device.nvml_library import use_virtual
    from joulewise.device.remote import RemoteGpu, RemoteLease

    with ExitStack() as ending:
        stage = ending.enter_context(staged("sim:h200*4"))
        use_virtual(stage.node.directory)
        ours, local, bare, kept = stage.uuids
        knobs = ["power_limit_w"]
        remote = ending.enter_context(RemoteLease.take([ours], knobs, ttl_s=300.0, socket=stage.socket))
        gpu = RemoteGpu(ours, socket=stage.socket)

        class Unlocked(NvmlControls):
            """The daemon has the locks of all its GPUs; this one is nobody's but the bench's."""

            locks = None

        controls = Unlocked(local)
        mine = ending.enter_context(LocalLease.take([controls], knobs, state=stage.home / "local-state"))
        plain = ending.enter_context(_http(stage, "bare", bare))
        keeping = ending.enter_context(_http(stage, "keeper", kept))
        ways: dict[str, Callable[[float], object]] = {
            "read": lambda _: gpu.read(),
            "write": lambda value_w: remote.apply(Setting(power_limit_w=value_w)),
            "local_read": lambda _: controls.read(),
            "local_write": lambda value_w: mine.apply(Setting(power_limit_w=value_w)),
            "http_read": lambda _: plain.ask("GET"),
            "http_write": lambda value_w: plain.ask("POST", value_w),
            "http_keeper_write": lambda value_w: keeping.ask("POST", value_w),
        }
        took_s = _in_turns(ways, count)
    figures = {}
    for name, values in took_s.items():
        figures[f"{name}_p50_us"] = 1e6 * percentile(values, 0.5)
        figures[f"{name}_p99_us"] = 1e6 * percentile(values, 0.99)
    return figures


def _in_turns(ways: dict[str, Callable[[float], object]], count: int, block: int = 50) -> dict[str, list[float]]:
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for act in ways.values():  # connections, threads and caches are there before the clock starts
        for number in range(block):
            act(400.0 + number)
    for _ in range(count // block):
        for name, act in ways.items():
            for number in range(block):
                begun_s = time.perf_counter()
                act(400.0 + number)
                took_s[name].append(time.perf_counter() - begun_s)
    return took_s


# ---- deaths ----------------------------------------------------------------------------------------------------------


def death(stage: Stage, indices: Sequence[int]) -> float:
    """Kill a client that holds these GPUs; seconds until the driver holds what it held before."""
    before_w = [stage.limit_w(index) for index in indices]
    gpus = ",".join(stage.uuids[index] for index in indices)
    with subprocess.Popen(
        [*_CLIENTS, "victim", str(stage.socket), gpus, "400"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        if client.stdout.readline() != b"held\n":
            raise RuntimeError("the client got no lease; see its message above")
        if [stage.limit_w(index) for index in indices] != [400.0] * len(indices):
            raise RuntimeError("the daemon says that it has set what it has not")
        begun_s = time.perf_counter()
        client.kill()
        while [stage.limit_w(index) for index in indices] != before_w:
            if time.perf_counter() - begun_s > 10.0:
                raise RuntimeError("not restored within 10 s")
            time.sleep(0.0001)  # what watches must not take the processor from what it watches
        return time.perf_counter() - begun_s


@contextmanager
def _crowd(stage: Stage) -> Iterator[None]:
    """Two hundred connections on all GPUs, from two processes."""
    half = len(stage.uuids) // 2
    with ExitStack() as ending:
        for uuids in (stage.uuids[:half], stage.uuids[half:]):
            process = ending.enter_context(
                subprocess.Popen(
                    [*_CLIENTS, "load", str(stage.socket), str(_CROWD // 2), str(_PERIOD_S), ",".join(uuids)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert process.stdin is not None
            assert process.stdout is not None
            ending.callback(process.stdin.close)
            if process.stdout.readline() != b"busy\n":
                raise RuntimeError("the crowd did not get in; see its message above")
        yield


def deaths(count: int) -> dict[str, float]:
    """How soon the hardware is back: at rest, in a crowd, and for all 64 GPUs at once."""
    figures = {}
    with staged("sim:h200*64") as stage:
        # A site's own cap, not the vendor's default, so that a reset would be no restore.
        with stage.node.client() as breaker:
            for index in range(len(stage.uuids)):
                breaker.fault(index, "foreign", power_limit_w=650)
        alone_s = [death(stage, [number % 64]) for number in range(count)]
        all_s = [death(stage, range(64)) for _ in range(max(3, count // 10))]
        with _crowd(stage):
            crowd_s = [death(stage, [number % 64]) for number in range(count)]
    for name, values in (("restore", alone_s), ("restore_crowd", crowd_s)):
        figures[f"{name}_p50_ms"] = 1e3 * percentile(values, 0.5)
        figures[f"{name}_p99_ms"] = 1e3 * percentile(values, 0.99)
    return {**figures, "restore_64_gpus_ms": 1e3 * percentile(all_s, 0.5)}


# ---- a day, and the scenarios ----------------------------------------------------------------------------------------


def lasting(wall_s: float, cpu_wall_s: float) -> dict[str, float]:
    """Memory, descriptors and processor time of a daemon with 64 GPUs."""
    seen = day(wall_s)
    return {
        "day_hours": seen.hours,
        "day_leases": seen.leases,
        "day_memory_mib": seen.memory_mib,
        "day_growth_mib": seen.growth_mib,
        "day_descriptors_growth": seen.descriptors[1] - seen.descriptors[0],
        "daemon_cpu_share": cpu_share(cpu_wall_s),
    }


def scenarios() -> dict[str, float]:
    """How many scenarios the tests show; what was skipped or not run counts as failed."""
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "scenarios.json"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--scenarios", str(table), *_SHOWING],
            cwd=ROOT,
            stdout=sys.stderr,
            env={**os.environ, "PYTEST_ADDOPTS": ""},
        )
        found = json.loads(table.read_text("utf-8"))
    figures = {name: found[name] for name in ("scenarios_passed", "scenarios_failed")}
    for row in found["rows"]:
        figures |= row["figures"]
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer round trips and deaths, and a tenth of a day")
    parser.add_argument("--no-scenarios", action="store_true", help="leave the scenario tests out")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    quick: bool = options.quick
    parts: list[tuple[str, Callable[[], dict[str, float]]]] = [
        ("round trips", lambda: round_trips(500 if quick else 5000)),
        ("deaths", lambda: deaths(20 if quick else 100)),
        ("a day", lambda: lasting(9.0 if quick else 87.0, 5.0 if quick else 30.0)),
    ]
    if not options.no_scenarios:
        parts.append(("scenarios", scenarios))
    figures: dict[str, float] = {}
    for name, part in parts:
        print(f"{name} …", file=sys.stderr, flush=True)
        figures |= part()
    show(figures, Console(stderr=options.json))
    if options.json:
        print(json.dumps({"figures": figures}))


def show(figures: dict[str, float], console: Console) -> None:
    """As tables: round trips side by side, then the rest."""
    trips = Table("round trip, µs", *("p50", "p99"), title="one client, one GPU")
    for name, words in (
        ("read", "read through the daemon"),
        ("local_read", "read in process"),
        ("http_read", "read over HTTP"),
        ("write", "write through the daemon"),
        ("local_write", "write in process, with journal"),
        ("http_write", "write over HTTP, bare driver calls"),
        ("http_keeper_write", "write over HTTP, same keeper"),
    ):
        trips.add_row(words, *(f"{figures[f'{name}_{share}_us']:.0f}" for share in ("p50", "p99")))
    console.print(trips)
    rest = Table("figure", "seen")
    for name, value in figures.items():
        if not name.endswith("_us"):
            rest.add_row(name, f"{value:.4g}")
    console.print(rest)


if __name__ == "__main__":
    main()
