"""Servers that answer as they are told: what a client makes of answers that a real one rarely gives."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@contextmanager
def answering(code: int, body: object, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list]]:
    """A server that gives one answer to everything, and keeps what it was asked."""
    with answering_by(lambda _path, _fields: (code, body), headers) as (url, asked):
        yield url, asked


@contextmanager
def answering_by(
    answer: Callable[[str, dict[str, str]], tuple[int, object] | None],
    headers: dict[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[str, list]]:
    """A server that answers each question by path and fields, or for None hangs up; and keeps what it was asked."""
    asked: list = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            asked.append((self.path, fields, dict(self.headers)))
            answered = answer(self.path, {name: values[0] for name, values in fields.items()})
            if answered is None:
                self.close_connection = True
                return
            code, body = answered
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
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # a client that goes away is no news
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
            yield f"{scheme}://{host}:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
