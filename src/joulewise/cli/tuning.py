"""A command being tuned: what stands behind ``joulewise run --tune``.

Everything happens beside the command, on a thread: find the GPUs that it uses, take a lease on them once it is there,
tune until it ends, give everything back. Nothing here raises once the command runs, and nothing here makes it wait:
whatever cannot be done is a line of the result, and the command runs as it would have run without us.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from joulewise.cli.gpus import OpenGpus
from joulewise.cli.objectives import Wanted
from joulewise.cli.usage import counted_outside, left_behind, no_rights, uses, why_never, why_not_told
from joulewise.core.errors import JoulewiseError, NotKept
from joulewise.core.knob import DEFAULT
from joulewise.core.secrecy import masked
from joulewise.device.gpu import Gpu
from joulewise.device.job_lease import JobLease
from joulewise.device.lease import Lease, Restored
from joulewise.report.keeping import LearntLater, began_facts, new_name, tuners_journal
from joulewise.report.words import LOST, plainly
from joulewise.store import recurring
from joulewise.store.bounded import BackgroundJournal
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory
from joulewise.store.store import Store
from joulewise.store.unsent import Learnt

if TYPE_CHECKING:
    from joulewise.cli.tuned import TuneResult
    from joulewise.report.meter import Meter
    from joulewise.store.pace import Step
    from joulewise.tune.online import Online
    from joulewise.tune.status import Status, Summary

_log = logging.getLogger("joulewise")

_LOOK_S: Final = 0.5
"""Between two looks at who runs on the GPUs, in their time; a look costs milliseconds."""
_SETTLED_S: Final = 3.0
"""Ranks of one job appear on their GPUs within so long of each other; then its GPUs are known."""
_PATIENCE_S: Final = 10.0
"""How long the end of the tuner is waited for, in wall time: the command's exit code must not hang on ours."""

_ON_VIRTUAL: Final = (
    "a script uses a virtual one through 'joulewise sim --couple torch' or joulewise.device.work.work: "
    "docs/virtual-gpus.md"
)


