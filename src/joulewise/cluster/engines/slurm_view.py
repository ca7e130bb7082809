"""What Slurm has, seen as ours and others': which of its jobs are ours, and what each is called.

What it is: one look at ``squeue`` (and, for what has left it, at ``sacct``), with the orders that the jobs' comments
name. Two live jobs of one user and name are one too many: the first counts, the others are ``doubles``, for the engine
to end. Another user's job of that name gets one of its own.
slurmctld writes its state down every few seconds only, so one that is killed forgets what was handed in just before:
such jobs are ``forgotten``, for the engine to hand in again.

What it is not: a book; it is made anew from Slurm each time, but for orders already read and what was seen last.
"""

from __future__ import annotations

import functools
import pwd
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulewise.cluster import orders
from joulewise.cluster.engine import DONE, JobSeen, Order
from joulewise.cluster.engines import slurm_energy, slurm_order, slurm_text
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from joulewise.cluster.engines.slurm_order import Found
from joulewise.cluster.engines.slurm_text import SlurmJob
from joulewise.core.caller import Caller
from joulewise.core.errors import EngineLost, JoulewiseError

_BACK_S = 7 * 86400.0
"""How far back accounting is searched for jobs that ended while no scheduler looked."""

_SURE_S = 60.0
"""Slurm shows a job that is done for longer than this (MinJobAge): one that is gone sooner was not done."""


@dataclass(frozen=True, slots=True)
class Mine:
    """A job of ours: as Slurm has it, its order as found, and the name by which it is known, here and above."""

    slurm: SlurmJob
    found: Found
    name: str

    @property
    def order(self) -> Order:
        """Its order, under the name by which it is known. When it was handed in, by whom and for which account Slurm
        says, whatever the comment does: a user writes that, and may write it again at any time."""
        job = self.slurm
        return replace(
            self.found.order,
            name=self.name,
            submitted_s=job.submit_s or 0.0,
            user=user_name(job.uid),
            account=job.account[: orders.LONGEST_TEXT],
            qos=job.qos[: orders.LONGEST_TEXT],
            mark=f"{job.uid}:{self.found.digest}"[: orders.LONGEST_TEXT],
        )

    @property
    def why(self) -> str:
        """Why it stands so: of a job that was cancelled, what its administrator's comment says of it, which no user
        may write and the next scheduler still finds; else Slurm's reason."""
        job = self.slurm
        return (slurm_energy.why(job.admin_comment) if job.state == "cancelled" else "") or job.reason

    def seen(self, why: str = "") -> JobSeen:
        """As the protocol says it."""
        job = self.slurm
        done = job.state in DONE
        since_s = {"waiting": job.submit_s, "starting": job.start_s, "running": job.start_s, "leaving": None}
        return JobSeen(
            name=self.name,
            id=str(job.id),
            state=job.state,
            order=self.order,
            place=job.place,
            starts=job.starts,
            since_s=job.end_s if done else since_s[job.state],
            exit_code=job.exit_code if done else None,
            why=why or self.why,
            by=Caller(uid=job.uid),
        )


@dataclass(frozen=True, slots=True)
class View:
    """One look. ``mine`` by name, in order of submission."""

    mine: Mapping[str, Mine]
    doubles: tuple[tuple[Mine, int], ...] = ()
    """Jobs of whose name their own user has another, that is not done either; with that one's id."""
    foreign: Mapping[str, int] = field(default_factory=dict)
    """Node → GPUs that jobs hold which are none of ours."""
    forgotten: tuple[Mine, ...] = ()
    """Jobs that Slurm had a moment ago, not done, and has no more."""

    def of_user(self, uid: int, name: str) -> Mine | None:
        """The job that a user has handed in under ``name``; one that is not done before one that is."""
        own = [each for each in self.mine.values() if each.slurm.uid == uid and each.found.order.name == name]
        return next((each for each in own if each.slurm.state not in DONE), own[-1] if own else None)


