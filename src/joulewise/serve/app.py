"""The server: an ASGI app made out of routers, on a store and behind a guard.

It keeps no state that matters. Each job's desk is remembered to spare reading its journal from the beginning, and can
be forgotten at any moment, so any number of these processes may serve one store. More rooms (metrics, a dashboard)
are more routers here.
"""

from __future__ import annotations

import logging
from importlib import metadata

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

from joulewise.core.errors import NotKept
from joulewise.serve import problems
from joulewise.serve.desks import Desks
from joulewise.serve.series import series_router
from joulewise.serve.tokens import Guard
from joulewise.store import Store

_log = logging.getLogger("joulewise.serve")
_ABOUT = """
Recurring training jobs: ask which batch size the next run should have, tell how it went.

A run **asks** for a trial, reports **progress** once an epoch (which renews its lease and says whether to go on), and
is **told** at its end. Asking again under the same key gives the same trial, telling twice counts once: repeat whatever
got no answer. A trial of which nothing is heard for its lease is free again, and its result is taken all the same if it
comes late.
"""


class Health(BaseModel):
    """That the server can do its work."""

    status: str = "ok"


def make_app(store: Store, guard: Guard) -> FastAPI:
    """The app. Nothing is read or written before the first request."""
    app = FastAPI(title="joulewise", description=_ABOUT, version=metadata.version("joulewise"), redirect_slashes=False)
    problems.explain(app)
    app.include_router(_health(store))
    app.include_router(series_router(Desks(store), guard))
    return app


def _health(store: Store) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", responses=problems.documented(503), summary="Whether the store answers")
    def healthz() -> Health:
        try:
            store.streams("series/")
        except NotKept as error:
            # Anyone may ask this: where the store is and what is wrong with it is for the log.
            _log.warning("%s", error)
            raise NotKept("the store cannot be read; see the server's log") from error
        return Health()

    return router
