"""A cluster's scheduler over HTTP: what operators ask of it, and what its nodes' agents report to it.

What it is: routes, each one method of a scheduler or of its desk of agents. An agent's report is answered when there is
something newer than what the agent holds, and at the latest after the time that it names: so a cut of the cap is on
every node within one trip of the network, with no connection from here to there. A thousand agents that wait are a
thousand sleeping coroutines, not threads.
What it is not: a scheduler, or a store; what is answered comes from the scheduler's memory, which the journal rebuilds.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from fastapi import APIRouter, Depends, FastAPI, Response

from joulewise.cluster.declared import Declared, Report
from joulewise.cluster.engine import Order
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec
from joulewise.core.plain import plain
from joulewise.serve import described, metrics, problems
from joulewise.serve.answers import model_of
from joulewise.serve.cluster_messages import Submitted, Why
from joulewise.serve.cluster_metrics import cluster_source
from joulewise.serve.cluster_requests import BudgetBody, CapBody, JobName, NodeName, OrderBody, ReportBody, Wait
from joulewise.serve.guarded import By, allowed
from joulewise.serve.metrics import metrics_router
from joulewise.serve.problems import Known, NoSuch, documented
from joulewise.serve.tokens import Guard, Scope

_AT = "/api/cluster"
_LOOK_S = 0.05
"""How soon a waiting agent hears of news, up to a hundred of them."""
_LOOK_EACH_S = 5e-4
"""A look takes some 35 µs of processor, so a larger crowd looks less often: never more than a tenth of a core."""
_MOST_WAITING = 4
"""Reports of one node that may wait for news at once. An agent has one, or two after a restart; more would only make
everybody's news late."""
_READING = documented(401, 403, 422, 503)
_WRITING = documented(401, 403, 413, 422, 503)
_ABOUT = """
A cluster whose GPUs and joules are shared among its jobs: how it stands, why a job runs as it does, what it may draw.

Node agents **report** and are answered with what shall be so on their node.
"""


class Steering(Protocol):
    """What is asked of a scheduler here. Safe with several threads. BadSpec refuses, and nothing has changed."""

    def status(self) -> Status:
        """How everything stands."""
        ...

    def explain(self, name: str) -> str:
        """Why a job runs as it does, in words."""
        ...

    def submit(self, order: Order, *, by: Caller) -> str:
        """Hand a job in; its engine's id."""
        ...

    def cancel(self, name: str, *, by: Caller) -> None:
        """End a job for good. NotPermitted for a caller who is neither an operator nor its owner."""
        ...

    def cap(
        self,
        cap_w: float | None,
        *,
        for_s: float | None = None,
        ramp_w_per_s: float | None = None,
        by: Caller,
    ) -> None:
        """What the cluster may draw."""
        ...

    def budget(self, energy_j: float | None, period_s: float, *, by: Caller) -> None:
        """What it may spend in each period."""
        ...


class Agents(Protocol):
    """Where agents report; ``cluster.agents.AgentDesk``. In memory: nothing here waits."""

    def exchange(self, report: Report) -> Declared:
        """Take a report; what shall be so on its node."""
        ...

    def newer(self, node: str, epoch: int, number: int) -> bool:
        """Whether there is something newer to declare for a node than this."""
        ...


def make_cluster_app(
    steering: Steering,
    agents: Agents,
    guard: Guard,
    *,
    takes_jobs: bool = True,
    now: Callable[[], float] = time.time,
) -> FastAPI:
    """The app. ``takes_jobs``: False where the engine has a queue of its own, in which jobs run as who handed them in:
    over HTTP they would run as whoever runs the scheduler. ``now``: seconds since 1970 as the scheduler has them."""
    app = described.made_app("joulewise cluster", _ABOUT)
    problems.explain(app)
    app.include_router(_operators(steering, guard, takes_jobs, now))
    app.include_router(_nodes(agents, guard))
    app.include_router(metrics_router([metrics.build, cluster_source(steering.status)], guard))
    return app


