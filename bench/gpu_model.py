"""How well does the one GPU law tell time and power of work that was really measured?

Four questions, each over every point of the files given, errors as mean absolute percentages:

``zeus_*`` the fit itself over power-limit series of training (chip shared, loads per series); ``zeus3_*`` prediction:
of each series only the lowest, middle and highest limit are seen, the chip comes from the *other* workloads (another
network or data set), and the error is on the rest; ``grid_*`` the fit over an SM clock × power limit grid;
``sweep_*`` the fit over an SM clock sweep of many applications. The baseline, ``zeus3_interpolated_*``, draws straight
lines between the same three limits.

Nothing is known of a GPU but the file: where clocks are not given, the law works on their ratio to the maximum.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import public_sweeps
from joulewise.core.errors import JoulewiseError, ModelError
from joulewise.model.fit import ChipFit, Point, Series, fit_chip, fit_loads, generic_chip, predict


@dataclass(frozen=True, slots=True)
class Guess:
    """One prediction, with all that it was made from."""

    question: str
    gpu: str
    workload: str
    series: str
    point: Point
    time_s: float
    power_w: float
    seen: tuple[Point, ...] = ()

    def record(self) -> dict[str, Any]:
        """As one line of the decisions file."""
        return {
            "question": self.question,
            "gpu": self.gpu,
            "series": self.series,
            "lock_mhz": self.point.lock_mhz,
            "limit_w": self.point.limit_w,
            "time_s": self.point.time_s,
            "power_w": self.point.power_w,
            "predicted_time_s": self.time_s,
            "predicted_power_w": self.power_w,
            "seen": [[p.limit_w, p.time_s, p.power_w] for p in self.seen],
        }


@dataclass(slots=True)
class Tally:
    """All guesses so far; progress goes to stderr."""

    guesses: list[Guess] = field(default_factory=list)
    began_s: float = field(default_factory=time.process_time)

    def say(self, text: str) -> None:
        """One line of progress."""
        print(f"[{time.process_time() - self.began_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    def add(self, found: Iterable[Guess], about: str) -> None:
        """Keep guesses and say how good they are."""
        kept = list(found)
        self.guesses += kept
        time_mape, power_mape = mape(kept)
        self.say(f"{about}: {len(kept)} points, time {time_mape:.2f} %, power {power_mape:.2f} %")


def mape(guesses: Sequence[Guess]) -> tuple[float, float]:
    """Mean absolute error of time and power in percent."""
    if not guesses:
        return float("nan"), float("nan")
    time_errors = [abs(guess.time_s / guess.point.time_s - 1.0) for guess in guesses]
    power_errors = [abs(guess.power_w / guess.point.power_w - 1.0) for guess in guesses]
    return 100.0 * float(np.mean(time_errors)), 100.0 * float(np.mean(power_errors))


def fitted(question: str, gpu: str, series: Sequence[Series], fit: ChipFit) -> Iterator[Guess]:
    """What a fit says of the very points that it was made from."""
    for one, load in zip(series, fit.loads, strict=True):
        times, powers = predict(fit.chip, load, one.points)
        for point, time_s, power_w in zip(one.points, times, powers, strict=True):
            yield Guess(question, gpu, workload_of(one), one.name, point, float(time_s), float(power_w))


def workload_of(series: Series) -> str:
    """Data set and network of a Zeus series; the benchmark of another."""
    parts = series.name.split("/")
    return "/".join(parts[:2]) if len(parts) == 4 else parts[0]


def three_seen(gpu: str, series: Sequence[Series], starts: int) -> Iterator[Guess]:
    """Each series from its lowest, middle and highest limit, on chips fitted to other workloads."""
    by_workload: dict[str, list[tuple[Series, Series]]] = defaultdict(list)
    for one in series:
        seen, rest = split(one)
        if rest.points:
            by_workload[workload_of(one)].append((seen, rest))
    for workload, pairs in by_workload.items():
        others = [one for one in series if workload_of(one) != workload]
        if not others:  # one workload only: then nothing but the seen points may tell the chip
            others = [seen for seen, _ in pairs]
        fit = fit_chip(others, start=generic_chip(others), starts=starts)
        logs = np.mean([_log_guesses(chip, loads, pairs) for chip, loads in fit.alternatives], axis=0)
        points = [(seen, one, point) for seen, one in pairs for point in one.points]
        for (seen, one, point), (log_time, log_power) in zip(points, logs, strict=True):
            guess = float(np.exp(log_time)), float(np.exp(log_power))
            yield Guess("zeus3", gpu, workload, one.name, point, *guess, seen=seen.points)


def _log_guesses(chip: Any, prior: Any, pairs: Sequence[tuple[Series, Series]]) -> Any:
    """Log time and log power of every unseen point on one chip."""
    loads = fit_loads(chip, [seen for seen, _ in pairs], prior=prior)
    rows = [predict(chip, found.load, rest.points) for found, (_, rest) in zip(loads, pairs, strict=True)]
    return np.log(np.concatenate(rows, axis=1)).T


def interpolated(gpu: str, series: Sequence[Series]) -> Iterator[Guess]:
    """The baseline: straight lines between the same three limits."""
    for one in series:
        seen, rest = split(one)
        limits = [point.limit_w or 0.0 for point in seen.points]
        for point in rest.points:
            time_s = float(np.interp(point.limit_w or 0.0, limits, [p.time_s for p in seen.points]))
            power_w = float(np.interp(point.limit_w or 0.0, limits, [p.power_w for p in seen.points]))
            yield Guess("zeus3_interpolated", gpu, workload_of(one), one.name, point, time_s, power_w, seen.points)


def split(series: Series) -> tuple[Series, Series]:
    """Lowest, middle and highest limit, and the rest."""
    points = sorted(series.points, key=lambda point: point.limit_w or 0.0)
    places = {0, len(points) // 2, len(points) - 1}
    seen = tuple(point for place, point in enumerate(points) if place in places)
    rest = tuple(point for place, point in enumerate(points) if place not in places)
    return Series(series.name, seen), Series(series.name, rest)


def run(zeus: Sequence[Path], grid: Path | None, sweep: Sequence[Path], starts: int) -> Tally:
    """Ask all questions of the files given."""
    tally = Tally()
    for path in zeus:
        series = public_sweeps.zeus(path)
        gpu = path.stem
        tally.say(f"{gpu}: {len(series)} series")
        fit = fit_chip(series, start=generic_chip(series), starts=starts)
        tally.add(fitted("zeus", gpu, series, fit), f"{gpu}, fit")
        tally.add(three_seen(gpu, series, max(3, 3 * starts // 4)), f"{gpu}, three limits seen")
        tally.add(interpolated(gpu, series), f"{gpu}, interpolated")
    for question, found in (
        ("grid", lambda: public_sweeps.grid(grid) if grid else None),
        ("sweep", lambda: public_sweeps.sweep(sweep) if sweep else None),
    ):
        _fit_question(tally, question, found, starts)
    return tally


def _fit_question(tally: Tally, question: str, found: Callable[[], list[Series] | None], starts: int) -> None:
    series = found()
    if series:
        fit = fit_chip(series, start=generic_chip(series), starts=max(3, starts // 2))
        tally.add(fitted(question, question, series, fit), f"{question}, fit")


def figures(guesses: Sequence[Guess]) -> dict[str, float]:
    """Percent errors of each question that was asked."""
    result = {}
    for question in ("zeus", "zeus3", "zeus3_interpolated", "grid", "sweep"):
        about = [guess for guess in guesses if guess.question == question]
        if about:
            time_mape, power_mape = mape(about)
            result[f"{question}_time_mape"] = round(time_mape, 3)
            result[f"{question}_power_mape"] = round(power_mape, 3)
    return result


def table(guesses: Sequence[Guess]) -> str:
    """One line a question, GPU and workload (sweeps: the GPU as a whole), then the totals."""
    groups: dict[tuple[str, str, str], list[Guess]] = defaultdict(list)
    for guess in guesses:
        groups[guess.question, guess.gpu, "" if guess.question == "sweep" else guess.workload].append(guess)
    lines = [f"{'question':20} {'GPU or file':26} {'workload':32} {'points':>6} {'time %':>7} {'power %':>7}"]
    for (question, gpu, workload), about in groups.items():
        time_mape, power_mape = mape(about)
        lines.append(
            f"{question:20} {gpu[:26]:26} {workload[:32]:32} {len(about):6} {time_mape:7.2f} {power_mape:7.2f}"
        )
    lines.append("")
    lines += [f"{name:34} {value:7.2f} %" for name, value in figures(guesses).items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line for a file that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_model", description=(__doc__ or "").split("\n")[0])
    parser.epilog = "What is not given is taken from the folder that JOULEWISE_DATA names, if it is set."
    parser.add_argument("--zeus", nargs="+", type=Path, metavar="FILE", help="power-limit series, a file a GPU")
    parser.add_argument("--grid", type=Path, metavar="FILE", help="SM clock × power limit, energy in Wh")
    parser.add_argument("--sweep", nargs="+", type=Path, metavar="FILE", help="applications over SM clocks, one GPU")
    parser.add_argument("--starts", type=int, default=16, help="starts of each search (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help='end with one object {"figures": {...}}')
    parser.add_argument("--decisions", type=Path, metavar="FILE", help="write every prediction as a line of JSON")
    options = parser.parse_args(arguments)
    try:
        zeus, grid, sweep = options.zeus, options.grid, options.sweep
        if not (zeus or grid or sweep) or os.environ.get("JOULEWISE_DATA"):
            folder = public_sweeps.data_folder()
            zeus = zeus or sorted(folder.glob("zeus/summary_power_*.csv"))
            grid = grid or next(iter(sorted(folder.glob("dvfs/*_clock_powerlimit_grid.csv"))), None)
            sweep = sweep or sorted(folder.glob("dvfs/*-dvfs-*-profile.csv"))
        tally = run(zeus or [], grid, sweep or [], options.starts)
        if not tally.guesses:
            raise ModelError("no series to fit; give --zeus, --grid or --sweep, or set JOULEWISE_DATA")
        if options.decisions:
            lines = [json.dumps(guess.record()) for guess in tally.guesses]
            options.decisions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (JoulewiseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(tally.guesses))
    if options.json:
        print(json.dumps({"figures": figures(tally.guesses)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
