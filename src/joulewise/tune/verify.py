"""Recompute a proof from a journal, and list everything in it that does not fit.

What it is: ``verify(events)``, a fold of one run's events that believes nothing but the blocks: it draws the baseline
windows and the order of pairs again from the seed that was journalled before the first of them, and computes the proof
anew. Why it exists: a saving that only its seller can compute is a claim. What it is not: protection against somebody
who rewrites the whole journal consistently, seed and all: that cannot be told from a journal alone.

``Began.facts`` must hold, written before anything was set: ``seed`` (integer, of every draw), ``proof_share`` (promised
share of baseline windows) and ``proof_window_s`` (expected length of the first window); each phase's
``proof.Schedule`` is built from these three and its name. Whoever runs the loop journals Decided before and Seen after
each move, or ``Shifted(time_s, coins.VOID, coins.void_says(role), phase)`` where nothing came of it, begins the reason
of PROOF moves with ``proof.PROOF_REASON``, and writes Proven from ``proof.prove`` of all Seen (and Shifted) before it.
``Finished.facts`` holds ``seal``: ``Seal.facts`` (tune/seal) of all events before it. That every second of the run is
accounted for is tune/chain's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from joulewise.core.block import Block, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.chain import holes
from joulewise.tune.coins import VOID, Coins
from joulewise.tune.proof import PROOF_REASON, RULER, SHIFTS, Proof, Schedule, prove
from joulewise.tune.seal import Seal

# Windows come to nothing now and then (an evaluation, a stall); with more than this share the rest may be a choice.
_MOST_MISSED = 0.25
# Journals keep every digit: what differs by more is another computation.
_SAME = 1e-9
_FIELDS = ("energy_change", "energy_change_error", "time_change", "time_change_error")
# Clocks that are read one after another by two threads.
_CLOCK_S = 1e-3
_AT_DEFAULT = (Role.BASELINE, Role.REFERENCE, Role.PROOF)


@dataclass(frozen=True, slots=True)
class Verification:
    """The proof as recomputed, and every discrepancy in words; none means that the journal bears out its claim."""

    proof: Proof
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(events: Iterable[Event]) -> Verification:
    """Recompute the proof of one run from its journal alone."""
    audit, events = _Audit(), list(events)
    for event in events:
        audit.tell(event)
    audit.close()
    audit.problems += holes(events)
    ended_s = audit.finished.time_s if audit.finished is not None else None
    return Verification(prove(audit.seen, audit.shifts, ended_s=ended_s), tuple(audit.problems))


@dataclass(slots=True)
class _Audit:
    """What has been read so far."""

    problems: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    shifts: list[Shifted] = field(default_factory=list)
    began: Began | None = None
    finished: Finished | None = None
    pending: dict[int, Decision[Setting]] = field(default_factory=dict)
    """Decided and not seen (yet), by place in ``run``: a block may take several visits, and others come between."""
    run: list[Decided | Seen | Shifted] = field(default_factory=list)
    """All that bears on the order of pairs."""
    void: dict[int, str] = field(default_factory=dict)
    """Decisions that came to nothing as the journal says, by place, and their phase."""
    latest_s: float = -math.inf
    seal: Seal = field(default_factory=Seal)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)
    """Phases in which a HOLD block came while a window was due."""
    missed: int = 0
    baselines: set[tuple[str, Rung]] = field(default_factory=set)
    """Phases and rulers that were measured with nothing set."""
    last: dict[str, Block] = field(default_factory=dict)
    claim: tuple[Proven, int, int] | None = None
    """The last claim, and how much had been seen before it."""

    def tell(self, event: Event) -> None:
        self._check_order(event)
        match event:
            case Began():
                self._begin(event)
            case Decided():
                self.pending[len(self.run)] = event.decision
                self.run.append(event)
            case Seen():
                self._see(event)
                self.run.append(event)
            case Shifted():
                self._shift(event)
                self.run.append(event)
            case Proven():
                self.claim = (event, len(self.seen), len(self.shifts))
            case Finished():
                self._finish(event)
        self.seal.add(event)

    def _check_order(self, event: Event) -> None:
        if self.finished is not None and not isinstance(event, Began):
            self.problems.append(f"the journal goes on after the run's end, at {event.time_s:.1f} s")
            self.finished = None
        if event.time_s < self.latest_s - _CLOCK_S:
            self.problems.append(f"time goes back from {self.latest_s:.1f} s to {event.time_s:.1f} s")
        self.latest_s = max(self.latest_s, event.time_s)

    def _finish(self, event: Finished) -> None:
        self.finished = event
        said = event.facts.get("seal")
        if said is None:
            self.problems.append("the run's end carries no seal of what was written before it")
        elif said != self.seal.facts:
            self.problems.append("events were taken out, put in or changed: the seal of the last one does not fit")

    def _shift(self, event: Shifted) -> None:
        self.shifts.append(event)
        if event.what == RULER:  # work counts in another unit: the schedules begin anew
            self._check_shares()
            self.schedules.clear()
            self.halves.clear()
        elif event.what == VOID:
            proves = event.says.startswith(Role.PROOF)
            place = self._place(lambda each: _proves(each) == proves)
            if place is None:
                self.problems.append(f"something came to nothing at {event.time_s:.1f} s that was not decided on")
                return
            del self.pending[place]
            self.void[place] = event.phase
            if proves and (schedule := self.schedules.get(event.phase)) is not None:
                self.missed += 1
                self.halves -= {event.phase}
                schedule.missed()

    def _begin(self, event: Began) -> None:
        if self.began is not None:
            if any(event.facts.get(key) != self.began.facts.get(key) for key in ("seed", "proof_share")):
                self.problems.append("the run began twice, with another seed or share of baseline windows")
            return
        self.began = event
        needed = ("seed", "proof_share", "proof_window_s")
        wrong = [key for key in needed if not isinstance(event.facts.get(key), int | float)]
        if self.seen:
            self.problems.append("blocks were seen before the run began")
        if wrong:
            self.problems.append(f"the journal does not say {', '.join(wrong)}: windows cannot be checked")
            self.began = None

    def _place(self, fits: Callable[[Decision[Setting]], bool]) -> int | None:
        """Where the latest decision is that is pending and fits."""
        return next((place for place in reversed(self.pending) if fits(self.pending[place])), None)

    def _take(self, fits: Callable[[Decision[Setting]], bool]) -> bool:
        """Whether a decision that fits is pending; the latest such one no longer is."""
        place = self._place(fits)
        if place is not None:
            del self.pending[place]
        return place is not None

    def _see(self, event: Seen) -> None:
        setting, proof = event.block.setting, event.role is Role.PROOF
        if not self._take(lambda each: each.setting == setting and _proves(each) == proof):
            self.problems.append(f"{_where(event)} at {setting!r} was seen without having been decided on")
        self._check_block(event)
        self._check_baseline(event)
        self._check_window(event)
        self.seen.append(event)

    def _check_block(self, event: Seen) -> None:
        block, last = event.block, self.last.get(event.block.phase)
        numbers = (block.start_s, block.end_s, block.work, block.duration_s, block.energy_j)
        if not all(map(math.isfinite, numbers)) or not block.energy_j > 0:
            self.problems.append(f"{_where(event)} has no energy or no time that can be read")
        if block.duration_s > (block.end_s - block.start_s) * (1 + 1e-6) + 1e-6:
            self.problems.append(f"{_where(event)} holds more clean work than it lasted")
        if last is not None and block.start_s < last.end_s - 1e-6:
            self.problems.append(f"{_where(event)} begins before the one before it ended")
        if event.role in _AT_DEFAULT and block.setting != DEFAULT:
            self.problems.append(f"{_where(event)} is a baseline at {block.setting!r}, not at default")
        self.last[block.phase] = block

    def _check_baseline(self, event: Seen) -> None:
        """Nothing is tried before the job was measured as it runs by itself."""
        line = (event.block.phase, event.block.rung)
        if event.role is Role.BASELINE:
            self.baselines.add(line)
        elif event.role in (Role.PROBE, Role.CANDIDATE) and line not in self.baselines:
            self.baselines.add(line)
            self.problems.append(f"no baseline was seen before {_where(event)}")

    def _check_window(self, event: Seen) -> None:
        if self.began is None:
            return
        schedule = self.schedules.get(event.block.phase)
        if schedule is None:
            facts = self.began.facts
            schedule = Schedule(
                facts["seed"], facts["proof_share"], window_s=facts["proof_window_s"], phase=event.block.phase
            )
            self.schedules[event.block.phase] = schedule
        if event.role is Role.PROOF and not schedule.due:
            self.problems.append(
                f"{_where(event)} is not where the seed draws it: {schedule.wait_s:.1f} s of holding too early"
            )
        if event.role is Role.PROOF:
            self.halves -= {schedule.phase}
        elif event.role is Role.HOLD and event.block.setting != DEFAULT and schedule.due:
            self._pass(event, schedule)
        schedule.tell(event.role, event.block)

    def _pass(self, event: Seen, schedule: Schedule) -> None:
        """The setting was held on although a window was due."""
        if (place := self._place(_proves)) is not None:  # it was begun and came to nothing
            del self.pending[place]
            self.void[place] = schedule.phase
            self.missed += 1
            schedule.missed()
        elif schedule.phase in self.halves:
            self.problems.append(f"a baseline window is missing before {_where(event)}")
            self.halves -= {schedule.phase}
            schedule.missed()
        else:  # the held half of the window's pair may come first; a second block may not
            self.halves |= {schedule.phase}

    def close(self) -> None:
        """What can only be said of the whole."""
        if self.began is None and not self.problems:
            self.problems.append("the journal does not say how the run began")
        windows = sum(each.role is Role.PROOF for each in self.seen)
        if self.missed > max(1.0, _MOST_MISSED * (self.missed + windows)):
            self.problems.append(f"{self.missed} of {self.missed + windows} baseline windows were never seen")
        unseen = len(self.pending)
        if unseen > max(4.0, _MOST_MISSED * (unseen + len(self.seen))):
            self.problems.append(f"{unseen} of {unseen + len(self.seen)} decided blocks were never seen")
        halves = sum(each.role in (Role.CANDIDATE, Role.REFERENCE) for each in self.seen)
        if len(self.void) - self.missed > max(4.0, _MOST_MISSED * (len(self.void) + halves)):
            self.problems.append(f"{len(self.void)} decided blocks came to nothing, beside {halves} that were compared")
        self._check_shares()
        self._check_coins()
        self._check_claim()
        self._check_summary()
        if self.began is not None and self.finished is None:
            self.problems.append("the run did not end: what follows is missing, if it goes on no longer")

    def _check_shares(self) -> None:
        longest_s = max((e.block.duration_s for e in self.seen if e.role is Role.PROOF), default=0.0)
        for schedule in self.schedules.values():
            allowed_s = schedule.share * schedule.held_s + longest_s
            if schedule.spent_s > allowed_s * (1 + 1e-6):
                self.problems.append(
                    f"baseline windows took {schedule.spent_s:.1f} s of {schedule.held_s:.0f} s held, "
                    f"promised were {schedule.share:.1%}"
                )

    def _check_coins(self) -> None:
        """Whether pairs were run in the order that the seed draws."""
        if self.began is None:
            return
        coins = Coins(self.began.facts["seed"])
        phases = {each.block.phase for each in self.seen}
        only = next(iter(phases)) if len(phases) == 1 else None
        for place, event in enumerate(self.run):
            match event:
                case Decided() if place in self.pending or place in self.void:
                    coins.unseen(self.void.get(place, only))
                case Seen():
                    coins.see(event.role, event.block)
                case Shifted(what=what, phase=phase) if what in SHIFTS:
                    coins.shifted(phase)
                case Shifted(what="ruler"):
                    coins.restart()
        self.problems += coins.problems

    def _check_summary(self) -> None:
        """Whether what the run says it ended with can have come of what was run."""
        if self.finished is None or self.began is None:
            return
        facts, decided = self.finished.facts, {e.decision.setting for e in self.run if isinstance(e, Decided)}
        for phase, chosen in dict(facts.get("chosen", {})).items():
            setting = Setting(**chosen)
            if setting and setting not in decided:
                self.problems.append(f"the run says that it ended at {setting!r}, which was never decided on")
            alpha, bound = self.began.facts.get("alpha"), self.began.facts.get("bound")
            if not setting or not dict(facts.get("verified", {})).get(phase) or alpha is None or bound is None:
                continue
            of_phase = [each for each in self.seen if each.block.phase == phase]
            compared = sum(e.role is Role.CANDIDATE and e.block.setting == setting for e in of_phase)
            compared += sum(e.role is Role.PROOF for e in of_phase)
            if compared < math.log2(1 / alpha):  # each may double what was betted, and no more
                self.problems.append(f"the run says that {setting!r} was verified, by {compared} comparisons")

    def _check_claim(self) -> None:
        if self.claim is None:
            # A run that was killed, or that held nothing, has nothing to claim.
            if self.finished is not None and prove(self.seen, self.shifts).energy is not None and _held(self.seen):
                self.problems.append("the run finished without journalling its proof")
            return
        claim, seen, shifts = self.claim
        if self.finished is not None and len(self.seen) > seen:
            self.problems.append(f"{len(self.seen) - seen} blocks were seen after the last claim was made")
        proven = prove(self.seen[:seen], self.shifts[:shifts]).event(claim.time_s)
        if proven is None:
            self.problems.append("a saving was claimed that the blocks before it cannot show")
            return
        for name in _FIELDS:
            said, is_so = getattr(claim, name), getattr(proven, name)
            if not math.isclose(said, is_so, rel_tol=_SAME, abs_tol=_SAME):
                self.problems.append(f"the proof says {name} {said:+.4%}, the blocks say {is_so:+.4%}")


def _proves(decision: Decision[Setting]) -> bool:
    return decision.reason.startswith(PROOF_REASON)


def _held(seen: Sequence[Seen]) -> bool:
    return any(each.role is Role.HOLD and each.block.setting != DEFAULT for each in seen)


def _where(event: Seen) -> str:
    return f"the {event.role} block at {event.block.start_s:.1f} s"
