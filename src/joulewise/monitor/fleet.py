"""A fleet's past, summed: what every kind of work took, how its GPUs were used meanwhile, and what idle ones took.

What it is: DCGM's series from a Prometheus, read piece by piece and joined window by window, so that memory does not
grow with the length of the history. A window is ``step_s`` long; it is busy or idle, and belongs to a job where labels
say so. Windows without a job are told apart by how they look (power, activity), since many kinds of work would
otherwise be averaged into one that never ran. What it is not: an estimate (``report/fleet``).

Joules are mean power × time, corrected by the energy counters of that GPU model where there are any: power is sampled
at scrapes, the counter misses nothing. A counter that starts anew, and a gap in the series, cost the windows that they
touch. Moments without any series count neither as time nor as energy. A window without a scrape would count as no
energy either, so windows are never shorter than two scrapes are apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from joulewise.core.errors import BadSpec, NoReading
from joulewise.device import dcgm
from joulewise.device.dcgm import METRICS, POWER, Metric
from joulewise.model.fleet import Sight
from joulewise.monitor.fleet_sums import Reader
from joulewise.monitor.prometheus import Prometheus, Span

_SANE_RATIO = (0.8, 1.25)  # of counter to power: beyond, one of them is in another unit
_LOOK_S = 600.0  # in which scrapes are counted: those further apart than half of it leave gaps in Prometheus itself
_SCRAPES = 1.8  # in a window, at least: two, with one in ten missed
# Of the GPUs are scraped this often at least: some have only just come, and look slow. Of a few, the slowest counts all
# the same: windows that are too long lose detail, those that are too short lose energy.
_SLOWEST = 0.9
_WHOLE = 0.8  # a GPU with less of its windows has gaps that are worth a word


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
    """The fleet whose series match, over the moments of ``span``; each stands for the ``step_s`` before it, or for
    longer where scrapes are too far apart for that.

    Raises NoReading where there is no such series, or none in that time; BadSpec where no series has a label of ``by``;
    and as `Prometheus` does.
    """
    series, scrape_s = _look(server, span, match)
    span, notes = _stretched(span, scrape_s)
    reader = Reader(by, span.step_s)
    pieces = list(span.pieces(series))
    for number, piece in enumerate(pieces, 1):
        if len(pieces) > 1:
            progress(f"reading {number} of {len(pieces)}")
        reader.take(piece, {metric.name: server.range(_query(metric, match, span.step_s), piece) for metric in METRICS})
    if POWER.name not in reader.found:
        raise NoReading(_nothing(server, span, match))
    for label in by:
        if label not in reader.labels:
            there = ", ".join(sorted(reader.labels - {"__name__"}))
            raise BadSpec(f"--by {label}: no series has that label; there are {there}")
    return _fleet(reader, span, [*notes, *warned(server)])


def warned(server: Prometheus) -> list[str]:
    """What is to be said of the answers so far."""
    return [f"{server.url} warns, and its answers may lack something: {warning}" for warning in server.warnings]


def _look(server: Prometheus, span: Span, match: str) -> tuple[int, float | None]:
    """About how many series a metric has (jobs that come and go make new ones), and how many seconds GPUs are scraped
    apart; None where there is none at the moments that were looked at."""
    query = f"count_over_time({dcgm.selector(POWER, match)}[{_LOOK_S:.0f}s])"
    scrapes: dict[str, float] = {}
    most = 0
    for at_s in (span.start_s, 0.5 * (span.start_s + span.end_s), span.end_s):
        found = server.now(query, at_s)
        most = max(most, len(found))
        for labels, count in found:
            gpu = dcgm.whose(labels).gpu
            scrapes[gpu] = max(count, scrapes.get(gpu, 1.0))
    apart_s = [_LOOK_S / count for count in scrapes.values()]
    return 2 * most + 1, float(np.quantile(apart_s, _SLOWEST, method="higher")) if apart_s else None


def _stretched(span: Span, scrape_s: float | None) -> tuple[Span, list[str]]:
    """The span with windows of two scrapes at least, in whole minutes where they must grow, and what to say."""
    if scrape_s is None or span.step_s >= _SCRAPES * scrape_s:
        return span, []
    step_s = 60.0 * math.ceil(_SCRAPES * scrape_s / 60.0 - 1e-9)
    end_s = math.floor(span.end_s / step_s) * step_s
    count = max(1, round(span.count * span.step_s / step_s))
    note = f"windows of {step_s:g} s, not {span.step_s:g}: power is scraped every {scrape_s:.0f} s"
    return Span(end_s - (count - 1) * step_s, step_s, count), [note]


def _query(metric: Metric, match: str, step_s: float) -> str:
    over = "last_over_time" if metric.counter else "avg_over_time"
    return f"{over}({dcgm.selector(metric, match)}[{round(step_s)}s])"


def _nothing(server: Prometheus, span: Span, match: str) -> str:
    where = f" that match {{{match}}}" if match else ""
    first, last = (
        datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
        for at_s in (span.start_s - span.step_s, span.end_s)
    )
    when = f"between {first} and {last} UTC"
    if _any(server, span.end_s, match):
        return f"{server.url} has DCGM's series{where}, but no value in {POWER.series} {when}; export it, or see --days"
    if match and _any(server, span.end_s, ""):
        return f"{server.url} has DCGM's series, but none{where} {when}; check --match"
    return (
        f"{server.url} has no DCGM series{where} {when}; "
        "is dcgm-exporter scraped by this server, or is its history kept elsewhere? --days and --until say when"
    )


def _any(server: Prometheus, at_s: float, match: str) -> bool:
    """Whether there is any series of DCGM's that matches."""
    return bool(server.now(f'count({{__name__=~"{dcgm.PREFIX}.*",{match}}})', at_s))


def _fleet(reader: Reader, span: Span, notes: list[str]) -> Fleet:
    kinds, factors = [], {}
    notes += _gaps(reader)
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


def _gaps(reader: Reader) -> list[str]:
    """What is to be said of GPUs that are not seen all the time."""
    told = []
    if silent := sum(not seen.windows for seen in reader.seen.values()):
        told.append(f"{silent} of {len(reader.seen)} GPUs are left out: their power is never a value")
    holds = [seen.holds(reader.step_s) for seen in reader.seen.values() if seen.windows]
    if some := sum(hold < _WHOLE for hold in holds):
        told.append(
            f"{some} of {len(holds)} GPUs have readings in less than {100 * _WHOLE:g} % of the windows between their "
            "first and last: what they took in the others is not counted"
        )
    return told
