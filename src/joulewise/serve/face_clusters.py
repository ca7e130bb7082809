"""Clusters over HTTP, as their schedulers' journals tell them: power, cap, budget, jobs, and why. Reads only.

A scheduler has a server of its own (``serve/cluster``), which knows what happens this second and takes orders. This one
needs no scheduler: what was written down is in the store.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from joulewise.core.plain import showable
from joulewise.report.cluster_log import ClusterLog
from joulewise.report.cluster_shown import ClusterShown
from joulewise.serve import face_messages as messages
from joulewise.serve.answers import model_of
from joulewise.serve.face import Face
from joulewise.serve.face_cluster_logs import MOST
from joulewise.serve.face_paths import Name, named
from joulewise.serve.problems import NoSuch, documented

_NOT_FOUND = documented(404)


def add_clusters(router: APIRouter, face: Face) -> None:
    """The routes under ``/api/clusters``."""

    def found(sent: str) -> ClusterLog:
        name = named("cluster", sent)
        log = face.clusters.of(name)
        if log is None:
            raise NoSuch(f"the store has no journal of a cluster {name[:80]!r}; see GET /api/clusters")
        return log

    @router.get("/clusters", response_model=model_of(messages.Clusters), summary="The clusters")
    def clusters() -> Any:
        """Those whose schedulers write to this store; of very many the last by name, since names end with a date."""
        logs = map(face.clusters.of, face.clusters.names()[-MOST:])
        return showable(messages.Clusters(tuple(log.brief() for log in logs if log is not None)))

    @router.get(
        "/clusters/{name}", response_model=model_of(ClusterShown), responses=_NOT_FOUND, summary="How a cluster stands"
    )
    def cluster(name: Name) -> Any:
        """As of the last that its scheduler wrote down: power under its cap over time, its budget, its nodes, its jobs
        and the ways in which each has run."""
        return showable(found(name).shown())

    @router.get(
        "/clusters/{name}/jobs/{job}/why",
        response_model=model_of(messages.JobWhy),
        responses=_NOT_FOUND,
        summary="Why a job runs as it does, or waits",
    )
    def why(name: Name, job: Name) -> Any:
        """The reason that was written down with the last decision about it."""
        log, of = found(name), named("job", job)
        said = log.why(of)
        if said is None:
            raise NoSuch(f"no job of cluster {log.name[:80]!r} is called {of[:80]!r}; see GET /api/clusters/{{name}}")
        return showable(messages.JobWhy(of, said))
