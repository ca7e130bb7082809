"""One job as a scheduler follows it: how far it is, what a unit takes, which of its ways may be used here.

What it is: the memory of a running scheduler about one job, all of it rebuilt after a restart from the job's own
progress file, the agents' reports and the book. It turns what is seen over a while in one way into one word to the
job's belief: seconds of a unit from the script's own steps and times, joules from its GPUs' counters.
What it is not: the book (``queue``) or a belief (``belief``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from joulewise.cluster.change import same_way
from joulewise.cluster.engine import Order
from joulewise.cluster.life import Belief
from joulewise.cluster.progress import Progress
from joulewise.cluster.state import Kind, Plain, Way
from joulewise.core.knob import SM_MHZ, Setting

# After a first word a job is told of again when it has been seen for this many times as long.
_AGAIN = 4.0
# A setting that a node refused is not tried again for so long.
_REFUSED_S = 600.0


@dataclass(slots=True)
class _Window:
    """What was seen since a job came into its present way. ``key`` names that way, start and place."""

    key: tuple[object, ...]
    step: float | None = None
    step_s: float = 0.0
    gpu_j: float | None = None
    gpu_time_s: float = 0.0
    due_s: float = 0.0


class Track:
    """``belief`` of the order; ``plain``: of any job that asks for as much (None: nobody says); ``done``: units done;
    ``gpu_s``: GPU-seconds held so far."""

    def __init__(
        self, order: Order, belief: Belief, *, plain: Belief | None = None, done: float = 0.0, gpu_s: float = 0.0
    ) -> None:
        self.order = order
        self.belief = belief
        self._plain = plain
        self._largest = 0  # number of GPUs on which it was seen at work
        self.done = done
        self.gpu_s = gpu_s
        self.progress: Progress | None = None
        self._looked_s: float | None = None
        self._window: _Window | None = None
        self._refused: dict[tuple[int, Setting], float] = {}
        self._made: tuple[object, tuple[Way, ...]] | None = None
        self._plain_made: tuple[object, object, tuple[Way, ...]] | None = None

    # Ways.

    def ways(self, kinds: Iterable[Kind], now_s: float) -> tuple[Way, ...]:
        """The ways that this job may have on these nodes; the same object while nothing has changed. May be empty."""
        ways = self.belief.ways()
        refused = frozenset(what for what, until_s in self._refused.items() if until_s > now_s)
        widths = tuple((kind.name, kind.gpus_per_node, kind.gpus) for kind in kinds)
        key = (id(ways), refused, widths)
        if self._made is None or self._made[0] != (ways, key):
            fits = tuple(way for way in ways if self._allowed(way) and _fits(way, widths))
            held = tuple(way for way in fits if (way.gpus, way.setting) not in refused)
            self._made = ((ways, key), held or fits)
        return self._made[1]

    def _allowed(self, way: Way) -> bool:
        order = self.order
        if not order.elastic:
            return way.gpus == order.gpus
        return order.least_gpus <= way.gpus <= (order.most_gpus or math.inf)

    def plain(self, kinds: Iterable[Kind], weight: float) -> Plain | None:
        """How it counts against other users: by the GPUs that it asks for and those that it has had, and by nothing
        that its order or its script says; None where nothing is thought of such a job."""
        if self._plain is None:
            return None
        believed = self._plain.ways()
        widths = tuple((kind.name, kind.gpus_per_node, kind.gpus) for kind in kinds)
        # As far as any elastic job is trusted to scale: to twice of what was seen.
        most = max(self.order.gpus, 2 * self._largest)
        key = (widths, most)
        if self._plain_made is None or self._plain_made[0] is not believed or self._plain_made[1] != key:
            fits = tuple(way for way in believed if way.gpus <= most and _fits(way, widths))
            self._plain_made = (believed, key, fits)
        ways = self._plain_made[2]
        if not ways:
            return None
        asked = min(believed, key=lambda way: (abs(way.gpus - self.order.gpus), way.unit_s))
        return Plain(ways, self._plain.work_left(self.gpu_s / asked.gpus / asked.unit_s), weight)

    def refuse(self, way: Way, now_s: float) -> None:
        """A node would not set this: not again for some minutes."""
        self._refused[way.gpus, way.setting] = now_s + _REFUSED_S

    def refuses(self, now_s: float) -> bool:
        """Whether a setting of it was refused within the last minutes."""
        return any(until_s > now_s for until_s in self._refused.values())

    def nearest(self, gpus: int, kind: str, setting: Setting | None) -> Way | None:
        """The believed way with so many GPUs, with this setting if there is one, else the fastest."""
        same = [way for way in self.belief.ways() if way.gpus == gpus and way.kind == kind]
        exact = next((way for way in same if setting is not None and way.setting == setting), None)
        return exact or min(same, key=lambda way: way.unit_s, default=None)

    # Progress.

    def look(self, now_s: float, way: Way | None, *, runs: bool, read: Callable[[Order], Progress | None]) -> None:
        """See how far it is. Where its script says nothing, its believed pace is counted while it runs."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if way is not None and runs:
            self.gpu_s += way.gpus * passed_s
        seen = read(self.order)
        if seen is not None:
            self.progress = seen
            self.done = float(seen.step)
        elif way is not None and runs:
            self.done += passed_s / way.unit_s

    def work_left(self) -> float:
        """Units left, as predicted; above 0."""
        steps = None if self.progress is None else self.progress.steps
        if steps is not None and steps > self.done:
            return steps - self.done
        return max(self.belief.work_left(self.done), 1e-9)

    def restarted(self) -> None:
        """It begins again from its last checkpoint; one without has to do everything again."""
        if self.progress is not None:
            self.done = float(self.progress.saved_step)
        elif not self.order.elastic:
            self.done = 0.0
        self._window = None

    # What it takes.

    def tell(
        self,
        way: Way,
        nodes: int,
        key: tuple[object, ...],
        gpu_j: tuple[float, float] | None,
        seen_s: float,
    ) -> bool:
        """Tell the belief, if it is time; whether that changed what is believed.

        ``key`` names the present way: another one begins anew. ``gpu_j``: joules of its GPUs so far and when they
        were read; None without agents, and then only time is learnt.
        """
        window = self._window
        if window is None or window.key != key:
            window = self._window = _Window(key, due_s=seen_s)
        progress = self.progress
        if window.step is None and progress is not None:
            window.step, window.step_s = progress.step, progress.time_s
        if window.gpu_j is None and gpu_j is not None:
            window.gpu_j, window.gpu_time_s = gpu_j
        unit_s = way.unit_s
        told = False
        if progress is not None and window.step is not None:
            if progress.time_s - window.step_s < window.due_s or progress.step <= window.step:
                return False
            unit_s = (progress.time_s - window.step_s) / (progress.step - window.step)
            told = True
        watts = way.power_w
        if gpu_j is not None and window.gpu_j is not None:
            took_s = gpu_j[1] - window.gpu_time_s
            if took_s < 0.5 * window.due_s or gpu_j[0] <= window.gpu_j:
                return False
            watts = (gpu_j[0] - window.gpu_j) / took_s
            told = told or took_s >= window.due_s
        if not told:
            return False
        window.due_s *= _AGAIN
        self._largest = max(self._largest, way.gpus)
        before = self.belief.ways()
        self.belief.tell(way, nodes, unit_s, unit_s * watts)
        return self.belief.ways() is not before

    def throttled(self) -> None:
        """Its GPUs were not as declared (a ceiling held them down): what is seen now says nothing of its way."""
        self._window = None


