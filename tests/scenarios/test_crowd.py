"""R12: whatever stands at the door, an honest client is served."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.scenarios.client import ROOT
from tests.scenarios.staging import Stage, staged, until

# uid → how many connections of what kind; 256 are one user's most.
CROWD = [
    (20001, 256, "idle"),
    (20002, 256, "idle"),
    (20003, 230, "loris"),
    (20004, 128, "half"),
    (20005, 100, "idle"),
    (20006, 20, "deaf"),
    (20007, 10, "long"),
]


@contextmanager
def _crowd(stage: Stage, uid: int, count: int, kind: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.crowd", str(uid), str(stage.daemon.socket), str(count), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen[str], *, ask: bool = True) -> dict[str, int]:
    assert process.stdin is not None
    assert process.stdout is not None
    if ask:
        process.stdin.write("\n")
        process.stdin.flush()
    answer: dict[str, int] = json.loads(process.stdout.readline())
    return answer


def test_a_thousand_connections_and_those_that_abuse_theirs_do_not_keep_an_honest_client_waiting(scenario):
    shown = scenario("R12", "1,000 connections, slow-loris, 64 KiB + 1, half-open", criterion="honest ones are served")
    with staged("sim:h200*2") as stage:
        before = stage.cap()
        at_rest = stage.ask("status")
        crowds = [_crowd(stage, *each) for each in CROWD]
        processes = [crowd.__enter__() for crowd in crowds]
        try:
            first = [_told(process, ask=False) for process in processes]
            assert sum(answer["open"] + answer["hung_up"] for answer in first) == sum(count for _, count, _ in CROWD)
            # One more than a user may have: it is shut out, the others stay.
            with _crowd(stage, 20001, 5, "idle") as more:
                _told(more, ask=False)
                until(lambda: _told(more)["open"] == 0, every_s=0.05)
            took_s = _honest(stage, for_s=7.0)
            by_kind = {kind: _told(process) for (_, _, kind), process in zip(CROWD, processes, strict=True)}
            most = stage.ask("status")
        finally:
            for crowd in crowds:
                crowd.__exit__(None, None, None)
        p99_s = sorted(took_s)[int(0.99 * len(took_s))]
        assert by_kind["idle"]["hung_up"] == 0
        for kind in ("loris", "long", "deaf"):
            assert by_kind[kind]["open"] == 0, f"{kind}: {by_kind[kind]}"
        until(lambda: stage.ask("status")["connections"] == 1, every_s=0.02)
        after = stage.ask("status")
        assert after["descriptors"] == at_rest["descriptors"]
        assert stage.all_hardware() == before
        grown_mib = (most["memory_bytes"] - at_rest["memory_bytes"]) / 2**20
        assert grown_mib < 64.0  # 1,000 times what one connection may hold unread would be 256 MiB
        shown.saw(
            f"p99 {1e3 * p99_s:.1f} ms over {len(took_s)} round trips; {grown_mib:.0f} MiB more memory at most",
            crowd_p99_ms=1e3 * p99_s,
        )


def _honest(stage: Stage, for_s: float) -> list[float]:
    """One client reads and writes all the while; how long its round trips took."""
    took_s = []
    with stage.talk() as talk:
        lease = talk("take", gpus=stage.uuids[:1], knobs=["power_limit_w"], ttl_s=60)["lease"]
        ends_s = time.monotonic() + for_s
        while time.monotonic() < ends_s:
            for op, fields in (
                ("read", {"gpu": stage.uuids[1]}),
                ("apply", {"lease": lease, "setting": {"power_limit_w": 400 + len(took_s) % 7}}),
            ):
                begun_s = time.monotonic()
                talk(op, **fields)
                took_s.append(time.monotonic() - begun_s)
            time.sleep(0.02)
        talk("release", lease=lease)
    return took_s
