"""Tuning from inside a PyTorch script: ``tuning`` around the training loop, ``step`` in it.

    from joulewise.frameworks.torch import tuning

    with tuning(max_slowdown=0.02) as job:
        for batch in loader:
            train(batch)
            job.step()
    print(job.says)

It is ``joulewise run --tune`` for those who would rather write three lines than put a command in front of theirs: the
same tuner runs on a thread of the script, on the GPUs of the script, and the same is kept: journal, readings, what was
used in all, what was learnt. Of several ranks on a node, local rank 0 owns the GPUs of all, and the others only train.
Under ``joulewise run`` the command tunes, and this tells it the steps. Where there is nothing to tune (no GPU, no
rights), training goes on as ever, and ``says`` tells why.

Nothing of the loop is here (``tune/online``), and despite its name this module needs no torch: any loop has steps.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulewise.core.errors import JoulewiseError
from joulewise.core.marks import ENVIRONMENT
from joulewise.core.measurement import Outcome
from joulewise.core.objective import MinEnergy, Objective
from joulewise.core.units import format_percent
from joulewise.frameworks import hooks
from joulewise.frameworks.job_gpus import job_gpus

if TYPE_CHECKING:
    from joulewise.device.gpu import Gpu
    from joulewise.device.lease import Lease
    from joulewise.report.keeping import Keeping, TunersJournal
    from joulewise.report.meter import Meter
    from joulewise.store.journal import Journal
    from joulewise.store.memory import Memory
    from joulewise.store.pace import Step
    from joulewise.store.store import Store
    from joulewise.store.unsent import Learnt
    from joulewise.tune.online import Online
    from joulewise.tune.status import Status, Summary

_END_S = 10.0  # for the tuner to notice that training is over: it looks at the job twice a second
_START_S = 2.0  # for a store that has not answered since training began; as long as the end of any run waits for it
_NAME_CHARACTERS = 60  # of the script, in the reason of a lease
_log = logging.getLogger("joulewise")


class Job:
    """A training loop that is tuned, or left alone; ``says`` tells which, and how it went."""

    def __init__(self, says: str) -> None:
        self.summary: Summary | None = None
        """How the tuning ended; None while it lasts, and where there was none."""
        self._says = says
        self._status: Callable[[], Status] | None = None
        self._journal: Journal | None = None

    def step(self, work: float = 1.0) -> None:
        """One step is done, or launched; ``work`` is how much it was, where steps differ."""
        hooks.step(work)

    @property
    def status(self) -> Status | None:
        """How it stands; None where nothing is tuned from here."""
        return self._status() if self._status is not None else None

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

    def _is_tuned(self, status: Callable[[], Status]) -> None:
        self._status = status

    def _is_not_tuned(self, says: str) -> None:
        self._says, self._status = says, None

    def _ended(self, summary: Summary, journal: Journal) -> None:
        self._journal, self.summary = journal, summary


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
    would. The run is kept as ``joulewise run --tune`` keeps one, in the same store (``JOULEWISE_DATABASE``, else the
    user's own file), and what it learns is where the next run of the same command starts. ``journal`` keeps what is
    decided and seen there instead, and nothing else is kept; ``memory`` and ``fingerprint`` are where to learn, and
    under which name of the workload. Raises ValueError for a bound below 0, and otherwise nothing.
    """
    wanted = objective or MinEnergy(max_slowdown)
    why_not = _not_ours()
    if why_not:
        yield Job(why_not)
        return
    job, stack = Job(""), ExitStack()
    kept: _Record | None = None
    try:
        try:
            found = _Found.of(job_gpus(gpu))
            kept = _Record.of(stack, found, wanted, dry_run, seed, journal, memory, fingerprint)
            tuner = _Tuner(found, wanted, dry_run, kept, job)
            kept.begin()
            stack.callback(kept.end, job)
            hooks.send_to(tuner.feed)
            stack.callback(hooks.send_to, None)
            tuner.begin()
            stack.callback(tuner.end)  # first of all, since the GPU is given back there
        except Exception as error:  # training is not ours to end
            _log.warning("not tuned: %s", error)
            job._is_not_tuned(f"not tuned: {error}")
        yield job
    except BaseException as error:
        if kept is not None:
            kept.failed(error)
        raise
    finally:
        try:
            stack.close()
        except Exception as error:
            _log.warning("the end of tuning: %s: %s", type(error).__name__, error)


