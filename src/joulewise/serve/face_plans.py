"""Plans of iterations over HTTP: the list, a frontier, and the whole iteration at a deadline. Reads only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from joulewise.core.knob import SM_MHZ
from joulewise.core.plain import showable
from joulewise.core.units import format_energy
from joulewise.plan.execution import launches
from joulewise.plan.plan import Plan, PlanPoint
from joulewise.report import plan_words
from joulewise.report.words import named as in_words
from joulewise.serve import face_messages as messages
from joulewise.serve.answers import model_of
from joulewise.serve.face import Face
from joulewise.serve.face_messages import PlanStep, PlanTime
from joulewise.serve.face_paths import Name, named
from joulewise.serve.problems import NoSuch, documented

Deadline = Annotated[
    float | None,
    Query(gt=0, le=1e9, allow_inf_nan=False, description="Seconds; without it, as fast as nothing set."),
]
_MOST_STEPS = 20_000
_NOT_FOUND = documented(404)


def add_plans(router: APIRouter, face: Face) -> None:
    """The routes under ``/api/plans``."""

    def found(sent: str) -> tuple[str, Plan]:
        name = named("plan", sent)
        plan = face.plans.plan(name)
        if plan is None:
            raise NoSuch(f"no plan is called {name[:80]!r}; see GET /api/plans, and --plans of 'joulewise serve'")
        return name, plan

    @router.get("/plans", response_model=model_of(messages.Plans), summary="The plans")
    def plans() -> Any:
        """Of the server's folder (``--plans``), by name, each with what it saves."""
        return showable(messages.Plans(tuple(face.plans.listed())))

    @router.get("/plans/{name}", response_model=model_of(messages.PlanShown), responses=_NOT_FOUND, summary="A plan")
    def plan(name: Name) -> Any:
        """Its frontier: for each iteration time the least energy that was found."""
        return showable(_shown(*found(name)))

    @router.get(
        "/plans/{name}/at",
        response_model=model_of(messages.PlanAt),
        responses=_NOT_FOUND,
        summary="The iteration at a deadline",
    )
    def at(name: Name, time_s: Deadline = None) -> Any:
        """The point of least energy within ``time_s``, and what every rank does in it when. 422 where even the fastest
        takes longer."""
        _, plan = found(name)
        return showable(_at(plan, plan_words.as_fast(plan) if time_s is None else plan.by_deadline(time_s)))


def _shown(name: str, plan: Plan) -> messages.PlanShown:
    clocks = [
        point.setting[SM_MHZ.name]
        for options in plan.profile.options.values()
        for point in options
        if SM_MHZ.name in point.setting
    ]
    return messages.PlanShown(
        name,
        plan_words.about(plan),
        plan_words.headline(plan),
        tuple(_time(plan, point) for point in plan.points),
        _time(plan, plan.points[0]),
        _time(plan, plan.baseline),
        _time(plan, plan_words.as_fast(plan)),
        min(clocks, default=None),
        max(clocks, default=None),
    )


def _time(plan: Plan, point: PlanPoint) -> PlanTime:
    return PlanTime(point.time_s, point.energy_j, _words(plan, point))


def _words(plan: Plan, point: PlanPoint) -> str:
    said = f"{plan_words.time(point)}, {format_energy(point.energy_j)}"
    return f"{said}: {plan_words.saved(plan, point)} energy {plan_words.slower(plan, point)}"


def _at(plan: Plan, point: PlanPoint) -> messages.PlanAt:
    chosen = [step for rank in plan.steps(point) for step in rank]
    steps = []
    for operation, step, (start_s, end_s) in zip(
        plan.schedule.dag.operations[:_MOST_STEPS], chosen, plan.times_s(point), strict=False
    ):
        launched = ", ".join(map(str, launches(step.setting)))
        words = in_words(step.setting) + (f"; communication launched at {launched}" if launched else "")
        steps.append(
            PlanStep(operation.rank, step.stage, step.microbatch, step.kind, start_s, end_s, step.setting, words)
        )
    return messages.PlanAt(point.time_s, point.energy_j, _words(plan, point), plan.schedule.ranks, tuple(steps))
