"""The dashboard's own files: what a browser loads before it asks for data. They hold none, so anybody may have them.

All of them are known when the server starts: a request names one of them or gets 404, and no path is ever made of what
was asked for. Nothing is loaded from elsewhere, and the browser is told so (``Content-Security-Policy``). A file is
asked for again each time and answered with 304 while it is the same, so that another version of joulewise is never
mixed with this one.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What a page may load: only what this server has; no program or style within the page itself."""
_SAFELY = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
_PLAIN = "text/plain; charset=utf-8"
_log = logging.getLogger("joulewise.serve")


class Safely:
    """Middleware: whatever is answered, a browser takes it for what it is said to be and lets no other page frame it or
    learn where it was."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand it on, and add to its answer."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SAFELY]
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    media_type: str
    tag: str
    """Its ETag."""


def assets(folder: Traversable | None = None) -> dict[str, Asset]:
    """All files of ``ui/`` by their paths in it; none where the dashboard is not there."""
    root = folder if folder is not None else resources.files("joulewise.serve") / "ui"
    found: dict[str, Asset] = {}
    if root.is_dir():
        _gather(root, "", found)
    else:
        _log.warning("the dashboard's files are not there; the API is served all the same")
    return found


def _gather(folder: Traversable, at: str, found: dict[str, Asset]) -> None:
    for entry in folder.iterdir():
        if entry.name.startswith((".", "__")):
            continue
        path = f"{at}{entry.name}"
        if entry.is_dir():
            _gather(entry, f"{path}/", found)
        elif entry.is_file():
            content = entry.read_bytes()
            media_type = _TYPES.get(PurePosixPath(path).suffix, _PLAIN)
            found[path] = Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def static_router(found: dict[str, Asset] | None = None) -> APIRouter:
    """``/`` and ``/ui/…``, for anybody."""
    files = assets() if found is None else found
    router = APIRouter(include_in_schema=False)

    def answer(request: Request, path: str) -> Response:
        asset = files.get(path)
        if asset is None:
            raise HTTPException(404, "no such page; the dashboard is at /, the API's description at /docs")
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "ETag": asset.tag,
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        asked = request.headers.get("if-none-match", "")
        if asset.tag in (each.strip().removeprefix("W/") for each in asked.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def home(request: Request) -> Response:
        return answer(request, "index.html")

    @router.api_route("/ui/{path:path}", methods=["GET", "HEAD"])
    async def file(request: Request, path: str) -> Response:
        return answer(request, path)

    @router.api_route("/favicon.ico", methods=["GET", "HEAD"])
    async def icon(request: Request) -> Response:
        return answer(request, "icon.svg")

    return router
