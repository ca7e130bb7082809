"""The online tuner: one job, from its first step to its last, on any time. ``build`` makes it, ``Online.loop`` runs it.

The loop is ask → journal → apply → observe → journal → tell, one tuner a phase (``tune/lines``), all of them on one
time account and one error budget. It watches for what is not the tuner's business: phases, shifts, idle gaps, a lease
that ends, a GPU that is lost. It never raises into the job: whatever goes wrong, what was set is given back and the job
goes on untuned, which is said once. It knows no command line: the same factory serves the CLI, frameworks and benches.

``lease`` may be a Lease, a function that takes one (called when the job is measured, tried again for a while: a daemon
may give rights only to whoever runs on the GPU), or None, which only measures. ``dry_run`` never asks for one: it
measures the baseline and says what it would set.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from joulewise.core.block import Block, Move, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.errors import GpuError, NotNow
from joulewise.core.event import Began, Decided, Finished, Seen
from joulewise.core.knob import DEFAULT, Setting, Space
from joulewise.core.objective import MinEnergy, Objective, slowdown_bound
from joulewise.core.timeline import Loop
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease
from joulewise.model.dvfs import Belief
from joulewise.monitor.counters import counters
from joulewise.monitor.ruler import Ruler
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.steps import Feed
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory
from joulewise.tune.advise import advise
from joulewise.tune.change import ChangeDetector, Shift
from joulewise.tune.coins import VOID, void_says
from joulewise.tune.job import LENGTHS
from joulewise.tune.lines import Line, Lines
from joulewise.tune.phases import PhaseFinder
from joulewise.tune.proof import Proof
from joulewise.tune.recall import Recall
from joulewise.tune.record import Record, plain
from joulewise.tune.rest import Rest
from joulewise.tune.slack import Slack
from joulewise.tune.status import Advice, Status, Summary
from joulewise.tune.subject import POLL_S, JobSubject, Observation, common_space, retry_s

WATCH_S = 0.25
"""Between two looks while there is no ruler yet."""
LEASE_TRIES_S = 60.0
"""How long a lease is asked for before the job is left untuned."""
NOTICES_S = 2.0
"""Between two looks at what has happened to the lease."""
MEASURE_S = 20.0
"""Length of blocks where nothing is tuned."""
PROOF_WINDOW_S = 2.0
"""Expected length of the first baseline window, journalled before it is drawn."""
MOST_OVER_MHZ = 45.0
"""Three usual steps of 15 MHz: a mean clock further above the ceiling asked for is somebody else's doing …"""
MOST_OVER_BLOCKS = 4
"""… in so many blocks on end, of one second or longer: ten readings."""

