"""A training program whose every step is virtual work: what ``bench/online_end_to_end`` runs as a command of its own.

It knows nothing of tuning: it hands the steps of a library workload to its GPU, two ahead as launches are, tells each
one, and writes at its end what they truly took, in simulated seconds and joules.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import joulewise
from joulewise.device.node import NodeClient
from joulewise.device.work import ENVIRONMENT, current, launch
from joulewise.model import catalog, workloads
from joulewise.model.workloads import Phase


def steps_of(family: str, gpu: str, seed: int, step_s: float) -> Iterator[list[Phase]]:
    """The phases of one step after another, nothing between them."""
    job = replace(workloads.get(family, gpu=catalog.load(gpu), seed=seed, step_s=step_s), events=workloads.Events())
    step: list[Phase] = []
    for phase in job.phases():
        step.append(phase)
        if phase.ends_step:
            yield step
            step = []


def main() -> None:
    """Take so many steps, and write what they took."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("family")
    options.add_argument("gpu")
    options.add_argument("seed", type=int)
    options.add_argument("step_s", type=float)
    options.add_argument("steps", type=int)
    options.add_argument("result", type=Path)
    given = options.parse_args()
    with NodeClient(os.environ[ENVIRONMENT]) as node:
        before = node.truth()
        for step in itertools.islice(steps_of(given.family, given.gpu, given.seed, given.step_s), given.steps):
            launch(step)
            joulewise.step()
        current().wait()
        after = node.truth()
    told = {"seconds": after.time_s - before.time_s, "joules": after.energy_j - before.energy_j}
    given.result.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
