"""How long does a decision take, how near is it to the best there is, and how fast is the simulator?

    python -m bench.cluster_speed [--json] [--quick]

Four questions, all on made-up jobs (``bench.cluster_made``, by seed; no public trace) and in CPU seconds of one thread:

1. Is the PowerFlow-style greedy what it should be? A snapshot study from the literature on it, redone: jobs of seven
   published models on A100s (fitted step times), a budget 20, 50 or 80 % of the way from the least energy on one GPU
   each to what the greedy spends unbounded; the average remaining time of the greedy over the exact optimum (HiGHS).
   Expected: 1.04 to 1.16 on average.
2. CPU seconds of a whole round (prices, then placement) with nothing remembered, for 100 to 3,000 jobs, under a price
   of energy, an energy budget (the price has to be found) and a power cap; the slowest of these counts.
3. How far each decision is from the exact optimum of its own objective, where HiGHS ends in time, and what gap the
   decision itself states.
4. Rounds per second of the simulator with Tiresias and with ours, and how both grow with the cluster.

Figures: ``round_cpu_s_N``, ``milp_gap`` (the widest of 3), ``stated_gap``, ``rounds_per_s_512`` (Tiresias),
``rounds_per_s_512_priced``, ``greedy_over_exact``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.cluster_made import kind, snapshot, submissions
from bench.cluster_speed_study import study
from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.priced import Decision, Terms, priced
from joulewise.cluster.allocators.priced_menu import card, menu
from joulewise.cluster.allocators.priced_worth import Worth
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.round import Round
from joulewise.cluster.simulator import simulate
from joulewise.cluster.state import Allocator, Budget, Snapshot, cluster_power_w
from joulewise.core.errors import JoulewiseError

Out = Callable[[str], None]

# Jobs and GPUs; the second and the last are those with a bar.
SIZES = ((100, 256), (300, 1024), (1000, 3400), (3000, 10_000))
# A joule at which an A100 at full power costs its job about as much as its time: neither end of the trade.
JOULE_S = 1e-3


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--quick", action="store_true", help="small sizes only, to see that it runs")
    options.add_argument("--milp-s", type=float, default=60.0, metavar="S", help="time limit of HiGHS (%(default)s)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; 2 where a part is missing."""
    options = parser().parse_args(arguments)
    out: Out = partial(print, file=sys.stderr, flush=True) if options.json else print
    try:
        figures = _figures(options, out)
    except JoulewiseError as error:
        print(f"bench.cluster_speed: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"figures": figures}))
    else:
        print("\n".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return 0


def _figures(options: argparse.Namespace, out: Out) -> dict[str, float]:
    sizes = ((20, 64), (40, 128)) if options.quick else SIZES
    cases = ((10, 64, 2),) if options.quick else ((10, 64, 8), (20, 64, 8), (40, 128, 8), (100, 256, 4))
    figures = {"greedy_over_exact": study(cases, out)}
    gaps, stated = [], []
    for jobs, gpus in sizes:
        seen = snapshot(jobs, gpus, seed=1)
        slowest = 0.0
        for name, budget in _budgets(seen).items():
            cpu_s = _round_s(seen, budget)
            slowest = max(slowest, cpu_s)
            gap, own = _gaps(seen, budget, options.milp_s)
            stated.append(own)
            if gap is not None:
                gaps.append(gap)
            near = "HiGHS did not end" if gap is None else f"{gap:.3%} from HiGHS' optimum"
            out(f"{jobs} jobs, {gpus} GPUs, {name}: {cpu_s:.3f} CPU s a round; {near}, gap stated {own:.3%}")
        figures[f"round_cpu_s_{jobs}"] = slowest
    figures["milp_gap"] = max(gaps)
    figures["stated_gap"] = max(stated)
    figures |= _simulated((64,) if options.quick else (128, 512, 2048), 60 if options.quick else 1000, out)
    return figures


def _budgets(seen: Snapshot) -> dict[str, Budget]:
    """A price of energy, an energy budget half way from the least, and 60 % of the watts it would draw."""
    there = menu(seen.jobs, seen.kinds, ByWays(card))
    assert there is not None
    energy_j = there.energy_j
    least = energy_j.min(axis=(1, 2))
    free = priced()(seen, Budget())
    slot_w = {kind.name: kind.slot_w for kind in seen.kinds}
    usual = 0.0  # what runs as it would without a budget, and the least for those who wait
    for job, needs in zip(there.jobs, least.tolist(), strict=True):
        way = free.ways.get(job.name)
        usual += needs if way is None else job.work_left * (way.unit_j + way.unit_s * way.gpus * slot_w[way.kind])
    return {
        "a price of energy": Budget(joule_s=JOULE_S),
        "an energy budget": Budget(energy_j=0.5 * (float(least.sum()) + usual)),
        "a power cap": Budget(power_w=0.6 * cluster_power_w(seen, free)),
    }


def _round_s(seen: Snapshot, budget: Budget) -> float:
    """CPU seconds of one round on an empty cluster with nothing remembered."""
    round_ = Round(priced(), nodes=NodePower(), budget=budget)
    floors = round_.floors(seen.kinds)
    begun = time.process_time()
    round_.decide(seen, floors)
    return time.process_time() - begun


def _gaps(seen: Snapshot, budget: Budget, limit_s: float) -> tuple[float | None, float]:
    """How far a decision is from the exact optimum of the same values and limits (None: HiGHS did not end), and the
    gap that it states. Without the step that fills up nodes: it follows another price than the market's."""
    there = menu(seen.jobs, seen.kinds, ByWays(card))
    assert there is not None
    terms = Terms(fill=False)
    decision = Decision(seen, budget, Worth(seen, there, terms), terms)
    choice = decision.choice()
    value = decision.values(choice)
    exact, bound = decision.exact(choice, value, limit_s)
    ours, most = decision.worth(choice, value), decision.worth(exact, value)
    ended = bound - most <= 2e-4 * abs(bound)
    return (max(0.0, most - ours) / most if ended else None), choice.gap


def _simulated(clusters: Sequence[int], jobs: int, out: Out) -> dict[str, float]:
    figures: dict[str, float] = {}
    policies: dict[str, tuple[Allocator, Budget]] = {
        "": (tiresias(), Budget()),
        "_priced": (priced(), Budget(joule_s=JOULE_S)),
    }
    for gpus in clusters:
        coming = submissions(jobs * max(1, gpus // 512), gpus, 0.9, seed=2)
        for name, (allocate, budget) in policies.items():
            begun = time.process_time()
            came = simulate(coming, (kind(gpus),), Round(allocate, nodes=NodePower(), budget=budget))
            rate = came.rounds / (time.process_time() - begun)
            figures[f"rounds_per_s_{gpus}{name}"] = rate
            what = "ours" if name else "Tiresias"
            out(f"{gpus} GPUs, {len(coming)} jobs, {what}: {came.rounds} rounds, {rate:,.0f} a second")
    return figures


if __name__ == "__main__":
    sys.exit(main())
