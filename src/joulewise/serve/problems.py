"""What goes wrong, as HTTP says it: one JSON shape, ``{"error", "message"}``, under a fitting status.

``error`` is a word for programs, ``message`` one line for people: what happened, and the way out. Nothing of our own
inner state is ever shown: a fault of ours is logged here and is a bare 500 there. ``BodyLimit`` is in front of
everything: a body is read whole before it is looked at, so how much of one is read must be bounded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from joulewise.core.errors import BadSpec, JoulewiseError, NotKept, NotPermitted

MOST_BYTES = 64 * 1024
"""Of a body. The largest that makes sense, a tell with a hundred settings in its profile, has some 10 KiB."""
_LONGEST = 500
_RETRY_S = 1
_log = logging.getLogger("joulewise.serve")


class Problem(BaseModel):
    """Why a request was not done."""

    error: str = Field(description="A word for programs.", examples=["BadSpec"])
    message: str = Field(
        description="One line for people: what happened, and the way out.",
        examples=["no job is registered as 'nightly'; register it first"],
    )


class NoSuch(BadSpec):
    """There is nothing of that name: 404."""


class Known(BadSpec):
    """It is known already, and otherwise: 409."""


_SAID = {
    401: "No token, or one that is not known here.",
    403: "The token may only read; or this is not for you; or a page of another address asks.",
    404: "There is nothing of that name.",
    409: "Known already, and otherwise.",
    413: f"The body is longer than {MOST_BYTES} bytes.",
    422: "The request is not as described here.",
    503: "The journal cannot be read or written now; try again.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These statuses for a route's documentation."""
    return {status: {"model": Problem, "description": _SAID[status]} for status in statuses}


def answer(status: int, error: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """A problem as a response."""
    return _Plain({"error": error, "message": " ".join(message.split())[:_LONGEST]}, status, headers)


def explain(app: FastAPI) -> None:
    """Let every fault of this app be a problem."""
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(JoulewiseError, _ours)
    app.add_exception_handler(Exception, _fault)
    app.add_middleware(BodyLimit)


class _Plain(JSONResponse):
    """In ASCII: a message may quote text that has no other encoding, such as half of a surrogate pair."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found: Sequence[Any] = error.errors()
    said = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:5]]
    return answer(422, "BadSpec", "; ".join(said))


def _of_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    # 400 is a body that could not even be parsed: as wrong as one that could.
    status = 422 if error.status_code == 400 else error.status_code
    return answer(status, "HTTP", str(error.detail), dict(error.headers or {}))


def _ours(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, JoulewiseError)
    match error:
        case NoSuch():
            return answer(404, "NoSuch", str(error))
        case Known():
            return answer(409, "Known", str(error))
        case NotPermitted():
            return answer(403, "NotPermitted", str(error))
        case NotKept():
            _log.warning("%s", error)
            return answer(503, "NotKept", str(error), {"Retry-After": str(_RETRY_S)})
        case BadSpec():
            return answer(422, "BadSpec", str(error))
        case _:
            _log.warning("%s", error)
            return answer(503, type(error).__name__, str(error))


def _fault(request: Request, error: Exception) -> JSONResponse:
    _log.error("a fault of joulewise itself at %s %s", request.method, request.url.path, exc_info=error)
    return answer(500, "Fault", "a fault of joulewise itself; the server's log shows where")


class BodyLimit:
    """Refuses (413) any body longer than ``MOST_BYTES``, without reading on. Of a client that leaves, or is cut off, in
    the midst of its body nothing is handed on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            read.append(message)
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size > MOST_BYTES:
                refused = answer(413, "TooLong", f"a body may have {MOST_BYTES} bytes", {"Connection": "close"})
                await refused(scope, receive, send)
                return

        async def replayed() -> Message:
            return read.pop(0) if read else await receive()

        await self._app(scope, replayed, send)
