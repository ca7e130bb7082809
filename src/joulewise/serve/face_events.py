"""``/api/events``: server-sent events over plain HTTP, for as long as the client stays.

A stream says hello at once, sends what its listener has, and something at least every 15 seconds, so that proxies and
clients know that it lives. A client that takes nothing for a minute is let go: what the network holds of it is all
that it costs until then.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from joulewise.serve.connection_limits import STALLED_S
from joulewise.serve.face_hub import Hub, Listener
from joulewise.serve.tokens import Guard

KEEP_ALIVE_S = 15.0
_HELLO = b"retry: 3000\n: joulewise\n\n"
_ALIVE = b": keep-alive\n\n"
_ABOUT = """
`gpus` each second, as `/api/gpus` without its history; `run` when a run has begun, decided, been proven or ended;
`cluster` when something was written down of one; `missed` when this client was too slow, or the store was
away meanwhile, and it should ask anew.
Read it with `fetch`, which can send a token.
"""


def add_events(router: APIRouter, hub: Hub, guard: Guard) -> None:
    """The route ``/api/events``. Places are counted by token, where ``guard`` knows it."""

    @router.get(
        "/events",
        response_class=Response,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Until the client goes away."}},
        summary="What happens, as it happens",
        description=_ABOUT,
    )
    async def events(request: Request) -> Response:
        token = guard.known(request.headers.get("authorization"))
        return EventStream(hub, client=_connected(request) if token is None else f"token {token.hash}")


def _connected(request: Request) -> str:
    """The client as its connection shows it, never as a header does."""
    address = request.client.host if request.client else "unknown"
    return str(request.scope.get("state", {}).get("client", address))


class EventStream(Response):
    """One listener's stream."""

    media_type = "text/event-stream"

    def __init__(
        self, hub: Hub, *, client: str = "", keep_alive_s: float = KEEP_ALIVE_S, stalled_s: float = STALLED_S
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._hub = hub
        self._client = client
        self._keep_alive_s = keep_alive_s
        self._stalled_s = stalled_s

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send until the client, or the server, ends."""
        gone = asyncio.create_task(_gone(receive))
        try:
            async with self._hub.listening(self._client) as listener:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                sending = asyncio.create_task(self._send(listener, send))
                try:
                    await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stalled = await _end(sending)
            if stalled:
                # Nothing is kept for it any more; its connection is cut off by now, or in a moment (``listen``). Were
                # it left before, the server would complain of an answer that was broken off.
                await asyncio.wait({gone}, timeout=self._stalled_s)
        finally:
            await _end(gone)

    async def _send(self, listener: Listener, send: Send) -> None:
        parts = [_HELLO]
        while True:
            for part in parts:
                body = {"type": "http.response.body", "body": part, "more_body": True}
                async with asyncio.timeout(self._stalled_s):  # wait_for may miss that it is told to end
                    await send(body)
            if listener.closed:
                break
            parts = await listener.next(self._keep_alive_s) or [_ALIVE]
        await send({"type": "http.response.body", "body": b""})


async def _end(task: asyncio.Task[None]) -> bool:
    """End a task; whether it had given up waiting."""
    task.cancel()
    try:
        await task
    except TimeoutError:
        return True
    except (asyncio.CancelledError, OSError):
        pass
    return False


async def _gone(receive: Receive) -> None:
    while True:
        message: Any = await receive()
        if message["type"] == "http.disconnect":
            return
