"""What came of a step in the cap: how soon it was kept, how many joules were above it until then, and whether it held.

What it is: one pure function of two series, the cluster's true power and its cap, the same for a simulation and for a
real run. Power is a step function of time (each value holds until the next one), and so is the cap. ``settle_s`` is how
long the cluster must have stayed within the cap to count as having complied: a sensor's noise and a job's own swing
make single values pass it. Where power is averaged over a moment first (``smoothed``), say so: one value of a fast
sensor can be above what any meter at the wall would see.
What it is not: a judgement; the caller compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from joulewise.core.errors import BadSpec

Series = Sequence[tuple[float, float]]
"""(time in s, watts), in order of time; each holds until the next."""


@dataclass(frozen=True, slots=True)
class Response:
    """``complied_s``: from the step until power stayed within the cap for ``settle_s``; None: it never did.
    ``overshoot_j``: energy above the cap until then. ``after_j`` and ``above_w``: energy above the cap, and the most by
    which it was passed, after that; 0 where it held. ``before_w``, ``after_w``: mean power before and after."""

    complied_s: float | None
    overshoot_j: float
    after_j: float
    above_w: float
    before_w: float
    after_w: float

    @property
    def held(self) -> bool:
        """Whether the cap was complied with and kept from then on."""
        return self.complied_s is not None and self.after_j == 0.0


def response(
    power: Series,
    cap_w: Callable[[float], float | None],
    step_s: float,
    until_s: float,
    *,
    settle_s: float = 0.0,
    tolerance: float = 0.0,
    before_s: float = 60.0,
) -> Response:
    """How a cluster followed a step of its cap at ``step_s``, looked at until ``until_s``.

    ``cap_w`` gives the cap at a time (None: no limit); it is looked at where power changes. ``tolerance``: what may be
    above the cap, relative to it, and counts as within. BadSpec where the series does not reach from before the step
    to after it.
    """
    if len(power) < 2 or power[0][0] > step_s or until_s <= step_s:
        raise BadSpec(
            f"a power series of {len(power)} values cannot tell of a step at {step_s:g} s; it must begin before the "
            "step and go on after it"
        )
    pieces = _pieces(power, step_s, until_s)
    over = [(from_s, to_s, watts, _above(watts, cap_w(from_s), tolerance)) for from_s, to_s, watts in pieces]
    complied_at = _complied(over, until_s, settle_s)
    split_s = until_s if complied_at is None else complied_at
    late = [(to_s - from_s, above_w) for from_s, to_s, _, above_w in over if from_s >= split_s]
    return Response(
        None if complied_at is None else complied_at - step_s,
        sum((to_s - from_s) * above_w for from_s, to_s, _, above_w in over if from_s < split_s),
        sum(took_s * above_w for took_s, above_w in late),
        max((above_w for _, above_w in late), default=0.0),
        _mean(_pieces(power, max(power[0][0], step_s - before_s), step_s)),
        _mean([(from_s, to_s, watts) for from_s, to_s, watts, _ in over if from_s >= split_s]),
    )


def smoothed(power: Series, mean_s: float) -> list[tuple[float, float]]:
    """Each value as the mean over the ``mean_s`` before it (as far as the series reaches): a meter that is no faster
    than that."""
    if not mean_s > 0:
        raise BadSpec(f"a mean over {mean_s:g} s makes no sense; it must be above 0")
    sums = [0.0]
    for (from_s, watts), (to_s, _) in pairwise(power):
        sums.append(sums[-1] + watts * (to_s - from_s))
    found = []
    first = 0
    for at, (time_s, watts) in enumerate(power):
        begin_s = max(power[0][0], time_s - mean_s)
        while first + 1 <= at and power[first + 1][0] <= begin_s:
            first += 1
        whole_j = sums[at] - sums[first] - power[first][1] * (begin_s - power[first][0])
        found.append((time_s, whole_j / (time_s - begin_s) if time_s > begin_s else watts))
    return found


def _pieces(power: Series, from_s: float, until_s: float) -> list[tuple[float, float, float]]:
    """(from, to, watts) between two times, without those of no length."""
    ends = [*(time_s for time_s, _ in power[1:]), until_s]
    cut = (
        (max(time_s, from_s), min(end_s, until_s), watts) for (time_s, watts), end_s in zip(power, ends, strict=True)
    )
    return [piece for piece in cut if piece[1] > piece[0]]


def _above(watts: float, cap_w: float | None, tolerance: float) -> float:
    return 0.0 if cap_w is None or watts <= cap_w * (1.0 + tolerance) else watts - cap_w


def _complied(over: Sequence[tuple[float, float, float, float]], until_s: float, settle_s: float) -> float | None:
    """From when on power stayed within the cap for ``settle_s``, or to the end."""
    since_s: float | None = None
    for from_s, to_s, _, above_w in over:
        if above_w > 0:
            since_s = None
            continue
        since_s = from_s if since_s is None else since_s
        if to_s - since_s >= min(settle_s, until_s - since_s):
            return since_s
    return None


def _mean(pieces: Sequence[tuple[float, float, float]]) -> float:
    took_s = sum(to_s - from_s for from_s, to_s, _ in pieces)
    return sum((to_s - from_s) * watts for from_s, to_s, watts in pieces) / took_s if took_s > 0 else float("nan")
