"""From a few measured clocks to the options of a rank's operations, with error bars: the law of the GPU fills the gaps.

A kind of operation at a few clocks is a job of its own to ``model/dvfs``, which believes what was measured and, in
between, what the law of GPUs and its departures from it allow. Nothing is offered below the lowest clock measured.

``paced`` finds what a transfer between ranks takes: what makes the schedule, played with measured times, as long as it
was measured to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.core.block import Block
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, SM_MHZ, Setting
from joulewise.device.gpu import GpuInfo
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief
from joulewise.plan.plan import unset
from joulewise.plan.profile import Options, Profile
from joulewise.plan.schedules import Schedule
from joulewise.tune.follow_spans import Kind

SPREAD = (0.75, 0.5, 0.92, 0.6, 0.83)
"""Shares of the clock that runs by itself at which operations are measured, besides nothing set, in this order: up and
down, so that a board that warms meanwhile favours none. Least energy lies between 0.55 and 0.8 on known GPUs."""
_OPTIONS = 24
"""Clocks to choose from for each kind: steps of about 2 %."""
_HIGHEST = 0.997
"""Of the clock that runs by itself: a lock nearer to it changes nothing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One kind of operation at one setting, as measured on one GPU."""

    setting: Setting
    count: int
    time_s: float
    time_error_s: float
    power_w: float
    power_error_w: float
    sm_mhz: float | None = None
    capped: bool | None = None


def probes(info: GpuInfo, highest_mhz: float) -> list[Setting]:
    """The settings to measure, in order: nothing set first and last. ``highest_mhz`` is what runs when nothing is set.

    BadSpec where this GPU's clock cannot be set.
    """
    choices = info.space.knobs.get(SM_MHZ.name)
    if choices is None:
        raise BadSpec(f"the SM clock of {info.name} cannot be set, so there is nothing to plan")
    clocks = dict.fromkeys(choices.at_most(share * highest_mhz) for share in SPREAD)
    below = [Setting(sm_mhz=clock) for clock in clocks if clock < _HIGHEST * highest_mhz]
    if len(below) < 2:
        raise BadSpec(f"{info.name} has only {len(below)} clocks that could be tried; a plan needs 2 or more")
    return [DEFAULT, *below, DEFAULT]


def options(seen: Mapping[Kind, Sequence[Seen]], info: GpuInfo) -> dict[Kind, Options]:
    """What each kind costs at every clock worth choosing, from what was measured at some. BadSpec without a default."""
    return {kind: _filled(kind, rows, info) for kind, rows in seen.items()}


def paced(schedule: Schedule, profile: Profile, span_s: float) -> Schedule:
    """The schedule with such a transfer time that, with nothing set, a rank's first operation begins ``span_s`` before
    its last one ends, on the rank where that is longest. 0 where it is as long without."""

    def longest_s(transfer_s: float) -> float:
        tried = replace(schedule, transfer_s=transfer_s)
        chosen = profile.of(tried.dag)
        durations_s = [points[unset(points)].time_s for points in chosen]
        starts_s = tried.dag.starts_s(durations_s)
        spans: dict[int, tuple[float, float]] = {}
        for operation, start_s, duration_s in zip(tried.dag.operations, starts_s, durations_s, strict=True):
            first_s, last_s = spans.get(operation.rank, (start_s, 0.0))
            spans[operation.rank] = min(first_s, start_s), max(last_s, start_s + duration_s)
        return max(last_s - first_s for first_s, last_s in spans.values())

    low_s, high_s = 0.0, span_s
    if longest_s(low_s) >= span_s:
        return replace(schedule, transfer_s=0.0)
    for _ in range(30):  # to a billionth of an iteration
        middle_s = 0.5 * (low_s + high_s)
        low_s, high_s = (middle_s, high_s) if longest_s(middle_s) < span_s else (low_s, middle_s)
    return replace(schedule, transfer_s=low_s)


def _filled(kind: Kind, rows: Sequence[Seen], info: GpuInfo) -> Options:
    base = [row for row in rows if not row.setting]
    if not base:
        raise BadSpec(f"the {kind[1]} of stage {kind[0]} was not measured with nothing set")
    choices = info.space.knobs[SM_MHZ.name]
    belief = Belief(info.space, model=_known(info), default_limit_w=info.default_limit_w)
    for row in rows:
        belief.tell(_block(row))
    time_s, time_error_s = _together([(row.time_s, row.time_error_s) for row in base])
    power_w, power_error_w = _together([(row.power_w, row.power_error_w) for row in base])
    energy_j = time_s * power_w
    lowest_mhz = min((row.setting[SM_MHZ.name] for row in rows if row.setting), default=choices.high)
    clocks = [mhz for mhz in choices.all() if lowest_mhz <= mhz < _HIGHEST * belief.default_mhz]
    step = max(1, round(len(clocks) / _OPTIONS))
    settings = [Setting(sm_mhz=mhz) for mhz in clocks[::step]]
    points = [Point(time_s, energy_j, DEFAULT, time_error_s, time_s * power_error_w)]
    if settings:
        said = belief.predict(settings)
        for at, setting in enumerate(settings):
            points.append(
                Point(
                    time_s * float(said.time[at]),
                    energy_j * float(said.energy[at]),
                    setting,
                    time_s * float(said.time_error[at]),
                    energy_j * float(said.energy_error[at]),
                )
            )
    return tuple(points)


def _together(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of values with errors, each counting by the inverse of its variance, and its error."""
    weights = [1.0 / max(error, 1e-9 * value) ** 2 for value, error in seen]
    mean = sum(weight * value for weight, (value, _) in zip(weights, seen, strict=True)) / sum(weights)
    return mean, sum(weights) ** -0.5


def _block(row: Seen) -> Block:
    duration_s = row.count * row.time_s
    return Block(
        setting=row.setting,
        start_s=0.0,
        end_s=duration_s,
        work=float(row.count),
        duration_s=duration_s,
        energy_j=duration_s * row.power_w,
        energy_error_j=duration_s * row.power_error_w,
        time_error=row.time_error_s / row.time_s,
        sm_mhz=row.sm_mhz,
        power_capped=row.capped,
    )


def _known(info: GpuInfo) -> GpuModel | None:
    try:
        return catalog.load(info.name)
    except BadSpec:
        return None
