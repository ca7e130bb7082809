"""A fleet's past, summed: what every kind of work took, how its GPUs were used meanwhile, and what idle ones took.

What it is: DCGM's series from a Prometheus, read piece by piece and joined window by window, so that memory does not
grow with the length of the history. A window is ``step_s`` long; it is busy or idle, and belongs to a job where labels
say so. Windows without a job are told apart by how they look (power, activity), since many kinds of work would
otherwise be averaged into one that never ran. What it is not: an estimate (``report/fleet``).

Joules are mean power × time, corrected by the energy counters of that GPU model where there are any: power is sampled
at scrapes, the counter misses nothing. A counter that starts anew, and a gap in the series, cost the windows that they
touch. Moments without any series count neither as time nor as energy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulewise.core.errors import NoReading
from joulewise.device import dcgm
from joulewise.device.dcgm import METRICS, POWER, Metric
from joulewise.model.fleet import Sight
from joulewise.monitor.fleet_sums import Reader
from joulewise.monitor.prometheus import Prometheus, Span

_SANE_RATIO = (0.8, 1.25)  # of counter to power: beyond, one of them is in another unit


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work on one GPU model: a job, or windows without a job that look alike."""

    gpu_name: str
    job: str
    gpus: int
    """How many GPUs it was seen on."""
    busy_s: float
    """GPU-seconds."""
    energy_j: float
    sight: Sight
    split: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """All GPUs of one model."""

    name: str
    gpus: int
    energy_j: float
    held_j: float
    """While idle, with a job's label on it."""
    free_j: float
    """While idle, nobody's."""
    held_s: float
    free_s: float
    most_w: float
    most_sm_mhz: float | None
    limit_w: float | None
    counted: bool
    """Whether its energy counters were used."""
    most_memory_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was read."""

    start_s: float
    end_s: float
    step_s: float
    covered_s: float
    """Moments with any reading, in seconds: shorter than the range where the history is, or has gaps."""
    kinds: tuple[Kind, ...]
    works: tuple[Work, ...]
    missing: tuple[Metric, ...]
    """Metrics that nobody exports."""
    notes: tuple[str, ...] = ()


def read(
    server: Prometheus,
    span: Span,
    *,
    match: str = "",
    by: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Fleet:
    """The fleet whose series match, over the moments of ``span``; each stands for the ``step_s`` before it.

    Raises NoReading where there is no such series, or none in that time; and as `Prometheus` does.
    """
    reader = Reader(by, span.step_s)
    pieces = list(span.pieces(_series(server, span, match)))
    for number, piece in enumerate(pieces, 1):
        if len(pieces) > 1:
            progress(f"reading {number} of {len(pieces)}")
        reader.take(piece, {metric.name: server.range(_query(metric, match, span.step_s), piece) for metric in METRICS})
    if POWER.name not in reader.found:
        raise NoReading(_nothing(server, span, match))
    return _fleet(reader, span)


def _series(server: Prometheus, span: Span, match: str) -> int:
    """About how many series a metric has: jobs that come and go make new ones."""
    query = f"count({dcgm.selector(POWER, match)})"
    at_s = (span.start_s, 0.5 * (span.start_s + span.end_s), span.end_s)
    return 2 * max(round(sum(value for _, value in server.now(query, each_s))) for each_s in at_s) + 1


def _query(metric: Metric, match: str, step_s: float) -> str:
    over = "last_over_time" if metric.counter else "avg_over_time"
    return f"{over}({dcgm.selector(metric, match)}[{round(step_s)}s])"


def _nothing(server: Prometheus, span: Span, match: str) -> str:
    where = f" that match {{{match}}}" if match else ""
    with_any = server.now(f'count({{__name__=~"{dcgm.PREFIX}.*"}})', span.end_s)
    if match and with_any:
        return f"{server.url} has DCGM's series, but none{where}; check --match"
    if with_any:
        return f"{server.url} has DCGM's series, but no {POWER.series} in that time; export it, or check --days"
    days = (span.end_s - span.start_s + span.step_s) / 86_400.0
    return (
        f"{server.url} has no DCGM series{where} in the last {days:g} days; "
        "is dcgm-exporter scraped by this server, or is its history kept elsewhere?"
    )


def _fleet(reader: Reader, span: Span) -> Fleet:
    kinds, factors, notes = [], {}, []
    for name, of in sorted(reader.kinds.items()):
        ratio = of.counter_j / of.under_counter_j if of.under_counter_j > 0.0 else 0.0
        counted = _SANE_RATIO[0] <= ratio <= _SANE_RATIO[1]
        if of.counter_j > 0.0 and not counted:
            notes.append(
                f"{name or 'unnamed GPUs'}: energy counters say {ratio:.2g} times what power does and are not used"
            )
        factors[name] = joules = reader.step_s * (ratio if counted else 1.0)
        (held, held_w), (free, free_w) = of.idle[True], of.idle[False]
        kinds.append(
            Kind(
                name,
                len(of.gpus),
                of.power_s * joules,
                held_w * joules,
                free_w * joules,
                held * reader.step_s,
                free * reader.step_s,
                of.most_w,
                of.most_sm_mhz,
                of.limits[0] / of.limits[1] if of.limits[1] else None,
                counted,
                of.most_memory_mhz,
            )
        )
    works = [
        Work(
            name,
            job,
            len(sums.gpus),
            sums.windows * reader.step_s,
            sums.power * factors[name],
            sums.sight(),
            split,
        )
        for (name, job, split, _), sums in reader.works.items()
    ]
    works.sort(key=lambda work: -work.energy_j)
    missing = tuple(metric for metric in METRICS if metric.name not in reader.found)
    return Fleet(
        span.start_s - span.step_s,
        span.end_s,
        span.step_s,
        reader.moments * span.step_s,
        tuple(kinds),
        tuple(works),
        missing,
        tuple(notes),
    )