def _operators(steering: Steering, guard: Guard, takes_jobs: bool, now: Callable[[], float]) -> APIRouter:
    reading, writing, owning = (
        APIRouter(
            prefix="/api/cluster",
            tags=["cluster"],
            dependencies=[Depends(allowed(guard, scope, owners=owners))],
            responses=says,
        )
        for scope, owners, says in (
            (Scope.READ, False, _READING),
            (Scope.WRITE, False, _WRITING),
            (Scope.WRITE, True, _WRITING),
        )
    )

    def found(name: str) -> JobStatus:
        """The job of that name as it stands."""
        for job in steering.status().jobs:
            if job.name == name:
                return job
        raise NoSuch(f"no job here is called {name!r}; see 'joulewise cluster status'")

    @reading.get("", response_model=model_of(Status), summary="How the cluster stands")
    def show() -> Any:
        """Power, cap, budget and prices; its nodes; its jobs, those that have just ended included."""
        return plain(steering.status())

    @reading.get(
        "/jobs/{name}", response_model=model_of(JobStatus), responses=documented(404), summary="How a job stands"
    )
    def job(name: JobName) -> Any:
        """One of the jobs of the status."""
        return plain(found(name))

    @reading.get(
        "/jobs/{name}/why", response_model=model_of(Why), responses=documented(404), summary="Why a job runs as it does"
    )
    def why(name: JobName) -> Any:
        """The prices that it was decided by, in words."""
        found(name)
        return plain(Why(name, now(), steering.explain(name)))

    @owning.post(
        "/jobs", response_model=model_of(Submitted), responses=documented(409), status_code=201, summary="Hand a job in"
    )
    def submit(body: OrderBody, by: By) -> Any:
        """For an engine whose queue is the scheduler's own; a job for Slurm is handed in to Slurm, by its user. It is
        the caller's: through the Unix socket every user of this machine may."""
        if not takes_jobs:
            raise BadSpec("this cluster's queue is Slurm's; hand the job in there, by 'joulewise cluster submit'")
        order = replace(body.order(now()), user=by.user)
        if order.most_gpus is not None and order.most_gpus < order.least_gpus:
            raise BadSpec(f"most_gpus {order.most_gpus} is below least_gpus {order.least_gpus}; turn them round")
        taken = next((job for job in steering.status().jobs if job.name == order.name), None)
        try:
            return plain(Submitted(order.name, steering.submit(order, by=by)))
        except BadSpec as error:
            raise (error if taken is None else Known(str(error))) from error

    @owning.delete("/jobs/{name}", status_code=204, responses=documented(404), summary="End a job for good")
    def cancel(name: JobName, by: By) -> Response:
        """It is told to go at once; what it has not saved is lost. Operators may end any job, a user of this machine
        their own, through the Unix socket."""
        found(name)
        steering.cancel(name, by=by)
        return Response(status_code=204)

    @writing.put("/cap", status_code=204, summary="Limit the power of the cluster")
    def cap(body: CapBody, by: By) -> Response:
        """Clocks go down at once, then jobs shrink, then they wait. Refused below what the cluster draws idle."""
        steering.cap(body.power_w, for_s=body.for_s, ramp_w_per_s=body.ramp_w_per_s, by=by)
        return Response(status_code=204)

    @writing.put("/budget", status_code=204, summary="Limit the energy of the cluster")
    def budget(body: BudgetBody, by: By) -> Response:
        """In each period from now on."""
        steering.budget(body.energy_j, body.period_s, by=by)
        return Response(status_code=204)

    router = APIRouter()
    router.include_router(reading)
    router.include_router(writing)
    router.include_router(owning)
    return router


def _nodes(agents: Agents, guard: Guard) -> APIRouter:
    router = APIRouter(
        prefix=f"{_AT}/nodes",
        tags=["agents"],
        dependencies=[Depends(allowed(guard, Scope.AGENT))],
        responses=_WRITING,
    )
    waiting = 0
    of_node: dict[str, list[object]] = {}
    """Node → its reports that wait, the oldest first."""

    @router.post("/{node}", response_model=model_of(Declared), summary="A node's agent reports")
    async def exchange(node: NodeName, body: ReportBody, wait_s: Wait = 0.0) -> Any:
        """Answered with what shall be so on this node: as soon as that is newer than what the report says the agent
        holds, else after ``wait_s``."""
        if body.node != node:
            raise BadSpec(f"node {node!r} reports as {body.node!r}; an agent's --node and its report must agree")
        nonlocal waiting
        report = body.report()
        declared = agents.exchange(report)
        clock = asyncio.get_running_loop().time
        until_s = clock() + wait_s
        held = (report.epoch, report.number)
        waiting += 1
        mine, others = object(), of_node.setdefault(node, [])
        others.append(mine)
        if len(others) > _MOST_WAITING:
            others.pop(0)  # it is answered now
        try:
            while mine in others and (declared.epoch, declared.number) <= held and (left_s := until_s - clock()) > 0:
                look_s = max(_LOOK_S, _LOOK_EACH_S * waiting)
                await asyncio.sleep(min(look_s, left_s))
                if agents.newer(node, *held):
                    declared = agents.exchange(report)
        finally:
            waiting -= 1
            if mine in others:
                others.remove(mine)
            if not others and of_node.get(node) is others:
                del of_node[node]
        return plain(declared)

    return router
