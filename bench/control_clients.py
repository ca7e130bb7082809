"""Clients of the daemon in processes of their own, for ``bench.control``; the standard library alone, to start fast.

``control_clients.py victim SOCKET UUID,… WATTS`` takes a lease, sets a limit, says so, and waits to be killed.
``control_clients.py load SOCKET COUNT PERIOD_S UUID,…`` keeps COUNT connections busy: one each holds the SM clock of
one of the GPUs and sets it now and then, and all read every PERIOD_S, until standard input ends.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import sys
import time
from typing import Any


class Line:
    """One connection, one request at a time."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self._file = self.socket.makefile("rb")
        self._ids = itertools.count(1)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; events are not for us. RuntimeError if it is a refusal."""
        self.socket.sendall(json.dumps({"id": next(self._ids), **request}).encode() + b"\n")
        while "event" in (answer := json.loads(self._file.readline())):
            pass
        if "ok" not in answer:
            raise RuntimeError(f"{request} was refused: {answer}")
        return dict(answer["ok"])


def victim(path: str, uuids: str, limit_w: str) -> None:
    """Hold a lease until killed."""
    line = Line(path)
    lease = line.ask(op="take", gpus=uuids.split(","), knobs=["power_limit_w"], ttl_s=1e5)["lease"]
    line.ask(op="apply", lease=lease, setting={"power_limit_w": float(limit_w)})
    print("held", flush=True)
    sys.stdin.read()


def load(path: str, count: str, period_s: str, uuids: str) -> None:
    """Keep connections busy until standard input ends."""
    lines = [Line(path) for _ in range(int(count))]
    gpus = uuids.split(",")
    held = {
        line: line.ask(op="take", gpus=[gpu], knobs=["sm_mhz"], ttl_s=1e5)["lease"]
        for line, gpu in zip(lines, gpus, strict=False)
    }
    print("busy", flush=True)
    # Spread over the period, as many clients that know nothing of each other would be.
    step_s = float(period_s) / len(lines)
    due_s = time.monotonic()
    for turn in itertools.count():
        line = lines[turn % len(lines)]
        round_ = turn // len(lines)
        if line in held and round_ % 10 == 0:
            line.ask(op="apply", lease=held[line], setting={"sm_mhz": 1200 if round_ % 20 else 1500})
        else:
            line.ask(op="read", gpu=gpus[turn % len(gpus)])
        due_s = max(due_s + step_s, time.monotonic() - 1.0)  # a second behind is forgotten, not caught up with
        if select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
            return


if __name__ == "__main__":
    (victim if sys.argv[1] == "victim" else load)(*sys.argv[2:])