class Tuning:
    """Tunes a command on the GPUs of ``found``. Use ``with``; ``environment``, ``begin``, ``finish``, then ``end``.

    ``store`` keeps its journal; None keeps nothing, nor what is learnt. ``facts`` are added to the journal's first
    event. Making it raises BadSpec for an objective that these GPUs cannot serve; nothing later raises.
    """

    def __init__(
        self,
        found: OpenGpus,
        wanted: Wanted,
        command: Sequence[str],
        *,
        dry_run: bool = False,
        seed: int | None = None,
        reason: str = "",
        store: Store | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._found, self._wanted, self._reason = found, wanted, reason
        self._command = tuple(masked(command))
        """As it is kept: others may read a report."""
        self._objective = wanted.objective([gpu.info for gpu in found.gpus]) if found.gpus else None
        self._untuned = why_never(found)
        self._chosen, self._outside = found.named or len(found.gpus) == 1, counted_outside(found)
        self._dry_run = dry_run
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self.run = new_name()
        self.learnt: list[Learnt] = []
        """What the tuner has learnt, for whoever keeps the run: the arguments of ``Memory.keep``."""
        self.journalled: str | None = None
        """The name of the journal in the store, once there is one; it may be that of a run which is gone on with."""
        self._notes: list[str] = []
        self._store, self._facts = store, dict(facts or {})
        self._journal: Journal = MemoryJournal()
        self._stack = ExitStack()
        self._marks = Path()
        self._meter: Meter | None = None
        self._online: Online | None = None
        self._summary: Summary | None = None
        self._lease = JobLease(self._acquire)
        self._restored: tuple[Restored, ...] = ()
        self._ended = threading.Event()
        self._measured = threading.Event()
        """Set when the tuner's thread will not set or measure anything any more."""
        self._thread: threading.Thread | None = None
        self._used: list[Gpu] = []
        self._said = ""

    def __enter__(self) -> Tuning:
        from joulewise.monitor import steps

        try:
            self._marks = self._stack.enter_context(steps.directory())
        except OSError as error:
            self._notes.append(f"no hooks: {(error.strerror or str(error)).lower()}; the pace comes from the sensors")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        self._give_back()
        self._stack.close()

    def environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """``environ`` with what makes the command tell its steps."""
        from joulewise.frameworks import inject

        return environ if self._marks == Path() else inject.environment(environ, self._marks)

    def begin(self, meter: Meter) -> None:
        """The command has started: begin to watch it."""
        self._meter = meter
        if self._untuned is None:
            self._thread = threading.Thread(target=self._work, name="joulewise tuner", daemon=True)
            self._thread.start()

    @property
    def journal(self) -> BackgroundJournal | None:
        """The tuner's journal, for whoever keeps the run; None where it is in memory only, or not begun."""
        return self._journal if isinstance(self._journal, BackgroundJournal) else None

    def status(self) -> Status | None:
        """How it stands; None while the tuner has not begun."""
        return self._online.status() if self._online is not None else None

    def fetch_steps(self) -> list[Step]:
        """The steps of the command that have ended since the last call, for a record of its pace."""
        return self._online.ruler.log.fetch_steps() if self._online is not None else []

    @property
    def waiting(self) -> str:
        """What is waited for while there is no status, in words."""
        return self._untuned or "waiting for the command to use a GPU"

    def news(self) -> list[str]:
        """A line if what was held has been lost since the last call."""
        status = self.status()
        note = status.note if status is not None else ""
        if note == self._said or not note.startswith(LOST):
            return []
        self._said = note
        return [f"{plainly(note)}; the command goes on"]

    def finish(self) -> None:
        """The command has ended: stop tuning and give everything back, whatever the store does. Idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._online is not None:
            self._online.stop()
        if self._thread is not None:
            deadline_s = time.monotonic() + _PATIENCE_S
            self._measured.wait(_PATIENCE_S)
            self._give_back()
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
            if self._thread.is_alive():
                self._notes.append(f"the tuner did not end within {_PATIENCE_S:g} s: a driver that hangs? see 'doctor'")

    def end(self) -> TuneResult:
        """Give everything back and say how it went."""
        from joulewise.cli.tuned import TuneResult
        from joulewise.report.claim import Claim
        from joulewise.report.story import Story

        self._give_back()
        self._notes += left_behind(self._used or self._found.gpus, self._marks)
        try:
            story = Story.of(event for _, event in self._journal.read())
        except JoulewiseError as error:
            story = Story.of(())
            self._notes.append(f"what was tuned cannot be told: {error}")
        summary = self._summary
        return TuneResult(
            self.run,
            story,
            Claim.of(story),
            self._wanted.says(),
            gpus=max(1, len(self._used)),
            untuned=self._why_untuned(summary),
            advice=summary.advice[0] if summary is not None and summary.advice else None,
            notes=tuple(dict.fromkeys(self._notes)),
            restored=self._restored,
            expected=_expected(summary),
            kept=self.journal is not None,
        )

    # The thread.

    def _work(self) -> None:
        try:
            self._used = self._await_gpus()
            if self._used:
                self._tune(self._used)
        except Exception as error:  # a bug of ours is a line of the result, never the command's
            self._untuned = f"the tuner failed: {type(error).__name__}: {error}"
            _log.debug("the tuner failed", exc_info=True)  # with --verbose
        finally:
            self._measured.set()

    def _await_gpus(self) -> list[Gpu]:
        """The GPUs that the command uses, once it does; none if it ends first."""
        gpus = self._found.gpus
        clock = gpus[0].time
        since_s, last = clock.now_s(), None
        while not self._ended.is_set():
            used = [gpu for gpu in gpus if uses(gpu, self._marks, chosen=self._chosen, outside=self._outside)]
            if [gpu.info.uuid for gpu in used] != last:
                since_s, last = clock.now_s(), [gpu.info.uuid for gpu in used]
            if used and (len(used) == len(gpus) or clock.now_s() - since_s >= _SETTLED_S):
                return used
            clock.sleep(_LOOK_S)
        return []

    def _tune(self, gpus: list[Gpu]) -> None:
        from joulewise.monitor.sampler import Sampler
        from joulewise.monitor.steps import StepFeed
        from joulewise.tune.online import build

        assert self._meter is not None
        hopeless = None if self._found.simulated else no_rights()
        if hopeless and not self._dry_run:
            self._untuned, self._dry_run = hopeless, True
        infos = [gpu.info for gpu in gpus]
        work = recurring.workload(self._command, [info.name for info in infos])
        self._open_journal(work.fingerprint(), [info.uuid for info in infos])
        sampler = self._meter.sampler
        if sampler is not None and len(gpus) < len(sampler.tracks):
            # Of our own for some of them; locks elsewhere, or the meter's sampler would be the only one to poll.
            sampler = self._stack.enter_context(Sampler(gpus, lock_directory=self._marks))
        online = build(
            gpus,
            lease=None if self._dry_run else self._lease.take,
            feed=StepFeed(self._marks, gpus[0].time),
            objective=self._objective,
            seed=self._seed,
            journal=self._journal,
            memory=self._memory(),
            fingerprint=work.fingerprint(),
            run=self.run,
            facts={
                **self._wanted.facts(),
                **began_facts(self._command, self._found, wanted=self._wanted.says()),
                **self._facts,
            },
            dry_run=self._dry_run,
            sampler=sampler,
        )
        self._online = online
        online.when_measured(self._measured.set)
        if self._ended.is_set():
            online.stop()
        self._summary = gpus[0].time.run(online.loop())

    def _open_journal(self, fingerprint: str, uuids: list[str]) -> None:
        """A journal on disk: that of the same work if it was killed, else a new one. In memory for a dry run."""
        if self._store is None or self._dry_run:
            return
        opened = tuners_journal(self._store, self.run, fingerprint, uuids, self._wanted.says(), self._seed)
        if opened.seed is not None:
            self._seed = opened.seed
            self._notes.append(opened.says)
        self._journal, self.run, self.journalled = opened.journal, opened.run, opened.run

    def _acquire(self) -> Lease:
        """A lease on the GPUs that are used; the tuner asks again for a while if it is refused."""
        from joulewise.cli.held import take

        return take(self._found, self._used, None, self._reason)

    def _memory(self) -> Memory | None:
        """What earlier runs taught: in the user's own file, whatever keeps the journals."""
        try:
            return LearntLater(self.learnt) if self._store is not None else None
        except NotKept as error:
            self._notes.append(f"what is learnt is not kept: {error}")
            return None

    # The end.

    def _give_back(self) -> None:
        try:
            ended = self._lease.give_back()
        except JoulewiseError as error:
            self._notes.append(f"what was set may not have been given back: {error}")
        else:
            self._restored = ended.restored if ended is not None else self._restored

    def _why_untuned(self, summary: Summary | None) -> str | None:
        """Why the tuner never began; None where it did."""
        if self._untuned is not None or summary is not None:
            return self._untuned  # what the tuner found is in the journal
        if self._used:
            return "the command ended before it could be measured"
        not_told = why_not_told(self._found.gpus, chosen=self._chosen, outside=self._outside)
        return not_told or f"the command ended without having used a GPU{_of(self._found)}"


def _expected(summary: Summary | None) -> tuple[tuple[float, float], ...]:
    """The believed frontier of the job's first phase, relative to default."""
    points = next(iter(summary.frontiers.values()), None) if summary is not None else None
    if points is None:
        return ()
    base = next((point for point in points if point.setting == DEFAULT), points.fastest)
    return tuple((point.time_s / base.time_s - 1, point.energy_j / base.energy_j - 1) for point in points)


def _of(found: OpenGpus) -> str:
    """Which GPUs, and how a script comes to use one where they are virtual: no CUDA leads to those."""
    which = f" ({found.why})" if found.why else ""
    return which + (f"; {_ON_VIRTUAL}" if found.virtual else "")
