"""Claims: which GPUs of this node belong to which job of the scheduler, as its prologs say.

What it is: the view that the node's agent has of the grants folder. A *claim* is a grant that gives its user nothing
(``joulewise grant add --claim``): there the cluster's scheduler sets clocks and limits, through the agent. A grant that
gives something names its job's GPUs too, so their energy is counted for it, but the agent keeps its hands off.

The epilog's ``joulewise restore --job`` first removes the claim and then ends, through the daemon, the lease whose
reason is ``held_for(job)``. So an agent looks again once it has taken a lease: from then on either the claim is still
there, and the epilog, which comes later, finds the lease; or it is gone, and the lease is given back unused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from joulewise.daemon.grants import GRANTS, Grants, remove


def held_for(job: str) -> str:
    """The reason of the lease that an agent holds for a job: how an epilog knows it."""
    return f"cluster job {job}"


@dataclass(frozen=True, slots=True)
class Claim:
    """One job on this node. ``managed``: its clocks are the scheduler's to set, not its user's."""

    id: str
    gpus: tuple[str, ...]
    managed: bool


class Claims:
    """The claims in a folder of grants. Not thread-safe."""

    def __init__(self, directory: Path = GRANTS, *, now: Callable[[], float] = time.time) -> None:
        self._grants = Grants(directory, now=now)
        self.problems: tuple[str, ...] = ()
        """What is wrong there, as of the last look."""

    def drop(self, id: str) -> None:
        """Take back the claim of a job that is over: its epilog never came. NotPermitted or BadSpec as ``remove``."""
        remove(self._grants.directory, job=id)

    def look(self) -> tuple[Claim, ...]:
        """Who has what now, by id. Some microseconds a file if nothing has changed.

        A GPU that two jobs claim (an epilog was lost) is given to the claim that ends last, and ``problems`` says so.
        """
        owners: dict[str, str] = {}
        managed: dict[str, bool] = {}
        problems: list[str] = []
        for grant in sorted(self._grants.live(), key=lambda grant: (grant.expires_unix_s, grant.name), reverse=True):
            if grant.job is None:
                continue
            managed[grant.job] = managed.get(grant.job, False) or grant.claims
            for gpu in grant.gpus:
                owner = owners.setdefault(gpu, grant.job)
                if owner != grant.job:
                    problems.append(
                        f"{gpu} is claimed by job {owner} and by job {grant.job}, which ends sooner and gets nothing; "
                        f"if that is gone, 'joulewise restore --job {grant.job}'"
                    )
        self.problems = (*self._grants.problems, *problems)
        held: dict[str, list[str]] = {}
        for gpu in sorted(owners):
            held.setdefault(owners[gpu], []).append(gpu)
        return tuple(Claim(job, tuple(held[job]), managed[job]) for job in sorted(held))
