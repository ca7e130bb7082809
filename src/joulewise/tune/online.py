"""The online tuner: one job, from its first step to its last, on any time. ``build`` makes it, ``Online.loop`` runs it.

The loop is ask → journal → apply → observe → journal → tell, one tuner a phase (``tune/lines``), all of them on one
time account and one error budget. What is not the tuner's business is other modules': phases, shifts, idle gaps
(``tune/watcher``), a lease that is taken and lost (``tune/tenure``), advice without one (``tune/dry_run``), the proof
and summary at the end (``tune/ending``). It never raises into the job: whatever goes wrong, what was set is given back
and the job goes on untuned, which is said once. It knows no command line: the same factory serves the CLI, frameworks
and benches.

``lease`` may be a Lease, a function that takes one (called when the job is measured, tried again for a while: a daemon
may give rights only to whoever runs on the GPU), or None, which only measures. ``dry_run`` never asks for one: it
measures the baseline and says what it would set.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulewise.core.block import Block, Move, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.event import Began, Decided, Seen
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.objective import MinEnergy, Objective, slowdown_bound
from joulewise.core.timeline import Loop
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease
from joulewise.monitor.counters import counters
from joulewise.monitor.ruler import Ruler
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.steps import Feed
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory
from joulewise.tune.chain import GAP_S, LATE, READY, UNMARKED
from joulewise.tune.coins import VOID, void_says
from joulewise.tune.dry_run import DryRun
from joulewise.tune.ending import Ending
from joulewise.tune.lengths import LENGTHS
from joulewise.tune.lines import Line, Lines
from joulewise.tune.proof import RULER
from joulewise.tune.recall import Recall
from joulewise.tune.record import Record, plain
from joulewise.tune.slack import Slack
from joulewise.tune.status import Status, Summary
from joulewise.tune.subject import POLL_S, JobSubject, Observation
from joulewise.tune.tenure import NO_MORE, Tenure, space_of
from joulewise.tune.watcher import Watcher

COUNTED_S = 1.0
"""How long counters are averaged before they say what kind of load it is."""
WATCH_S = 0.25
"""Between two looks while there is no ruler yet."""
MEASURE_S = 20.0
"""Length of blocks where nothing is tuned."""
PROOF_WINDOW_S = 2.0
"""Expected length of the first baseline window, journalled before it is drawn."""

_log = logging.getLogger("joulewise")


def build(
    gpus: Sequence[Gpu],
    *,
    lease: Lease | Callable[[], Lease] | None = None,
    feed: Feed | None = None,
    objective: Objective | None = None,
    seed: int = 0,
    journal: Journal | None = None,
    memory: Memory | None = None,
    fingerprint: str = "",
    run: str = "",
    facts: Mapping[str, Any] | None = None,
    proof_share: float = 0.02,
    alpha: float = 0.05,
    dry_run: bool = False,
    sampler: Sampler | None = None,
) -> Online:
    """An online tuner for the job on ``gpus``, not started.

    ``feed`` gives the marks of hooks; without one the job's pace comes from the sensors. ``sampler`` is one that runs
    already on the same GPUs; else one is made, and runs as long as the loop. ``journal`` and ``memory`` default to
    nothing kept; ``fingerprint`` is the workload's key in memory, ``facts`` are added to the journal's first event. A
    journal that holds an interrupted run is gone on from, with that run's seed.
    """
    own = sampler is None
    sampler = sampler or Sampler(gpus)
    ruler = Ruler(sampler, feed, [counters(gpu) for gpu in gpus])
    record = Record(journal or MemoryJournal(), sampler.time)
    began = record.began
    seed = int(began.facts.get("seed", seed)) if began is not None else seed
    subject = JobSubject(ruler, None if dry_run or callable(lease) else lease, space_of(ruler, lease))
    recall = Recall(memory, fingerprint, gpus[0].info)
    lines = Lines(
        subject,
        objective or MinEnergy(),
        record,
        recall,
        seed=seed,
        alpha=alpha,
        proof_share=proof_share,
        proof_window_s=PROOF_WINDOW_S,
    )
    bound = slowdown_bound(lines.objective)
    told = {
        **(facts or {}),
        "seed": seed,
        "proof_share": proof_share,
        "proof_window_s": PROOF_WINDOW_S,
        "speed": float(getattr(sampler.time, "speed", 1.0)),
        "alpha": alpha,
        "bound": plain(bound),
        "objective": repr(lines.objective),
        "gpus": [gpu.info.uuid for gpu in gpus],
        "gpu_names": [gpu.info.name for gpu in gpus],
        "fingerprint": fingerprint,
        "dry_run": dry_run,
    }
    slack = Slack([gpu.info.uuid for gpu in gpus], bound, lines.budget, seed=seed)
    take = lease if callable(lease) and not dry_run else None
    return Online(subject, lines, slack, record, recall, Began(0.0, run, told), take=take, dry_run=dry_run, own=own)


class Online:
    """One job's tuner. ``loop`` runs in one thread (or on a VirtualTime); ``status`` and ``stop`` are for any."""

    def __init__(
        self,
        subject: JobSubject,
        lines: Lines,
        slack: Slack,
        record: Record,
        recall: Recall,
        began: Began,
        *,
        take: Callable[[], Lease] | None,
        dry_run: bool,
        own: bool,
    ) -> None:
        self.subject, self.lines, self.record = subject, lines, record
        self.ruler = subject.ruler
        self.dry_run = dry_run
        self._slack, self._began, self._own_sampler = slack, began, own
        self._time = self.ruler.sampler.time
        self._speed = float(getattr(self._time, "speed", 1.0))
        self._tenure = Tenure(subject, lines, record, take)
        self._watcher = Watcher(subject, lines, slack, record, self._tenure)
        self._advisor = DryRun(subject, lines, record)
        self._ending = Ending(subject, lines, record, recall)
        self._rung = Rung.UNKNOWN
        self._stop = threading.Event()
        self._status = Status(self._time.now_s())
        bound = slowdown_bound(lines.objective)
        subject.wanted_error = bound / 3.0 if math.isfinite(bound) else 0.01
        subject.stopping, subject.watch = self._interrupted, self._watcher.look

    # For any thread.

    def status(self) -> Status:
        """How it stands."""
        return self._status

    def when_measured(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, in the loop's thread, once nothing more will be set or measured: what was set may be
        given back then, while the end of the run is still being written."""
        self._ending.on_measured = call

    def stop(self) -> None:
        """End the loop at its next look at the job; what was set is given back by whoever holds the lease."""
        self._stop.set()

    # The loop.

    def loop(self) -> Loop[Summary]:
        """Tune until ``stop``. Never raises: what goes wrong ends the tuning, not the job, and is in the summary."""
        why = "stopped"
        sampler = self.ruler.sampler
        if self._own_sampler:
            sampler.start()
        sampler.opened()
        try:
            yield from self._tune()
        except Exception as error:
            why = f"the tuner failed: {type(error).__name__}: {error}"
            _log.debug("the tuner stopped; the job goes on untuned", exc_info=True)
            self._tenure.lose(f"{NO_MORE}: {why}")
        finally:
            sampler.closed()
            if self._own_sampler:
                sampler.stop()
        return self._ending.finish(why, self._advisor.advice.values())

    def _tune(self) -> Loop[None]:
        self.record.write(replace(self._began, time_s=self._time.now_s()))
        yield from self._await_ruler()
        if self.dry_run:
            yield from self._advisor.loop(self._stop.is_set, self._advised)
            return
        yield from self._tenure.wait(self._stop.is_set)
        self.record.change(READY, self.ruler.says)
        while not self._stop.is_set():
            if self.ruler.rung is not self._rung:
                self._rung = self.ruler.rung
                self.lines.clear()
                self.record.change(RULER, self.ruler.says)
            if self.subject.lease is None:
                yield from self._measure()
            elif self._blind:
                yield from self._stand_by()
            else:
                yield from self._turn()

    @property
    def _blind(self) -> str:
        """Why nothing tells how fast the job's present work goes; empty while something does."""
        return self.ruler.says if self.ruler.rung is Rung.UNKNOWN else self.ruler.unmarked

    def _stand_by(self) -> Loop[None]:
        """The default, until the job goes on with what can be measured: what it does now was never verified."""
        if self.subject.setting != DEFAULT:
            self.record.change(UNMARKED, f"back to the default: {self._blind}", self.ruler.phase)
        while not self._stop.is_set() and self._blind and self.ruler.rung is self._rung:
            wait_s = self._tenure.apply(DEFAULT)
            if self.subject.lease is None:
                return
            self._look(None)
            yield POLL_S if wait_s is None else wait_s
            self.ruler.read()
            self._watcher.look()

    def _turn(self) -> Loop[None]:
        """One move of the present phase, or a part of it."""
        before_s = self.record.latest_s  # a new line writes what it expects, after it has thought of that
        line = self.lines.of(self.ruler.phase)
        if line.observation is None:
            line.observation = self._next(line, before_s)
        observation = line.observation
        wait_s = self._tenure.apply(observation.move.setting, observation.own)
        if wait_s is not None:
            yield wait_s
            return
        self._look(line)
        yield from self.subject.gather(observation)
        if line.observation is observation and observation.done:
            self._told(line, observation)

    def _next(self, line: Line, before_s: float) -> Observation:
        """What the tuner of a phase asks for, decided on; ``before_s`` is when something was last written before."""
        move = line.tuner.ask()
        now_s = self._time.now_s()
        others = any(each.observation is not None for each in self.lines)
        if now_s - before_s > GAP_S * self._speed and not others:
            self.record.change(LATE, f"{now_s - before_s:.1f} s after what was last written", line.phase)
        self.record.write(Decided(now_s, move.decision))
        return Observation(move, self._slack_of(line, move))

    def _slack_of(self, line: Line, move: Move) -> Mapping[str, Setting]:
        """What single GPUs get instead in this block. Never something to be tested beside a baseline window: that
        block is half of a pair already."""
        if move.role is not Role.HOLD or move.setting == DEFAULT:
            self._slack.interrupted()
            return {}
        left, long = line.tuner.left_by(move.setting), move.least_s >= LENGTHS.hold[1]
        return self._slack.next(move.setting, self.subject.space, left, long=long)

    def _told(self, line: Line, observation: Observation) -> None:
        line.observation = None
        move = observation.move
        block = self.subject.block(observation)
        if move.role is Role.PROBE:
            # Thinking takes a second at times, which the job should not spend at a setting nobody means to keep.
            self._tenure.apply(DEFAULT)
        waited_s = round(observation.waited_s, 3)
        line.tuner.tell(block, waited_s=waited_s)
        if block is not None:
            line.told += 1
            self.record.saw(Seen(self._time.now_s(), move.role, block, line.tuner.says))
            if move.role is Role.HOLD:
                self._held(line, block)
            self._watcher.saw(line, block, observation.own)
        else:
            self._slack.interrupted()
            self.record.change(VOID, void_says(move.role, waited_s), line.phase)
        self._look(line)

    def _held(self, line: Line, block: Block) -> None:
        """A block was held: half of a pair with and without slack, maybe."""
        pair = self._slack.held(block)
        if pair is None:
            return
        slack, common = pair
        # What the setting itself costs is in the tuner's account.
        self.lines.debt.charge(slack.duration_s * (1.0 - common.unit_s / slack.unit_s))
        if block.setting in self._slack.kept:
            self.record.change("slack", self._slack.says, line.phase)

    def _measure(self) -> Loop[None]:
        """A block of the job as it runs, nothing set."""
        decision = Decision(DEFAULT, "measured only")
        observation = Observation(
            Move(decision, Role.HOLD, self.ruler.phase, least_s=MEASURE_S, most_s=3.0 * MEASURE_S)
        )
        self._look(None)
        yield from self.subject.gather(observation)
        if observation.done and (block := self.subject.block(observation)) is not None:
            self.record.write(Decided(self._time.now_s(), decision))
            self.record.saw(Seen(self._time.now_s(), Role.HOLD, block))

    def _await_ruler(self) -> Loop[None]:
        """Until the job's pace can be told, which may be never; nothing is set meanwhile."""
        while not self._stop.is_set():
            self.ruler.read()
            self._watcher.look()
            self._look(None)
            if self.ruler.rung is not Rung.UNKNOWN:
                break
            yield WATCH_S
        self._rung = self.ruler.rung
        self.ruler.activity()  # the first read only opens the stretch that counters are the mean of
        if self.ruler.counts and not self._stop.is_set():
            yield COUNTED_S

    def _interrupted(self) -> bool:
        """Whether what is being gathered should end now: a stop, a loss, another ruler, a shift that voids it, or work
        that nobody marks."""
        if self._stop.is_set() or self.ruler.rung is not self._rung:
            return True
        line = self.lines.find(self.ruler.phase)
        void = line is not None and line.observation is None
        return self.subject.lease is not None and (void or bool(self._blind))

    # Saying.

    def _advised(self, rung: Rung) -> None:
        """A dry run begins a block."""
        self._rung = rung
        self._look(None)

    def _look(self, line: Line | None) -> None:
        move = line.observation.move if line is not None and line.observation is not None else None
        phase, debt, notes = self.ruler.phase, self.lines.debt, self.record.notes
        self._status = Status(
            time_s=self._time.now_s(),
            rung=self.ruler.rung,
            ruler=self.ruler.says,
            unit_s=self.ruler.usual_s(phase),
            phase=phase,
            setting=self.subject.setting,
            role=move.role if move is not None else None,
            why=line.tuner.says if line is not None else self.ruler.says,
            verified=line is not None and line.tuner.verified,
            proof=self.record.proof,
            debt_s=debt.seconds,
            slowdown=debt.slowdown,
            switches=self.subject.switches,
            note=notes[-1] if notes else "",
        )
