"""Tuning from inside a PyTorch script: ``tuning`` around the training loop, ``step`` in it.

    from joulewise.frameworks.torch import tuning

    with tuning(max_slowdown=0.02) as job:
        for batch in loader:
            train(batch)
            job.step()
    print(job.says)

It is ``joulewise run --tune`` for those who would rather write three lines than put a command in front of theirs: the
same tuner runs on a thread of the script, on the GPUs of the script. Of several ranks on a node, local rank 0 owns the
GPUs of all, and the others only train. Under ``joulewise run`` the command tunes, and this tells it the steps. Where
there is nothing to tune (no GPU, no rights), training goes on as ever, and ``says`` tells why.

Nothing of the loop is here (``tune/online``), and despite its name this module needs no torch: any loop has steps.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from joulewise.core.errors import JoulewiseError
from joulewise.core.marks import ENVIRONMENT
from joulewise.core.objective import MinEnergy, Objective
from joulewise.core.secrecy import masked
from joulewise.frameworks import hooks
from joulewise.frameworks.job_gpus import job_gpus

if TYPE_CHECKING:
    from joulewise.device.gpu import Gpu
    from joulewise.device.lease import Lease
    from joulewise.store.journal import Journal
    from joulewise.store.memory import Memory
    from joulewise.tune.online import Online
    from joulewise.tune.status import Status, Summary

_END_S = 10.0  # for the tuner to notice that training is over: it looks at the job twice a second
_NAME_CHARACTERS = 60  # of the script, in the reason of a lease
_log = logging.getLogger("joulewise")


class Job:
    """A training loop that is tuned, or left alone; ``says`` tells which, and how it went."""

    def __init__(self, says: str) -> None:
        self.summary: Summary | None = None
        """How the tuning ended; None while it lasts, and where there was none."""
        self._says = says
        self._online: Online | None = None
        self._journal: Journal | None = None

    def step(self, work: float = 1.0) -> None:
        """One step is done, or launched; ``work`` is how much it was, where steps differ."""
        hooks.step(work)

    @property
    def status(self) -> Status | None:
        """How it stands; None where nothing is tuned from here."""
        return self._online.status() if self._online is not None else None

    @property
    def says(self) -> str:
        """What is being done, or was, or why nothing can be, in a line."""
        if self.summary is not None and self._journal is not None:
            self._says, self._journal = _ending(self.summary, self._journal), None
        status = self.status
        if self.summary is not None or status is None:
            return self._says
        from joulewise.report.words import plainly

        return plainly(status.note or status.why)

    def _follows(self, online: Online, journal: Journal) -> None:
        self._online, self._journal = online, journal


def _ending(summary: Summary, journal: Journal) -> str:
    """As ``joulewise run`` says it, from what was written down."""
    from joulewise.report import outcome
    from joulewise.report.claim import Claim
    from joulewise.report.story import Story

    if summary.advice:
        return "; ".join(map(outcome.advised, summary.advice))
    try:
        story = Story.of(event for _, event in journal.read())
    except JoulewiseError as error:
        return f"what was tuned cannot be told: {error}"
    return outcome.headline(story, Claim.of(story))


@contextmanager
def tuning(
    *,
    max_slowdown: float = 0.02,
    objective: Objective | None = None,
    gpu: str | None = None,
    dry_run: bool = False,
    seed: int | None = None,
    journal: Journal | None = None,
    memory: Memory | None = None,
    fingerprint: str = "",
) -> Iterator[Job]:
    """Save energy of the training loop inside the block, at most ``max_slowdown`` slower (or by ``objective``).

    ``gpu`` names GPUs as everywhere (``nvml:0-3``); None: this job's own. ``dry_run`` sets nothing and says what it
    would. ``journal`` keeps what is decided and seen (default: the user's, so that ``joulewise history`` and
    ``joulewise verify`` know the run); ``memory`` and ``fingerprint`` let a next run start from what this one learns.
    Raises ValueError for a bound below 0, and otherwise nothing.
    """
    wanted = objective or MinEnergy(max_slowdown)
    why_not = _not_ours()
    if why_not:
        yield Job(why_not)
        return
    from joulewise.store.journal import MemoryJournal

    try:
        gpus = job_gpus(gpu)
        holder = _Holder(gpus)
        run = f"{os.getpid()}-{secrets.token_hex(4)}"
        kept = journal if journal is not None else _journal(run) or MemoryJournal()
        feed, online = _online(
            gpus,
            lease=holder.take,
            objective=wanted,
            dry_run=dry_run,
            seed=secrets.randbits(32) if seed is None else seed,
            journal=kept,
            memory=memory,
            fingerprint=fingerprint,
            run=run,
        )
    except JoulewiseError as error:
        _log.warning("not tuned: %s", error)
        yield Job(f"not tuned: {error}")
        return
    job = Job("")
    job._follows(online, kept)
    hooks.send_to(feed)
    thread = threading.Thread(target=_run, args=(online, job), name="joulewise tuner", daemon=True)
    thread.start()
    try:
        yield job
    finally:
        online.stop()
        thread.join(_END_S)
        hooks.send_to(None)
        holder.release()


class _Holder:
    """Takes the lease when the tuner wants it, and gives it back when the block ends, whoever comes first."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._lease: Lease | None = None
        self._over = False
        self._lock = threading.Lock()

    def take(self) -> Lease:
        from joulewise.core.errors import LeaseLost
        from joulewise.device.hold import hold

        with self._lock:
            if self._over:
                raise LeaseLost("training is over; nothing is set any more")
            self._lease = hold(self._gpus, reason=_reason(sys.argv[0]))
            return self._lease

    def release(self) -> None:
        with self._lock:
            self._over = True
            if self._lease is not None:
                try:
                    self._lease.release()
                except JoulewiseError as error:  # its guardian gives back what we cannot
                    _log.warning("%s", error)