@dataclass(frozen=True, slots=True)
class _Found:
    """The GPUs of the script, as its first event tells them."""

    gpus: Sequence[Gpu]
    simulated: bool
    virtual: bool

    @classmethod
    def of(cls, gpus: Sequence[Gpu]) -> _Found:
        """Whether anything is spent at all: what virtual GPUs save is no saving."""
        from joulewise.device.discover import are_virtual

        return cls(gpus, any(gpu.info.backend == "virtual" for gpu in gpus), are_virtual(gpus))


class _Record:
    """What is kept of a run, and how: the tuner's journal, readings and what was used in all, what was learnt."""

    def __init__(self, meter: Meter, run: str, seed: int, fingerprint: str, facts: Mapping[str, Any]) -> None:
        self.meter, self.run, self.seed, self.fingerprint = meter, run, seed, fingerprint
        self.facts = facts
        self.journalled: str | None = None
        """The name of its journal in the store; None where it has none there."""
        self.journal: Journal | None = None
        """The tuner's; None while it has none."""
        self.memory: Memory | None = None
        self.learnt: list[Learnt] = []
        """What the tuner has learnt, to be kept at the end."""
        self.online: Online | None = None
        """The tuner, once there is one: it knows the steps."""
        self._clock = meter.gpus[0].time
        self._outcome, self._why = Outcome.REACHED, "ended"
        self._store: Store | None = None
        """Where the tuner's journal is to be; None where it is in memory."""
        self._keeping: Keeping | None = None

    @classmethod
    def of(
        cls,
        stack: ExitStack,
        found: _Found,
        wanted: Objective,
        dry_run: bool,
        seed: int | None,
        journal: Journal | None,
        memory: Memory | None,
        fingerprint: str,
    ) -> _Record:
        """What is wanted, opened; a store that cannot be used costs the keeping and not the tuning."""
        from joulewise.report import keeping
        from joulewise.report.meter import Meter
        from joulewise.store import recurring

        names = [gpu.info.name for gpu in found.gpus]
        unix_s = time.time() - found.gpus[0].time.now_s()
        meter = stack.enter_context(Meter(found.gpus, unix_s=unix_s))
        facts = {"wanted": _says(wanted), "framework": "torch", "unix_s": unix_s}
        record = cls(
            meter,
            keeping.new_name(),
            secrets.randbits(32) if seed is None else seed,
            fingerprint or recurring.workload(_command(), names).fingerprint(),
            keeping.began_facts(sys.argv, found, **facts),
        )
        record.memory = memory
        if journal is not None:
            record.journal = journal
            return record
        store, trouble = keeping.opened()
        if store is not None:
            stack.callback(store.close)
            record._keep_in(store, found, dry_run)
        if trouble is not None:
            _log.warning("%s", trouble)
        return record

    def _keep_in(self, store: Store, found: _Found, dry_run: bool) -> None:
        """Keep the run in ``store``, to which nothing is connected yet."""
        from joulewise.core.event import Began
        from joulewise.report import keeping

        self._store = None if dry_run else store
        began = Began(self._clock.now_s(), "", {**self.facts, "tuned": False})
        self._keeping = keeping.of_run(store, found, self.meter, began, self)

    def find_journal(self) -> TunersJournal | None:
        """Where the tuner writes in the store; waits for that, for some seconds. None where it has no place there."""
        from joulewise.report import keeping

        if self._store is None:
            return None
        uuids = [gpu.info.uuid for gpu in self.meter.gpus]
        return keeping.tuners_journal(self._store, self.run, self.fingerprint, uuids, self.facts["wanted"], self.seed)

    def find_memory(self) -> Memory | None:
        """What earlier runs taught; None where nothing is kept, or it cannot be."""
        from joulewise.core.errors import NotKept
        from joulewise.report import keeping

        if self.memory is None and self._keeping is not None:
            try:
                return keeping.LearntLater(self.learnt)
            except NotKept as error:
                _log.warning("what is learnt is not kept: %s", error)
        return self.memory

    def fetch_steps(self) -> list[Step]:
        """The steps that have ended since the last call."""
        return self.online.ruler.log.fetch_steps() if self.online is not None else []

    def begin(self) -> None:
        """The loop begins."""
        self.meter.begin()
        if self._keeping is not None:
            self._keeping.begin()

    def failed(self, failure: BaseException) -> None:
        """The loop ends with ``failure``. Nothing of it is remembered: what training has left in memory hangs on it."""
        if isinstance(failure, SystemExit) and failure.code in (None, 0):
            return
        stopped = isinstance(failure, (KeyboardInterrupt, GeneratorExit))
        self._outcome = Outcome.STOPPED_EARLY if stopped else Outcome.FAILED
        self._why = f"ended with {type(failure).__name__}"

    def end(self, job: Job) -> None:
        """The loop has ended: measure it, and keep that."""
        from joulewise.report import keeping, outcome

        gpus, host = self.meter.end(self._outcome)
        if self._keeping is None:
            return
        duration_s = next((gpu.window_s for gpu in gpus if gpu.window_s is not None), 0.0)
        measured = keeping.measured(gpus, duration_s=duration_s, host_j=host.energy_j, exit_code=None)
        advice = job.summary.advice if job.summary is not None else ()
        advised = {"advised": outcome.advised(advice[0])} if advice else {}
        trouble = self._keeping.end(self._clock.now_s(), self._why, measured, **advised)
        if trouble is not None:
            _log.warning("%s", trouble)


