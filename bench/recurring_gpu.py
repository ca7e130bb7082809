"""Twenty recurrences of a real training on a real GPU, in real joules, against the grid measured beside them.

The training is examples/train_recurring.py: a language model of characters learns the text of Python's own manual, to a
real validation loss. Its batch size is chosen by the tuner of ``joulewise recur``, asked and told as the command line
does it; every run is a new model with a new seed. Rounds of the grid (every size once, in drawn order) and recurrences
take turns, so that heat and other drifts meet both, and the tuner hears nothing of the grid. Time and joules are
``Monitor``'s, of whole runs, validation and the tuner's thinking included. Nothing is set on the GPU.

    python -m bench.recurring_gpu --out FILE.json [--target 1.7] [--minutes 9] [--seeds 3] [--json]
    python -m bench.recurring_gpu --calibrate [--each-seconds 10] [--out FILE.json]

``--calibrate`` shows what an epoch of each size takes and how its loss falls, to choose a target by. FILE.json is
written anew after every run; what time did not allow for is under ``left_out``. Needs PyTorch with CUDA and a GPU that
nobody else uses. With ``--cpu`` the processor trains and joules are *modelled*: a check of the bench, not a result.

Ratios are to the default's mean in the grid; ``regret_optimal_runs`` is what the recurrences cost beyond the grid's
cheapest size, in its runs, ``regret_error`` what the few seeds of that size leave open.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.recurring_gpu_score import Price, Ran, figures, table
from bench.recurring_gpu_stage import OutOfTime, Stage, Training
from joulewise.cli.recur_loop import MOST_TRIALS
from joulewise.cli.recur_terms import batch_sizes
from joulewise.core.event import Asked
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Recurring
from joulewise.store import MemoryJournal
from joulewise.tune.desk import PREFIX, Desk
from joulewise.tune.series import SizeBelief

RECURRENCE_SEEDS = 1000
"""From here on seeds are of recurrences, below of the grid: no run is counted on both sides."""
Trial = tuple[Asked, Ran]


def say(line: str) -> None:
    """To whoever watches."""
    print(line, file=sys.stderr, flush=True)


def in_short(ran: Ran) -> str:
    """One line on a run."""
    power_w = ran.energy_j / ran.duration_s
    return (
        f"batch size {ran.batch_size:5d}  {ran.outcome:13}  {ran.epochs:3d} epochs to {ran.losses[-1]:.3f}  "
        f"{ran.duration_s:7.3f} s  {ran.energy_j:8.1f} ± {ran.error_j:.1f} J  {power_w:5.0f} W"
    )


class Series:
    """The recurring job: each recurrence asks its desk for trials until one reaches the target."""

    def __init__(self, stage: Stage, eta: float) -> None:
        training = stage.training
        job = Recurring(
            "manual",
            training.batch_sizes,
            training.default,
            training.max_epochs,
            f"val_loss<={training.target:g}",
            {"what": "zeus", "eta": eta},
        )
        self.desk = Desk(MemoryJournal(), stream=f"{PREFIX}{job.name}")
        self.desk.register(job)
        self._stage = stage

    def recur(self, number: int) -> list[Trial]:
        """One recurrence to its end, as ``joulewise recur run`` plays it."""
        tried: list[Trial] = []
        for place in range(MOST_TRIALS):
            asked = self.desk.ask(f"r{number}", self._stage.platform, key=f"{number}/{place}")

            def go_on(epochs: int, profile: tuple[EpochCost, ...], trial: int = asked.trial) -> bool:
                return self.desk.progress(trial, epochs, profile).go_on

            ran = self._stage.run(asked.batch_size, RECURRENCE_SEEDS + asked.trial, go_on)
            self.desk.tell(
                asked.trial,
                outcome=ran.outcome,
                epochs=ran.epochs,
                duration_s=ran.duration_s,
                energy_j=ran.energy_j,
                profile=ran.profile,
            )
            tried.append((asked, ran))
            say(f"recurrence {number + 1:2d}  {in_short(ran)}  {asked.purpose}: {asked.reason}")
            if ran.outcome is Outcome.REACHED:
                break
        return tried


@dataclass
class Result:
    """What has been measured so far, and the file that holds it."""

    provenance: dict[str, Any]
    training: Training
    price: Price
    out: Path | None
    grid: list[Ran] = field(default_factory=list)
    recurrences: list[list[Trial]] = field(default_factory=list)
    beliefs: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float | int | None]:
        """Of what there is."""
        runs = [[ran for _, ran in trials] for trials in self.recurrences]
        return figures(self.grid, runs, self.training.default, self.price)

    def write(self) -> None:
        """Replace the file."""
        if self.out is None:
            return
        whole = {
            "provenance": self.provenance,
            "training": asdict(self.training),
            "objective": {"what": "zeus", **asdict(self.price)},
            "figures": self.figures(),
            "table": [asdict(row) for row in table(self.grid, self.price)] if self.grid else [],
            "grid": [self._plain(ran) for ran in self.grid],
            "recurrences": [
                {
                    "number": number,
                    "cost": sum(self.price.of(ran) for _, ran in trials),
                    "trials": [
                        {"purpose": str(asked.purpose), "reason": asked.reason, **self._plain(ran)}
                        for asked, ran in trials
                    ],
                }
                for number, trials in enumerate(self.recurrences, start=1)
            ],
            "beliefs": self.beliefs,
            "left_out": self.left_out,
        }
        put(self.out, whole)

    def _plain(self, ran: Ran) -> dict[str, Any]:
        """A run as JSON."""
        epoch = ran.profile[0] if ran.profile else None
        return {
            **{name: value for name, value in asdict(ran).items() if name not in ("profile", "losses")},
            "cost": self.price.of(ran),
            "epoch_s": epoch.duration_s if epoch is not None else None,
            "epoch_j": epoch.energy_j if epoch is not None else None,
            "epoch_error_j": epoch.error_j if epoch is not None else None,
            "losses": list(ran.losses),
        }


def put(path: Path, whole: object) -> None:
    """Write JSON so that the file is never half a one. Numbers that are none become null; six digits are enough."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(_rounded(whole), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    beside.replace(path)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def one_round(stage: Stage, number: int, result: Result) -> float:
    """Every size once; how many seconds it took."""
    begun_s = stage.left_s
    sizes = list(stage.training.batch_sizes)
    random.Random(number).shuffle(sizes)
    for size in sizes:
        ran = stage.run(size, number)
        result.grid.append(ran)
        result.write()
        say(f"grid round {number:2d}  {in_short(ran)}")
    return begun_s - stage.left_s


