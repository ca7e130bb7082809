"""How fast and how exact is the time–energy frontier of a pipeline, beside lowtime's and beside a linear program?

Without ``--profile``: synthetic 1F1B pipelines of 4×8 to 16×128 stages × microbatches (``bench.frontier_cases``) and,
where JOULEWISE_DATA is set, the measured GPT-3 175B stages on A100 and A40 with 12 to 96 microbatches. With it: one
pipeline of the stages in FILE (columns stage, instruction, frequency, time, energy; one GPU a stage).

- CPU seconds are of this process inside ``solve`` (ours, hulls included) and of lowtime's solver loop (its fits not
  counted). lowtime 0.3.0 (Rust cut, 6 ms units) runs in a Python of its own where that ends in reasonable time, here up
  to 8×64, which is some minutes. ``lowtime_reproduced``: how far it then is from its own published frontier, with its
  authors' settings (1 ms). On the synthetic family their filter leaves it too few options for its fit; there, and once
  more on the profile, it filters by effective energy, which makes its frontier better.
- ``lp_gap``: largest relative difference of effective energy from HiGHS on 20 deadlines a pipeline, up to 8×64.
- 16×128 is solved twice: exactly, and with slopes on a grid of 5 W. ``cpu_s_16x128`` is the second's CPU time and
  ``grid_error_16x128`` the largest relative excess of effective energy of its vertices, and of 20 plans read from it.
- ``lowtime_median_difference`` (and ``_worst_``): our total energy over lowtime's *published* one, less 1, at the times
  of its points. Both relaxed. Times that it floored below what is possible are left out.
- ``lowtime_repriced_margin``: lowtime's plans on measured times and energies, over our rounded plan within the same
  true time, less 1; the least of all. Above 0: none beats ours.
- ``intrinsic_saving``: of the relaxed plan at the shortest iteration against all operations at the highest clock;
  ``intrinsic_saving_rounded`` is the same for its measured options.
- Straggler savings: from measured iterations (``bench.frontier_stragglers``), and for the profiles from our frontier.

Figures that are shares are shares, not percent.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import frontier_lowtime, frontier_stragglers, public_sweeps
from bench.frontier_cases import Case, profiled, synthetic
from bench.frontier_lowtime import Lowtime
from joulewise.core.errors import BadSpec, JoulewiseError, MissingPart
from joulewise.core.knob import Setting
from joulewise.plan.bound import Bound
from joulewise.plan.flow import IterationFrontier, solve

SYNTHETIC = ((4, 8), (4, 32), (8, 32), (8, 64), (8, 128), (16, 128))
LARGEST_WITH_LP = 1024
"""Operations; beyond, 20 linear programs take minutes."""
DEADLINES = 20
GRID_W = 5.0
UNIT_S = 0.006
REPRICED_PLANS = 60
"""Of each of lowtime's frontiers, evenly spread."""
PROFILES = (
    ("gpt3-175b+a100_sxm_bf16", 83.64, (15.2, 14.2, 13.6, 13.3)),
    ("gpt3-175b+a40_bf16", 70.38, (11.8, 10.2, 9.3, 8.9)),
)
"""Stage profile, published blocking power, and percent saved as published, at 12, 24, 48 and 96 microbatches."""
MICROBATCHES = (12, 24, 48, 96)
PUBLISHED_FRONTIERS = (12, 96)


@dataclass
class Row:
    """What was seen of one pipeline."""

    case: Case
    frontier: IterationFrontier[Setting]
    cpu_s: float
    lp_gap: float | None = None
    lowtime: Lowtime | None = None
    margin: float | None = None
    """The least of lowtime's plans, re-priced, over ours, less 1."""
    decisions: list[dict[str, Any]] = field(default_factory=list)

    def line(self) -> str:
        """One line of the table."""
        peer = self.lowtime
        cells = [
            f"{self.case.name:34}{len(self.case.options):6}{len(self.frontier):9}{self.cpu_s:9.3f}",
            f"{self.frontier.memory_bytes / 1e6:7.1f}",
            f"{self.lp_gap:9.1e}" if self.lp_gap is not None else " " * 9,
            f"{peer.cpu_s:10.2f}{peer.cpu_s / self.cpu_s:8.0f}×{peer.memory_mb:7.0f}" if peer else " " * 26,
            f"{100 * self.margin:8.2f} %" if self.margin is not None else "",
        ]
        return "".join(cells)