def _command() -> list[str]:
    """The command that this script is, as one would type it behind ``joulewise run --``."""
    if "--multiprocessing-fork" in sys.orig_argv:  # numbers that change; its script is its parent's
        return [sys.orig_argv[0], *sys.argv]
    return list(sys.orig_argv)


def _says(objective: Objective) -> str:
    """The objective in words, as ``joulewise run --tune`` has them where it is the usual one."""
    if isinstance(objective, MinEnergy):
        return f"least energy, at most {format_percent(objective.max_slowdown)} slower"
    return repr(objective)


class _Tuner:
    """Tunes the loop on a thread of its own: whatever a store, a driver or a daemon takes, training does not wait."""

    def __init__(self, found: _Found, wanted: Objective, dry_run: bool, kept: _Record, job: Job) -> None:
        from joulewise.device.job_lease import JobLease
        from joulewise.monitor.steps import MemoryFeed
        from joulewise.tune.status import Status

        self._found, self._wanted, self._dry_run, self._kept, self._job = found, wanted, dry_run, kept, job
        self.feed = MemoryFeed(found.gpus[0].time)
        self._lease = JobLease(self._acquire)
        self._online: Online | None = None
        self._over = False
        self._lock = threading.Lock()
        self._ready, self._measured = threading.Event(), threading.Event()
        self._starting = Status(found.gpus[0].time.now_s(), why="waiting for the store")
        self._thread = threading.Thread(target=self._work, name="joulewise tuner", daemon=True)

    def begin(self) -> None:
        """The loop begins."""
        self._job._is_tuned(self._status)
        self._thread.start()

    def end(self) -> None:
        """The loop has ended: give everything back. Waits for the tuner, not for the store."""
        deadline_s = time.monotonic() + _END_S
        self._ready.wait(_START_S)
        with self._lock:
            online, self._over = self._online, True
        if online is not None:
            online.stop()
            self._measured.wait(max(0.0, deadline_s - time.monotonic()))
        try:
            self._lease.give_back()  # before anything waits for the store
        except JoulewiseError as error:
            _log.warning("what was set may not have been given back: %s", error)
        if online is not None:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        elif not self._ready.is_set():
            self._job._is_not_tuned("not tuned: the store had not answered when training ended")

    def _status(self) -> Status:
        return self._online.status() if self._online is not None else self._starting

    def _acquire(self) -> Lease:
        from joulewise.device.hold import hold

        return hold(self._found.gpus, reason=_reason(sys.argv[0]))

    def _work(self) -> None:
        try:
            self._tune()
        except Exception as error:  # a bug of ours is a line, never the script's
            _log.warning("not tuned: %s", error)
            self._job._is_not_tuned(f"not tuned: {error}")
        finally:
            with self._lock:
                if not self._over:
                    hooks.send_to(None)  # nobody reads the marks any more
            self._ready.set()
            self._measured.set()

    def _tune(self) -> None:
        from joulewise.store.journal import MemoryJournal
        from joulewise.tune.online import build

        kept, gpus = self._kept, self._found.gpus
        opened = kept.find_journal()
        journal: Journal = opened.journal if opened is not None else kept.journal or MemoryJournal()
        online = build(
            gpus,
            lease=self._lease.take,
            feed=self.feed,
            objective=self._wanted,
            dry_run=self._dry_run,
            seed=kept.seed if opened is None or opened.seed is None else opened.seed,
            journal=journal,
            memory=kept.find_memory(),
            fingerprint=kept.fingerprint,
            run=kept.run if opened is None else opened.run,
            facts=kept.facts,
            sampler=kept.meter.sampler,
        )
        online.when_measured(self._measured.set)
        with self._lock:
            if self._over:
                return
            self._online = kept.online = online
            kept.journal = journal
            if opened is not None:
                kept.run = kept.journalled = opened.run
        self._ready.set()
        self._job._ended(gpus[0].time.run(online.loop()), journal)


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