class NoBelief:
    """Of a job of which nothing can be believed: it has no way to run."""

    def ways(self) -> tuple[Way, ...]:
        """None."""
        return ()

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """Nothing comes of it."""

    def work_left(self, done: float) -> float:  # noqa: ARG002 (one protocol)
        """Not known, hence 1."""
        return 1.0


def slowed(declared: Setting, seen: Setting) -> bool:
    """Whether a GPU runs at a lower clock than declared."""
    clock = seen.get(SM_MHZ.name)
    wanted = declared.get(SM_MHZ.name)
    return clock is not None and (wanted is None or clock < wanted - 1.0)


def found(ways: tuple[Way, ...], way: Way) -> Way:
    """The way among those believed now that sets the same, with what is believed of it now; else itself."""
    return next((each for each in ways if same_way(each, way)), way)


def _fits(way: Way, widths: tuple[tuple[str, int, int], ...]) -> bool:
    """On one node, or on whole nodes: engines place nothing else. And not more than there is."""
    for name, width, gpus in widths:
        if way.kind == name:
            return way.gpus <= gpus and (way.gpus <= width or way.gpus % width == 0)
    return False


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a job counts in a decision: ``way`` and ``place`` that it has or is on its way to; None and empty: it waits.
    ``sure``: the engine shows it so."""

    way: Way | None = None
    place: Mapping[str, int] = field(default_factory=dict)
    sure: bool = False
