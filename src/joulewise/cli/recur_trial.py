"""One trial of a recurring job: the command at one batch size, measured, tuned, watched, stopped where it cannot win.

The command keeps its terminal, its output and its signals, as under ``joulewise run``, and is kept as a run like any
other. What becomes of the journal, a server or a GPU meanwhile is a note of the result; the training goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulewise.cli import complain
from joulewise.cli.child import Child
from joulewise.cli.gpus import OpenGpus
from joulewise.cli.objectives import Wanted
from joulewise.cli.recur_pattern import Patterns
from joulewise.cli.recur_stop import Stop
from joulewise.cli.recur_terms import Target
from joulewise.cli.recur_watch import Watch, ran_out_of_memory
from joulewise.core import metric as metrics
from joulewise.core.event import Asked, Began
from joulewise.core.knob import DEFAULT
from joulewise.core.measurement import Outcome
from joulewise.core.metric import Metric
from joulewise.core.series import EpochCost, Recurring
from joulewise.monitor.metrics import MetricFeed
from joulewise.monitor.steps import directory, in_time
from joulewise.report import keeping
from joulewise.tune.desk import LEASE_S, SeriesDesk
from joulewise.tune.series import CRASHED

if TYPE_CHECKING:
    from joulewise.cli.recur_epochs import Epochs
    from joulewise.cli.tuned import TuneResult
    from joulewise.cli.tuning import Tuning
    from joulewise.report.meter import GpuResult, Meter

_LOOK_S: Final = 0.05
"""Between two looks at the metrics: how much longer an epoch takes that should have been the last."""
_ALIVE_S: Final = LEASE_S / 4
"""How often a trial says that it lives while nothing else is said: three of four may be lost."""
_KILLED: Final = 128 + 9
_LONGEST_NOTE: Final = 200  # characters; a server takes no longer ones


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every trial of a recurrence."""

    job: Recurring
    target: Target
    found: OpenGpus
    mask: set[int]
    aim: Wanted | None
    """What clocks are tuned for; None leaves them alone."""
    patterns: tuple[str, ...] = ()
    interval_s: float = 0.1
    grace_s: float = 60.0
    stop_at_target: bool = True
    seed: int | None = None
    database: str | None = None
    """Where its runs are kept; None is the usual place."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a trial ended, and what it took, in the GPUs' time, from when training began."""

    outcome: Outcome
    epochs: int
    duration_s: float
    energy_j: float | None
    error_j: float | None
    before_s: float
    before_j: float
    """What went by before that: imports, data. The same for every batch size, so that it is not compared."""
    profile: tuple[EpochCost, ...]
    notes: tuple[str, ...]
    exit_code: int
    value: float | None
    """The metric when it met the target, else the nearest to it; None where it was never a number."""
    hopeless: str | None = None
    """Why another trial would end alike, in one line; None where it may not."""
    tuned: TuneResult | None = None
    run: str | None = None
    """The name under which it is kept; None where it is not."""