def _reason(program: str) -> str:
    """What a lease is for. Others may read it: the script's name, not its place and not its arguments."""
    name = "".join(letter if letter.isprintable() else "?" for letter in Path(program).name)
    return f"joulewise in {name[:_NAME_CHARACTERS] or 'a Python session'}"


def _not_ours() -> str:
    """Why the tuner is not for this process to run; empty if it is."""
    from joulewise.monitor.owner import local_rank

    if os.environ.get(ENVIRONMENT):
        return "the command that runs this job watches it"
    if local_rank() != 0:
        return f"local rank 0 tunes for local rank {local_rank()}"
    return ""


def _journal(run: str) -> Journal | None:
    """The user's own; None where it cannot be kept, which costs the history alone."""
    from joulewise.store.database import Database
    from joulewise.store.sql import SqliteJournal

    try:
        return SqliteJournal(Database(), run)
    except JoulewiseError as error:
        _log.warning("%s", error)
        return None


def _online(
    gpus: Sequence[Gpu],
    *,
    lease: Callable[[], Lease],
    objective: Objective,
    dry_run: bool,
    seed: int,
    journal: Journal,
    memory: Memory | None,
    fingerprint: str,
    run: str,
) -> tuple[hooks.Sink, Online]:
    from joulewise.monitor.steps import MemoryFeed
    from joulewise.tune.online import build

    feed = MemoryFeed(gpus[0].time)
    online = build(
        gpus,
        lease=lease,
        feed=feed,
        objective=objective,
        dry_run=dry_run,
        seed=seed,
        journal=journal,
        memory=memory,
        fingerprint=fingerprint,
        run=run,
        facts={"command": masked(sys.argv), "framework": "torch", **_spent(gpus)},
    )
    return feed, online


def _spent(gpus: Sequence[Gpu]) -> dict[str, bool]:
    """Whether anything is spent at all, as ``joulewise run`` writes it down: what virtual GPUs save is no saving."""
    from joulewise.device.discover import are_virtual

    backends = {gpu.info.backend for gpu in gpus}
    return {"simulated": "virtual" in backends, "virtual": are_virtual(gpus) or "replay" in backends}


def _run(online: Online, job: Job) -> None:
    job.summary = online.ruler.sampler.time.run(online.loop())
