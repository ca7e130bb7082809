"""A connection to the daemon: questions and answers, and the events that come between them. No lease, no GPU.

Whoever asks also reads, so that a round trip needs no second thread; events that arrive meanwhile are kept for
whoever wants them. May be used from several threads, one question at a time. In a forked child the connection is not
theirs, and the child's copy of it is closed.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from joulewise.core.errors import BadMessage, JoulewiseError, NoDaemon, NotPermitted
from joulewise.device import wire

ANSWER_S: Final = 15.0
"""Patience with an answer. The daemon gives up on a driver after 5 s, and a rollback may take that once more."""
_MOST_EVENTS: Final = 1024
"""Kept for who does not look; the oldest go first."""

_open: weakref.WeakSet[DaemonClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_open):
        client.forget()


class DaemonClient:
    """A connection, to be closed. NoDaemon if none answers at ``path`` (None: ``JOULEWISE_SOCKET``, or the usual)."""

    def __init__(self, path: Path | None = None, *, answer_s: float = ANSWER_S) -> None:
        self.path = wire.socket_path() if path is None else path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._unread = b""
        self._events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._broken: str | None = None
        self._sock = _connect(self.path)
        # The kernel's own patience, not Python's: that would cost a poll before every call, and wait even where we
        # only want to look.
        self._sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(answer_s), int(answer_s % 1 * 1e6)))
        _open.add(self)
        try:
            self.hello = self.ask("hello")
        except JoulewiseError:
            self.close()
            raise
        """What the daemon said of itself and of us: ``version``, ``uid``, ``gid``, ``pid``, ``gpus``, ``speed``."""

    # -- questions

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request, whose fields that are None are left out.

        Raises what the daemon refuses it with, as the class that it was; NoDaemon if it is gone or does not answer.
        """
        self._check_own()
        number = next(self._ids)
        line = _line({"id": number, "op": op, **{name: value for name, value in fields.items() if value is not None}})
        with self._lock:
            if self._broken is not None:
                raise NoDaemon(self._broken)
            try:
                self._sock.sendall(line)
                return self._answer(number)
            except BlockingIOError:
                # Its answer may come yet, and would be taken for another's: this connection is of no more use.
                raise self._break(
                    f"the daemon on {self.path} does not answer; see 'systemctl status joulewise'"
                ) from None
            except OSError as error:
                said = self._last_words()
                why = said or f"the daemon on {self.path} has gone ({error.strerror}); see 'systemctl status joulewise'"
                raise self._break(why) from None

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that the daemon looks after, and what could be set on them."""
        return self._pages("gpus", "uuid")

    def leases(self) -> list[dict[str, Any]]:
        """Who holds what, until when."""
        return self._pages("leases", "lease")

    def may(self, gpus: list[str]) -> dict[str, dict[str, Any]]:
        """What we may set on each of ``gpus``: ``knobs`` (knob → [lowest, highest]) and ``because``, or ``why`` not."""
        may: dict[str, dict[str, Any]] = self.ask("may", gpus=gpus)["may"]
        return may

    def status(self) -> dict[str, Any]:
        """How the daemon is. Root only."""
        return self.ask("status")

    def end(self, lease: str, reason: str = "") -> list[dict[str, Any]]:
        """End somebody's lease; how everything came back. Root only."""
        restored: list[dict[str, Any]] = self.ask("end", lease=lease, reason=reason)["restored"]
        return restored

    def stand(self, gpus: list[str], setting: dict[str, float | None]) -> None:
        """Declare clocks that outlive every lease; None ends one. Root only."""
        self.ask("stand", gpus=gpus, setting=setting)

    def _pages(self, op: str, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self.ask(op, after=found[-1][key] if found else None)
            found += page[op]
            if not page["more"] or not page[op]:
                return found

    # -- events

    def events(self) -> list[dict[str, Any]]:
        """What the daemon has said unasked since the last call, without waiting."""
        self._check_own()
        if self._lock.acquire(blocking=False):  # whoever else has it reads, and keeps events for us
            try:
                if self._broken is None:
                    self._read_what_is_there()
            finally:
                self._lock.release()
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    @property
    def broken(self) -> str | None:
        """Why the connection is of no more use, as far as is known; None if it seems to be."""
        return self._broken

    # -- life

    def close(self) -> None:
        """Hang up, which ends the leases taken over this connection. Idempotent."""
        if self._pid == os.getpid():
            self._broken = self._broken or "the connection is closed"
            self._sock.close()
            _open.discard(self)

    def forget(self) -> None:
        """In a forked child: let go of the copy, which leaves the parent's connection as it is."""
        self._sock.close()

    def _check_own(self) -> None:
        if self._pid != os.getpid():
            raise NoDaemon(f"this connection belongs to process {self._pid}, which forked this one; open another")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- lines

    def _answer(self, number: int) -> dict[str, Any]:
        while True:
            obj = self._next_line()
            if "event" in obj:
                self._events.append(obj)
                continue
            if obj.get("id") is None and "error" in obj:
                with suppress(OSError):
                    self._sock.close()
                self._broken = str(obj.get("message"))
                wire.raise_error(obj)  # it hangs up after this
            if obj.get("id") == number:
                wire.raise_error(obj)
                ok: dict[str, Any] = obj["ok"]
                return ok

    def _next_line(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            received = self._sock.recv(wire.MOST_BYTES)
            if not received:
                raise ConnectionResetError(0, "it hung up")
            self._unread = self._unread + received if self._unread else received
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return wire.parse_object(line)
        except BadMessage as error:
            raise self._break(f"what answers on {self.path} is no daemon of ours: {error}") from None

    def _read_what_is_there(self) -> None:
        try:
            while received := self._sock.recv(wire.MOST_BYTES, socket.MSG_DONTWAIT):
                self._unread += received
            self._broken = f"the daemon on {self.path} has gone; see 'systemctl status joulewise'"
        except BlockingIOError:
            pass
        except OSError as error:
            self._broken = f"the daemon on {self.path} has gone ({error.strerror}); see 'systemctl status joulewise'"
        self._sort_lines()

    def _sort_lines(self) -> None:
        """Put whole lines where they belong, when nobody waits for an answer."""
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            with suppress(BadMessage):
                obj = wire.parse_object(line)
                if "event" in obj:
                    self._events.append(obj)
                elif "error" in obj and self._broken is not None:
                    self._broken = str(obj.get("message"))

    def _last_words(self) -> str | None:
        """What the daemon said before it hung up, if it did."""
        with suppress(OSError):
            self._read_what_is_there()
        return self._broken

    def _break(self, why: str) -> NoDaemon:
        self._broken = why
        self._sock.close()
        return NoDaemon(why)


os.register_at_fork(after_in_child=_after_fork)


def _line(request: dict[str, Any]) -> bytes:
    """A request as it travels. BadMessage if it cannot."""
    try:
        line = wire.line(request)
    except ValueError:
        raise BadMessage(f"a number in this {request['op']} is not finite; JSON has no word for it") from None
    if len(line) > wire.MOST_BYTES:
        raise BadMessage(f"this {request['op']} has {len(line)} bytes, {wire.MOST_BYTES} are allowed; ask for less")
    return line


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Through /proc, because a socket's own path may have no more than 107 bytes.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.settimeout(ANSWER_S)
            sock.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except PermissionError:
        sock.close()
        raise NotPermitted(
            f"uid {os.geteuid()} may not reach the daemon's socket {path} (permission denied); "
            "ask who runs this machine: its folder or its mode is closed to you"
        ) from None
    except OSError as error:
        sock.close()
        raise NoDaemon(
            f"no daemon answers on {path} ({error.strerror or error}); root starts one with 'joulewise daemon'"
        ) from None
    return sock