class SlurmView:
    """Looks. ``partition``: only jobs there are ours; None: all."""

    def __init__(self, commands: SlurmCommands, partition: str | None) -> None:
        self._commands = commands
        self._partition = partition
        self._known: dict[int, _Known] = {}
        self._past: dict[int, SlurmJob] = {}
        self._live: dict[int, Mine] = {}
        self._forgotten: dict[tuple[int, str], Mine] = {}
        """By user, and what it was handed in as."""
        self._tried_s: float | None = None
        self._gap_s = 0.0
        self._accounting: bool | None = None

    def look(self) -> View:
        """As it is now."""
        now_s = time.monotonic()
        self._gap_s = max(self._gap_s, 0.0 if self._tried_s is None else now_s - self._tried_s)
        self._tried_s = now_s
        jobs = slurm_text.jobs(self._commands.answer("squeue", "--states=all"))
        listed = {job.id: job for job in jobs}
        gone = [each for id_, each in self._live.items() if id_ not in listed or not _same(each.slurm, listed[id_])]
        if gone:
            self.remember([each.slurm.id for each in gone])
            if self._gap_s < _SURE_S:
                self._forgotten |= {_handed(each): each for each in gone if each.slurm.id not in self._past}
        self._gap_s = 0.0
        oldest_s = time.time() - _BACK_S
        self._past = {id_: job for id_, job in self._past.items() if job.end_s is None or job.end_s > oldest_s}
        ours: list[tuple[SlurmJob, _Known]] = []
        foreign: dict[str, int] = {}
        for job in sorted(
            [*(job for id_, job in self._past.items() if id_ not in listed), *jobs], key=lambda job: job.id
        ):
            known = self._read(job)
            if known.found is not None and self._is_here(job):
                ours.append((job, known))
                continue
            for node, count in job.place.items():
                foreign[node] = foreign.get(node, 0) + count
        self._known = {id_: known for id_, known in self._known.items() if id_ in listed or id_ in self._past}
        mine, doubles = self._named(ours)
        self._live = {each.slurm.id: each for each in mine.values() if each.slurm.state not in DONE}
        self._live |= {each.slurm.id: each for each, _ in doubles}
        for each in self._live.values():
            self._forgotten.pop(_handed(each), None)
        return View(mine, doubles, foreign, tuple(self._forgotten.values()))

    def remember(self, ids: list[int] | None = None) -> None:
        """Ask accounting, where there is some, for jobs that are done: these, or all of the last week."""
        if not self.accounting:
            return
        which = ["-j", ",".join(map(str, ids))] if ids else ["-S", f"now-{int(_BACK_S)}seconds"]
        between = f"|{secrets.token_hex(8)}|"
        try:
            text = self._commands.run(
                "sacct", "-a", "-X", "-n", "-P", f"--delimiter={between}", "-o", slurm_text.SACCT, *which
            )
        except EngineLost:
            return  # jobs run without accounting, and it will be asked again
        for job in slurm_text.past(text, between):
            if job.state not in DONE or not self._is_here(job):
                continue
            known = self._known.get(job.id)
            if ids is None or known is None or known.job.uid != job.uid:
                known = self._read(job)
            known.job = job  # asked for by its number, it is the one that was known, whatever its comment is by now
            if known.found is not None:
                self._past[job.id] = job

    @property
    def accounting(self) -> bool:
        """Whether this Slurm has accounting (slurmdbd) that we can read."""
        if self._accounting is None:
            try:
                stored = "slurmdbd" in self._configured("AccountingStorageType")
            except JoulewiseError:
                return False  # not known yet
            self._accounting = stored and self._commands.has("sacct")
        return self._accounting

    def enforced(self) -> frozenset[str]:
        """Of ``account`` and ``qos``, what Slurm lets only those use who may; whoever may not could name any otherwise.
        EngineLost where it does not answer."""
        words = set(self._configured("AccountingStorageEnforce").lower().split(","))
        accounts = {"account"} if words & {"associations", "limits", "qos", "safe", "all"} else set()
        return frozenset(accounts | ({"qos"} if words & {"qos", "all"} else set()))

    def _configured(self, name: str) -> str:
        """A setting of slurm.conf as slurmctld has it; empty where it names none."""
        lines = self._commands.run("scontrol", "show", "config").splitlines()
        return next((line.partition("=")[2].strip() for line in lines if line.split()[:1] == [name]), "")

    def _named(self, ours: Sequence[tuple[SlurmJob, _Known]]) -> tuple[dict[str, Mine], tuple[tuple[Mine, int], ...]]:
        """What each is called, and those that are one too many.

        Of two users' jobs with one name the first has it, and the other is called ``NAME@ID`` as long as it lives and
        after. That is written into Slurm as the job's name by the engine, where the next scheduler finds it.
        """
        holders = {known.name: job.id for job, known in ours if known.name and job.state not in DONE}
        handed: dict[tuple[int, str], int] = {}
        mine: dict[str, Mine] = {}
        doubles: list[tuple[Mine, int]] = []
        for job, known in ours:
            assert known.found is not None
            plain_name = known.found.order.name
            own_name = f"{plain_name}@{job.id}"
            if job.state not in DONE:
                first = handed.setdefault((job.uid, plain_name), job.id)
                if first != job.id:
                    known.name = own_name  # when it has ended, it must not stand for the first
                    doubles.append((Mine(job, known.found, own_name), first))
                    continue
            if not known.name:
                taken = job.state not in DONE and holders.get(plain_name, job.id) != job.id
                known.name = own_name if taken or job.name == own_name else plain_name
                if job.state not in DONE:
                    holders[known.name] = job.id
            before = mine.get(known.name)
            if before is not None and before.slurm.state not in DONE:
                continue
            mine.pop(known.name, None)
            mine[known.name] = Mine(job, known.found, known.name)
        return mine, tuple(doubles)

    def _is_here(self, job: SlurmJob) -> bool:
        return self._partition is None or self._partition in job.partition.split(",")

    def _read(self, job: SlurmJob) -> _Known:
        """What is known of a job. An order is read once: a user who writes another comment over it changes nothing."""
        known = self._known.get(job.id)
        if known is None or not _same(known.job, job) or (known.found is None and known.job.comment != job.comment):
            known = self._known[job.id] = _Known(job, slurm_order.found(job.comment, job.uid))
        known.job = job
        return known


@dataclass(slots=True)
class _Known:
    """What was read of a job: as it was when last seen, its order, and what it is called (empty: not yet)."""

    job: SlurmJob
    found: Found | None
    name: str = ""


def _same(before: SlurmJob, job: SlurmJob) -> bool:
    """Whether a number still is the same job's. A controller that forgot a job gives its number away again: to another
    user, or with another comment and a later time of submission. But a comment is its user's to change, and a requeue
    puts the time of submission on (22.05), so neither of them alone says so."""
    if before.uid != job.uid:
        return False
    later = before.submit_s is not None and job.submit_s is not None and job.submit_s > before.submit_s
    return before.comment == job.comment or job.restarts > 0 or not later


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """What a uid is called on this machine; the number itself where nobody is called by it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _handed(each: Mine) -> tuple[int, str]:
    return each.slurm.uid, each.found.order.name
