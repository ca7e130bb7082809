"""Does ``joulewise run --tune`` through the virtual NVML do what the same tuner does in one process?

Three jobs, each twice: as a command of its own under the command line, in a simulator that lives ten times as
fast as the wall, settings written and sensors read through NVML; and in this process on virtual time. Each against the
same work untuned, in the same way. Part of ``bench.online --virtual``, or ``python -m bench.online_end_to_end``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.online_jobs import Job, tuned, untuned
from bench.online_truths import Case
from bench.virtual_training import steps_of
from joulewise.core.errors import JoulewiseError
from joulewise.model import catalog, physics

JOBS = (("transformer", "h200", 1, 0.4), ("cnn", "a100-sxm", 2, 0.25), ("gan", "h200", 3, 0.3))
BOUND = 0.05
JOB_S = 600.0
SPEED = 10.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class Agreement:
    """One job both ways: shares of the untuned run."""

    name: str
    command_saving: float
    command_slowdown: float
    process_saving: float
    process_slowdown: float

    @property
    def apart(self) -> float:
        """How far the two savings are apart."""
        return abs(self.command_saving - self.process_saving)


def case_of(family: str, gpu: str, seed: int, step_s: float) -> Case:
    """The job on the law of the catalogue, which is the simulator's, through sensors without a gain error."""
    first = next(steps_of(family, gpu, seed, step_s))
    return Case(
        name=f"{family}-{gpu}",
        kind="matched",
        model=catalog.load(gpu),
        law=physics,
        order=tuple(phase.load for phase in first),
        play=lambda: (phase for step in steps_of(family, gpu, seed, step_s) for phase in step),
        step_s=step_s,
        gain=1.0,
    )


def command(
    family: str, gpu: str, seed: int, step_s: float, *, steps: int, tune: bool, speed: float = SPEED
) -> tuple[float, float]:
    """Seconds and joules of so many steps under ``joulewise run``."""
    tuning = ("--tune", "--max-slowdown", f"{100 * BOUND:g}%", "--seed", str(_SEED)) if tune else ()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "joulewise", "run", "--gpu", f"sim:{gpu}", "--speed", str(speed)),
                *(*tuning, "--"),
                *(sys.executable, "-m", "bench.virtual_training", family, gpu, str(seed), str(step_s), str(steps)),
                str(result),
            ],
            capture_output=True,
            text=True,
            timeout=60.0 + 3.0 * steps * step_s / speed,
        )
        if ran.returncode or not result.exists():
            raise JoulewiseError(f"joulewise run ended with {ran.returncode}: {ran.stderr.strip()[-300:]}")
        told = json.loads(result.read_text())
        return float(told["seconds"]), float(told["joules"])


def agreement(family: str, gpu: str, seed: int, step_s: float) -> Agreement:
    """Run one job both ways."""
    case = case_of(family, gpu, seed, step_s)
    plain = untuned(Job(case), JOB_S)
    job = tuned(Job(case), BOUND, seed=_SEED, job_s=JOB_S).job
    steps = len(job.ends_s)
    seconds, joules = command(family, gpu, seed, step_s, steps=steps, tune=True)
    base_s, base_j = command(family, gpu, seed, step_s, steps=steps, tune=False)
    return Agreement(
        name=case.name,
        command_saving=1.0 - joules / base_j,
        command_slowdown=seconds / base_s - 1.0,
        process_saving=1.0 - job.joules(steps) / plain.joules(steps),
        process_slowdown=job.ends_s[-1] / plain.ends_s[steps - 1] - 1.0,
    )


if __name__ == "__main__":
    for each in JOBS:
        print(agreement(*each), flush=True)
