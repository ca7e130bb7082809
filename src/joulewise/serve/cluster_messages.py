"""What a cluster's server answers beyond the words of ``cluster``. On the standard library, since the client builds
them too."""

from __future__ import annotations

from dataclasses import dataclass

PORT = 8746
"""Where a cluster's scheduler listens by habit; ``joulewise serve`` has the one below."""
STARTS = "joulewise cluster up"


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job runs where and how fast it does, or waits, in words."""

    job: str
    time_s: float
    """When this was asked, seconds since 1970."""
    says: str


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job has been handed in; ``id`` is its engine's name of it."""

    name: str
    id: str
