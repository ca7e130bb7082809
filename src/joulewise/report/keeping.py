"""A measured run in the store: that it began, power and clocks meanwhile, what it used in the end.

What stands behind ``joulewise run`` unless ``--no-keep``, behind each trial of ``joulewise recur run``, and behind
``frameworks.torch.tuning``. All of it happens beside the job, on a thread, so that a slow disk or a server that is
away never makes it wait; what cannot be written waits in memory, bounded. The end of a run waits ``END_WAIT_S`` for
its store and no longer: what is not written then goes to a file that the next run takes in (``store.unsent``), and
one line says so. A tuned run has a journal of its tuner's (``tuners_journal``), sealed at its end: its readings go
under that name, and what the whole job used beside it (``store.views``).
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from joulewise.core.errors import JoulewiseError, NotKept
from joulewise.core.event import Began, Event, Finished
from joulewise.core.measurement import Measurement
from joulewise.core.secrecy import masked
from joulewise.device.gpu import Gpu
from joulewise.report.meter import GpuResult, Meter, together
from joulewise.store import recurring, views
from joulewise.store import unsent as unsent_files
from joulewise.store.bounded import BackgroundJournal, BoundedCalls
from joulewise.store.database import Database
from joulewise.store.evidence import circumstances
from joulewise.store.journal import Journal
from joulewise.store.kept import KeptJournal
from joulewise.store.memory import Memory
from joulewise.store.pace import PaceRecord, Step, pace_stream
from joulewise.store.readings import Sample
from joulewise.store.store import Store
from joulewise.store.thinned import Thinned
from joulewise.store.unsent import Learnt, Unsent
from joulewise.store.views import measured_stream

_log = logging.getLogger("joulewise")

NOT_KEPT: Final = "this run is not kept"
_PERIOD_S: Final = 10.0
"""Between two writes, in wall time: what a look at a running command lags behind, and what a kill costs."""
END_WAIT_S: Final = 2.0
"""How long the end of a run waits for its store, in all: the command's exit code must not hang on it."""
SAVE_WAIT_S: Final = 1.0
"""How long it then waits for the file beside it: the same disk may hang."""


_LOOKED_AT: Final = 50
"""How many runs back one that was interrupted is looked for."""


class Gpus(Protocol):
    """The GPUs of a run; ``cli.gpus.OpenGpus`` is one."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All of them; maybe none."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether we started the simulator."""
        ...

    @property
    def virtual(self) -> bool:
        """Whether what they use was never spent."""
        ...


class Tuned(Protocol):
    """What tunes a run; ``cli.tuning.Tuning`` is one."""

    @property
    def run(self) -> str:
        """The run's name."""
        ...

    @property
    def journalled(self) -> str | None:
        """The name of its journal in the store, which may be that of a run that is gone on with; None: none yet."""
        ...

    @property
    def journal(self) -> Journal | None:
        """Its journal; None: none yet."""
        ...

    @property
    def learnt(self) -> Sequence[Learnt]:
        """What it has learnt, to be kept at the end of the run."""
        ...

    def fetch_steps(self) -> Sequence[Step]:
        """The steps of the job that have ended since the last call, for a record of its pace."""
        ...


