"""How much shorter are jobs at equal energy? Ours against PowerFlow-style and every other policy, on public traces.

    python -m bench.cluster energy --trace FILE… [--gpus N] [--full] [--json] [--decisions FILE] [--plot FILE]

Truth: measured throughput tables × measured clock curves × one of two power laws (``bench.cluster_truth``); beliefs
are fitted online to noisy probes (known of every model from the start, to all policies alike) and to what jobs do;
sizes are predicted with an error σ. Every policy gets the same jobs, probes, predictions, placement and power-off, and
is swept over its own knob. Energy is realised energy of the whole cluster, idle GPUs, hosts, sleeping nodes and boots
included, over one horizon for all policies of a case. Ours was chosen on made-up jobs, but for one thought: that GPUs
which fill a node cost no host came from a first look at these traces.

By default each trace is cut to a window of ``--jobs`` jobs from its middle, and every load of every trace is played
with one σ and one power law, so that all of them come up in turn; ``--full`` plays whole traces and every combination.
FILE may be FILE@TENANT; of a trace with tenants the one with most GPU time is taken.

The figures: ``jct_ratio_powerflow``, the geometric mean over cases of PowerFlow-style's time ÷ ours at equal energy,
each the median over nine energies that both reach, with a 90 % interval by bootstrap over traces and its minimum.
PowerFlow's curve is that of its own knob, an energy budget, swept finely, with its queue by arrival or by the
same size predictions that ours has, the best of all (``…_arrival``: without the latter). A variant of ours, which stops
at a threshold of gain, is nearly a price itself and much stronger: ``…_threshold`` is against it, ``…_best`` against
the best of everything, so read that one too. Then the strongest other baseline of each case, maximum and mean;
``budget_overrun``, the worst period of a budget with models wrong by ±20 %; ``fragmentation_kwh_saved``, buddy blocks
against the better of spreading and first fit, on placements with measured cost between nodes; and the gain by
mechanism. Progress goes to stderr; ``--json`` ends with one object ``{"figures": {…}, …}``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from bench import cluster_energy_checks as checks
from bench import cluster_energy_report as report
from bench.cluster_energy_loads import LOADS, SIGMAS
from bench.cluster_energy_policies import BASELINES, OURS, POWERFLOW, knobs_of
from bench.cluster_energy_power import POWERS
from bench.cluster_energy_run import CaseKey, Piece, Run, jobs_lines, lines, play
from bench.pool import processes
from bench.public_sweeps import data_folder
from joulewise.core.errors import JoulewiseError

JOBS = 150
"""In a window: enough for a queue to build up at a load of 1.1, few enough for five traces in twenty minutes."""
_KNOBS_A_PIECE = 8  # so that pieces end evenly


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="bench.cluster energy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--trace", nargs="+", required=True, metavar="FILE", help="traces, as joulewise reads them")
    options.add_argument("--gpus", type=int, metavar="N", help="of the cluster (default: such that the load is 0.9)")
    options.add_argument("--full", action="store_true", help="whole traces, every load × σ × power law; takes hours")
    options.add_argument("--jobs", type=int, default=JOBS, help="in a window of a trace (default: %(default)s)")
    options.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    options.add_argument("--only", nargs="+", metavar="POLICY", help="beside ours, only these policies")
    options.add_argument("--loads", nargs="+", type=float, default=list(LOADS), help="default: 0.5 0.9 1.1")
    options.add_argument("--no-checks", action="store_true", help="without ablations, budgets and fragmentation")
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--decisions", type=Path, metavar="FILE", help="write every allocation, a JSON object a line")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw completion time against energy")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 where the input cannot be used."""
    options = parser().parse_args(arguments)
    if options.jobs < 2 or min(options.loads) <= 0:
        parser().error("--jobs is 2 or more, --loads are above 0")
    unknown = set(options.only or ()) - {POWERFLOW, *BASELINES}
    if unknown:
        parser().error(f"no policy is called {min(unknown)}; there are {', '.join((POWERFLOW, *BASELINES))}")
    out = partial(print, file=sys.stderr) if options.json else print
    try:
        said = _answer(options, out)
    except (JoulewiseError, OSError) as error:
        print(f"bench.cluster energy: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(said))
    return 0


def _answer(options: argparse.Namespace, out: Callable[..., None]) -> dict[str, Any]:
    keys = case_keys(options)
    policies = (OURS, *(options.only or (POWERFLOW, *BASELINES)))
    for key in keys:  # what cannot be read or does not fit is said before hours of work
        key.case()
    pieces = [piece for key in keys for policy in policies for piece in _pieces(key, policy, options)]
    with contextlib.ExitStack() as stack:
        decisions = stack.enter_context(options.decisions.open("w", encoding="utf-8")) if options.decisions else None
        if decisions:
            for key in keys:
                decisions.writelines(jobs_lines(key))
        pool = stack.enter_context(processes())
        runs = _sweep(pieces, pool, decisions)
        found = {key: report.Scored.of(key, runs[key]) for key in keys}
        said = report.answer(found)
        report.show(found, out)
        if not options.no_checks:
            more = checks.run(found, partial(_each, pool), out)
            said["figures"] |= more.pop("figures")
            said |= more
    report.show_figures(said["figures"], out)
    if options.plot:
        report.plot(found, options.plot)
    return said


def case_keys(options: argparse.Namespace) -> list[CaseKey]:
    """What is played: all combinations with ``--full``, else every load of every trace with σ and law in turn."""
    data = data_folder()
    count = None if options.full else options.jobs
    keys = []
    for at, trace in enumerate(options.trace):
        for number, load in enumerate(options.loads):
            turn = [(SIGMAS[(at + number) % len(SIGMAS)], POWERS[(at + number) % len(POWERS)])]
            chosen = [(sigma, power) for sigma in SIGMAS for power in POWERS] if options.full else turn
            keys += [
                CaseKey(trace, data, load, sigma, power, options.gpus, count, options.seed) for sigma, power in chosen
            ]
    return keys


def _pieces(key: CaseKey, policy: str, options: argparse.Namespace) -> Iterator[Piece]:
    knobs = knobs_of(policy)
    for first in range(0, len(knobs), _KNOBS_A_PIECE):
        chosen = knobs[first : first + _KNOBS_A_PIECE]
        yield Piece(key, policy, chosen, keep_spans=options.decisions is not None)


def _sweep(
    pieces: Sequence[Piece], pool: ProcessPoolExecutor, decisions: TextIO | None
) -> dict[CaseKey, dict[str, list[Run]]]:
    """By case and policy, all runs."""
    found: dict[CaseKey, dict[str, list[Run]]] = {}
    for piece, runs in zip(pieces, _each(pool, "sweep", pieces), strict=True):
        if decisions:
            decisions.writelines(lines(piece, runs))
        found.setdefault(piece.key, {}).setdefault(piece.policy, []).extend(runs)
    return found


def _each(pool: ProcessPoolExecutor, what: str, pieces: Iterable[Piece]) -> Iterator[list[Run]]:
    """Play pieces on all cores, in order, and say on stderr how far it is."""
    asked = list(pieces)
    began_s = time.monotonic()
    for number, runs in enumerate(pool.map(play, asked), 1):
        if number % max(1, len(asked) // 20) == 0 or number == len(asked):
            print(f"{what}: {number} of {len(asked)} pieces, {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        yield runs


if __name__ == "__main__":
    sys.exit(main())
