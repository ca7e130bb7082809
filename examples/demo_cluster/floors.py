"""Three frontiers from three floors, each made by the command line as a user would: a run, a series, a plan.

What comes back is what ``joulewise cluster submit`` needs of each job: its flags, and its command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import train_pipe
import train_series

HERE = Path(__file__).resolve().parent
ELASTIC = str(HERE.parent / "train_elastic.py")
GPU = "a100-sxm"
SERIES, TARGET = "words", "val_loss<=0.42"
SPEED = 20.0
"""Virtual seconds in one: a quarter of an hour of training in less than a minute."""


class Failed(Exception):
    """A step of the demo did not work; the words of whoever failed."""


@dataclass(frozen=True)
class Job:
    """What is handed in. ``floor``: where its frontier comes from, in words; ``says``: what that floor found."""

    name: str
    gpus: int
    flags: tuple[str, ...]
    command: tuple[str, ...]
    floor: str
    says: str


def called(words: list[str], environ: Mapping[str, str], folder: Path, *, log: str) -> str:
    """Run it to its end, with its words in a file; what it wrote on stdout. Failed if it ends otherwise."""
    made = subprocess.run(words, env=dict(environ), cwd=folder, capture_output=True, text=True, check=False)
    (folder / log).write_text(made.stdout + made.stderr)
    if made.returncode:
        last = (made.stderr.strip() or made.stdout.strip() or "nothing was said").splitlines()[-1]
        raise Failed(f"'{' '.join(words[2:6])} …' ended with exit code {made.returncode}: {last}; see {folder / log}")
    return made.stdout


def joulewise(*words: str) -> list[str]:
    """The command line of this very Python."""
    return [sys.executable, "-m", "joulewise", *words]


def tuned(environ: Mapping[str, str], folder: Path, *, steps: int, tuned_steps: int) -> Job:
    """A job that is tuned while it runs, on eight GPUs. The cluster's job is the same script, with ``steps``."""
    train = [sys.executable, ELASTIC, "--workload", "cnn", "--step-seconds", "4"]
    log = "run.txt"
    flags = ["--gpu", f"sim:{GPU}*8", "--speed", f"{SPEED:g}", "--tune", "--max-slowdown", "15%", "--seed", "1"]
    short = [*train, "--steps", str(tuned_steps), "--checkpoint", str(folder / "run-checkpoint")]
    called(joulewise("run", *flags, "--", *short), environ, folder, log=log)
    run = run_of(short, environ, folder)
    says = (folder / log).read_text()
    found = next((line for line in says.splitlines() if line.startswith("joulewise: ")), "joulewise: no word")
    return Job(
        "vision",
        8,
        ("--least", "2", "--most", "16", "--steps", str(steps), "--frontier", f"run:{run}"),
        (*train, "--steps", str(steps)),
        "job: run --tune",
        found.removeprefix("joulewise: "),
    )


def run_of(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> str:
    """The name of the run that had this command, as the history has it."""
    runs = json.loads(called(joulewise("history", "--json"), environ, folder, log="history.txt"))
    for run in runs:
        if run["facts"].get("command") == list(command):
            return str(run["run"])
    raise Failed("'run --tune' has left nothing in the history")


def series(environ: Mapping[str, str], folder: Path, *, nights: int) -> Job:
    """A job that returns: so many nights of it, each of which chooses a batch size and tunes its clocks."""
    train = [sys.executable, str(HERE / "train_series.py"), "--batch-size", "{batch_size}", "--lr", "{learning_rate}"]
    flags = ["--job", SERIES, "--batch-sizes", "64..256", "--default", "128", "--target", TARGET]
    flags += ["--max-epochs", "20", "--lr", "0.001", "--lr-rule", "sqrt"]
    flags += ["--gpu", f"sim:{GPU}*4", "--speed", f"{1.5 * SPEED:g}"]
    for night in range(nights):
        words = joulewise("recur", "run", *flags, "--seed", str(night), "--", *train, "--epochs", "{epochs}")
        called(words, environ, folder, log=f"night-{night + 1}.txt")
    said = json.loads(called(joulewise("recur", "frontier", SERIES, "--json"), environ, folder, log="frontier.txt"))
    best = min(said["points"], key=lambda point: point["energy_j"] * point["time_s"])
    batch = int(best["batch_size"])
    told = json.loads(called(joulewise("recur", "history", SERIES, "--json"), environ, folder, log="trials.txt"))
    steps = round(mean_epochs(told["trials"], batch) * train_series.steps_an_epoch(batch))
    command = [sys.executable, ELASTIC, "--workload", train_series.WORKLOAD, "--batch", str(batch), "--lr", "0.001"]
    command += ["--step-seconds", f"{train_series.step_s(batch):g}", "--steps", str(steps)]
    return Job(
        "words",
        4,
        (
            "--least",
            "2",
            "--most",
            "8",
            "--steps",
            str(steps),
            "--batch",
            str(batch),
            "--frontier",
            f"recur:{SERIES}@{batch}",
        ),
        tuple(command),
        "series: recur",
        f"batch size {batch}, {steps} steps to {TARGET}, {best['energy_j'] / 1000:.0f} kJ a run",
    )


def mean_epochs(trials: Sequence[Mapping[str, Any]], batch: int) -> float:
    """Epochs that runs with this batch size took, those that got there."""
    took = [trial["epochs"] for trial in trials if trial["batch_size"] == batch and trial["outcome"] == "reached"]
    if not took:
        raise Failed(f"no run of {SERIES} with batch size {batch} has reached its target")
    return float(sum(took)) / len(took)


def planned(environ: Mapping[str, str], folder: Path, *, steps: int) -> Job:
    """A pipeline of eight stages: each is measured at a few clocks, and a plan is made of that."""
    profile = [sys.executable, str(HERE / "profile_pipe.py"), "profile.csv"]
    words = joulewise("sim", "--gpu", f"sim:{GPU}*8", "--speed", f"{SPEED:g}", "--", *profile)
    waiting_w = called(words, environ, folder, log="profile.txt").strip().splitlines()[-1]
    shape = ["--stages", str(train_pipe.STAGES), "--microbatches", str(train_pipe.MICROBATCHES)]
    solve = ["profile.csv", "--schedule", "1f1b", *shape, "--blocking-w", waiting_w]
    said = called(
        joulewise("plan", "solve", *solve, "--gpu-name", GPU, "--out", "plan.json"), environ, folder, log="plan.txt"
    )
    return Job(
        "pipe",
        8,
        ("--least", "8", "--most", "8", "--steps", str(steps), "--frontier", str(folder / "plan.json")),
        (sys.executable, str(HERE / "train_pipe.py"), "--steps", str(steps)),
        "iteration: plan",
        said.splitlines()[0],
    )


def environment() -> dict[str, str]:
    """For everything that the floors run: one thread each, and lines that are not cut."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
