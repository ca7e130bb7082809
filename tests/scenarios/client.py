"""A client in a process of its own that does what it is told, one JSON line at a time; and the hand that tells it.

``python -m tests.scenarios.client [UID]`` reads ``[verb, arguments]`` from its standard input and answers ``{"ok": …}``
or ``{"error": class, "message": …}``. It holds one lease through the client library, as a training script would. It
loads all it needs before it becomes user UID, who may not be able to read the interpreter's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.control_stage import Refused
from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import Setting
from joulewise.device.remote import RemoteLease
from tests import preloaded

ROOT = Path(__file__).parents[2]


class Client:
    """The hand: starts a client process, tells it what to do, stops or kills it."""

    def __init__(self, environment: Mapping[str, str], *, uid: int | None = None) -> None:
        pipe = subprocess.PIPE
        self._process = preloaded.Command(
            *([] if uid is None else [str(uid)]),
            module="tests.scenarios.client",
            env=environment,
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
        )
        self.pid = self._process.pid

    def begin(self, verb: str, **arguments: Any) -> None:
        """Tell it, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """What it answers to what was told it before. Raises Refused."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the client ended with {self._process.wait(5)}"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["ok"]

    def __call__(self, verb: str, **arguments: Any) -> Any:
        """Tell it, and wait for its answer. Raises Refused."""
        self.begin(verb, **arguments)
        return self.end()

    def refused(self, verb: str, **arguments: Any) -> Refused:
        """The refusal that this must meet."""
        self.begin(verb, **arguments)
        return self.end_refused()

    def outcome(self) -> str:
        """How what was told it before ended: "ok", or the class of the refusal."""
        try:
            self.end()
        except Refused as refusal:
            return refusal.kind
        return "ok"

    def end_refused(self) -> Refused:
        """The refusal that what was told it before must meet."""
        try:
            answer = self.end()
        except Refused as refusal:
            return refusal
        raise AssertionError(f"it was not refused: {answer}")

    def hang(self) -> None:
        """It stops where it is (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """It wakes from its hang."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """It dies at once (SIGKILL); returns when the kernel says so."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, however it does. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Actor:
    """The client process's own side: one lease and the verbs on it."""

    def __init__(self) -> None:
        self._lease: RemoteLease | None = None

    def take(
        self,
        gpus: Sequence[str],
        knobs: Sequence[str],
        ttl_s: float = 30.0,
        reason: str = "",
        together: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        self._lease = RemoteLease.take(
            list(gpus), list(knobs), ttl_s=ttl_s, reason=reason, together=tuple(together) if together else None
        )
        return {"lease": self._lease.name, "notes": list(self._lease.notes)}

    def apply(self, **setting: float) -> dict[str, Any]:
        assert self._lease is not None
        applied = self._lease.apply(Setting(**setting))
        return {"effective": {gpu: dict(found) for gpu, found in applied.effective.items()}, "notes": applied.notes}

    def beat(self) -> None:
        assert self._lease is not None
        self._lease.beat()

    def quiet(self, duration_s: float, reason: str = "") -> None:
        assert self._lease is not None
        self._lease.quiet(duration_s, reason)

    def alive(self) -> bool:
        assert self._lease is not None
        return self._lease.alive

    def notices(self) -> list[dict[str, Any]]:
        assert self._lease is not None
        return [asdict(notice) for notice in self._lease.notices()]

    def release(self) -> list[dict[str, Any]]:
        assert self._lease is not None
        return [asdict(each) for each in self._lease.release().restored]


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    if len(sys.argv) > 1:
        become(int(sys.argv[1]))
    actor = _Actor()
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        act: Callable[..., Any] = getattr(actor, verb)
        try:
            answer = {"ok": act(**arguments)}
        except (JoulewiseError, AssertionError) as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # as a script that forgot to release


if __name__ == "__main__":
    main()
