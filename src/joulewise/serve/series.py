"""Recurring jobs over HTTP: each route is one method of a desk.

Whatever a client may get wrong is a problem (4xx) before the desk is asked; what the desk refuses is one too.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from joulewise.core.errors import BadSpec
from joulewise.core.plain import plain
from joulewise.core.series import Platform
from joulewise.serve import answers, messages
from joulewise.serve.desks import Desks
from joulewise.serve.guarded import allowed
from joulewise.serve.problems import Known, NoSuch, documented
from joulewise.serve.requests import (
    AskBody,
    First,
    JobBody,
    JobName,
    LimitBody,
    Most,
    OfPlatform,
    ProgressBody,
    TellBody,
    Trial,
    plain_profile,
)
from joulewise.serve.tokens import Guard, Scope
from joulewise.tune.desk import Desk

Latest = Annotated[bool, Query(description="The last ones instead of the first.")]

_READING = documented(401, 403, 422, 503)
_WRITING = documented(401, 403, 413, 422, 503)
_NO_JOB = documented(404)


def series_router(desks: Desks, guard: Guard) -> APIRouter:
    """The routes under ``/api/series``."""
    reading, writing = (
        APIRouter(prefix="/api/series", tags=["series"], dependencies=[Depends(allowed(guard, scope))], responses=says)
        for scope, says in ((Scope.READ, _READING), (Scope.WRITE, _WRITING))
    )

    def known(job: JobName) -> Desk:
        """The desk of a job that is registered."""
        desk = desks.of(job)
        if desk.job is None:
            raise NoSuch(f"no job is registered as {job!r}; register it first, or see GET /api/series")
        return desk

    def handed_out(trial: Trial, desk: Annotated[Desk, Depends(known)]) -> Desk:
        """The same, of which this trial was handed out."""
        if not desk.knows(trial):
            raise NoSuch(f"trial {trial} was never handed out; ask for one")
        return desk

    OfJob = Annotated[Desk, Depends(known)]  # noqa: N806 - a type
    OfTrial = Annotated[Desk, Depends(handed_out)]  # noqa: N806 - a type

    @reading.get("", response_model=answers.NamesAnswer, summary="The jobs")
    def names() -> Any:
        """The names of all jobs that are registered, sorted."""
        return plain(messages.Names(tuple(desks.names())))

    @writing.put(
        "/{job}",
        response_model=answers.JobAnswer,
        responses=documented(409),
        summary="Register a job",
    )
    def register(job: JobName, body: JobBody) -> Any:
        """Make a job known. Nothing happens if it is known as it is. Known otherwise it is replaced, as long as no run
        of it has counted or is under way, and refused after that."""
        try:
            wanted = body.job(job)
        except ValueError as error:
            raise BadSpec(str(error)) from error
        desk = desks.of(job)
        try:
            desk.register(wanted)
        except BadSpec as error:
            raise Known(str(error)) from error
        return plain(desk.job)

    @reading.get("/{job}", response_model=answers.SeriesAnswer, responses=_NO_JOB, summary="A job")
    def series(desk: OfJob, query: OfPlatform) -> Any:
        """What is believed about each batch size on a platform, what learning has cost there and what was saved."""
        platform = _platform(desk, query)
        found = messages.Series(desk.job, platform, None, ())
        if platform is not None:
            found = messages.Series(desk.job, platform, desk.summary(platform), tuple(desk.beliefs(platform)))
        return plain(found)

    @reading.get(
        "/{job}/history",
        response_model=answers.HistoryAnswer,
        responses=_NO_JOB,
        summary="Its trials",
    )
    def history(desk: OfJob, first: First = 0, most: Most = 200, latest: Latest = False) -> Any:
        """Its trials in the order in which they were handed out, a page at a time."""
        trials = desk.history()
        if latest:
            first = max(first, len(trials) - most)
        rest = len(trials) > first + most
        return plain(messages.History(tuple(trials[first : first + most]), first + most if rest else None))

    @reading.get(
        "/{job}/frontier",
        response_model=answers.FrontierAnswer,
        responses=_NO_JOB,
        summary="Its frontier",
    )
    def frontier(desk: OfJob, query: OfPlatform) -> Any:
        """Whole runs that nothing beats in both time and energy, by batch size and setting, fastest first."""
        platform = _platform(desk, query)
        return plain(messages.Points(platform, _points(desk, platform)))

    @writing.post(
        "/{job}/ask",
        response_model=answers.AskAnswer,
        responses=_NO_JOB,
        summary="Ask for a trial",
    )
    def ask(desk: OfJob, body: AskBody) -> Any:
        """The next trial of a recurrence: run the job with its batch size, report progress, and tell how it ended."""
        return plain(desk.ask(body.recurrence, body.platform.platform(), body.owner, body.key, body.lease_s))

    @reading.post(
        "/{job}/trials/{trial}/limit",
        response_model=answers.LimitAnswer,
        responses=_NO_JOB,
        summary="How long a trial may take",
    )
    def limit(desk: OfTrial, trial: Trial, body: LimitBody) -> Any:
        """The epochs after which it should be stopped without its target, if epochs cost what is said here."""
        return plain(messages.Limit(desk.limit(trial, plain_profile(body.profile))))

    @writing.post(
        "/{job}/trials/{trial}/progress",
        response_model=answers.StandingAnswer,
        responses=_NO_JOB,
        summary="A trial is alive",
    )
    def progress(desk: OfTrial, trial: Trial, body: ProgressBody) -> Any:
        """Renews its lease, takes what an epoch costs, and says whether to go on."""
        return plain(desk.progress(trial, body.epochs, plain_profile(body.profile), body.lease_s))

    @writing.post(
        "/{job}/trials/{trial}/tell",
        status_code=204,
        responses=_NO_JOB,
        summary="A trial has ended",
    )
    def tell(desk: OfTrial, trial: Trial, body: TellBody) -> Response:
        """How it ended. Taken at any time, however late; told twice it counts once."""
        desk.tell(
            trial,
            outcome=body.outcome,
            epochs=body.epochs,
            duration_s=body.duration_s,
            energy_j=body.energy_j,
            profile=plain_profile(body.profile),
            notes=body.notes,
        )
        return Response(status_code=204)

    router = APIRouter()
    router.include_router(reading)
    router.include_router(writing)
    return router


def _platform(desk: Desk, query: OfPlatform) -> Platform | None:
    """The one that was named, or the one that last asked."""
    named = query.platform()
    return named if named is not None else desk.last_platform


def _points(desk: Desk, platform: Platform | None) -> tuple[messages.RunPoint, ...]:
    try:
        found = desk.frontier(platform) if platform is not None else ()
    except BadSpec:  # nothing has been measured there yet
        return ()
    return tuple(
        messages.RunPoint(*point.setting, point.time_s, point.energy_j, point.time_error_s, point.energy_error_j)
        for point in found
    )
