"""Runs over HTTP: the list, one with all that was decided and proven, its readings, its report. Reads only."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from joulewise.core.plain import plain, showable
from joulewise.report import outcome, run_facts
from joulewise.report.kept_run import KeptRun
from joulewise.report.summaries import RunSummary
from joulewise.serve import face_messages as messages
from joulewise.serve.answers import model_of
from joulewise.serve.face import Face
from joulewise.serve.face_paths import Name, named
from joulewise.serve.face_stories import Told
from joulewise.serve.problems import NoSuch, documented
from joulewise.store import Curve

MOST_DECISIONS = 2000
_MOST_GPUS = 64
_REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A report is one file with its own style and no program; what a name in it says can do nothing."""

First = Annotated[int, Query(ge=0, le=2**31 - 1, description="From this run on, counted from the latest.")]
Most = Annotated[int, Query(ge=1, le=500, description="So many at most.")]
Words = Annotated[str, Query(max_length=200, description="In the name or the command.")]
State = Annotated[str, Query(pattern="^(|running|finished|killed)$", description="Empty: any.")]
Instant = Annotated[float, Query(ge=-1e12, le=1e12, allow_inf_nan=False, description="Seconds since 1970.")]
Points = Annotated[int, Query(ge=2, le=5000, description="So many a GPU at most.")]
_NOT_FOUND = documented(404)


def add_runs(router: APIRouter, face: Face) -> None:
    """The routes under ``/api/runs``."""

    def found(sent: str) -> RunSummary:
        name = named("run", sent)
        summary = face.summaries.one(name)
        if summary is None:
            raise NoSuch(f"no run is called {name[:80]!r}; see GET /api/runs, or 'joulewise history'")
        return summary

    @router.get("/runs", response_model=model_of(messages.Runs), summary="The runs, the latest first")
    def runs(first: First = 0, most: Most = 50, query: Words = "", state: State = "") -> Any:
        """A page of those whose name or command has ``query`` in it."""
        some, total = face.summaries.page(first, most, query=query.replace("\0", ""), state=state)
        rest = first + len(some) < total and bool(some)
        return showable(messages.Runs(tuple(some), total, first + len(some) if rest else None))

    @router.get("/runs/{name}", response_model=model_of(messages.Run), responses=_NOT_FOUND, summary="A run")
    def run(name: Name) -> Any:
        """What was decided when and why, what was tried, and what is proven of it."""
        summary = found(name)
        return showable(_run(summary, face.stories.of(summary.name, summary.began_s), face.flag))

    @router.get(
        "/runs/{name}/readings",
        response_model=model_of(messages.RunReadings),
        responses=_NOT_FOUND,
        summary="Power and clocks of a run over time",
    )
    def readings(name: Name, from_s: Instant | None = None, to_s: Instant | None = None, points: Points = 600) -> Any:
        """Of each of its GPUs, in at most so many points, whatever the run's length."""
        kept, run = face.store.readings(), named("run", name)
        uuids = kept.gpus(run)
        if not uuids:
            found(name)  # what has readings is there: its journal, which may be long, need not be read for each look
        gpus = [_readings(uuid, kept.read(run, uuid, from_s, to_s, points)) for uuid in uuids[:_MOST_GPUS]]
        return plain(messages.RunReadings(tuple(gpus), len(uuids) - len(gpus)))

    @router.get(
        "/runs/{name}/report",
        response_class=Response,
        responses={**_NOT_FOUND, 200: {"content": {"text/html": {}}, "description": "One file, complete in itself."}},
        summary="The report of a run",
    )
    def report(name: Name) -> Response:
        """As ``joulewise report`` writes it, with the server's carbon factor; ``joulewise verify`` takes it."""
        summary = found(name)
        kept = KeptRun.of(face.store, summary, face.stories.of(summary.name, summary.began_s).story)
        made = kept.page(kept.beyond(face.store), face.worth.carbon)
        headers = {"Content-Security-Policy": _REPORT_POLICY, "Cache-Control": "no-store"}
        # A name may hold half of a pair of surrogates, which has no other encoding.
        return Response(made.encode("utf-8", "replace"), media_type="text/html; charset=utf-8", headers=headers)


def _run(summary: RunSummary, told: Told, flag: str) -> messages.Run:
    story, proof = told.story, told.proof
    tuned = bool(story.seen or story.decided)
    return messages.Run(
        summary,
        run_facts.shown(story.facts),
        told.chapters[-MOST_DECISIONS:],  # the latest: a run that goes on is watched for what it does now
        max(0, len(told.chapters) - MOST_DECISIONS),
        messages.RunFrontier(tuple(run_facts.points(story)), run_facts.bound(story)),
        proof,
        outcome.headline(story, told.claim) if tuned else summary.headline,
        "" if proof is None else f"joulewise verify {shlex.quote(summary.name)}{flag}",
    )


def _readings(uuid: str, curve: Curve) -> messages.GpuReadings:
    columns = (curve.power_w, curve.low_w, curve.high_w, curve.sm_mhz, curve.limit_w)
    return messages.GpuReadings(uuid, tuple(curve.time_s), *map(tuple, columns))
