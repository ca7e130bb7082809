"""Whole runs of the online tuner on virtual time, as tests look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from joulewise.core.block import Role
from joulewise.core.event import Event, Seen, Shifted
from joulewise.core.objective import MinEnergy, Objective
from joulewise.device.hold import hold
from joulewise.device.lease import Lease
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory
from joulewise.tune.online import Online, build
from joulewise.tune.status import Summary
from tests.tune.jobs import Played

_OWN = object()


@dataclass
class Run:
    """A tuned run that has ended."""

    job: Played
    online: Online
    summary: Summary
    journal: Journal

    @property
    def events(self) -> list[Event]:
        return [event for _, event in self.journal.read()]

    def seen(self, *roles: Role) -> list[Seen]:
        return [event for event in self.events if isinstance(event, Seen) and event.role in roles]

    def shifts(self, what: str) -> list[Shifted]:
        return [event for event in self.events if isinstance(event, Shifted) and event.what == what]


def tune(
    job: Played,
    *,
    duration_s: float = 300.0,
    bound: float = 0.05,
    objective: Objective | None = None,
    lease: Lease | Callable[[], Lease] | object | None = _OWN,
    journal: Journal | None = None,
    memory: Memory | None = None,
    dry_run: bool = False,
    hooks: bool = True,
    meanwhile: Callable[[Online], Iterator[float]] | None = None,
    seed: int = 0,
) -> Run:
    journal = journal or MemoryJournal()
    held = hold([job.gpu]) if lease is _OWN and not dry_run else lease
    online = build(
        [job.gpu],
        lease=None if held is _OWN else held,  # type: ignore[arg-type]
        feed=job.feed if hooks else None,
        objective=objective or MinEnergy(bound),
        seed=seed,
        journal=journal,
        memory=memory,
        fingerprint="a job",
        run="test",
        dry_run=dry_run,
    )

    def ends() -> Iterator[float]:
        yield duration_s
        online.stop()

    job.time.spawn(ends())  # type: ignore[arg-type]
    if meanwhile is not None:
        job.time.spawn(meanwhile(online))  # type: ignore[arg-type]
    summary = job.time.run(online.loop())
    if lease is _OWN and isinstance(held, Lease):
        held.release()
    return Run(job, online, summary, journal)
