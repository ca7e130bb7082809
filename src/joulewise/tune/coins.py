"""Were the guard's pairs run in the order that the seed draws? Read from a journal, where pairs carry no number.

What it is: a fold of decisions and blocks of one run, which finds out whether there is any way to number its trials and
pairs so that each first half is the one that ``guard.candidate_first`` draws. A pair that came to nothing used up its
coin, and left a decision without a block: so many coins may be passed over there, and nowhere else. Why it exists:
whoever deletes pairs that he does not like moves all that follow to other coins, and half of those are wrong. What it
is not: the check that what was decided was seen (tune/verify), nor the test itself (tune/guard).

Trials of a line (a phase, under one ruler) are numbered as they begin. One that was broken off before its first block
leaves a gap, and a setting that was given up may be tried anew with a new number: both are followed up side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from joulewise.core.block import Block, Role
from joulewise.core.knob import Setting
from joulewise.tune.guard import candidate_first, line_of

VOID = "void"
"""``Shifted.what`` of a decided move that came to nothing: if it was half of a pair, the pair's coin is used up."""


def void_says(role: Role, waited_s: float | None = None) -> str:
    """How the journal says it, with the seconds that were waited for it, if known."""
    waited = f" in {waited_s!r} s" if waited_s is not None else ""
    return f"{role}: nothing comparable was measured{waited}"


def void_of(says: str) -> tuple[str, float]:
    """The role and the seconds that ``void_says`` put into words; 0 s where none are told."""
    role, _, rest = says.partition(":")
    try:
        return role, float(rest.rpartition(" in ")[2].removesuffix(" s"))
    except ValueError:
        return role, 0.0


# Trials that were begun and left no block, one after another: a shift may break one off.
_MOST_GAPS = 2
# Times that one setting is tried anew before the next shift: each time it takes twice the evidence.
_MOST_ANEW = 3

_Places = frozenset[tuple[int, int, int]]
"""Where a trial may be: (its number, the next pair's number, how often settings were tried anew)."""


@dataclass(frozen=True, slots=True)
class _Half:
    """The first half of a pair."""

    role: Role
    block: Block
    skips: int
    """Coins that may have been thrown in vain since the pair before."""


@dataclass(slots=True)
class _Line:
    """One phase under one ruler."""

    begun: frozenset[int] = frozenset({0})
    """What the number of the next new trial may be."""
    trials: dict[Setting, _Places] = field(default_factory=dict)
    last: Setting | None = None
    """Whose pair came last, if nothing else was run since."""
    half: _Half | None = None
    unseen: int = 0
    """Decisions without a block since the last half."""
    blind: bool = False
    """Too little is known to tell its coins."""


class Coins:
    """Told what was run, in order; ``problems`` are pairs whose order nobody drew."""

    def __init__(self, seed: int) -> None:
        self.problems: list[str] = []
        self._seed = seed
        self._lines: dict[str, _Line] = {}

    def unseen(self, phase: str | None) -> None:
        """A decision of a phase came to nothing. None: nobody knows of which, so that no coin can be told any more."""
        for name, line in self._lines.items():
            if phase is None:
                line.blind = True
            elif name.rpartition("/")[0] == phase:
                line.unseen += 1

    def shifted(self, phase: str) -> None:
        """The trials of a phase begin anew; their numbers go on."""
        for name, line in self._lines.items():
            if name.rpartition("/")[0] == phase:
                line.trials.clear()
                line.half = line.last = None

    def restart(self) -> None:
        """Another ruler: all begins anew."""
        self._lines.clear()

    def see(self, role: Role, block: Block) -> None:
        """A block was seen."""
        name = line_of(block.phase, block.rung)
        line = self._lines.setdefault(name, _Line())
        half, line.half = line.half, None
        halves = role in (Role.CANDIDATE, Role.REFERENCE)
        if half is not None and halves and half.role is not role and not line.unseen:
            self._check(name, line, half, block.setting if role is Role.CANDIDATE else half.block.setting)
            return
        if half is not None and half.role is Role.CANDIDATE:  # its partner came to nothing
            self._check(name, line, half, half.block.setting)
        elif half is not None:  # likewise, and nothing tells what it was to be compared with
            line.unseen += half.skips + 1
        if halves:
            line.half, line.unseen = _Half(role, block, line.unseen), 0
        else:
            line.last = None

    def _check(self, name: str, line: _Line, half: _Half, setting: Setting) -> None:
        """Move a trial on by one pair, to wherever the coin may have been thrown that shows this order."""
        if line.blind:
            return
        wanted = half.role is Role.CANDIDATE
        before = line.trials.get(setting, frozenset())
        starts = set(before)
        anew = max((times for _, _, times in before), default=-1) + 1
        if setting != line.last and anew <= _MOST_ANEW:
            starts |= {(number + gap, 0, anew) for number in line.begun for gap in range(_MOST_GAPS + 1)}
        after = frozenset(
            (number, pair + skip + 1, times)
            for number, pair, times in starts
            for skip in range(half.skips + 1)
            if candidate_first(self._seed, number, pair + skip, name) == wanted
        )
        if not after:
            self.problems.append(
                f"the pair at {half.block.start_s:.1f} s was not run in the order that the seed draws: pairs before it "
                "are missing, or were exchanged"
            )
            after = frozenset((number, pair + 1, times) for number, pair, times in starts)
        line.trials[setting], line.last = after, setting
        line.begun = (line.begun if before else frozenset()) | {number + 1 for number, _, _ in after}