def new_name() -> str:
    """The name of a run that begins now."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def opened(database: str | None = None) -> tuple[Store | None, str | None]:
    """The store that runs are kept in, the usual one unless ``database`` names another; None, and why, where there is
    none. Nothing is connected to yet."""
    from joulewise.store.store import open_store

    try:
        return open_store(database), None
    except JoulewiseError as error:
        return None, f"{NOT_KEPT}: {error}"


def facts_of(command: Sequence[str], found: Gpus, **more: Any) -> dict[str, Any]:
    """The facts of a run that is measured and not tuned; ``more`` are plain values."""
    return {**began_facts(command, found), "tuned": False, **more}


def began_facts(command: Sequence[str], found: Gpus, **more: Any) -> dict[str, Any]:
    """The facts of any run, as its first event has them: what runs, where, since when and on which GPUs."""
    infos = [gpu.info for gpu in found.gpus]
    return {
        **recurring.whereabouts(),
        "command": masked(command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": [info.uuid for info in infos],
        "gpu_names": [info.name for info in infos],
        "simulated": found.simulated,
        # A recording is read again, nothing is spent again.
        "virtual": found.virtual or any(info.backend == "replay" for info in infos),
        **more,
    }


def of_run(
    store: Store,
    found: Gpus,
    meter: Meter,
    began: Began,
    tuning: Tuned | None,
) -> Keeping:
    """What keeps a job that ``meter`` measures, not begun; ``began`` as it is, but for the name."""
    assert meter.thinned is not None, "the meter must make samples ready"
    named = replace(began, run=tuning.run if tuning is not None else new_name())
    uuids = [gpu.info.uuid for gpu in found.gpus]
    if tuning is None:
        return Keeping(store, uuids, meter.thinned, named)

    def journal() -> BackgroundJournal | None:
        return tuning.journal if isinstance(tuning.journal, BackgroundJournal) else None

    return Keeping(
        store,
        uuids,
        meter.thinned,
        named,
        lambda: tuning.journalled,
        journal=journal,
        learnt=tuning.learnt,
        steps=tuning.fetch_steps,
    )


def measured(
    parts: Sequence[GpuResult], *, duration_s: float, host_j: float | None, exit_code: int | None
) -> dict[str, Any]:
    """What the store keeps of what was measured: ``energy_j`` and ``energy_error_j`` (sampling only) of all GPUs
    together, ``gain_error``, ``source``, ``duration_s``, ``outcome``, ``exit_code``, ``host_energy_j``; then each GPU.
    """
    gpus = [
        {"uuid": gpu.info.uuid, "name": gpu.info.name, **_kept(gpu.measurement), "reason": gpu.reason} for gpu in parts
    ]
    ended = {"duration_s": duration_s, "exit_code": exit_code, "host_energy_j": host_j}
    return {**_kept(together(parts)), **ended, "gpus": gpus}


def _kept(part: Measurement[Any] | None) -> dict[str, Any]:
    told = measurement_json(part, None)
    kept = {name: told[name] for name in ("energy_j", "gain_error", "duration_s", "source", "outcome")}
    return {**kept, "energy_error_j": told["error_j"]}


def measurement_json(measured: Measurement[Any] | None, reason: str | None) -> dict[str, Any]:
    """A measurement as plain values, every number in the unit that its key ends in; null for what nobody knows."""
    if measured is None:
        keys = ("duration_s", "energy_j", "error_j", "gain_error", "total_error_j", "power_w", "source", "outcome")
        return {**dict.fromkeys(keys), "notes": [], "reason": reason}
    return {
        "duration_s": measured.duration_s,
        "energy_j": measured.energy_j,
        "error_j": _finite(measured.error_j),
        "gain_error": measured.gain_error,
        "total_error_j": _finite(measured.total_error_j),
        "power_w": _finite(measured.power_w),
        "source": measured.source.value,
        "outcome": measured.outcome.value,
        "notes": list(measured.notes),
        "reason": reason,
    }


def _finite(number: float) -> float | None:
    """JSON has no infinity; an unknown is null."""
    return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class TunersJournal:
    """Where a tuner writes what it decides and sees."""

    journal: BackgroundJournal
    run: str
    """Its name in the store."""
    seed: int | None = None
    """Of the run that is gone on with; None for a new one."""

    @property
    def says(self) -> str:
        """That a run is gone on with, in words; empty for a new one."""
        return f"goes on with run {self.run}, which was interrupted" if self.seed is not None else ""


def tuners_journal(
    store: Store, run: str, fingerprint: str, uuids: Sequence[str], wanted: str, seed: int
) -> TunersJournal:
    """The journal of the same work if it was killed on this boot of this machine, else a new one called ``run``.

    A run whose end waits in a file was not killed: what earlier runs could not write is taken in first.
    ``wanted`` is the objective in words; ``seed`` that of an interrupted run which has none. The store is waited for as
    long as ``BoundedCalls`` does: what is written to one that is away is written when it is back.
    """

    def interrupted() -> tuple[views.Run, list[Event]] | None:
        take_in(store)
        killed = recurring.interrupted(views.runs(store.tables, most=_LOOKED_AT), fingerprint, uuids, wanted)
        if killed is None or unsent_files.waits(killed.name):
            return None
        # One that cannot be read cannot be gone on with. Read last: its end may have been taken in since we looked.
        events = [event for _, event in store.journal(killed.name).read()]
        return None if any(isinstance(event, Finished) for event in events) else (killed, events)

    past: list[Event] = []
    old_seed = None
    try:
        before = BoundedCalls(store.name)(interrupted)
        if before is not None:
            killed, events = before
            old_seed = int(killed.facts.get("seed", seed))
            run, past = killed.name, events
    except Exception as error:  # nothing about an old run may keep a new one from beginning
        _log.debug("the run that was interrupted: %s", error)
    journal = store.journal(run)
    assert isinstance(journal, KeptJournal)
    return TunersJournal(BackgroundJournal(journal, past), run, old_seed)


class LearntLater(Memory):
    """The user's memory, to read from. What is kept goes to ``learnt``: the file may be locked, and it is written when
    the GPU has been given back."""

    def __init__(self, learnt: list[Learnt]) -> None:
        super().__init__(Database())
        self._learnt = learnt

    def keep(self, fingerprint: str, gpu_uuid: str, gpu_name: str, payload: Mapping[str, Any]) -> bool:
        """As ``Memory.keep``, but later."""
        self._learnt[:] = [(fingerprint, gpu_uuid, gpu_name, payload)]
        return True


def take_in(store: Store, enough: Callable[[], bool] = lambda: False) -> None:
    """Write what earlier runs could not write to ``store``, until it is ``enough``. NotKept where it still cannot be
    written; a run that cannot be summed up is left to whoever looks at it."""
    from joulewise.report.summaries import Summaries
    from joulewise.tune.desk import Desk
    from joulewise.tune.steady import hand_in

    for name in unsent_files.take_in(store, lambda job, told: hand_in(Desk.of(store, job), told), enough):
        try:
            Summaries(store).keep(name)
        except NotKept:
            raise
        except Exception as error:  # a damaged run is no fault of the one that takes it in
            _log.debug("run %s cannot be summed up: %s", name, error)


def save(store: Store, unsent: Unsent) -> str:
    """Save what could not be written to ``store``; how it goes on, in words. NotKept where that takes longer than
    ``SAVE_WAIT_S``, or cannot be done."""
    folder = unsent_files.directory()
    file = BoundedCalls(str(folder), SAVE_WAIT_S)(lambda: unsent_files.save(store, unsent))
    return f"saved in {file}, and the next run takes it in"


class Keeping:
    """Keeps one run in ``store``. ``begin`` when the command has started, ``end`` when it is measured; neither raises.

    ``tuned`` gives the name of the tuner's journal, None as long as there is none; a run that never gets one is kept
    as one that was not tuned, with ``began`` as its first event. ``journal`` gives that journal, ``learnt`` holds at
    the end what the tuner has learnt (the arguments of ``Memory.keep``), ``steps`` gives the steps of the job that
    have ended since it was called last: when each ended is kept beside the readings.
    """

    def __init__(
        self,
        store: Store,
        uuids: Sequence[str],
        thinned: Thinned,
        began: Began,
        tuned: Callable[[], str | None] | None = None,
        *,
        journal: Callable[[], BackgroundJournal | None] = lambda: None,
        learnt: Sequence[Learnt] = (),
        steps: Callable[[], Sequence[Step]] | None = None,
    ) -> None:
        self._store, self._uuids, self._thinned, self._began, self._tuned = store, tuple(uuids), thinned, began, tuned
        self._tuners_journal, self._learnt = journal, learnt
        self._readings = store.readings()
        self._steps = steps
        self._pace = PaceRecord()
        self._pace_events: list[Event] = []
        """All of this run, in order: two or three bytes a step."""
        self._pace_journal: KeptJournal | None = None
        self._pace_after: int | None = None
        """The id after which they follow in their stream; None while nobody has been able to see."""
        self._stream = ""
        self._journal: Journal | None = None
        self._appended: Began | None = None
        """The first event, as it was handed to the store."""
        self._writing: dict[int, list[Sample]] = {}
        """Samples of a GPU that are being written."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._finished: Finished | None = None
        self._written = threading.Event()
        """Set when the thread has written this run, or failed to."""
        self._until_s = math.inf
        """When, in wall time, the thread is not waited for any longer."""
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="joulewise keeper", daemon=True)

    @property
    def name(self) -> str:
        """The run's name in the store."""
        return (self._tuned() if self._tuned is not None else None) or self._began.run

    @property
    def journal_written(self) -> bool:
        """Whether all of the tuner's journal is in the store, where ``joulewise verify`` finds it; True without one."""
        journal = self._tuners_journal()
        return journal is None or not journal.unwritten()[1]

    def begin(self) -> None:
        """The command has started."""
        self._thread.start()

    def end(self, time_s: float, why: str, measured: Mapping[str, Any], **facts: Any) -> str | None:
        """The command has ended and used ``measured``; None, or why not all of it is in the store and where it is
        instead, in one line. Waits for the store no longer than ``END_WAIT_S``, for a file ``SAVE_WAIT_S``."""
        self._thinned.end()
        beside = {"readings_error": self._thinned.readings_error, **circumstances(self._tuners_journal())}
        self._finished = Finished(time_s, why, {"measured": {**measured, **beside}})
        self._began = replace(self._began, facts={**self._began.facts, **facts})
        self._until_s = time.monotonic() + END_WAIT_S
        self._ended.set()
        if self._thread.ident is None:
            return None
        if self._written.wait(END_WAIT_S) and self._trouble is None:
            # What is left of the time is for runs that could not write theirs.
            self._thread.join(max(0.0, self._until_s - time.monotonic()))
            return None
        journal = self._tuners_journal()
        refusal = self._trouble or (journal.refusal if journal is not None else None)
        return self._saved(refusal or f"{self._store.name} has not answered for {END_WAIT_S:g} s")

    def _saved(self, why: str) -> str:
        """Save what is not in the store, for the reason ``why``; the line about it."""
        try:
            return f"{NOT_KEPT} in the store yet: {why}; {save(self._store, self._unsent())}"
        except NotKept as error:
            return f"{NOT_KEPT}: {why}; nor could it be saved: {error}"

    def _unsent(self) -> Unsent:
        """What is not known to be in the store; none of it is asked."""
        assert self._finished is not None
        events: dict[str, tuple[int, Sequence[Event]]] = {}
        journal = self._tuners_journal()
        if journal is None:
            events[self.name] = (0, [self._appended or self._began, self._finished])
        else:
            events[self.name] = journal.unwritten()
            events[measured_stream(self.name)] = (0, [self._finished])
            after = self._pace_after if journal.continued else 0
            self._next_pace(self.name, last=True)
            if after is not None:  # else nobody knows where in its stream the pace goes on
                events[pace_stream(self.name)] = (after, list(self._pace_events))
        with self._lock:
            samples = {
                uuid: [*self._writing.get(place, ()), *self._thinned.fetch(place)]
                for place, uuid in enumerate(self._uuids)
            }
        return Unsent(self.name, events, samples, tuple(self._learnt))

    # The thread.

    def _work(self) -> None:
        try:
            if self._tuned is None:
                self._append(self._began.run, self._began)
            self._take_in(self._ended.is_set)
            while not self._ended.wait(_PERIOD_S):
                self._write()
            self._write()
            self._finish()
        except Exception as error:  # a bug of ours is a line of the result, never the command's
            self._trouble = str(error) if isinstance(error, JoulewiseError) else f"{type(error).__name__}: {error}"
        finally:
            self._written.set()
        if self._trouble is None:
            self._take_in(lambda: time.monotonic() >= self._until_s)

    def _take_in(self, enough: Callable[[], bool]) -> None:
        """What earlier runs could not write. Whatever is wrong with it is no fault of this run's; the next tries
        again."""
        try:
            take_in(self._store, enough)
        except Exception as error:
            _log.debug("what earlier runs could not write: %s", error)

    def _write(self) -> None:
        """Keep what is ready, as soon as it is known under which name."""
        name = self._tuned() if self._tuned is not None else self._began.run
        if name is None:
            return
        for place, uuid in enumerate(self._uuids):
            with self._lock:
                samples = self._writing[place] = self._thinned.fetch(place)
            try:
                if samples:
                    self._readings.write(name, uuid, samples)
            except NotKept as error:
                with self._lock:
                    self._thinned.put_back(place, self._writing.pop(place))
                self._trouble = str(error)
                return  # the others would wait for the same disk or server; all are tried again later
            self._writing.pop(place)
        self._trouble = None
        self._write_pace(name)

    def _write_pace(self, name: str, *, last: bool = False) -> None:
        """Keep the steps that have ended. Their journal holds in memory what cannot be written now."""
        event = self._next_pace(name, last=last)
        if event is not None:
            journal = self._pace_journal or self._store.journal(pace_stream(name))
            assert isinstance(journal, KeptJournal)
            self._pace_journal = journal
            number = journal.append(event)
            if journal.trouble is None:
                self._pace_after = number - 1 - self._pace_events.index(event)

    def _next_pace(self, name: str, *, last: bool) -> Event | None:
        """The record of the steps that have ended since the last one; None where there is none."""
        if self._steps is None:
            return None
        with self._lock:
            event = self._pace.event(self._steps(), name, last=last)
            if event is not None:
                self._pace_events.append(event)
        return event

    def _finish(self) -> None:
        assert self._finished is not None
        tuned = self._tuned() if self._tuned is not None else None
        if tuned is not None:
            self._write_pace(tuned, last=True)
            self._append(measured_stream(tuned), self._finished)
        else:
            if self._tuned is not None:  # it was to be tuned, and never was
                self._append(self._began.run, self._began)
                self._tuned = None
                self._write()
            self._append(self._began.run, self._finished)
        assert self._journal is not None
        if isinstance(self._journal, KeptJournal):
            self._journal.flush()
        self._trouble = self._journal.trouble or self._trouble
        if self._pace_journal is not None and not self._pace_journal.flush():
            self._trouble = self._pace_journal.trouble or self._trouble
        tuners = self._tuners_journal()
        if tuners is not None and not tuners.end(END_WAIT_S):
            self._trouble = tuners.trouble or self._trouble
        if self._trouble is None:
            self._remember()
        if self._trouble is None:
            from joulewise.report.summaries import Summaries

            Summaries(self._store).keep(self.name)

    def _remember(self) -> None:
        memory = Memory(Database()) if self._learnt else None
        for learnt in self._learnt:
            assert memory is not None
            if not memory.keep(*learnt):
                self._trouble = memory.trouble

    def _append(self, stream: str, event: Event) -> None:
        if self._stream != stream:
            self._stream, self._journal = stream, self._store.journal(stream)
        assert self._journal is not None
        if isinstance(event, Began):
            self._appended = event
        self._journal.append(event)
