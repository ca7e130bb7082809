"""JSON over HTTP from the client's side, on the standard library alone: one call, tried until it has an answer.

A server is named by ``http://…``, ``https://…`` or ``unix:PATH``: a Unix socket, whose server knows who asks by the
kernel's word and wants no token. A server of this user's own on this machine has left its token where ``local_paths``
says, so that nobody needs to be told that one.

A server that restarts, or a network that drops a packet, is waited for with growing pauses: everything that is asked
and told over it may be repeated, since asks carry a key and a tell counts once. What the server refuses is BadSpec with
its own words; what it cannot do now, or a server that is not there, is NotKept after ``patience_s``.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.parsing import json_value
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.serve.local_paths import connect, reached_own_server
from joulewise.serve.tokens import is_loopback

TIMEOUT_S = 10.0
"""For one answer. An ask takes milliseconds, and as long again for each that is ahead of it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_BYTES = 64 * 1024 * 1024
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that may be others a moment later; of a proxy in front as well."""


def unix_path(url: str) -> Path | None:
    """The path in ``unix:/PATH`` (or ``unix:///PATH``); None for an address of another kind. BadSpec where it is not
    absolute."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme != "unix":
        return None
    path = Path(f"/{rest.lstrip('/')}" if rest.startswith("/") else rest)
    if not path.is_absolute() or "\0" in rest:
        raise BadSpec(f"{url!r} is no server's address; write unix: and an absolute path")
    return path


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for the server that was named, not for one that it points to."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _UnixConnection(http.client.HTTPConnection):
    """One to a Unix socket."""

    def __init__(self, path: Path, host: str, timeout: float) -> None:
        super().__init__(host, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """As for TCP."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        connect(self.sock, self._path)


class _OverUnix(urllib.request.HTTPHandler):
    """Whatever is asked over http goes to one Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """As for TCP."""

        def made(host: str, *, timeout: float, **_: Any) -> _UnixConnection:
            return _UnixConnection(self._path, host, timeout)

        return self.do_open(made, req)  # type: ignore[arg-type]  # wants a class, and calls it


class Wire:
    """A server's address, and a token for it. ``starts``: the command that would be running there."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        time: TimeSource | None = None,
        starts: str = "joulewise serve",
    ) -> None:
        path = unix_path(url)
        parts = urllib.parse.urlsplit("http://localhost" if path is not None else url)
        if "@" in parts.netloc:  # first of all: what is wrong with the rest would show it
            raise BadSpec("a server's address carries no password; give its token with --token-file")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadSpec(f"{url!r} is no server's address; write it as http://HOST:8745 or unix:/PATH")
        try:
            port = parts.port
        except ValueError as error:
            raise BadSpec(f"{url!r} is no server's address: {error}") from error
        own = path
        if token is None and parts.scheme == "http" and port is not None and is_loopback(parts.hostname):
            own = reached_own_server(port)
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
            raise BadSpec("that is no token; 'joulewise serve token' makes one")
        self.url = f"unix:{path}" if path is not None else url.rstrip("/")
        self._base = "http://localhost" if own is not None else self.url
        self._headers = {"Accept": "application/json", "User-Agent": "joulewise"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._starts = starts
        self._time = time if time is not None else WallTime()
        # A proxy of the environment is for other machines.
        local = () if own is None else (_OverUnix(own), urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(_NoRedirect(), *local)

    def call(self, method: str, path: str, body: Any = None, *, patience_s: float = 0.0) -> Any:
        """What the server answers; None for an answer without a body. Tried again for ``patience_s`` seconds."""
        end_s = self._time.now_s() + patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._once(method, path, body)
            except NotKept:
                # Somewhere in the pause, so that a crowd that waits for one server does not come back as one.
                wait_s = pause_s * random.uniform(0.5, 1.0)
                if self._time.now_s() + wait_s > end_s:
                    raise
                self._time.sleep(wait_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _once(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(self._base + path, data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                text = response.read(_MOST_BYTES)
                # Read up to a size, a connection that breaks is no error of the library's.
                if len(text) < min(_MOST_BYTES, int(response.headers.get("Content-Length") or 0)):
                    raise http.client.IncompleteRead(text)
                return self._content(text)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            # urllib wraps what happened while connecting; what happens while reading comes as it is.
            why = getattr(error, "reason", None) or error
            raise NotKept(
                f"{self.url} does not answer: {str(why) or type(why).__name__}; is '{self._starts}' running there?"
            ) from error

    def _content(self, text: bytes) -> Any:
        if not text:
            return None
        try:
            return json_value(text)
        except ValueError as error:
            raise BadSpec(f"{self.url} answers, but not as joulewise does; is the address right?") from error

    def _refusal(self, error: urllib.error.HTTPError) -> BadSpec | NotKept:
        try:
            message = str(json_value(error.read(_MOST_BYTES))["message"])
        except (ValueError, TypeError, KeyError, OSError, http.client.HTTPException):
            message = f"{error.code} {error.reason}"
        kind = NotKept if error.code in _PASSING else BadSpec
        return kind(f"{self.url}: {message}")