def measured(stage: Stage, result: Result, *, rounds: int, recurrences: int) -> None:
    """Grid and recurrences in turn, as far as the time allows; ``result`` says what was left out.

    Recurrences come first where not everything fits: a round is put off if those that are left would not fit after it.
    """
    series = Series(stage, result.price.eta)
    done, round_s, spent_s = 0, 0.0, 0.0
    try:
        stage.warm_up()
        say(f"warmed up, {stage.left_s:.0f} s left")
        for number in range(recurrences):
            usual_s = spent_s / number if number else 0.0
            due = number * rounds >= done * recurrences
            if due and stage.left_s > round_s + (recurrences - number) * usual_s:
                done += 1
                round_s = one_round(stage, done, result)
            begun_s = stage.left_s
            result.recurrences.append(series.recur(number))
            result.beliefs = [_belief(each) for each in series.desk.beliefs(stage.platform)]
            spent_s += begun_s - stage.left_s
            result.write()
        while done < rounds and stage.left_s > 1.1 * round_s:  # a tenth more, since epochs differ by luck
            done += 1
            round_s = one_round(stage, done, result)
    except OutOfTime:
        result.left_out.append("the run that was under way when the time was over is not counted")
    if done < rounds:
        result.left_out.append(f"{rounds - done} of {rounds} rounds of the grid: the time was over")
    if len(result.recurrences) < recurrences:
        result.left_out.append(
            f"{recurrences - len(result.recurrences)} of {recurrences} recurrences: the time was over"
        )
    result.write()


def _belief(belief: SizeBelief) -> dict[str, Any]:
    """What the tuner believes of a size, as JSON."""
    names = ("batch_size", "state", "runs", "epochs", "epochs_low", "epochs_high", "cost", "cost_low", "cost_high")
    return {name: getattr(belief, name) for name in names}