HEAD = "pipeline                             ops vertices    CPU s  MB     LP gap   lowtime CPU s, ×, MB    its plans"


def solved(case: Case, *, repeats: int = 3, slope_grid: float | None = None) -> Row:
    """Solve a case; the median CPU seconds of some repeats."""
    seconds = []
    for _ in range(repeats):
        begun_s = time.process_time()
        frontier = solve(case.options, case.edges, blocking_w=case.blocking_w, lanes=case.lanes, slope_grid=slope_grid)
        seconds.append(time.process_time() - begun_s)
    return Row(case, frontier, median(seconds))


def bound(row: Row) -> None:
    """The largest difference from the linear program, and what a plan at each deadline chose."""
    program = Bound(row.case.problem)
    row.lp_gap = 0.0
    for deadline_s in np.linspace(row.frontier.t_min_s, row.frontier.t_max_s, DEADLINES).tolist():
        lp_j, ours_j = program.effective_j(deadline_s), row.frontier.effective_j(deadline_s)
        row.lp_gap = max(row.lp_gap, abs(ours_j / lp_j - 1.0))
        plan = row.frontier.at(deadline_s)
        row.decisions.append(
            {
                "pipeline": row.case.name,
                "deadline_s": deadline_s,
                "effective_j": ours_j,
                "lp_effective_j": lp_j,
                "rounded_time_s": plan.time_s,
                "rounded_energy_j": plan.energy_j,
                "sm_mhz": [point.setting.get("sm_mhz") for point in plan.choice],
            }
        )


