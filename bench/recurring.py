"""How fast is the best batch size of a recurring job found, and what does finding it cost?

    python -m bench.recurring --train TRAIN.csv --power POWER.csv … [--seeds 100] [--eta 0.5] [--json]
    python -m bench.recurring --laws [--seeds 100] [--json]

With files: Zeus's traces (``bench.recurring_traces``; the GPU's name is the file's stem), every workload of the job
table on every GPU, all policies on the same rules (``bench.recurring_play``): Default, just-in-time limits alone, grid
search, Zeus, and ours; then ours with four overlapping runs, on a second GPU after a first, at other weights η, and on
a job that drifts (``bench.recurring_drift``). With ``--laws``: random jobs (``bench.recurring_laws``), the same rules.

Tables and progress go to stderr under ``--json``, which ends with one object ``{"figures": {…}, "pairs": {…}}``;
``--decisions`` writes every run of every series, one JSON object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from bench import recurring_report as report
from bench.pool import processes
from bench.recurring_series import ETAS, Series, Spread, Told, play_series, scored
from bench.recurring_traces import Truth, truths
from joulewise.core.errors import JoulewiseError

CHUNK = 10
"""Seeds in one piece of work: small enough for an even end, large enough not to matter."""
SWEEP_SEEDS = 20
"""For the weights other than the one asked for: their end state is scored, not their regret."""


def parser() -> argparse.ArgumentParser:
    """The options of both modes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--train", type=Path, metavar="FILE", help="epochs to target: summary_train.csv")
    options.add_argument("--power", type=Path, nargs="+", metavar="FILE", help="epochs by limit: summary_power_GPU.csv")
    options.add_argument("--laws", action="store_true", help="random epoch laws instead of, or beside, the traces")
    options.add_argument("--seeds", type=int, default=100, help="series of each kind (default: %(default)s)")
    options.add_argument("--eta", type=float, default=0.5, help="weight of energy, 0 to 1 (default: %(default)s)")
    options.add_argument("--jobs", type=int, default=200, help="random jobs, with --laws (default: %(default)s)")
    options.add_argument("--only", default="", help="only pairs whose name contains this")
    options.add_argument("--no-drift", action="store_true", help="leave out the drifting job, which trains for minutes")
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--decisions", type=Path, metavar="FILE", help="write every run of every series")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 2 where the input cannot be used."""
    options = parser().parse_args(arguments)
    if bool(options.train) != bool(options.power) or not (options.train or options.laws):
        parser().error("--train and --power go together; without them, --laws")
    if options.seeds < 1 or not 0 <= options.eta <= 1 or options.jobs < 1:
        parser().error("--seeds and --jobs are 1 or more, --eta is between 0 and 1")
    out = partial(print, file=sys.stderr) if options.json else print
    figures: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    try:
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(processes())
            decisions = (
                stack.enter_context(options.decisions.open("w", encoding="utf-8")) if options.decisions else None
            )
            if options.train:
                found = _traces(options, pool, decisions)
                figures |= report.figures(found)
                pairs |= report.pairs(found)
                report.show(found, out)
                if not options.no_drift:
                    from bench import recurring_drift

                    figures |= recurring_drift.run(_spread(pool), options.seeds, out, decisions)
            if options.laws:
                from bench import recurring_laws

                figures |= recurring_laws.run(_spread(pool), options.jobs, out, decisions)
    except (JoulewiseError, OSError) as error:
        print(f"bench.recurring: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"figures": figures, "pairs": pairs}))
    else:
        print("\n".join(f"{name} {value:.4g}" for name, value in figures.items() if value is not None))
    return 0


def _traces(options: argparse.Namespace, pool: ProcessPoolExecutor, decisions: TextIO | None) -> report.Found:
    """Play everything on the traces."""
    known = [each for each in truths(options.train, options.power, options.eta) if options.only in each.name]
    wanted = [
        Series(kind, truth, source)
        for truth in known
        for kind, source in (
            *((kind, None) for kind in report.ALONE),
            *(("transfer", a) for a in _others(truth, known)),
        )
    ]
    wanted += [
        Series("ours", other, None)
        for eta in ETAS
        if eta != options.eta
        for other in truths(options.train, options.power, eta)
        if options.only in other.name
    ]
    pieces = [
        (series, range(first, min(first + CHUNK, last + 1)))
        for series in wanted
        for last in (options.seeds if series.truth.eta == options.eta else min(options.seeds, SWEEP_SEEDS),)
        for first in range(1, last + 1, CHUNK)
    ]
    told: dict[Series, list[Told]] = {}
    for (series, _), done in zip(pieces, _spread(pool)(play_series, pieces), strict=True):
        told.setdefault(series, []).extend(done)
        if decisions:
            decisions.writelines(line for each in done for line in each.lines(series))
    scores = {series: score for series, each in told.items() if (score := scored(series, each))}
    return report.Found(options.eta, tuple(known), scores)


def _others(truth: Truth, known: Iterable[Truth]) -> Iterator[Truth]:
    """The same workload on other GPUs, where these share a batch size."""
    others = (other for other in known if other.workload == truth.workload and other.gpu != truth.gpu)
    return (other for other in others if set(other.sizes) & set(truth.sizes))


def _spread(pool: ProcessPoolExecutor) -> Spread:
    """A map over all cores that says on stderr how far it is."""

    def over(work: Callable[[Any], Any], pieces: Sequence[Any], /) -> Iterator[Any]:
        for number, result in enumerate(pool.map(work, pieces), 1):
            if number % max(1, len(pieces) // 10) == 0:
                print(f"{work.__name__.strip('_')} {number} of {len(pieces)}", file=sys.stderr)
            yield result

    return over


if __name__ == "__main__":
    sys.exit(main())
