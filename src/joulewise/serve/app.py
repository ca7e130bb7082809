"""The server: an ASGI app made out of routers, on a store and behind a guard.

It keeps no state that matters. What it remembers (a job's desk, a run's story, a cluster's log) spares reading journals
from the beginning, and can be forgotten at any moment, so any number of these processes may serve one store. It writes
only what recurring jobs ask and tell; everything else reads. The dashboard's own files are open to all, since they hold
no data; whatever has data is behind the guard.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI
from pydantic import BaseModel

from joulewise.core.errors import NotKept
from joulewise.serve import described, metrics, problems
from joulewise.serve.countersigning import Signer, countersigning_router
from joulewise.serve.face import Face, Worth
from joulewise.serve.face_clusters import add_clusters
from joulewise.serve.face_events import add_events
from joulewise.serve.face_folding import folding
from joulewise.serve.face_hub import Hub
from joulewise.serve.face_news import News
from joulewise.serve.face_overview import add_overview
from joulewise.serve.face_paths import Segments
from joulewise.serve.face_plans import add_plans
from joulewise.serve.face_runs import add_runs
from joulewise.serve.guarded import allowed, known_alone
from joulewise.serve.links import Link, link_router
from joulewise.serve.live import LiveGpus
from joulewise.serve.series import series_router
from joulewise.serve.static import Safely, static_router
from joulewise.serve.tokens import Guard, Scope
from joulewise.store import Store

_log = logging.getLogger("joulewise.serve")
_ABOUT = """
What was spent, what was saved, and why each decision was taken: runs, live GPUs, recurring jobs, plans, clusters.

**Recurring jobs** are the only thing that is written here. A run **asks** for a trial, reports **progress** once an
epoch (which renews its lease and says whether to go on), and is **told** at its end. Asking again under the same key
gives the same trial, telling twice counts once: repeat whatever got no answer. A trial of which nothing is heard for
its lease is free again, and its result is taken all the same if it comes late.

Times are seconds since 1970, units end the names, and null is what nobody knows. A name in a path is percent-encoded.
"""


class Health(BaseModel):
    """That the server can do its work."""

    status: str = "ok"


def make_app(
    store: Store,
    guard: Guard,
    *,
    live: LiveGpus | None = None,
    plans: Path | None = None,
    worth: Worth | None = None,
    link: Link | None = None,
    signer: Signer | None = None,
) -> FastAPI:
    """The app. Nothing is read before it is served. ``live``: the GPUs to show, None for none;
    ``plans``: the folder of plans; ``worth``: what a kilowatt hour costs and emits; ``link``: that
    opens the dashboard once, None for none; ``signer``: countersigns runs, None where nobody is signed for.
    ``app.state.closing()`` ends all
    streams of events, for a server that is about to end."""
    face = Face(store, live=live, plans=plans, worth=worth)
    app = described.made_app("joulewise", _ABOUT, lifespan=_lifespan(face))
    problems.explain(app)
    app.add_middleware(Segments)
    app.add_middleware(Safely)
    news = News(face)
    hub = Hub(news.look, begin=news.begin)
    app.state.closing = hub.close
    app.include_router(_health(store))
    app.include_router(series_router(face.desks, guard))
    app.include_router(_face_router(face, hub, guard))
    if signer is not None:
        app.include_router(countersigning_router(signer, guard))
    label = metrics.store_label(face.store.name, face.live.node)
    app.include_router(metrics.metrics_router(metrics.of_server(face.live, face.summaries, label), guard))
    if link is not None:
        app.include_router(link_router(link))
    app.include_router(static_router())
    return app


def _lifespan(face: Face) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with folding(face.summaries):
            yield

    return lifespan


def _face_router(face: Face, hub: Hub, guard: Guard) -> APIRouter:
    router = APIRouter(
        prefix="/api",
        tags=["dashboard"],
        dependencies=[Depends(allowed(guard, Scope.READ))],
        responses=problems.documented(401, 403, 422, 503),
    )
    add_overview(router, face)
    add_runs(router, face)
    add_plans(router, face)
    add_clusters(router, face)
    add_events(router, hub, guard)
    return router


def _health(store: Store) -> APIRouter:
    router = APIRouter(tags=["health"], dependencies=[Depends(known_alone)])

    @router.get("/healthz", responses=problems.documented(422, 503), summary="Whether the store answers")
    def healthz() -> Health:
        try:
            store.streams("series/")
        except NotKept as error:
            # Anyone may ask this: where the store is and what is wrong with it is for the log.
            _log.warning("%s", error)
            raise NotKept("the store cannot be read; see the server's log") from error
        return Health()

    return router
