"""Which nodes stay powered: those in use, a warm reserve, and those that would be needed again too soon.

What it is: the rule of one cluster. An empty node draws its host and its idle GPUs; switching it off saves that until
it is needed again, and then costs a boot. It pays when the gap is longer than

    break_even_s = boot_s · boot_w / (empty_node_w − off_w)

The gap is not known in advance. So for each *level* (the first node, the second, …, in the order in which load calls
for them) the past gaps are remembered. A level whose gaps were long on average goes off at once; any other waits for
``break_even_s`` first, which never costs more than twice what foresight would (the ski-rental bound).
Why it exists: an empty 8-GPU host at 1.5 kW wastes more than any clock setting on it can save.
What it is not: the choice of who leaves a node so that it empties (``round``), nor the switching itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from joulewise.cluster.placement import Floor
from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec

# The mean of past gaps: each new one weighs a quarter, so a level follows a change of load within a few gaps.
_NEW_GAP = 0.25
# How many gaps make a mean worth believing; with fewer, the timer decides.
_GAPS_SEEN = 3
# "Long": a mean gap this many times the break-even pays even if the next gap is half as long as they were.
_LONG = 2.0


def break_even_s(kind: Kind) -> float:
    """How long a node must stay off to pay for its boot; infinite where being off saves nothing."""
    saved_w = kind.empty_node_w - kind.off_w
    return kind.boot_s * kind.boot_w / saved_w if saved_w > 0 else float("inf")


@dataclass(slots=True)
class _Levels:
    """What is known of one kind. ``below_s[i]``: since when i nodes or fewer are called for; None while more are."""

    below_s: list[float | None]
    gap_s: list[float]
    gaps: list[int]
    booted_s: dict[int, float] = field(default_factory=dict)

    def fit(self, nodes: int) -> None:
        """There are so many nodes now: some died, or came. A new level is as little called for as the one below it."""
        more = nodes - len(self.below_s)
        if more > 0:
            self.below_s += [self.below_s[-1] if self.below_s else None] * more
            self.gap_s += [0.0] * more
            self.gaps += [0] * more
        elif more < 0:
            del self.below_s[nodes:], self.gap_s[nodes:], self.gaps[nodes:]


@dataclass(frozen=True, slots=True)
class Switching:
    """What to switch on and off now, and when to look again (None: nothing is waiting for time to pass)."""

    on: tuple[int, ...] = ()
    off: tuple[int, ...] = ()
    again_s: float | None = None


class NodePower:
    """Switches nodes by need. ``warm``: empty nodes of each kind that stay on for what comes next."""

    def __init__(self, *, warm: int = 1) -> None:
        if warm < 0:
            raise BadSpec(f"a warm reserve of {warm} nodes makes no sense; give 0 or more")
        self.warm = warm
        self._known: dict[str, _Levels] = {}

    def look(self, now_s: float, floor: Floor, waiting_gpus: int, *, room: int | None = None) -> Switching:
        """What to switch, now that jobs are placed and ``waiting_gpus`` more are wanted than powered nodes have.

        Never boots more nodes than these and the reserve need. ``room``: how many nodes without a job, empty or about
        to boot, there are watts for (None: any number); empty ones beyond it go off at once. The floor stays as it is.
        """
        kind = floor.kind
        room = kind.nodes if room is None else room
        known = self._known.setdefault(kind.name, _Levels([], [], []))
        known.fit(kind.nodes)
        more = -(-waiting_gpus // kind.gpus_per_node)
        called = min(kind.nodes, floor.busy + more + min(self.warm, room))
        self._remember(known, now_s, called)
        coming = floor.on + len(floor.booting)
        empty = floor.empty
        off = max(0, len(empty) - room)
        if coming < called:
            # The node that slept longest: boots are spread over all, for their power supplies' sake.
            rested = sorted(floor.off, key=lambda node: (known.booted_s.get(node, float("-inf")), node))
            on = tuple(rested[: max(0, min(called - coming, room - len(empty)))])
            known.booted_s.update(dict.fromkeys(on, now_s))
            return Switching(on=on, off=empty[len(empty) - off :])
        wait_s = break_even_s(kind)
        again_s = None
        # Levels from the top: the one that was least called for goes first.
        for level in range(coming - 1 - off, called - 1, -1):
            if off == len(empty):
                break
            since_s = known.below_s[level]
            assert since_s is not None  # it is above what is called for
            long = known.gaps[level] >= _GAPS_SEEN and known.gap_s[level] >= _LONG * wait_s
            due_s = now_s if long else since_s + wait_s
            if due_s > now_s:
                again_s = due_s if due_s < float("inf") else None
                break
            off += 1
        return Switching(off=empty[len(empty) - off :], again_s=again_s)

    def _remember(self, known: _Levels, now_s: float, called: int) -> None:
        for level in range(called - 1, -1, -1):  # called for again: a gap has ended
            since_s = known.below_s[level]
            if since_s is None:
                break
            known.below_s[level] = None
            seen = known.gaps[level]
            weight = max(_NEW_GAP, 1.0 / (seen + 1))
            known.gap_s[level] += weight * (now_s - since_s - known.gap_s[level])
            known.gaps[level] = seen + 1
        for level in range(called, len(known.below_s)):
            if known.below_s[level] is not None:
                break
            known.below_s[level] = now_s