def tried(asked: Asked, command: Sequence[str], terms: Terms, desk: SeriesDesk) -> Ended:
    """Run one trial to its end. OSError when the command cannot be started. ``desk`` must not raise (``Steady``)."""
    from joulewise.cli import summary
    from joulewise.cli.recur_epochs import Epochs
    from joulewise.cli.recur_output import Output
    from joulewise.cli.summary import Result
    from joulewise.cli.tuning import Tuning
    from joulewise.report.meter import Meter

    with ExitStack() as stack:
        store, trouble = keeping.opened(terms.database)
        if store is not None:
            stack.callback(store.close)
        clock = terms.found.gpus[0].time.now_s
        facts = {"unix_s": time.time() - clock(), **_facts(asked, terms)}
        meter = stack.enter_context(Meter(terms.found.gpus, interval_s=terms.interval_s, unix_s=float(facts["unix_s"])))
        told = stack.enter_context(directory())
        tuning = None
        if terms.aim is not None:
            reason = f"joulewise recur run {terms.job.name}"
            tuning = Tuning(terms.found, terms.aim, command, seed=terms.seed, reason=reason, store=store, facts=facts)
            stack.enter_context(tuning)
        kept = None
        if store is not None:
            began = Began(clock(), "", keeping.facts_of(command, terms.found, **facts))
            kept = keeping.of_run(store, terms.found, meter, began, tuning)
        patterns, printed = Patterns(terms.patterns), deque[Metric]()
        output = stack.enter_context(Output(lambda line: printed.extend(patterns.find(line))))
        environ: Mapping[str, str] = {**terms.found.environ, metrics.ENVIRONMENT: str(told)}
        if tuning is not None:
            environ = tuning.environment(environ)
        killed_before = _killed_for_memory()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        meter.begin()
        assert meter.sampler is not None
        begun_s = meter.sampler.time.now_s()
        child = Child(command, environ, terms.mask, files=output.files)
        output.begin()
        if tuning is not None:
            tuning.begin(meter)
        if kept is not None:
            kept.begin()
        feed = MetricFeed(Path(told), meter.sampler.time)
        running = _Running(asked, terms, desk, meter, Epochs(meter.sampler, begun_s), tuning, feed, printed)
        stop = Stop(child.pid, feed, terms.grace_s)
        while (code := child.wait(_LOOK_S)) is None:
            output.keep_up()
            running.look(stop)
            stop.keep_up()
        if tuning is not None:
            tuning.finish()  # first: whatever else the end waits for, the GPUs are given back
        used, host = meter.end(Outcome.REACHED if code == 0 else Outcome.FAILED)  # here: what follows is not the job's
        stop.tidy()
        output.end()
        running.catch_up()
        killed = code == _KILLED and _killed_for_memory() != killed_before
        preempted = child.stopped_by is not None
        ended = running.ended(
            code, used, stop, preempted=preempted, no_memory=killed or ran_out_of_memory(output.last_lines)
        )
        if kept is not None:
            whole_s = next((gpu.window_s for gpu in used if gpu.window_s is not None), 0.0)
            result = Result(tuple(command), code, started, whole_s, tuple(used), host, tuned=ended.tuned)
            why = f"trial {asked.trial} at batch size {asked.batch_size}: {ended.outcome.value.replace('_', ' ')}"
            # The exit code of a command that we have stopped says nothing of how it went.
            mine = {"outcome": ended.outcome.value, "exit_code": None if stop.why is not None else code}
            trouble = summary.keep(kept, result, clock(), why, **mine)
            tuned = ended.tuned
            if tuned is not None:
                tuned = replace(tuned, kept=tuned.kept and kept.journal_written)
            ended = replace(ended, tuned=tuned, run=kept.name if trouble is None else None)
        if trouble is not None:
            complain(trouble)
        return ended


def _facts(asked: Asked, terms: Terms) -> dict[str, Any]:
    """What a trial's run says of where it belongs."""
    series = {"job": terms.job.name, "trial": asked.trial, "batch_size": asked.batch_size}
    return {"series": {**series, "recurrence": asked.recurrence}}


