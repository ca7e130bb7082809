"""Names in paths that may hold any character, a slash included.

A server hands a path on with its percent signs resolved, so that ``/api/runs/a%2Fb`` and ``/api/runs/a/b`` look the
same. ``Segments`` keeps them apart: below ``/api`` each part of the path stays one part, with its own slashes (and
percent signs) still written as they were sent, and ``named`` resolves a part once it has been found. Nothing here makes
a file's name of what was sent: names are looked up, never walked.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from starlette.types import ASGIApp, Receive, Scope, Send

from joulewise.serve.problems import NoSuch

LONGEST_NAME = 1000


class Segments:
    """Middleware: parts of paths below ``/api`` stay parts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand it on, with the path taken from what was really sent."""
        raw = scope.get("raw_path") if scope["type"] == "http" else None
        if raw is not None and raw.startswith(b"/api/") and b"%" in raw:
            parts = raw.decode("latin-1").partition("?")[0].split("/")
            scope = {**scope, "path": "/".join(map(_part, parts))}
        await self._app(scope, receive, send)


def _part(sent: str) -> str:
    return unquote(sent).replace("%", "%25").replace("/", "%2F")


def named(what: str, sent: str) -> str:
    """The name that a part of a path stands for. NoSuch for one that nothing can have."""
    name = unquote(sent)
    if "\0" in name:  # no store can hold it
        raise NoSuch(f"no {what} is called so; a name has no zero byte in it")
    return name


Name = Annotated[
    str, Path(min_length=1, max_length=LONGEST_NAME, description="Its name, percent-encoded.", examples=["example"])
]
"""A part of a path that is a name; ``named`` resolves it."""
