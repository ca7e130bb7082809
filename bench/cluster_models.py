"""How well are seconds and joules of an iteration predicted where a job has never run?

    python -m bench.cluster models [--json] [--decisions FILE]

Every job of every table is predicted from a few of its own spots and a prior learnt from *other* models only (and,
where energy was metered, a chip of the power law that was fitted to other models only). *Fitted* are:

* ``a100``, ElasticFlow's table: GPUs {1, 2, 8, 16} at the smallest batch and {1, 16} at the largest;
* ``t4``, Pollux's measured steps: GPUs {1, 2, 8, 16} at the smallest, middle and largest batch a GPU;
* ``zeus``, epochs under power limits, V100 and A40: every second batch at the lowest, middle and highest limit;
* ``stages``, GPT-3's stages over SM clocks, A100 and A40: the lowest, middle and highest clock. The A100's chip and
  prior are those of the three codes of the A100 grid (another board), the A40's those of its Zeus series.

*Predicted* is all the rest: other GPU counts up to twice the largest seen (more is never offered), other batches,
clocks and limits. ``throughput_mape`` is the mean over three groups: A100, T4, and clocks with limits (the mean of
``zeus`` and ``stages``), ``energy_mape`` that of ``zeus`` and ``stages``, where joules were metered;
``band_coverage`` the share of measurements within their 90 % band, over the same three groups. Every table's own
figures are given as well.

What no law can tell is stated: ``t4_noise_mape`` is how far a T4 measurement lies from its two neighbours in batch, on
the same GPUs, less their own noise. The T4 of the headline is ElasticFlow's table, which is these steps
interpolated (fitted as ``a100`` is, prior from the other applications' measured steps; few points). With the measured
steps themselves in its place the headline would be ``throughput_mape_t4_steps``.

The few sizes in ``throughput_fit`` (what neighbours share, where a spot counts as an outlier) were chosen with the
tables of the headline in sight. No choice was made with these two: ``t4-spread``, jobs on more nodes than they need
(fitted as ``t4``, so that no spread placement of the job is seen), and ``sweep``, 20 applications over SM clocks on an
RTX 8000 (fitted: three clocks; the chip from the other half of the applications).

The pattern of probes matters: the second table shows it on the A100 (one inter-node size or two, sizes beyond twice the
largest seen, and the same without a prior from other jobs).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import cluster_tables as tables
from bench import public_sweeps
from bench.cluster_tables import Measured
from joulewise.core.errors import JoulewiseError
from joulewise.model import catalog
from joulewise.model.fit import fit_chip, generic_chip
from joulewise.model.physics import Chip
from joulewise.model.throughput import Frame, Spots
from joulewise.model.throughput_fit import GENERIC, Prior, Seen, fit
from joulewise.model.throughput_prior import learn

Array = NDArray[Any]
Shows = Callable[[Seen], Array]
"""Which spots of a job are fitted."""

_LIMIT_W = {
    "v100": 250.0,
    "a40": 300.0,
    "a100": 400.0,
    "t4": 70.0,
    "rtx8000": 260.0,
}  # default limits, from the vendors' sheets
_TABLES = ("a100", "t4", "zeus", "stages", "t4-table", "t4-spread", "sweep")
_METERED = ("zeus", "stages", "sweep")
_TOGETHER = {"stages": "GPT-3 stages", "sweep": "20 applications"}  # jobs that share a line
_STARTS = 4  # of each chip's fit


@dataclass(frozen=True)
class Guess:
    """One prediction beside what was measured. Joules are NaN where they were not metered."""

    table: str
    gpu: str
    job: str
    spot: tuple[float, ...]  # GPUs, nodes, batch a GPU, accumulated steps, clock share, limit W
    fitted: int  # spots of this job that were seen
    seconds: float
    joules: float
    predicted_s: float
    predicted_j: float
    time_error: float
    energy_error: float

    @property
    def time_off(self) -> float:
        """Relative."""
        return abs(self.predicted_s / self.seconds - 1.0)

    @property
    def energy_off(self) -> float:
        """Relative; NaN where energy was not metered."""
        return abs(self.predicted_j / self.joules - 1.0)

    @property
    def covered(self) -> tuple[bool, ...]:
        """Whether the 90 % bands of time and, where metered, energy hold it."""
        held = [abs(math.log(self.predicted_s / self.seconds)) <= 1.645 * self.time_error]
        if not math.isnan(self.joules):
            held.append(abs(math.log(self.predicted_j / self.joules)) <= 1.645 * self.energy_error)
        return tuple(held)


def guessed(job: Measured, frame: Frame, prior: Prior, shows: Shows, *, beyond: float = 2.0) -> Iterator[Guess]:
    """What is predicted of a job from the spots shown, up to ``beyond`` times the largest GPU count among them."""
    seen = job.seen
    shown = shows(seen)
    asked = ~shown & (seen.spots.gpus <= beyond * seen.spots.gpus[shown].max())
    said = fit(frame, seen.pick(shown), prior).predict(seen.spots.pick(asked))
    for row, i in enumerate(np.flatnonzero(asked)):
        yield Guess(
            job.table,
            job.gpu,
            job.name,
            _spot(seen.spots, int(i)),
            int(shown.sum()),
            float(seen.seconds[i]),
            float(seen.joules[i]),
            float(said.seconds[row]),
            float(said.joules[row]),
            float(said.time_error[row]),
            float(said.energy_error[row]),
        )


def left_out(
    jobs: Sequence[Measured], teachers: Sequence[Measured], chip_of: Callable[[str], Chip], shows: Shows
) -> Iterator[Guess]:
    """Every job, by a prior from those teachers that are of other models; ``chip_of`` says the chip for a model."""
    for model in sorted({job.model for job in jobs}):
        chip = chip_of(model)
        prior = learn([(_frame(one, chip), one.seen) for one in teachers if one.model != model])
        for job in jobs:
            if job.model == model:
                yield from guessed(job, _frame(job, chip), prior, shows)


def some_counts(seen: Seen) -> Array:
    """A100's and T4's tables: four counts at the smallest batch, two at the largest."""
    whole = seen.spots.gpus * seen.spots.batch * (seen.spots.steps + 1.0)
    small = np.isclose(whole, whole.min()) & np.isin(seen.spots.gpus, (1, 2, 8, 16))
    return np.asarray(small | (np.isclose(whole, whole.max()) & np.isin(seen.spots.gpus, (1, 16))))


def counts(*gpus: int) -> Shows:
    """These counts, at all batches."""
    return lambda seen: np.asarray(np.isin(seen.spots.gpus, gpus))


def three_batches(seen: Seen) -> Array:
    """Pollux's steps: four counts, three batches a GPU each."""
    shown = np.zeros(len(seen.spots), bool)
    for gpus in (1, 2, 8, 16):
        here = np.flatnonzero(seen.spots.gpus == gpus)
        here = here[np.argsort(seen.spots.batch[here])]
        if len(here):
            shown[here[[0, len(here) // 2, -1]]] = True
    return shown


def packed_batches(seen: Seen) -> Array:
    """The same spots where jobs were spread over nodes as well."""
    packed = np.flatnonzero(seen.spots.nodes == -(-seen.spots.gpus // tables.T4_PER_NODE))
    shown = np.zeros(len(seen.spots), bool)
    shown[packed] = three_batches(seen.pick(packed))
    return shown


def three_settings(seen: Seen) -> Array:
    """Every second batch, at the lowest, middle and highest of what was set: limits, or clocks."""
    limits, clocks = np.unique(seen.spots.limit_w), np.unique(seen.spots.x)
    values, setting = (limits, seen.spots.limit_w) if len(limits) > 1 else (clocks, seen.spots.x)
    middle = values[[0, len(values) // 2, -1]]
    return np.asarray(np.isin(seen.spots.batch, np.unique(seen.spots.batch)[::2]) & np.isin(setting, middle))


def noise_mape(jobs: Iterable[Measured]) -> float:
    """Mean distance of a measurement from its neighbours in batch (same GPUs), less their own noise, percent."""
    found: list[float] = []
    for job in jobs:
        for gpus in np.unique(job.seen.spots.gpus):
            here = np.flatnonzero(job.seen.spots.gpus == gpus)
            here = here[np.argsort(job.seen.spots.batch[here])]
            x, y = np.log(job.seen.spots.batch[here]), np.log(job.seen.seconds[here])
            for i in range(1, len(here) - 1):
                w = (x[i] - x[i - 1]) / (x[i + 1] - x[i - 1])
                off = y[i] - (1.0 - w) * y[i - 1] - w * y[i + 1]
                found.append(abs(float(off)) / math.sqrt(1.0 + w * w + (1.0 - w) ** 2))
    return 100.0 * float(np.mean(found))


class Chips:
    """Chips of one GPU's power law, each fitted to the jobs of other models; made once for those that share it.

    ``folds``: models are dealt into so many, and a model's chip comes from the other folds; None: one a model.
    """

    def __init__(self, jobs: Sequence[Measured], *, max_mhz: float | None = None, folds: int | None = None) -> None:
        self._jobs = jobs
        self._max_mhz = max_mhz
        models = sorted({job.model for job in jobs})
        self._fold = {model: i % (folds or len(models)) for i, model in enumerate(models)}
        self._made: dict[int, Chip] = {}

    def without(self, model: str) -> Chip:
        """The chip that the other models give; all of them for a model that is not among them."""
        fold = self._fold.get(model, -1)
        if fold not in self._made:
            others = [series for job in self._jobs if self._fold[job.model] != fold for series in job.series]
            start = generic_chip(others, sm_max_mhz=self._max_mhz)
            self._made[fold] = fit_chip(others, start=start, starts=_STARTS).chip
        return self._made[fold]


def run(data: Path, say: Callable[[str], None]) -> tuple[list[Guess], dict[str, list[Guess]], float]:
    """All predictions of the headline and of ElasticFlow's T4 tables, those by pattern of probes, and T4's noise."""
    guesses: list[Guess] = []

    def add(found: Iterable[Guess], what: str) -> None:
        kept = list(found)
        guesses.extend(kept)
        energy = [g.energy_off for g in kept if not math.isnan(g.energy_off)]
        metered = f", energy {100.0 * np.mean(energy):.1f} %" if energy else ""
        say(f"{what}: {len(kept)} predicted, time {100.0 * np.mean([g.time_off for g in kept]):.1f} %{metered}")

    # No energy and no clock in these: the chip hardly matters.
    a100_chip, turing_chip = catalog.load("a100-sxm").chip, catalog.load("rtx6000").chip
    a100, t4 = tables.a100(data), tables.t4(data)
    add(left_out(a100, a100, lambda _: a100_chip, some_counts), "A100 by GPUs and batch")
    add(left_out(t4, t4, lambda _: turing_chip, three_batches), "T4 by GPUs and batch")
    add(left_out(tables.t4_table(data), t4, lambda _: turing_chip, some_counts), "T4, interpolated tables")
    for gpu in ("v100", "a40"):
        jobs = tables.zeus(data, gpu)
        add(left_out(jobs, jobs, Chips(jobs).without, three_settings), f"{gpu} by batch and limit")
    # The A100's catalogue entry is a fit to the three codes of the grid, which are not GPT-3.
    grid_chip = catalog.load("a100").chip
    a100_stages = tables.stages(data, "a100", grid_chip.sm_max_mhz)
    grid = tables.grid(data, grid_chip.sm_max_mhz)
    add(left_out(a100_stages, grid, lambda _: grid_chip, three_settings), "A100 stages by clock")
    a40_mhz = catalog.load("a40").chip.sm_max_mhz
    a40_jobs = tables.zeus(data, "a40")
    a40_stages = tables.stages(data, "a40", a40_mhz)
    add(left_out(a40_stages, a40_jobs, Chips(a40_jobs, max_mhz=a40_mhz).without, three_settings), "A40 stages by clock")
    spread = tables.t4(data, spread=True)
    add((g for g in left_out(spread, spread, lambda _: turing_chip, packed_batches) if _is_spread(g)), "T4, spread")
    sweep_mhz = catalog.load("rtx8000").chip.sm_max_mhz
    sweep = tables.sweep(data, sweep_mhz)
    add(left_out(sweep, sweep, Chips(sweep, max_mhz=sweep_mhz, folds=2).without, three_settings), "RTX 8000 by clock")
    return guesses, _patterns(a100, a100_chip), noise_mape(t4)


def _patterns(jobs: Sequence[Measured], chip: Chip) -> dict[str, list[Guess]]:
    """The A100's table by which GPU counts are fitted, at all batches; all other counts are predicted."""
    found: dict[str, list[Guess]] = {}
    priors = {
        job.model: learn([(_frame(one, chip), one.seen) for one in jobs if one.model != job.model]) for job in jobs
    }
    for gpus in ((1, 2, 8), (1, 2, 8, 16), (1, 2, 8, 16, 32), (1, 2, 8, 16, 64)):
        for label, of in (("", priors.__getitem__), (", no prior from others", lambda _: GENERIC)):
            found[f"{{{','.join(map(str, gpus))}}}{label}"] = [
                guess
                for job in jobs
                if not counts(*gpus)(job.seen).all()
                for guess in guessed(job, _frame(job, chip), of(job.model), counts(*gpus), beyond=math.inf)
            ]
    return found


def figures(guesses: Sequence[Guess], noise: float) -> dict[str, float]:
    """The three of the headline, then each table's own."""
    by_table = {name: [g for g in guesses if g.table == name] for name in _TABLES}
    time = {name: 100.0 * float(np.mean([g.time_off for g in about])) for name, about in by_table.items()}
    energy = {name: 100.0 * float(np.mean([g.energy_off for g in by_table[name]])) for name in _METERED}
    held = {name: 100.0 * float(np.mean([h for g in about for h in g.covered])) for name, about in by_table.items()}
    result = {
        "throughput_mape": (time["a100"] + time["t4-table"] + (time["zeus"] + time["stages"]) / 2.0) / 3.0,
        "energy_mape": (energy["zeus"] + energy["stages"]) / 2.0,
        "band_coverage": (held["a100"] + held["t4-table"] + (held["zeus"] + held["stages"]) / 2.0) / 3.0,
    }
    result["throughput_mape_t4_steps"] = result["throughput_mape"] + (time["t4"] - time["t4-table"]) / 3.0
    for name in by_table:
        plain = name.replace("-", "_")
        result[f"{plain}_mape"] = time[name]
        if name in energy:
            result[f"{plain}_energy_mape"] = energy[name]
        result[f"{plain}_coverage"] = held[name]
    result["t4_noise_mape"] = noise
    return {name: round(value, 2) for name, value in result.items()}


def table(guesses: Sequence[Guess], patterns: dict[str, list[Guess]]) -> str:
    """One line a job (stages and applications: a GPU), then the A100 by pattern of probes."""
    lines = [
        f"{'table':9} {'GPU':5} {'job':38} {'fitted':>6} {'predicted':>9} {'time %':>7} {'energy %':>8} {'held %':>7}"
    ]
    groups: dict[tuple[str, str, str], list[Guess]] = {}
    for guess in guesses:
        job = _TOGETHER.get(guess.table, guess.job)
        groups.setdefault((guess.table, guess.gpu, job), []).append(guess)
    for (name, gpu, job), about in groups.items():
        energy = 100.0 * float(np.mean([g.energy_off for g in about]))
        held = 100.0 * float(np.mean([h for g in about for h in g.covered]))
        metered = "–" if math.isnan(energy) else f"{energy:.1f}"
        seconds = 100.0 * float(np.mean([g.time_off for g in about]))
        lines.append(
            f"{name:9} {gpu:5} {job:38} {about[0].fitted:6} {len(about):9} {seconds:7.1f} {metered:>8} {held:7.0f}"
        )
    lines += ["", f"{'A100, GPUs fitted (all batches)':42} {'to 2×':>7} {'beyond':>7} {'worst':>7} {'held %':>7}"]
    for label, about in patterns.items():
        largest = max(int(n) for n in label[1 : label.index("}")].split(","))
        near = [g.time_off for g in about if g.spot[0] <= 2 * largest]
        far = [g.time_off for g in about if g.spot[0] > 2 * largest]
        beyond = f"{100.0 * np.mean(far):.1f}" if far else "–"
        worst = 100.0 * max(near + far)
        held = 100.0 * float(np.mean([h for g in about for h in g.covered]))
        lines.append(f"{label:42} {100.0 * np.mean(near):7.1f} {beyond:>7} {worst:7.0f} {held:7.0f}")
    return "\n".join(lines)


def _frame(job: Measured, chip: Chip) -> Frame:
    return Frame(chip, _LIMIT_W[job.gpu] - min(chip.static_w, 0.5 * _LIMIT_W[job.gpu]), job.usual_batch)


def _is_spread(guess: Guess) -> bool:
    return not tables.is_packed(int(guess.spot[0]), int(guess.spot[1]))


def _spot(spots: Spots, i: int) -> tuple[float, ...]:
    parts = (spots.gpus, spots.nodes, spots.batch, spots.steps, spots.x, spots.limit_w)
    return tuple(float(part[i]) for part in parts)


def _record(guess: Guess) -> dict[str, Any]:
    names = ("gpus", "nodes", "local_batch", "accumulated_steps", "clock_share", "limit_w")
    spot = {k: None if math.isinf(v) else v for k, v in zip(names, guess.spot, strict=True)}
    metered = not math.isnan(guess.joules)
    return {
        "table": guess.table,
        "gpu": guess.gpu,
        "job": guess.job,
        **spot,
        "fitted_spots": guess.fitted,
        "seconds": guess.seconds,
        "predicted_s": guess.predicted_s,
        "time_error": guess.time_error,
        "joules": guess.joules if metered else None,
        "predicted_j": guess.predicted_j if metered else None,
        "energy_error": guess.energy_error if metered else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line where the data cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help='end with one object {"figures": {...}}')
    parser.add_argument("--decisions", type=Path, metavar="FILE", help="write every prediction as a line of JSON")
    options = parser.parse_args(arguments)
    try:
        say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
        guesses, patterns, noise = run(public_sweeps.data_folder(), say)
        if options.decisions:
            lines = [json.dumps(_record(guess)) for guess in guesses]
            options.decisions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (JoulewiseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = figures(guesses, noise)
    print(table(guesses, patterns))
    print()
    for name, value in found.items():
        print(f"{name:22} {value:7.2f} %")
    if options.json:
        print(json.dumps({"figures": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