class _Running:
    """A trial while it runs."""

    def __init__(
        self,
        asked: Asked,
        terms: Terms,
        desk: SeriesDesk,
        meter: Meter,
        epochs: Epochs,
        tuning: Tuning | None,
        feed: MetricFeed,
        printed: deque[Metric],
    ) -> None:
        self._asked, self._terms, self._desk, self._meter = asked, terms, desk, meter
        self._epochs, self._tuning, self._feed, self._printed = epochs, tuning, feed, printed
        self._watch = Watch(terms.target, terms.job.max_epochs)
        self._most = desk.limit(asked.trial)
        self._said_epochs, self._said_s = 0, time.monotonic()
        self._misspelt: str | None = None

    def look(self, stop: Stop) -> None:
        """What is new, what follows from it, and the answer to a script that waits for one."""
        status = self._tuning.status() if self._tuning is not None else None
        self._epochs.look(status.setting if status is not None else DEFAULT)
        if self._tuning is not None:
            for line in self._tuning.news():
                complain(line)
        self._read()
        if stop.why is None:
            self._judge(stop)
        self._feed.answer()

    def catch_up(self) -> None:
        """The command has ended: what it told last."""
        self._read()
        self._misspelt = self._misspelt or self._watch.misspelt(over=True)

    def _read(self) -> None:
        told = self._feed.read()
        clock = self._meter.sampler.time if self._meter.sampler is not None else None
        while self._printed:
            metric = self._printed.popleft()
            told.append(metric if clock is None else metric._replace(time_s=in_time(clock, metric.time_s)))
        for metric in told:
            self._watch.take(metric)
            self._epochs.told(metric)

    def _judge(self, stop: Stop) -> None:
        watch = self._watch
        self._misspelt = watch.misspelt(over=False)
        if self._misspelt is not None:
            stop.ask(self._misspelt)
        elif watch.reached is not None:
            if self._terms.stop_at_target:
                stop.ask("it has reached its target")
        elif watch.epochs >= watch.max_epochs:
            stop.ask(f"its target was not reached in {watch.max_epochs} epochs")
        elif watch.epochs > self._said_epochs:
            profile = self._report()
            # Before it is seen what an epoch costs, where to stop is a guess; where that cannot be seen, it must do.
            if (profile or watch.epochs > 1) and watch.epochs >= self._most:
                stop.ask("it cannot win any more: another batch size is cheaper")
        if time.monotonic() > self._said_s + _ALIVE_S:
            self._report()

    def _report(self) -> tuple[EpochCost, ...]:
        """Tell the desk how far it is, and what an epoch costs as far as that is known."""
        self._said_epochs, self._said_s = self._watch.epochs, time.monotonic()
        profile = self._epochs.profile()
        self._most = self._desk.progress(self._asked.trial, self._watch.epochs, profile).most_epochs
        return profile

    def ended(self, code: int, gpus: Sequence[GpuResult], stop: Stop, *, preempted: bool, no_memory: bool) -> Ended:
        """How it ended, and what it took."""
        watch = self._watch
        notes: dict[str, None] = {}
        outcome, hopeless = self._outcome(code, stop, notes, preempted=preempted, no_memory=no_memory)
        if watch.not_numbers:
            notes[f"{watch.target.name} was no number {watch.not_numbers} of {watch.told} times"] = None
        if stop.killed:
            notes[f"killed: it had not ended {self._terms.grace_s:g} s after it was told to"] = None
        parts = [gpu.measurement for gpu in gpus if gpu.measurement is not None]
        for reason in dict.fromkeys(gpu.reason for gpu in gpus if gpu.reason is not None):
            notes[reason] = None
        tuned = self._tuning.end() if self._tuning is not None else None
        reached = watch.reached
        whole_s = next((gpu.window_s for gpu in gpus if gpu.window_s is not None), 0.0)
        before_s, before_j = self._epochs.before()
        return Ended(
            outcome,
            reached.epochs if reached is not None else min(watch.epochs, watch.max_epochs),
            max(0.0, whole_s - before_s),
            max(0.0, sum(part.energy_j for part in parts) - before_j) if parts else None,
            sum(part.total_error_j**2 for part in parts) ** 0.5 if parts else None,
            before_s,
            before_j,
            self._epochs.profile(over=True),
            tuple(note[:_LONGEST_NOTE] for note in notes),
            code,
            reached.value if reached is not None else watch.best,
            hopeless,
            tuned,
        )

    def _outcome(
        self, code: int, stop: Stop, notes: dict[str, None], *, preempted: bool, no_memory: bool
    ) -> tuple[Outcome, str | None]:
        """The outcome, and why nothing else is worth a try; adds what should be known besides."""
        watch, job = self._watch, self._terms.job
        if watch.reached is not None:
            return Outcome.REACHED, None
        if self._misspelt is not None:
            notes["misspelt target"] = None
            return Outcome.PREEMPTED, self._misspelt
        if preempted:
            return Outcome.PREEMPTED, None
        if watch.never_a_number and (stop.why is not None or code == 0):
            return Outcome.FAILED, None
        if watch.epochs >= job.max_epochs and (stop.why is not None or code == 0):
            return Outcome.FAILED, None
        if stop.why is not None:
            notes[stop.why] = None
            return Outcome.STOPPED_EARLY, None
        if code and no_memory:
            return Outcome.OUT_OF_MEMORY, None
        if code == _KILLED:
            notes["somebody killed it"] = None
            return Outcome.PREEMPTED, None
        if code:
            notes[CRASHED] = None
            at_once = watch.epochs == 0 and self._asked.batch_size == job.default
            return (
                Outcome.FAILED,
                f"the command ended with exit code {code} before its first epoch" if at_once else None,
            )
        if not watch.names:
            notes[CRASHED] = None
            return Outcome.FAILED, (
                f"the command ended without having told {watch.target.name}; "
                f"add joulewise.metric(epoch=…, {watch.target.name}=…) to it, or use --metric-pattern"
            )
        notes[f"ended by itself after {watch.epochs} of {job.max_epochs} epochs"] = None
        return Outcome.STOPPED_EARLY, None


def _killed_for_memory() -> str:
    """How many processes the kernel has killed for want of memory since boot; empty where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("oom_kill ")), "")
