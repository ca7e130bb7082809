"""A server that gives one answer to everything: what a client makes of answers that a real one rarely gives."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@contextmanager
def answering(code: int, body: object, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list]]:
    """A server that gives one answer to everything, and keeps what it was asked."""
    asked: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append((self.path, fields, dict(self.headers)))
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
