"""A measured command in the store: that it began, power and clocks meanwhile, what it used in the end.

What stands behind ``joulewise run`` unless ``--no-keep``, and behind each trial of ``joulewise recur run``. All of it
happens beside the command, on a thread, so that a slow disk or a server that is away never makes it wait; what cannot
be written waits in memory, bounded, and one line says so at the end. A tuned run has a journal of its tuner's, sealed
at its end: its readings go under that name, and what the whole command used beside it (``store.views``).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from joulewise.core.errors import JoulewiseError, NotKept
from joulewise.core.event import Began, Event, Finished
from joulewise.core.secrecy import masked
from joulewise.store.journal import Journal
from joulewise.store.kept import KeptJournal
from joulewise.store.pace import PaceRecord, Step, pace_stream
from joulewise.store.store import Store
from joulewise.store.thinned import Thinned
from joulewise.store.views import measured_stream

if TYPE_CHECKING:
    from joulewise.cli.gpus import OpenGpus
    from joulewise.cli.meter import Meter
    from joulewise.cli.summary import Result
    from joulewise.cli.tuning import Tuning

NOT_KEPT: Final = "this run is not kept"
_PERIOD_S: Final = 10.0
"""Between two writes, in wall time: what a look at a running command lags behind, and what a kill costs."""
_PATIENCE_S: Final = 5.0
"""How long the end is waited for: the command's exit code must not hang on a store."""


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


def facts_of(command: Sequence[str], found: OpenGpus, **more: Any) -> dict[str, Any]:
    """The facts of a run that is measured and not tuned; ``more`` are plain values."""
    from joulewise.cli import recurring

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
        "tuned": False,
        **more,
    }


def of_run(store: Store, found: OpenGpus, meter: Meter, began: Began, tuning: Tuning | None) -> Keeping:
    """What keeps a command that ``meter`` measures, not begun; ``began`` as it is, but for the name."""
    assert meter.thinned is not None, "the meter must make samples ready"
    named = replace(began, run=tuning.run if tuning is not None else new_name())
    tuned = None if tuning is None else lambda: tuning.journalled
    steps = None if tuning is None else tuning.fetch_steps
    return Keeping(store, [gpu.info.uuid for gpu in found.gpus], meter.thinned, named, tuned, steps)


def ended(kept: Keeping, result: Result, now_s: float, why: str | None = None, **instead: Any) -> str | None:
    """Keep what was measured; None, or why that could not be, in one line.

    ``why`` says how it ended, where whoever ran it knows better than its exit code; ``instead`` are measured facts that
    are known better, too.
    """
    from joulewise.cli.summary import measured
    from joulewise.report.outcome import advised

    if why is None:
        why = "ended" if result.exit_code == 0 else f"ended with exit code {result.exit_code}"
    tuned = result.tuned
    facts = {} if tuned is None or tuned.untuned is None else {"untuned": tuned.untuned}
    if tuned is not None and tuned.advice is not None:
        facts["advised"] = advised(tuned.advice)
    return kept.end(now_s, why, {**measured(result), **instead}, **facts)


class Keeping:
    """Keeps one run in ``store``. ``begin`` when the command has started, ``end`` when it is measured; neither raises.

    ``tuned`` gives the name of the tuner's journal, None as long as there is none; a run that never gets one is kept as
    one that was not tuned, with ``began`` as its first event. ``steps`` gives the steps of the job that have ended
    since it was called last; when each ended is kept beside the readings.
    """

    def __init__(
        self,
        store: Store,
        uuids: Sequence[str],
        thinned: Thinned,
        began: Began,
        tuned: Callable[[], str | None] | None = None,
        steps: Callable[[], Sequence[Step]] | None = None,
    ) -> None:
        self._store, self._uuids, self._thinned, self._began, self._tuned = store, tuple(uuids), thinned, began, tuned
        self._readings = store.readings()
        self._steps = steps
        self._pace = PaceRecord()
        self._pace_journal: Journal | None = None
        self._stream = ""
        self._journal: Journal | None = None
        self._ended = threading.Event()
        self._finished: Finished | None = None
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="joulewise keeper", daemon=True)

    @property
    def name(self) -> str:
        """The run's name in the store."""
        return (self._tuned() if self._tuned is not None else None) or self._began.run

    def begin(self) -> None:
        """The command has started."""
        self._thread.start()

    def end(self, time_s: float, why: str, measured: Mapping[str, Any], **facts: Any) -> str | None:
        """The command has ended and used ``measured``; None, or why not all of it is kept, in one line."""
        self._finished = Finished(time_s, why, {"measured": dict(measured)})
        self._began = replace(self._began, facts={**self._began.facts, **facts})
        self._thinned.end()
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                return f"{NOT_KEPT}: {self._store.name} has not answered for {_PATIENCE_S:g} s; --no-keep does without"
        return None if self._trouble is None else f"{NOT_KEPT}: {self._trouble}"

    # The thread.

    def _work(self) -> None:
        try:
            if self._tuned is None:
                self._append(self._began.run, self._began)
            while not self._ended.wait(_PERIOD_S):
                self._write()
            self._write()
            self._finish()
        except Exception as error:  # a bug of ours is a line of the result, never the command's
            self._trouble = str(error) if isinstance(error, JoulewiseError) else f"{type(error).__name__}: {error}"

    def _write(self) -> None:
        """Keep what is ready, as soon as it is known under which name."""
        name = self._tuned() if self._tuned is not None else self._began.run
        if name is None:
            return
        for place, uuid in enumerate(self._uuids):
            samples = self._thinned.fetch(place)
            try:
                if samples:
                    self._readings.write(name, uuid, samples)
            except NotKept as error:
                self._thinned.put_back(place, samples)
                self._trouble = str(error)
                return  # the others would wait for the same disk or server; all are tried again later
        self._trouble = None
        self._write_pace(name)

    def _write_pace(self, name: str, *, last: bool = False) -> None:
        """Keep the steps that have ended. Their journal holds in memory what cannot be written now."""
        event = self._pace.event(self._steps(), name, last=last) if self._steps is not None else None
        if event is not None:
            self._pace_journal = self._pace_journal or self._store.journal(pace_stream(name))
            self._pace_journal.append(event)

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
        if self._trouble is None:
            from joulewise.report.summaries import Summaries

            Summaries(self._store).keep(self.name)

    def _append(self, stream: str, event: Event) -> None:
        if self._stream != stream:
            self._stream, self._journal = stream, self._store.journal(stream)
        assert self._journal is not None
        self._journal.append(event)
