"""A crowd at the daemon's door: ``python -m tests.scenarios.crowd UID SOCKET COUNT KIND`` opens COUNT of them.

``idle`` says nothing; ``loris`` begins a request and sends a byte of it now and then, never its end; ``half`` closes
its own direction and stays; ``long`` sends lines of 64 KiB and a byte; ``deaf`` asks and never reads the answers.
Prints a JSON line once all are open, then one whenever a line is written to it: how many the daemon has hung up on.
Ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from tests.scenarios.client import become

_BETWEEN_BYTES_S = 0.5


class Crowd:
    """The connections of one process."""

    def __init__(self, path: str, count: int, kind: str) -> None:
        self.kind = kind
        self.open: list[socket.socket] = []
        self.refused = 0
        self.hung_up = 0
        for _ in range(count):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(path)
            except OSError:
                connection.close()
                self.refused += 1
                continue
            connection.setblocking(False)
            self.open.append(connection)
        self._each(lambda connection: self._first(connection))

    def _first(self, connection: socket.socket) -> None:
        if self.kind == "loris":
            connection.send(b'{"id": 1, "op": "read", "gpu": "')
        elif self.kind == "half":
            connection.shutdown(socket.SHUT_WR)
        elif self.kind == "long":
            connection.send(b"x" * 65537)

    def act(self) -> None:
        """Whatever this kind does now and then; and see who was hung up on."""
        if self.kind == "loris":
            self._each(lambda connection: connection.send(b"G"))
        elif self.kind == "deaf":
            self._each(lambda connection: connection.send(b'{"id": 1, "op": "gpus"}\n' * 1000))
        if self.kind != "deaf":
            self._each(self._read)

    def _read(self, connection: socket.socket) -> None:
        while received := connection.recv(65536):
            del received
        raise ConnectionResetError  # the end of the stream

    def _each(self, act) -> None:  # type: ignore[no-untyped-def]
        for connection in list(self.open):
            try:
                act(connection)
            except BlockingIOError:
                pass
            except OSError:
                self.open.remove(connection)
                connection.close()
                self.hung_up += 1


def main() -> None:
    uid, path, count, kind = sys.argv[1:]
    become(int(uid))
    crowd = Crowd(path, int(count), kind)
    due_s = 0.0
    told = True
    while True:
        if time.monotonic() >= due_s:
            crowd.act()
            due_s = time.monotonic() + _BETWEEN_BYTES_S
        if told:
            print(json.dumps({"open": len(crowd.open), "refused": crowd.refused, "hung_up": crowd.hung_up}), flush=True)
            told = False
        if select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
            if not sys.stdin.readline():
                return
            crowd.act()
            told = True


if __name__ == "__main__":
    main()