def calibrated(stage: Stage, each_s: float, out: Path | None, provenance: dict[str, Any]) -> None:
    """Train every size for a while, whatever the target; what an epoch takes, and epochs to a range of losses."""
    stage.warm_up()
    seen: list[Ran] = []
    for size in stage.training.batch_sizes:
        if stage.left_s < each_s:
            break
        until_s = time.monotonic() + each_s
        ran = stage.run(size, 1, lambda *_, until_s=until_s: time.monotonic() < until_s, -math.inf)
        seen.append(ran)
        say(in_short(ran))
        say("                  " + " ".join(f"{loss:.3f}" for loss in ran.losses))
    best = [min(ran.losses) for ran in seen]
    low, high = math.floor(20 * min(best)) / 20, math.ceil(20 * max(best)) / 20 + 0.3
    print("epochs (and seconds) to a loss of  " + "  ".join(f"{ran.batch_size:>10d}" for ran in seen))
    for step in range(round((high - low) / 0.05) + 1):
        target = high - 0.05 * step
        cells = []
        for ran in seen:
            epochs = next((place for place, loss in enumerate(ran.losses, start=1) if loss <= target), None)
            took_s = 0.0 if epochs is None else epochs * ran.duration_s / ran.epochs
            cells.append(f"{'–':>10s}" if epochs is None else f"{epochs:3d} ({took_s:4.1f})")
        print(f"{target:33.2f}  " + "  ".join(cells))
    if out is not None:
        put(out, {"provenance": provenance, "training": asdict(stage.training), "runs": [asdict(ran) for ran in seen]})


def show(result: Result) -> None:
    """The table of the grid, and the figures."""
    print("batch size  runs  reached  epochs         s         J      cost ± error")
    for row in table(result.grid, result.price):
        error = "" if row.cost_error is None else f" ± {row.cost_error:.0f}"
        print(
            f"{row.batch_size:10d}  {row.runs:4d}  {row.reached:7d}  {row.epochs:6.2f}  {row.duration_s:8.3f}  "
            f"{row.energy_j:8.0f}  {row.cost:8.0f}{error}"
        )
    for name, value in result.figures().items():
        print(f"{name:28s} {'–' if value is None else format(value, '.4g')}")
    for line in result.left_out:
        print(f"left out: {line}")


def main(arguments: Sequence[str] | None = None) -> None:
    begun_s = time.monotonic()
    said = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result goes, after every run")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it; what does not fit is left out")
    parser.add_argument("--recurrences", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3, help="rounds of the grid")
    parser.add_argument("--batch-sizes", default="16..1024")
    parser.add_argument("--default", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.0005, help="at the default size; others by the square root")
    parser.add_argument("--target", type=float, default=1.7, help="validation loss, in nats a character")
    parser.add_argument("--max-epochs", type=int, default=40)
    parser.add_argument("--eta", type=float, default=0.5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="characters of a text")
    parser.add_argument("--texts", type=int, default=6144, help="texts an epoch")
    parser.add_argument("--calibrate", action="store_true", help="only show what sizes take and how losses fall")
    parser.add_argument("--each-seconds", type=float, default=10.0, help="of every size, when calibrating")
    parser.add_argument("--cpu", action="store_true", help="train on the processor; joules are modelled")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(said)
    shape = {name: getattr(options, name) for name in ("width", "depth", "length", "texts")}
    sizes = batch_sizes(options.batch_sizes)
    training = Training(sizes, options.default, options.lr, options.max_epochs, options.target, **shape)
    stage = Stage(training, ends_s=begun_s + 60.0 * options.minutes, cpu=options.cpu)
    provenance = {
        **stage.provenance(),
        "command": " ".join(("python -m bench.recurring_gpu", *said)),
        "date": datetime.now(UTC).date().isoformat(),
    }
    try:
        if options.calibrate:
            calibrated(stage, options.each_seconds, options.out, provenance)
            return
        result = Result(provenance, training, Price(options.eta, stage.platform.max_power_w), options.out)
        measured(stage, result, rounds=options.seeds, recurrences=options.recurrences)
    finally:
        stage.close()
    if options.json:
        print(json.dumps({"figures": _rounded(result.figures()), "left_out": result.left_out}))
    else:
        show(result)


if __name__ == "__main__":
    main()
