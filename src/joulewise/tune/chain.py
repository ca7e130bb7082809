"""Does a journal account for the whole of a run? A block that was taken out leaves a hole in time.

What it is: ``holes``, a fold of one run's events. The loop decides on the next block as soon as one is seen, so a
journal is a chain: decided, seen, decided, seen; each link begins where the last one ended. A decision may come to
nothing, which is said (``VOID``, or the change of the job that broke it off), and where the loop itself was late, or
had to wait, it says that too (``LATE``, ``WAITS``), which may not be often. So whatever is deleted, one block or a
hundred, with its decision or without, is missed by the clock, however the claim and the seal were written anew. What it
is not: proof against somebody who also moves all later times, or fills the hole with blocks of his own.

Where a job has several phases, one phase's block may be under way while another's is seen, and time is not a chain:
there the journal is followed up to where two blocks are under way at once; and up to where the lease was lost: what is
only measured afterwards claims nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from joulewise.core.block import Role
from joulewise.core.event import Began, Decided, Event, Finished, Seen, Shifted
from joulewise.core.knob import DEFAULT, POWER_LIMIT_W, Setting
from joulewise.tune.coins import VOID, void_of
from joulewise.tune.comparisons import RULER, SHIFTS
from joulewise.tune.subject import CLOCK_SETTLES_S, LIMIT_SETTLES_S

READY = "ready"
"""``Shifted.what`` when the pace is known and the lease is there: from here on every second is accounted for."""
LATE = "late"
"""``Shifted.what`` when the loop itself was held up between two moves."""
WAITS = "waits"
"""``Shifted.what`` of a setting that could not be put in force at once."""
UNMARKED = "unmarked"
"""``Shifted.what`` when the job goes on with work that nothing measures."""
LOST = "lost"
"""``Shifted.what`` after which nothing is set, and blocks are only measured."""
GAP_S = 0.5
"""Wall seconds between two links that need no words: no block is shorter than twice this."""

# How often a hole may be excused by words alone: rarely, or in one decision of fifty.
_MOST_EXCUSED, _EXCUSED_SHARE = 3, 0.02
# What is under way at the end: no block waits longer than a minute and three times what it usually takes.
_PATIENCE_S, _PATIENCE = 60.0, 4.0


def holes(events: Sequence[Event]) -> list[str]:
    """Where the journal of one run does not account for its time, in words."""
    chain = _Chain()
    several = len({event.block.phase for event in events if isinstance(event, Seen)}) > 1
    for event in events:
        if several and isinstance(event, Decided) and chain.open is not None and not chain.broken_off:
            break  # two blocks are under way
        chain.tell(event)
    chain.close()
    if chain.excused > max(_MOST_EXCUSED, _EXCUSED_SHARE * chain.links):
        chain.problems.append(
            f"{chain.excused} of {chain.links} decisions came late, for reasons that no block bears out"
        )
    return chain.problems


@dataclass(slots=True)
class _Chain:
    """How far the journal was followed."""

    problems: list[str] = field(default_factory=list)
    links: int = 0
    excused: int = 0
    """Holes that something explains."""
    lost: bool = False
    gap_s: float = GAP_S
    open: Decided | None = None
    """What was decided on and is under way."""
    broken_off: bool = False
    """Whether something says why what is under way may come to nothing."""
    waited: bool = False
    """Whether something says why what is under way may take longer, or why nothing is."""
    end_s: float = math.nan
    """When the last link ended; NaN before the first can be told."""
    before: set[Setting] = field(default_factory=lambda: {DEFAULT})
    """What may have been in force since the last block."""
    capped: dict[Setting, bool] = field(default_factory=dict)
    """Whether the power limit held the GPU back, the last time that a setting was seen."""
    longest_s: float = 0.0
    begun: list[tuple[float, str, bool, bool]] = field(default_factory=list)
    """Of every block: how late it began after it was decided on and settled, what is to be said of that, whether
    another setting had to be put in force, and whether something says why it took longer."""

    def tell(self, event: Event) -> None:
        if self.lost and not isinstance(event, Began):
            return
        match event:
            case Began(facts=facts):
                self.lost = False
                self.gap_s = GAP_S * max(1.0, float(facts.get("speed", 1.0)))
                self.open, self.before, self.end_s = None, {DEFAULT}, math.nan
            case Decided():
                self._decided(event)
            case Seen():
                self._seen(event)
            case Shifted():
                self._shifted(event)
            case Finished(time_s=time_s):
                self._finished(time_s)

    def _decided(self, event: Decided) -> None:
        self.links += 1
        if self.open is not None and not self.broken_off:
            self.problems.append(
                f"what was decided on at {self.open.time_s:.1f} s was neither seen nor broken off, "
                f"and at {event.time_s:.1f} s something else was decided on"
            )
        else:
            self._check_gap(event.time_s)
        self.open, self.broken_off, self.waited = event, False, False
        self.before.add(event.decision.setting)

    def _check_gap(self, time_s: float) -> None:
        if time_s - self.end_s > self.gap_s:
            self._tell(f"nothing was decided on from {self.end_s:.1f} s to {time_s:.1f} s: blocks are missing there")

    def _tell(self, problem: str) -> None:
        """A hole: a problem, unless something explains it."""
        if self.waited:
            self.excused += 1
        else:
            self.problems.append(problem)

    def _seen(self, event: Seen) -> None:
        block = event.block
        if self.open is not None:
            limit = POWER_LIMIT_W.name
            switched = self.before != {block.setting}
            slow = {each.get(limit) for each in self.before} != {block.setting.get(limit)}
            settles_s = LIMIT_SETTLES_S if slow or self.capped.get(block.setting, False) else CLOCK_SETTLES_S
            late_s = block.start_s - self.open.time_s - settles_s * switched
            problem = (
                f"the {event.role} block at {block.start_s:.1f} s was decided on at {self.open.time_s:.1f} s: "
                "blocks are missing between"
            )
            self.begun.append((late_s, problem, switched, self.waited))
            self.longest_s = max(self.longest_s, block.end_s - block.start_s)
        # After a probe the default is put in force at once, while what comes next is thought over.
        self.before = {block.setting, DEFAULT} if event.role is Role.PROBE else {block.setting}
        if block.power_capped is not None:
            self.capped[block.setting] = block.power_capped
        self._close(event.time_s)

    def close(self) -> None:
        """What only all blocks together tell: how long it takes to put a setting in force here."""
        switched_s = [late_s for late_s, _, switched, _ in self.begun if switched]
        usual_s = max(0.0, median(switched_s)) if switched_s else 0.0
        for late_s, problem, switched, waited in self.begun:
            if late_s - usual_s * switched > self.gap_s:
                self.waited = waited
                self._tell(problem)

    def _close(self, time_s: float) -> None:
        self.open, self.broken_off, self.waited, self.end_s = None, False, False, time_s

    def _shifted(self, event: Shifted) -> None:
        match event.what:
            case what if what == VOID:
                _, waited_s = void_of(event.says)
                if self.open is not None:
                    late_s = event.time_s - self.open.time_s - waited_s - LIMIT_SETTLES_S
                    if waited_s > 0 and late_s > self.gap_s:
                        self._tell(f"what came to nothing at {event.time_s:.1f} s was decided on long before")
                self._close(event.time_s)
            case what if what in (*SHIFTS, RULER):
                self.broken_off = True
                self.end_s = event.time_s
            case what if what == LOST:
                self.lost = True
            case what if what in (UNMARKED, WAITS, LATE):
                self.waited = True
            case what if what == READY:
                self._close(event.time_s)

    def _finished(self, time_s: float) -> None:
        if self.open is None:
            self._check_gap(time_s)
        elif not (self.broken_off or self.waited):
            most_s = _PATIENCE_S + _PATIENCE * self.longest_s
            if time_s - self.open.time_s > most_s:
                self.problems.append(f"nothing was seen of what was decided on at {self.open.time_s:.1f} s, to the end")
