"""An app called as a server would, with the path exactly as sent, and with streams that go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import unquote


class Call:
    """One request. ``start`` it within an event loop; ``leave`` as a client does that closes its window.

    ``taken``: how many parts of the body the client takes before it stops reading for good; None: all.
    """

    def __init__(
        self,
        app: Any,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        taken: int | None = None,
        peer: str = "127.0.0.1",
        host: str = "localhost:8745",
    ) -> None:
        self._app = app
        at, _, query = path.partition("?")
        sent = {"host": host, **(headers or {})}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(at),
            "raw_path": at.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": (peer, 4242),
            "server": ("127.0.0.1", 8745),
        }
        self._left = asyncio.Event()
        self._there = asyncio.Event()
        self._sent = False
        self._taken = taken
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.over = False
        self.task: asyncio.Task[None] | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, Any]]:
        """What was streamed so far: kind and data."""
        found = []
        for block in self.body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":" and ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found

    def start(self) -> Call:
        self.task = asyncio.get_running_loop().create_task(self._app(self._scope, self._receive, self._send))
        return self

    async def until(self, so: Any, timeout_s: float = 20.0) -> None:
        """Wait until ``so()`` holds, looked at whenever something came."""
        async with asyncio.timeout(timeout_s):
            while not so():
                await self._there.wait()
                self._there.clear()

    async def leave(self) -> None:
        self._left.set()
        assert self.task is not None
        await asyncio.wait_for(self.task, 10.0)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        if self._taken is not None and len(self.parts) >= self._taken:
            await asyncio.Event().wait()  # as a network that is full does
        self.parts.append(message.get("body", b""))
        self.over = not message.get("more_body", False)
        self._there.set()


def asked(app: Any, path: str, **more: Any) -> Call:
    """One whole request and its answer."""

    async def call() -> Call:
        made = Call(app, path, **more).start()
        assert made.task is not None
        await asyncio.wait_for(made.task, 30.0)
        return made

    return asyncio.run(call())
