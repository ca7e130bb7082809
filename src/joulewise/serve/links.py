"""A link that opens the dashboard once: how whoever starts a server hands its pages to their own browser.

The link carries a code behind the ``#``, which browsers send to no server: it gets into no log, of a proxy neither, and
into no ``Referer``. The page sends the code back in a body, once, and gets for it a token that may only read. A code
that was used, by whomever, is worth nothing, and another link is said where the server was started, so that a second
window needs no new start.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.exceptions import HTTPException

from joulewise.serve.guarded import known_alone
from joulewise.serve.problems import documented
from joulewise.serve.requests import Body
from joulewise.serve.tokens import Scope, make

FRAGMENT = "once="
"""What the code stands behind; ``ui/api.js`` looks for it."""


class Link:
    """One server's link, and the token behind it; ``kept`` is for its guard. ``renewed`` is told the next link, once
    one was used. Safe with several threads."""

    def __init__(self, server: str, renewed: Callable[[str], None]) -> None:
        self._server, self._renewed = server, renewed
        self._token, self.kept = make(Scope.READ, "this start's link")
        self._lock = threading.Lock()
        self._code = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        """What to open; it works once."""
        return f"{self._server}/#{FRAGMENT}{self._code}"

    def redeem(self, code: str) -> str | None:
        """The token, for the code of the link that is valid now; None for any other."""
        with self._lock:
            if not hmac.compare_digest(self._code.encode(), code.encode("utf-8", "replace")):
                return None
            self._code = secrets.token_urlsafe(32)
        self._renewed(self.url)
        return self._token


class CodeBody(Body):
    """What a link carries."""

    code: Annotated[str, Field(min_length=1, max_length=200)]


def link_router(link: Link) -> APIRouter:
    """``POST /api/session``: a token for a code. Only there where a link was handed out."""
    router = APIRouter(prefix="/api", include_in_schema=False, dependencies=[Depends(known_alone)])

    @router.post("/session", responses=documented(401, 403, 422))
    def session(body: CodeBody, request: Request) -> dict[str, str]:
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, "pages of other addresses are not served")
        token = link.redeem(body.code)
        if token is None:
            raise HTTPException(401, "this link was used already; where the server was started another one is shown")
        return {"token": token}

    return router
