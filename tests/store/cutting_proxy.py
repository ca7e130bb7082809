"""A wire between a client and PostgreSQL that can break at the worst moment: around the answer to COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

_SOCKET = ".s.PGSQL.5432"


class CuttingProxy:
    """Passes everything between ``folder`` and the server whose socket is in ``server``, until it is told to cut."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self._server = str(server / _SOCKET)
        self._cut: str | None = None
        self._away = self._stay_away = False
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / _SOCKET))
        self._socket.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def cut_at_commit(self, *, arrives: bool, stay_away: bool) -> None:
        """At the next COMMIT the wire breaks: once the server has done it, or before it hears of it.

        ``stay_away``: nobody is let through after that, until ``come_back``.
        """
        self._cut = "after" if arrives else "before"
        self._stay_away = stay_away

    def come_back(self) -> None:
        self._away = False

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in self._open:
            _end(each)
        for thread in self._threads:
            thread.join(30)
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if self._away:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            cut = threading.Event()
            for pump in (self._forth, self._back):
                self._threads.append(threading.Thread(target=pump, args=(client, server, cut)))
                self._threads[-1].start()

    def _forth(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._cut and b"COMMIT\0" in data:  # not READ COMMITTED
                    when, self._cut = self._cut, None
                    self._away = self._stay_away
                    if when == "before":
                        break
                    cut.set()
                server.sendall(data)
        if not cut.is_set():
            _end(client)
            _end(server)

    def _back(self, client: socket.socket, server: socket.socket, cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(65536)) and not cut.is_set():
                client.sendall(data)
        _end(client)
        _end(server)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
