"""HTTP over a Unix socket, the way other power daemons talk: what ``bench.control`` compares the daemon with.

The server is the standard library's, with kept-alive connections and one thread each; every request and answer leaves
in one packet. What it does for a write is given: the bare driver calls (set, then read back: no lease, no journal, so
a floor), or the same Keeper as the daemon's. ``python -m bench.control_http bare|keeper UUID SOCKET STATE`` serves
until its standard input ends.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from joulewise.core.knob import Setting
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Owner
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.saved import Saved

KNOB = "power_limit_w"
Write = Callable[[float], float | None]


class _Handler(BaseHTTPRequestHandler):
    """GET reads, POST writes."""

    protocol_version = "HTTP/1.1"  # keeps the connection
    wbufsize = -1  # headers and body leave together
    server: Server

    def do_GET(self) -> None:
        """What the GPU shows."""
        reading = self.server.controls.read()
        self._answer({"time_s": reading.time_s, "power_w": reading.power_w, "sm_mhz": reading.sm_mhz})

    def do_POST(self) -> None:
        """Set the limit; what is in force then."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({KNOB: self.server.write(float(asked[KNOB]))})

    def _answer(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silence: a log would cost the baseline time that ours does not spend."""


class Server(socketserver.ThreadingUnixStreamServer):
    """One thread a connection."""

    daemon_threads = True

    def __init__(self, path: Path, controls: NvmlControls, write: Write) -> None:
        self.controls, self.write = controls, write
        super().__init__(str(path), _Handler)


class Connection(http.client.HTTPConnection):
    """A kept-alive HTTP connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """To the path, not to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))

    def ask(self, method: str, value_w: float | None = None) -> dict[str, Any]:
        """One round trip."""
        body = None if value_w is None else json.dumps({KNOB: value_w})
        self.request(method, "/gpu", body, {"Content-Type": "application/json"} if body else {})
        answer: dict[str, Any] = json.loads(self.getresponse().read())
        return answer


def main() -> None:
    kind, uuid, path, state = sys.argv[1:]
    controls = NvmlControls(uuid)
    with ExitStack() as ending:
        if kind == "keeper":
            saved = Saved.open(Path(state), uuid)
            ending.callback(saved.close)
            keeper = Keeper(controls, saved)
            keeper.take((KNOB,), Owner("bench", os.getuid(), os.getpid()))
            ending.callback(keeper.restore, (KNOB,))
            lock = threading.Lock()

            def write(value_w: float) -> float | None:
                with lock:
                    effective, _ = keeper.apply(Setting(power_limit_w=value_w), (KNOB,))
                return effective.get(KNOB)
        else:

            def write(value_w: float) -> float | None:
                controls.write(KNOB, value_w)
                return controls.value(KNOB)

        server = ending.enter_context(Server(Path(path), controls, write))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
