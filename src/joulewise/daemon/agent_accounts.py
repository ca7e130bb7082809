"""Whose joules: the energy of one node, shared among the jobs that held its GPUs, to the last joule.

What it is: a book without hardware. ``count`` is given what the GPUs' counters show and who holds them; what each GPU
drew since the last count goes to the job that held it *since then*, else to idle. The host's energy is shared among
the jobs by the GPUs that they held, and is idle's where nobody holds any. Every joule is entered once, so the jobs,
what was settled of jobs before, and idle add up to the node.

A counter that shows less than before was started anew (the driver was reloaded, the machine booted): what it shows now
was drawn since, and what was counted before stays. Nothing ever goes down.

It is durable as a whole: ``kept`` and ``Accounts.of`` are inverses, and whoever keeps it in one atomic file before
reporting can be killed at any point. What was drawn while nobody counted goes to those who hold the GPUs when somebody
counts again. Times are seconds since 1970, energies joules.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from joulewise.cluster.declared import JobEnergy
from joulewise.core.errors import BadSpec
from joulewise.core.plain import built

VERSION: Final = 1


@dataclass(slots=True)
class Account:
    """One job on this node."""

    gpu_j: float = 0.0
    host_j: float = 0.0
    gpu_s: float = 0.0
    """GPU-seconds held."""


@dataclass(slots=True)
class Book:
    """All that must outlive the process."""

    version: int = VERSION
    boot: str = ""
    """The boot of the machine in which the counters showed this."""
    time_s: float | None = None
    shown_j: dict[str, float] = field(default_factory=dict)
    """GPU → what its counter showed at the last count."""
    drawn_j: dict[str, float] = field(default_factory=dict)
    """GPU → what it has drawn in all."""
    jobs: dict[str, Account] = field(default_factory=dict)
    idle_gpu_j: float = 0.0
    idle_host_j: float = 0.0
    settled_j: float = 0.0
    """Of jobs that were forgotten."""


class Accounts:
    """The book of one node, in one boot of its machine."""

    def __init__(self, boot: str = "", book: Book | None = None) -> None:
        self._book = Book() if book is None else book
        self._holders: Mapping[str, str] | None = None
        """As of the last count; None before the first of this process."""
        if self._book.boot != boot:  # counters began at 0 since, and nobody counted while it was off
            self._book.boot, self._book.time_s = boot, None
            self._book.shown_j = dict.fromkeys(self._book.shown_j, 0.0)

    @classmethod
    def of(cls, kept: Any, boot: str = "") -> Accounts:
        """From what ``kept`` gave. BadSpec where it is no such thing."""
        if not isinstance(kept, dict) or not isinstance(kept.get("jobs"), dict):
            raise BadSpec(f"no accounts, but a {type(kept).__name__}")
        book = built(Book, kept)
        if book.version != VERSION:
            raise BadSpec(f"accounts of version {book.version}; this is version {VERSION}")
        jobs = {id: built(Account, account) for id, account in book.jobs.items()}
        return cls(boot, Book(**{**{name: getattr(book, name) for name in Book.__slots__}, "jobs": jobs}))

    def kept(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self._book)

    def count(
        self, time_s: float, shown_j: Mapping[str, float], holders: Mapping[str, str], host_j: float | None = None
    ) -> None:
        """Enter what was drawn since the last count; ``holders`` (GPU → job) hold from now on.

        A GPU that is not among ``shown_j`` could not be read: what it draws is counted when it can be again. ``host_j``
        is the host's energy since the last count, None where it is not known.
        """
        book = self._book
        since = holders if self._holders is None else self._holders
        for gpu, now_j in shown_j.items():
            before_j = book.shown_j.get(gpu)
            drawn_j = 0.0 if before_j is None else now_j - before_j if now_j >= before_j else now_j
            book.shown_j[gpu] = now_j
            book.drawn_j[gpu] = book.drawn_j.get(gpu, 0.0) + drawn_j
            if gpu in since:
                self._account(since[gpu]).gpu_j += drawn_j
            else:
                book.idle_gpu_j += drawn_j
        held = list(since.values())
        lived_s = 0.0 if book.time_s is None else max(0.0, time_s - book.time_s)
        for job in held:
            self._account(job).gpu_s += lived_s
            self._account(job).host_j += (host_j or 0.0) / len(held)
        if not held:
            book.idle_host_j += host_j or 0.0
        book.time_s = time_s
        self._holders = dict(holders)
        for job in holders.values():
            self._account(job)

    def forget(self, ids: Collection[str]) -> bool:
        """Somebody has written these jobs' final energies down. Those that still hold a GPU stay. Whether any went."""
        gone = [id for id in ids if id in self._book.jobs and id not in (self._holders or {}).values()]
        for id in gone:
            account = self._book.jobs.pop(id)
            self._book.settled_j += account.gpu_j + account.host_j
        return bool(gone)

    @property
    def time_s(self) -> float | None:
        """When it was last counted, in this boot; None: not yet."""
        return self._book.time_s

    def drawn_j(self, gpu: str) -> float:
        """What a GPU has drawn since it was first counted; only grows."""
        return self._book.drawn_j.get(gpu, 0.0)

    @property
    def idle_j(self) -> float:
        """What nobody's GPUs have drawn, and the host while nobody held any."""
        return self._book.idle_gpu_j + self._book.idle_host_j

    @property
    def node_j(self) -> float:
        """All of it."""
        jobs = (part for account in self._book.jobs.values() for part in (account.gpu_j, account.host_j))
        return math.fsum((*jobs, self._book.settled_j, self._book.idle_gpu_j, self._book.idle_host_j))

    def jobs(self) -> tuple[JobEnergy, ...]:
        """What each job has drawn here, by id; final for those that hold nothing any more."""
        holding = set((self._holders or {}).values())
        return tuple(
            JobEnergy(id, account.gpu_j, account.host_j, account.gpu_s, final=id not in holding)
            for id, account in sorted(self._book.jobs.items())
        )

    def _account(self, job: str) -> Account:
        return self._book.jobs.setdefault(job, Account())
