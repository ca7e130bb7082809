"""Recompute a proof from a journal, and list everything in it that does not fit.

What it is: ``verify(events)``, a fold of one run's events that believes nothing but the blocks: it draws the baseline
windows again from the seed that was journalled before the first of them, and computes the proof anew. Why it exists: a
saving that only its seller can compute is a claim. What it is not: protection against somebody who rewrites the whole
journal consistently; it makes that the only way to cheat.

``Began.facts`` must hold, written before anything was set: ``seed`` (integer, of every draw), ``proof_share`` (promised
share of baseline windows) and ``proof_window_s`` (expected length of the first window); each phase's
``proof.Schedule`` is built from these three and its name. Whoever runs the loop journals Decided before and Seen after
each move, begins the reason of PROOF moves with ``proof.PROOF_REASON``, and writes Proven from ``proof.prove`` of all
Seen (and Shifted) before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from joulewise.core.block import Block, Role
from joulewise.core.decision import Decision
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.proof import PROOF_REASON, Proof, Schedule, prove

# Windows come to nothing now and then (an evaluation, a stall); with more than this share the rest may be a choice.
_MOST_MISSED = 0.25
# Journals keep every digit: what differs by more is another computation.
_SAME = 1e-9
_FIELDS = ("energy_change", "energy_change_error", "time_change", "time_change_error")
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
    audit = _Audit()
    for event in events:
        audit.tell(event)
    audit.close()
    return Verification(prove(audit.seen, audit.shifts), tuple(audit.problems))


@dataclass(slots=True)
class _Audit:
    """What has been read so far."""

    problems: list[str] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    shifts: list[Shifted] = field(default_factory=list)
    began: Began | None = None
    finished: bool = False
    pending: list[Decision[Setting]] = field(default_factory=list)
    """Decided and not seen (yet): a phase's block may take several visits, others are decided on meanwhile."""
    schedules: dict[str, Schedule] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)
    """Phases in which a HOLD block came while a window was due."""
    missed: int = 0
    last: dict[str, Block] = field(default_factory=dict)
    claim: tuple[Proven, int, int] | None = None
    """The last claim, and how much had been seen before it."""

    def tell(self, event: Event) -> None:
        match event:
            case Began():
                self._begin(event)
            case Decided():
                self.pending.append(event.decision)
            case Seen():
                self._see(event)
            case Shifted():
                self.shifts.append(event)
            case Proven():
                self.claim = (event, len(self.seen), len(self.shifts))
            case Finished():
                self.finished = True

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

    def _take(self, fits: Callable[[Decision[Setting]], bool]) -> bool:
        """Whether a decision that fits is pending; the latest such one no longer is."""
        place = next((i for i in reversed(range(len(self.pending))) if fits(self.pending[i])), None)
        if place is not None:
            del self.pending[place]
        return place is not None

    def _see(self, event: Seen) -> None:
        setting, proof = event.block.setting, event.role is Role.PROOF
        if not self._take(lambda each: each.setting == setting and _proves(each) == proof):
            self.problems.append(f"{_where(event)} at {setting!r} was seen without having been decided on")
        self._check_block(event)
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
        if self._take(_proves):  # it was begun and came to nothing
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
        for schedule in self.schedules.values():
            longest_s = max((e.block.duration_s for e in self.seen if e.role is Role.PROOF), default=0.0)
            allowed_s = schedule.share * schedule.held_s + longest_s
            if schedule.spent_s > allowed_s * (1 + 1e-6):
                self.problems.append(
                    f"baseline windows took {schedule.spent_s:.1f} s of {schedule.held_s:.0f} s held, "
                    f"promised were {schedule.share:.1%}"
                )
        self._check_claim()

    def _check_claim(self) -> None:
        if self.claim is None:
            # A run that was killed, or that held nothing, has nothing to claim.
            if self.finished and prove(self.seen, self.shifts).energy is not None and _held(self.seen):
                self.problems.append("the run finished without journalling its proof")
            return
        claim, seen, shifts = self.claim
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