_NO_MORE = "nothing is tuned any more"
_log = logging.getLogger("joulewise")
T = TypeVar("T")


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
    subject = JobSubject(ruler, None if dry_run or callable(lease) else lease, _space(ruler, lease))
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
        self._slack, self._recall, self._began, self._take, self._own_sampler = slack, recall, began, take, own
        self._time = self.ruler.sampler.time
        self._rest = Rest(subject, lines.debt)
        self._finder = PhaseFinder()
        self._advice: dict[str, Advice] = {}
        self._rung = Rung.UNKNOWN
        self._notices_due_s = -math.inf
        self._lost = False
        self._stop = threading.Event()
        self._status = Status(self._time.now_s())
        bound = slowdown_bound(lines.objective)
        subject.wanted_error = bound / 3.0 if math.isfinite(bound) else 0.01
        subject.stopping, subject.watch = self._interrupted, self._watch

    # For any thread.

    def status(self) -> Status:
        """How it stands."""
        return self._status

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
            self._lose(f"{_NO_MORE}: {why}")
        finally:
            sampler.closed()
            if self._own_sampler:
                sampler.stop()
        return self._finish(why)

    def _tune(self) -> Loop[None]:
        self.record.write(replace(self._began, time_s=self._time.now_s()))
        yield from self._await_ruler()
        if self.dry_run:
            yield from self._advise()
            return
        yield from self._await_lease()
        while not self._stop.is_set():
            if self.ruler.rung is not self._rung:
                self._rung = self.ruler.rung
                self.lines.clear()
                self.record.change("ruler", self.ruler.says)
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
            self.record.change("unmarked", f"back to the default: {self._blind}", self.ruler.phase)
        while not self._stop.is_set() and self._blind and self.ruler.rung is self._rung:
            wait_s = self._apply(DEFAULT, {})
            if self.subject.lease is None:
                return
            self._look(None)
            yield POLL_S if wait_s is None else wait_s
            self.ruler.read()
            self._watch()

    def _turn(self) -> Loop[None]:
        """One move of the present phase, or a part of it."""
        line = self.lines.of(self.ruler.phase)
        if line.observation is None:
            move = line.tuner.ask()
            self.record.write(Decided(self._time.now_s(), move.decision))
            line.observation = Observation(move)
        move = line.observation.move
        holds = move.role is Role.HOLD and move.setting != DEFAULT
        if holds and not line.observation.visits and self._gives_slack(line, move):
            yield from self._slack_pair(line, move)
            return
        wait_s = self._apply(move.setting, self._slack.kept.get(move.setting, {}) if holds else {})
        if wait_s is not None:
            yield wait_s
            return
        self._look(line)
        yield from self.subject.gather(line.observation)
        if line.observation is not None and line.observation.done:
            self._told(line, line.observation)

    def _gives_slack(self, line: Line, move: Move) -> bool:
        """Whether the next block is held in two halves. Never one beside a baseline window: that is half of a pair."""
        left = line.tuner.left_by(move.setting)
        return move.least_s >= LENGTHS.hold[1] and self._slack.wants(move.setting, self.subject.space, left)

    def _told(self, line: Line, observation: Observation) -> None:
        line.observation = None
        block = self.subject.block(observation)
        if observation.move.role is Role.PROBE:
            # Thinking takes a second at times, which the job should not spend at a setting nobody means to keep.
            self._apply(DEFAULT, {})
        waited_s = round(observation.waited_s, 3)
        line.tuner.tell(block, waited_s=waited_s)
        if block is not None:
            line.told += 1
            self.record.saw(Seen(self._time.now_s(), observation.move.role, block, line.tuner.says))
            self._check_clock(line, block)
            cried = line.joules.tell(block.setting, 0.0, block.unit_j)
            found = line.jump(block) or cried
            if found is not None:
                self._shift(line, found, line.joules if cried is not None else None)
            else:
                self._check_stalls(line, block)
        else:
            self.record.change(VOID, void_says(observation.move.role, waited_s), line.phase)
        self._look(line)

    def _slack_pair(self, line: Line, move: Move) -> Loop[None]:
        """Hold the setting in two halves, with and without the slack of GPUs that wait for others."""
        own, first = self._slack.pair()
        half = replace(move, least_s=0.5 * move.least_s, least_work=max(5.0, 0.5 * move.least_work))
        halves: dict[bool, Block | None] = {}
        for takes in (first, not first):
            wait_s = self._apply(move.setting, own if takes else {})
            if wait_s is not None:
                yield wait_s
                return
            observation = Observation(half)
            self._look(line)
            yield from self.subject.gather(observation)
            if not observation.done or line.observation is None:
                return
            halves[takes] = self.subject.block(observation)
        line.observation = None
        slack, common = halves[True], halves[False]
        line.tuner.tell(common)
        if common is not None:
            self.record.saw(Seen(self._time.now_s(), Role.HOLD, common, line.tuner.says))
        if slack is not None:
            known = line.tuner.slowdown_of(move.setting)
            if known is not None and common is not None:
                known = (1.0 + known) * slack.unit_s / common.unit_s - 1.0
            self.lines.debt.charge(slack.duration_s * (known or 0.0) / (1.0 + (known or 0.0)))
        if slack is not None and common is not None:
            self._slack.tell(move.setting, slack, common)
            if move.setting in self._slack.kept:
                self.record.change("slack", self._slack.says, line.phase)

    def _apply(self, setting: Setting, own: Mapping[str, Setting]) -> float | None:
        """Put a setting in force. None where it is; else how long to wait before going on."""
        try:
            self.subject.apply(setting, own)
        except NotNow as error:
            self.record.note(str(error))
            return retry_s(error)
        except GpuError as error:
            self._lose(f"{_NO_MORE}: {error}")
            return 0.0
        return None

    def _measure(self) -> Loop[None]:
        """A block of the job as it runs, nothing set."""
        decision = Decision(DEFAULT, "measured only")
        observation = Observation(
            Move(decision, Role.HOLD, self.ruler.phase, least_s=MEASURE_S, most_s=3.0 * MEASURE_S)
        )
        self._look(None)
        yield from self.subject.gather(observation)
        if observation.done and (block := self.subject.block(observation)) is not None:
            self.record.saw(Seen(self._time.now_s(), Role.HOLD, block))

    def _advise(self) -> Loop[None]:
        """Measure the baseline, and say what would be set: better the longer the job is watched."""
        beliefs: dict[str, Belief] = {}
        blocks: Counter[str] = Counter()
        while not self._stop.is_set():
            if self.ruler.rung is not self._rung:
                self._rung = self.ruler.rung
                beliefs.clear()
                blocks.clear()
            phase = self.ruler.phase
            move = Move(Decision(DEFAULT, "the job as it runs by itself"), Role.BASELINE, phase, 10.0, 5.0)
            self.record.write(Decided(self._time.now_s(), move.decision))
            observation = Observation(move)
            self._look(None)
            yield from self.subject.gather(observation)
            block = self.subject.block(observation) if observation.done else None
            if block is not None:
                if phase not in beliefs:
                    beliefs[phase] = self.lines.belief(phase)
                beliefs[phase].tell(block)
                self.record.saw(Seen(self._time.now_s(), Role.BASELINE, block))
                blocks[phase] += 1
                # Thinking costs CPU, and more of the same changes little: at each doubling of what was seen.
                if blocks[phase].bit_count() == 1:
                    self._advice[phase] = advise(beliefs[phase], self.lines.objective, block)

    def _await_ruler(self) -> Loop[None]:
        """Until the job's pace can be told, which may be never; nothing is set meanwhile."""
        while not self._stop.is_set():
            self.ruler.read()
            self._watch()
            self._look(None)
            if self.ruler.rung is not Rung.UNKNOWN:
                break
            yield WATCH_S
        self._rung = self.ruler.rung
        self.ruler.activity()  # the first read only opens the stretch that counters are the mean of

    def _await_lease(self) -> Loop[None]:
        """Take the lease, now that the job is on its GPUs; give up after a while, or when the job ends first."""
        give_up_s, wait_s = self._time.now_s() + LEASE_TRIES_S, 1.0
        refused = ""
        while self._take is not None and not self._stop.is_set():
            try:
                lease = self._take()
            except GpuError as error:
                refused = f"nothing is tuned: {error}"
                if self._time.now_s() >= give_up_s:
                    break
            else:
                self.subject.lease, self._take = lease, None
                self.subject.confine(_space(self.ruler, lease))
                return
            self.ruler.read()
            yield wait_s
            wait_s = min(8.0, 2.0 * wait_s)  # whoever keeps the log of refusals does not want one a second
        if refused:
            self._lose(refused)

    # Watching.

    def _watch(self) -> bool:
        """At every look at the job: phases, shifts, idle gaps, news of the lease. True: look again soon."""
        now_s = self._time.now_s()
        self._watch_phase(now_s)
        self._watch_pace()
        lease = self.subject.lease
        if lease is None:
            return False
        if now_s >= self._notices_due_s:
            self._notices_due_s = now_s + NOTICES_S
            self._hear(lease)
        try:
            done = self._rest.look(now_s, busy=self.ruler.busy)
        except NotNow:
            return True  # asked again at the next look
        except GpuError as error:
            self._lose(f"{_NO_MORE}: {error}")
            return False
        if done:
            self.record.change("awake" if self.subject.asleep is None else "idle", done)
        return self._rest.waiting

    def _watch_phase(self, now_s: float) -> None:
        """Where the job marks no phases, those that its activity shows."""
        latest, log = self.ruler.sampler.tracks[0].latest, self.ruler.log
        if latest is None or log.marks_phases or (log.steps_seen and log.longest_s is None):
            return  # what happens within a step is no phase, and how long steps are is not known yet
        unit_s = log.longest_s if log.steps_seen else self.ruler.usual_s(self.ruler.phase)
        log.enter(self._finder.tell(latest, unit_s), now_s)

    def _watch_pace(self) -> None:
        tracks = self.ruler.sampler.tracks
        for step in self.ruler.fresh():
            line = self.lines.find(step.phase)
            if line is None or not step.whole or step.end_s <= line.told_until_s:
                continue
            line.told_until_s = step.end_s
            setting = self.subject.setting_at(step.start_s)
            line.stalls.tell(setting, step)
            if step.dirt or step.slow:
                continue  # a slow kind of step is work, and no sign of a change
            if len(tracks) > 1 and line.tuner.verified and not self.subject.own and self.subject.setting != DEFAULT:
                self._slack.read([track.latest for track in tracks], [track.gpu.info.idle_power_w for track in tracks])
            found = line.pace.tell(setting, step.unit_s)
            if found is not None:
                self._shift(line, found, line.pace)

    def _shift(self, line: Line, found: Shift, cried: ChangeDetector | None) -> None:
        """The job changed: what is under way for it is void, and its tuner is told."""
        line.changed(cried)
        self.lines.debt.settle(line.phase)
        line.tuner.shift(found.kind)
        self._slack.forget()
        self.record.change(found.kind, found.says, line.phase)

    def _hear(self, lease: Lease) -> None:
        """What has happened to the lease or to a GPU without our doing."""
        try:
            notices = lease.notices()
            alive = lease.alive
        except GpuError as error:
            self._lose(f"{_NO_MORE}: {error}")
            return
        for notice in notices:
            if notice.kind in ("ended", "foreign", "reload"):
                self._lose(f"{_NO_MORE}: {notice.says}")
                return
            self.record.note(notice.says)
        lost = next((track.lost for track in self.ruler.sampler.tracks if track.lost is not None), None)
        if not alive or lost is not None:
            self._lose(f"{_NO_MORE}: {lost or 'the lease has ended'}")

    def _check_clock(self, line: Line, block: Block) -> None:
        """A clock well above its ceiling, block after block, is not ours: somebody else sets this GPU. One block alone
        may hold readings from before its own switch, on a busy host a few."""
        ceiling_mhz = block.setting.get("sm_mhz")
        if ceiling_mhz is None or block.sm_mhz is None or block.duration_s < 1.0:
            return  # says nothing
        if block.sm_mhz <= ceiling_mhz + MOST_OVER_MHZ:
            line.over = 0
            return
        line.over += 1
        if line.over >= MOST_OVER_BLOCKS:
            self._lose(
                f"{_NO_MORE}: the SM clock is {block.sm_mhz:.0f} MHz under a ceiling of {ceiling_mhz:.0f} MHz, so "
                "somebody else sets it"
            )

    def _check_stalls(self, line: Line, block: Block) -> None:
        """Refuse a setting that loses in stalls, which no block shows, what it keeps in clean work."""
        bound, known = line.tuner.bound, line.tuner.slowdown_of(block.setting)
        if block.setting == DEFAULT or known is None or not math.isfinite(bound):
            return
        whole = line.stalls.breaks(block.setting, known, bound)
        if whole is not None:
            why = f"slower than {bound:+.1%} with its stalls: {whole:+.1%} all in all, {known:+.1%} without them"
            self.lines.debt.charge(line.stalls.lost_s(block.setting))
            line.stalls.forget(block.setting)
            line.tuner.refuse(block.setting, why)
            self.record.change("refused", why, line.phase)

    def _interrupted(self) -> bool:
        """Whether what is being gathered should end now: a stop, a loss, another ruler, a shift that voids it, or work
        that nobody marks."""
        if self._stop.is_set() or self.ruler.rung is not self._rung:
            return True
        line = self.lines.find(self.ruler.phase)
        void = line is not None and line.observation is None
        return self.subject.lease is not None and (void or bool(self._blind))

    def _lose(self, why: str) -> None:
        """From here on only measure. Said once; the job goes on."""
        if self._lost:
            return
        self._lost = True
        lease, self.subject.lease, self._take = self.subject.lease, None, None
        self.subject.setting, self.subject.own, self.subject.asleep = DEFAULT, {}, None
        if lease is not None:
            try:
                lease.release()
            except Exception as error:  # its own guardian gives back what we cannot
                _log.debug("giving back after %s: %s", why, error)
        self.record.note(why)
        self.record.change("lost", why)
        for line in self.lines:
            line.observation = None

    # Saying.

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

    def _finish(self, why: str) -> Summary:
        """The end, written whatever fails on the way to it."""
        self._safely("what was held last", self._last_blocks)
        now_s = self._time.now_s()
        proof = self._safely("the proof", self.record.prove)
        proven = proof.event(now_s) if proof is not None else None
        if proven is not None:
            self.record.write(proven)
        summary = self._safely("the summary", lambda: self._summary(why, proof))
        if summary is None:
            summary = Summary(why, self.ruler.rung, self.ruler.says, proof=proof, notes=tuple(self.record.notes))
        self.record.write(Finished(now_s, why, {**_facts(summary), "seal": self.record.seal.facts}))
        self._safely("what was learnt", lambda: self._keep(summary, proof))
        return summary

    def _safely(self, what: str, do: Callable[[], T]) -> T | None:
        """What ``do`` gives; None, noted, where it fails."""
        try:
            return do()
        except Exception as error:
            _log.debug("%s is lost", what, exc_info=True)
            self.record.note(f"{what} is lost: {type(error).__name__}: {error}")
            return None

    def _last_blocks(self) -> None:
        """What was held last counts too, though nobody asked for so little of it."""
        for line in self.lines:
            observation, line.observation = line.observation, None
            if observation is not None and observation.move.role is Role.HOLD:
                block = self.subject.block(observation)
                if block is not None:
                    self.record.saw(Seen(self._time.now_s(), Role.HOLD, block, line.tuner.says))

    def _summary(self, why: str, proof: Proof | None) -> Summary:
        lines = self.lines.finest()
        return Summary(
            why=why,
            rung=self.ruler.rung,
            ruler=self.ruler.says,
            chosen={line.phase: line.tuner.chosen for line in lines},
            verified={line.phase: line.tuner.verified for line in lines},
            reasons={line.phase: line.tuner.says for line in lines},
            proof=proof,
            frontiers={line.phase: line.tuner.frontier() for line in lines if line.tuner.chosen},
            advice=tuple(self._advice.values()),
            notes=(*self.record.notes, *(proof.unjudged if proof is not None else ())),
            slowdown=self.lines.debt.slowdown,
            switches=self.subject.switches,
        )

    def _keep(self, summary: Summary, proof: Proof | None) -> None:
        tuners = {line.phase: line.tuner for line in self.lines.finest()}
        learnt = {phase: tuner.belief.learnt() for phase, tuner in tuners.items() if tuner.chosen or tuner.refused}
        kept = {phase: tuner.kept for phase, tuner in tuners.items()}
        chosen = {phase: setting or summary.chosen.get(phase, DEFAULT) for phase, setting in kept.items()}
        verified = {phase: setting is not None for phase, setting in kept.items()}
        refused = {phase: tuner.refused for phase, tuner in tuners.items()}
        self._recall.keep(learnt, chosen, verified, proof, refused)


def _facts(summary: Summary) -> dict[str, Any]:
    return {
        "chosen": {phase: dict(setting) for phase, setting in summary.chosen.items()},
        "verified": dict(summary.verified),
        "rung": str(summary.rung),
        "ruler": summary.ruler,
        "notes": list(summary.notes),
        "switches": summary.switches,
    }


def _space(ruler: Ruler, lease: object) -> Space:
    """What may be set on all GPUs, through a lease where there is one already."""
    spaces = [track.gpu.info.space for track in ruler.sampler.tracks]
    if not isinstance(lease, Lease):
        return common_space(spaces, spaces[0].knobs)
    return common_space(spaces, lease.knobs, lease.allowed)