def reprice(row: Row, found: Lowtime) -> None:
    """Price some of lowtime's plans anew, beside ours within the same time."""
    some = found.plans[:: max(1, len(found.plans) // REPRICED_PLANS)]
    for time_s, energy_j in frontier_lowtime.repriced(row.case.problem, some):
        margin = energy_j / row.frontier.at(time_s).energy_j - 1.0
        row.margin = margin if row.margin is None else min(margin, row.margin)


def published_differences(row: Row, path: Path) -> list[float]:
    """Our total energy over a published frontier's, less 1, at its times."""
    points = [(float(point["time"]), float(point["energy"])) for point in public_sweeps.rows_of(path, "time", "energy")]
    return [
        row.frontier.total_j(time_s) / energy_j - 1.0 for time_s, energy_j in points if time_s >= row.frontier.t_min_s
    ]


def savings(row: Row) -> tuple[float, float]:
    """Intrinsic savings at the shortest iteration: relaxed, and as rounded."""
    _, base_j = row.case.baseline
    fastest_s = row.frontier.t_min_s
    return 1.0 - row.frontier.total_j(fastest_s) / base_j, 1.0 - row.frontier.at(fastest_s).energy_j / base_j


def straggling(row: Row) -> list[float]:
    """Savings of a pipeline that waits for a straggler of 1.05 to 1.5 × its shortest iteration; rounded plans."""
    base_s, base_j = row.case.baseline
    waiting_w = row.case.problem.waiting_w
    shares = []
    for ratio in frontier_stragglers.RATIOS[1:]:
        until_s = ratio * row.frontier.t_min_s
        plan = row.frontier.straggler(until_s)
        shares.append(1.0 - plan.energy_j / (base_j + waiting_w * (until_s - base_s)))
    return shares


def grid_error(exact: Row, coarse: Row) -> float:
    """The largest share by which a grid of slopes makes vertices, or plans at 20 deadlines, too dear."""
    found: list[tuple[float, float]] = list(
        zip(coarse.frontier.time_s.tolist(), coarse.frontier.energy_j.tolist(), strict=True)
    )
    for deadline_s in np.linspace(coarse.frontier.t_min_s, coarse.frontier.t_star_s, DEADLINES).tolist():
        plan = coarse.frontier.at(deadline_s)
        costs_j = [exact.case.problem.curve(at).cost_j(d) for at, d in enumerate(plan.relaxed_durations_s.tolist())]
        found.append((plan.deadline_s, sum(costs_j)))
    return max(abs(energy_j / exact.frontier.effective_j(time_s) - 1.0) for time_s, energy_j in found)


class Bench:
    """One run: rows, printed as they come, and figures."""

    def __init__(self, python: Path | None, limit_s: float) -> None:
        self._python, self._limit_s = python, limit_s
        self.rows: list[Row] = []
        self.figures: dict[str, float] = {}

    def show(self, row: Row) -> None:
        """Keep a row and print it."""
        self.rows.append(row)
        print(row.line(), flush=True)

    def compared(self, row: Row, unit_s: float, *, filter_effective: bool = True) -> Lowtime | None:
        """lowtime's answer, its plans priced anew; None where it is not there, which is said once."""
        if self._python is None:
            return None
        try:
            row.lowtime = frontier_lowtime.run(
                row.case, unit_s, limit_s=self._limit_s, filter_effective=filter_effective, python=self._python
            )
        except MissingPart as missing:
            print(f"without lowtime: {missing}", file=sys.stderr)
            self._python = None
            return None
        except BadSpec as failed:
            print(f"{failed}; left out", file=sys.stderr)
            return None
        reprice(row, row.lowtime)
        return row.lowtime

    def synthetic(self) -> None:
        """The synthetic family."""
        for stages, microbatches in SYNTHETIC[:-1]:
            row = solved(synthetic(stages, microbatches))
            if len(row.case.options) <= LARGEST_WITH_LP:
                bound(row)
                found = self.compared(row, UNIT_S)
                if found and (stages, microbatches) == (8, 64):
                    self.figures["cpu_ratio_lowtime_8x64"] = found.cpu_s / row.cpu_s
            if (stages, microbatches) == (8, 128):
                self.figures["cpu_s_8x128"] = row.cpu_s
            self.show(row)
        case = synthetic(*SYNTHETIC[-1])
        exact, coarse = solved(case, repeats=1), solved(case, slope_grid=GRID_W)
        self.show(exact)
        self.show(coarse)
        self.figures["cpu_s_16x128"] = coarse.cpu_s
        self.figures["cpu_s_16x128_exact"] = exact.cpu_s
        self.figures["grid_error_16x128"] = grid_error(exact, coarse)

    def measured(self, data: Path) -> None:
        """The given profiles, lowtime's published frontiers of them, and measured iterations."""
        differences: list[float] = []
        lines: list[str] = []
        for stem, blocking_w, published in PROFILES:
            for microbatches, said in zip(MICROBATCHES, published, strict=True):
                path = data / "perseus" / "stage_profile" / f"{stem}.csv"
                row = solved(profiled(path, microbatches, blocking_w))
                bound(row)
                there = data / "perseus" / "emulated_frontier" / f"{stem.removesuffix('_bf16')}_mb{microbatches}.csv"
                if microbatches == min(MICROBATCHES):
                    self.compared(row, UNIT_S)
                if there.exists() and microbatches in PUBLISHED_FRONTIERS:
                    differences += published_differences(row, there)
                    if microbatches == min(MICROBATCHES):
                        self._reproduced(self.compared(row, 0.001, filter_effective=False), there)
                self.show(row)
                relaxed, rounded = savings(row)
                stretched = " ".join(f"{100 * share:5.1f}" for share in straggling(row))
                star = row.frontier.t_star_s / row.frontier.t_min_s
                cells = f"{100 * relaxed:6.1f} {100 * rounded:8.1f} ({said:4.1f})   {star:6.3f}   {stretched}"
                lines.append(f"{row.case.name:34} {cells}")
        ratios = " ".join(f"{ratio:5g}" for ratio in frontier_stragglers.RATIOS[1:])
        print(f"\n{'% saved at the shortest iteration':34} relaxed  rounded (publ.)  T*/T   straggler {ratios}")
        print("\n".join(lines))
        self.figures["lowtime_median_difference"] = median(differences)
        self.figures["lowtime_worst_difference"] = max(differences)
        workloads = frontier_stragglers.read(data / "perseus" / "measured_frontiers.csv")
        print("\n" + "\n".join(frontier_stragglers.table(workloads)))
        if importlib.util.find_spec("bench.frontier_measured"):
            self.figures |= importlib.import_module("bench.frontier_measured").figures(data)

    def _reproduced(self, found: Lowtime | None, path: Path) -> None:
        """How far lowtime, as we run it, is from what was published of it: it must be the same baseline."""
        if found is None:
            return
        published = {
            round(float(p["time"]), 6): float(p["energy"]) for p in public_sweeps.rows_of(path, "time", "energy")
        }
        apart = [
            abs(energy_j / published[round(t, 6)] - 1.0) for t, energy_j in found.points if round(t, 6) in published
        ]
        share = len(apart) / len(published)
        self.figures["lowtime_reproduced"] = max(apart) if apart and share > 0.99 else float("inf")

    def profile(self, case: Case) -> None:
        """One given profile."""
        row = solved(case)
        bound(row)
        self.show(row)
        relaxed, rounded = savings(row)
        self.figures |= {
            "vertices": len(row.frontier),
            "cpu_s": row.cpu_s,
            "intrinsic_saving": relaxed,
            "intrinsic_saving_rounded": rounded,
        }
        fastest = f"the shortest iteration ({row.frontier.t_min_s:.4f} s)"
        print(f"saved at {fastest}: {100 * relaxed:.2f} %, rounded {100 * rounded:.2f} %")

    def done(self) -> dict[str, float]:
        """All figures."""
        gaps = [row.lp_gap for row in self.rows if row.lp_gap is not None]
        margins = [row.margin for row in self.rows if row.margin is not None]
        figures = self.figures | {"lp_gap": max(gaps)}
        if margins:
            figures["lowtime_repriced_margin"] = min(margins)
        figures["memory_mb"] = max(row.frontier.memory_bytes for row in self.rows) / 1e6
        figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line for a file that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontier", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--profile", type=Path, metavar="FILE", help="a stage profile: plan this instead")
    parser.add_argument("--microbatches", type=int, default=96, metavar="N", help="with --profile (%(default)s)")
    parser.add_argument("--blocking-w", type=float, default=83.64, metavar="W", help="with --profile (%(default)s)")
    parser.add_argument("--no-lowtime", action="store_true", help="leave lowtime out; minutes become seconds")
    parser.add_argument(
        "--lowtime-python", type=Path, default=frontier_lowtime.PYTHON, metavar="FILE", help="a Python with it"
    )
    parser.add_argument(
        "--lowtime-limit", type=float, default=900.0, metavar="S", help="CPU seconds a pipeline (%(default)g)"
    )
    parser.add_argument("--json", action="store_true", help='end with one object {"figures": {...}}')
    parser.add_argument("--decisions", type=Path, metavar="FILE", help="write every plan as a line of JSON")
    options = parser.parse_args(arguments)
    bench = Bench(None if options.no_lowtime else options.lowtime_python, options.lowtime_limit)
    try:
        print(HEAD)
        if options.profile:
            bench.profile(profiled(options.profile, options.microbatches, options.blocking_w))
        else:
            bench.synthetic()
            if os.environ.get("JOULEWISE_DATA"):
                bench.measured(public_sweeps.data_folder())
            else:
                print("JOULEWISE_DATA is not set: no measured profiles", file=sys.stderr)
        if options.decisions:
            lines = [json.dumps(decision) for row in bench.rows for decision in row.decisions]
            options.decisions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (JoulewiseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = bench.done()
    print("\n" + "\n".join(f"{name:28} {value:12.6g}" for name, value in figures.items()))
    if options.json:
        print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
