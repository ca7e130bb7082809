"""The dashboard's first page, its live GPUs and its search. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query

from joulewise.core.errors import JoulewiseError
from joulewise.core.plain import plain, showable
from joulewise.core.units import kwh_from_joules
from joulewise.report.summaries import RunSummary
from joulewise.serve import face_messages as messages
from joulewise.serve.answers import model_of
from joulewise.serve.face import Face
from joulewise.serve.face_messages import Hit

_RECENT = 8
_MOST_HITS = 8
"""Of one kind."""
Words = Annotated[str, Query(max_length=200, description="What to look for, in any part of a name or a command.")]


def add_overview(router: APIRouter, face: Face) -> None:
    """``/api/overview``, ``/api/gpus`` and ``/api/search``."""

    @router.get("/overview", response_model=model_of(messages.Overview), summary="What was spent and saved in all")
    def overview() -> Any:
        """Watts now, joules of all runs, what is proven to be saved of them with its interval, and the latest runs."""
        return showable(_overview(face))

    @router.get("/gpus", response_model=model_of(messages.Gpus), summary="The GPUs of the server's machine")
    def gpus() -> Any:
        """Each as last read, with the last ten minutes of its power and clock."""
        return plain(messages.Gpus(time.time(), face.live.gpus(history=True), face.live.why))

    @router.get("/search", response_model=model_of(messages.Hits), summary="Find anything by its name")
    def search(q: Words = "") -> Any:
        """Runs, recurring jobs, plans, jobs of clusters and GPUs whose name, or command, has this in it."""
        wanted = q.replace("\0", "").strip()
        return showable(_hits(face, wanted) if wanted else messages.Hits((), 0, 0))


def _overview(face: Face) -> messages.Overview:
    every = face.summaries.totals()
    simulated = every.runs > 0 and every.virtual == every.runs
    totals = every if simulated or not every.virtual else face.summaries.totals(virtual=False)
    recent, _ = face.summaries.page(0, _RECENT)
    worth = face.worth
    saved_kwh = None if totals.saved_j is None else kwh_from_joules(totals.saved_j)
    price, carbon = worth.kwh_price, worth.carbon_g_per_kwh
    return messages.Overview(
        time.time(),
        face.live.power_w,
        len(face.live),
        every.runs,
        every.running,
        every.virtual,
        simulated,
        totals.energy_j,
        totals.saved_j,
        totals.saved_half_j,
        price,
        worth.currency,
        None if saved_kwh is None or price is None else saved_kwh * price,
        carbon,
        worth.carbon_source,
        None if saved_kwh is None or carbon is None else saved_kwh * carbon,
        face.flag,
        tuple(recent),
        tuple(_troubles(face)),
    )


def _troubles(face: Face) -> Iterator[str]:
    if face.summaries.behind:
        yield "not all runs are read yet; lists and sums grow until they are"
    if face.summaries.trouble is not None:
        yield f"runs may be missing from lists and sums: {face.summaries.trouble}"
    yield from face.live.troubles


def _hits(face: Face, wanted: str) -> messages.Hits:
    low = wanted.casefold()
    runs, total = face.summaries.page(0, _MOST_HITS, query=wanted)
    kinds = (
        _named("series", face.desks.names(), low, "a recurring job"),
        _named("plan", face.plans.names(), low, "a plan of an iteration"),
        list(_jobs(face, low)),
        list(_gpus(face, low)),
    )
    hits = (*map(_run, runs), *(hit for found in kinds for hit in found[:_MOST_HITS]))
    return messages.Hits(hits, total, sum(max(0, len(found) - _MOST_HITS) for found in kinds))


def _run(run: RunSummary) -> Hit:
    words = " · ".join(filter(None, (run.command, run.headline)))
    return Hit("run", run.name, words, f"#/runs/{quote(run.name, safe='')}")


def _named(kind: str, names: list[str], low: str, words: str) -> list[Hit]:
    at = {"series": "series", "plan": "plans"}[kind]
    return [Hit(kind, name, words, f"#/{at}/{quote(name, safe='')}") for name in names if low in name.casefold()]


def _jobs(face: Face, low: str) -> Iterator[Hit]:
    for cluster in face.clusters.names():
        try:
            log = face.clusters.of(cluster)
        except JoulewiseError:  # the cluster's own page says what is wrong with it
            continue
        for job in [] if log is None else log.job_names():
            if low in job.casefold():
                yield Hit("job", job, f"a job of cluster {cluster}", f"#/clusters/{quote(cluster, safe='')}")


def _gpus(face: Face, low: str) -> Iterator[Hit]:
    for gpu in face.live.gpus():
        if low in gpu.uuid.casefold() or low in gpu.name.casefold():
            yield Hit("gpu", gpu.uuid, f"{gpu.name}, GPU {gpu.index}", "#/gpus")
