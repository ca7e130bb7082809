"""The daemon's socket: the lines that a client of another version says, and the names in what it is answered."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import JoulewiseError
from joulewise.device.node import spawn
from tests.daemon.running import running_daemon
from tests.frozen.names import check, keys

SITE = '[[rule]]\nusers = "*"\nneeds = "nothing"\n'
VARIED = ("answer.ok.may", "answer.ok.setting")


class Asker:
    """Says lines as they stand here, and reads the answers."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30.0)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")

    def __call__(self, op: str, **fields: object) -> dict[str, Any]:
        self._socket.sendall(json.dumps({"id": 7, "op": op, **fields}).encode() + b"\n")
        while (answer := json.loads(self._lines.readline())).get("id") != 7:
            pass
        return dict(answer)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def ask(virtual_nvml: None, may_set: None, tmp_path: Path) -> Iterator[Asker]:
    with (
        spawn("sim:h200*2") as node,
        running_daemon(node, tmp_path, site=SITE) as daemon,
        closing(Asker(daemon.socket)) as asker,
    ):
        yield asker


def test_requests_are_understood_and_answered_with_these_names(ask: Asker) -> None:
    found: set[str] = set()

    def asked(op: str, **fields: object) -> Any:
        answer = ask(op, **fields)
        assert "ok" in answer, answer
        found.update(f"{op}: {key}" for key in keys({"answer": answer}, VARIED))
        return answer["ok"]

    first, second = asked("gpus")["gpus"]
    uuid, other = first["uuid"], second["uuid"]
    asked("hello")
    asked("gpus", after=other)
    asked("read", gpu=uuid)
    asked("energy", gpu=uuid)
    asked("may", gpus=[uuid])
    lease = asked("take", gpus=[uuid], knobs=["power_limit_w", "sm_mhz"], ttl_s=60, reason="frozen")["lease"]
    asked("apply", lease=lease, setting={"power_limit_w": 500, "sm_mhz": 1200})
    asked("apply", lease=lease, setting={"sm_mhz": 1410}, gpus=[uuid])
    asked("beat", lease=lease)
    asked("quiet", gpus=[uuid], for_s=1.0, reason="capture")
    asked("leases")
    asked("quiet", gpus=[uuid], for_s=0)
    asked("release", lease=lease)
    asked("stand", gpus=[uuid], setting={"sm_mhz": 1410})
    asked("status")
    ended = asked("take", gpus=[other], knobs=["sm_mhz"], ttl_s=60)["lease"]
    asked("end", lease=ended)
    party = {"name": "job-7", "size": 1}
    asked("take", gpus=[other], knobs=["sm_mhz"], ttl_s=60, together=party)
    check("wire", found)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"op": "nonsense"}, "BadMessage"),
        ({"op": "take", "gpus": ["GPU-none"], "knobs": ["sm_mhz"], "ttl_s": 60}, "NoGpu"),
        ({"op": "beat", "lease": "lease-none"}, "LeaseLost"),
        ({"op": "take", "gpus": ["GPU-none"], "knobs": ["voltage"], "ttl_s": 60}, "Unsupported"),
        ({"op": "take", "gpus": ["GPU-none"], "knobs": ["sm_mhz"], "ttl_s": -1}, "OutOfRange"),
    ],
)
def test_a_refusal_has_the_error_by_its_name(fields: dict[str, Any], error: str, ask: Asker) -> None:
    answer = ask(**fields)
    assert (answer["error"], answer.keys()) == (error, {"id", "error", "message"})


def test_errors_that_travel_are_these() -> None:
    def names(kind: type[Exception]) -> Iterator[str]:
        yield kind.__name__
        for each in kind.__subclasses__():
            if each.__module__ == kind.__module__:
                yield from names(each)

    check("errors", names(JoulewiseError))
