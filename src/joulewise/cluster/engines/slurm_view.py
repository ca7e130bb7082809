"""What Slurm has, seen as ours and others': which of its jobs are ours, and what each is called.

What it is: one look at ``squeue`` (and, for what has left it, at ``sacct``), with the orders that the jobs' comments
name. Two live jobs of one name are one too many: the first counts, the others are ``doubles``, for the engine to end.
slurmctld writes its state down every few seconds only, so one that is killed forgets what was handed in just before:
such jobs are ``forgotten``, for the engine to hand in again.

What it is not: a book; it is made anew from Slurm each time, but for orders already read and what was seen last.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from joulewise.cluster.engine import DONE, JobSeen
from joulewise.cluster.engines import slurm_order, slurm_text
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from joulewise.cluster.engines.slurm_order import Found
from joulewise.cluster.engines.slurm_text import SlurmJob
from joulewise.core.errors import EngineLost, JoulewiseError

_BACK_S = 7 * 86400.0
"""How far back accounting is searched for jobs that ended while no scheduler looked."""

_SURE_S = 60.0
"""Slurm shows a job that is done for longer than this (MinJobAge): one that is gone sooner was not done."""


@dataclass(frozen=True, slots=True)
class Mine:
    """A job of ours: as Slurm has it, and its order."""

    slurm: SlurmJob
    found: Found

    def seen(self, why: str = "") -> JobSeen:
        """As the protocol says it."""
        job = self.slurm
        done = job.state in DONE
        since_s = {"waiting": job.submit_s, "starting": job.start_s, "running": job.start_s, "leaving": None}
        return JobSeen(
            name=self.found.order.name,
            id=str(job.id),
            state=job.state,
            order=self.found.order,
            place=job.place,
            starts=job.starts,
            since_s=job.end_s if done else since_s[job.state],
            exit_code=job.exit_code if done else None,
            why=why or job.reason,
        )


@dataclass(frozen=True, slots=True)
class View:
    """One look. ``mine`` by name, in order of submission."""

    mine: Mapping[str, Mine]
    doubles: tuple[Mine, ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    """Node → GPUs that jobs hold which are none of ours."""
    forgotten: tuple[Mine, ...] = ()
    """Jobs that Slurm had a moment ago, not done, and has no more."""


class SlurmView:
    """Looks. ``partition``: only jobs there are ours; None: all."""

    def __init__(self, commands: SlurmCommands, partition: str | None) -> None:
        self._commands = commands
        self._partition = partition
        self._orders: dict[tuple[int, str], Found | None] = {}
        self._past: dict[int, SlurmJob] = {}
        self._live: dict[tuple[int, str], Mine] = {}
        self._forgotten: dict[str, Mine] = {}
        self._tried_s: float | None = None
        self._gap_s = 0.0
        self._accounting: bool | None = None

    def look(self) -> View:
        """As it is now."""
        now_s = time.monotonic()
        self._gap_s = max(self._gap_s, 0.0 if self._tried_s is None else now_s - self._tried_s)
        self._tried_s = now_s
        jobs = slurm_text.jobs(self._commands.answer("squeue", "--states=all"))
        listed = {job.id for job in jobs}
        there = {(job.id, job.comment) for job in jobs}  # a controller that forgot a job gives its number away again
        gone = [each for key, each in self._live.items() if key not in there]
        if gone:
            self.remember([each.slurm.id for each in gone])
            if self._gap_s < _SURE_S:
                self._forgotten |= {each.found.order.name: each for each in gone if each.slurm.id not in self._past}
        self._gap_s = 0.0
        known = [*(job for job in self._past.values() if job.id not in listed), *jobs]
        mine: dict[str, Mine] = {}
        doubles: list[Mine] = []
        foreign: dict[str, int] = {}
        self._live = {}
        for job in sorted(known, key=lambda job: job.id):
            found = self._found(job)
            if found is None:
                for node, count in job.place.items():
                    foreign[node] = foreign.get(node, 0) + count
                continue
            each = Mine(job, found)
            before = mine.get(found.order.name)
            if job.state not in DONE:
                self._live[job.id, job.comment] = each
                self._forgotten.pop(found.order.name, None)
            if before is not None and before.slurm.state not in DONE:
                if job.state not in DONE:
                    doubles.append(each)
                continue
            mine.pop(found.order.name, None)
            mine[found.order.name] = each
        return View(mine, tuple(doubles), foreign, tuple(self._forgotten.values()))

    def remember(self, ids: list[int] | None = None) -> None:
        """Ask accounting, where there is some, for jobs that are done: these, or all of the last week."""
        if not self.accounting:
            return
        which = ["-j", ",".join(map(str, ids))] if ids else ["-S", f"now-{int(_BACK_S)}seconds"]
        columns = [f"--delimiter={slurm_text.BETWEEN}", "-o", slurm_text.SACCT]
        try:
            text = self._commands.run("sacct", "-a", "-X", "-n", "-P", *columns, *which)
        except EngineLost:
            return  # jobs run without accounting, and it will be asked again
        for job in slurm_text.past(text):
            if job.state in DONE and self._found(job) is not None:
                self._past[job.id] = job

    @property
    def accounting(self) -> bool:
        """Whether this Slurm has accounting (slurmdbd) that we can read."""
        if self._accounting is None:
            try:
                said = self._commands.run("scontrol", "show", "config")
            except JoulewiseError:
                return False  # not known yet
            stored = any(
                line.split()[0] == "AccountingStorageType" and "slurmdbd" in line
                for line in said.splitlines()
                if line.strip()
            )
            self._accounting = stored and self._commands.has("sacct")
        return self._accounting

    def _found(self, job: SlurmJob) -> Found | None:
        if self._partition is not None and self._partition not in job.partition.split(","):
            return None
        key = (job.id, job.comment)
        if key not in self._orders:
            self._orders[key] = slurm_order.found(job.comment, job.uid)
        return self._orders[key]
