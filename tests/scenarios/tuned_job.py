"""A training job of virtual work that tells its steps: ``tuned_job.py FILE [RANKS]``.

Says "up PID", trains until there is a file FILE.enough, and a while longer, then says in FILE that it is done: also
where whoever has started it is dead. Several ranks are processes of their own, as torchrun starts them, each on the GPU
of its local rank; they wait for each other at every step.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import sys
from pathlib import Path
from threading import Barrier

import joulewise
from joulewise.device.work import launch, work

STEP_S = 0.2
AFTERWARDS = 50
"""Steps to do once it is enough."""
MOST = 20_000


def train(enough: Path, together: Barrier | None) -> None:
    """Work, a step every 0.2 simulated seconds, more or less."""
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    draw = random.Random(0)  # the same for all ranks: they do the same work
    left = MOST
    for number in itertools.count():
        launch([(STEP_S * draw.gauss(1.0, 0.01), 0.6, 350.0, 0.0, 0.2)], gpu)
        joulewise.step()
        if number == 0 and gpu == 0:
            print("up", os.getpid(), flush=True)
        if together is not None:
            together.wait()
        if number % 10 == 0 and left > AFTERWARDS and enough.exists():
            left = AFTERWARDS
        left -= 1
        if left <= 0:
            break
    work([(0.001, 0.6, 350.0)], gpu)


def rank(number: int, ranks: int, enough: Path, together: Barrier) -> None:
    """One process of several."""
    os.environ |= {"RANK": f"{number}", "LOCAL_RANK": f"{number}", "WORLD_SIZE": f"{ranks}"}
    train(enough, together)


def main(file: str, ranks: str = "1") -> None:
    """Train to the end, and say so."""
    count, enough = int(ranks), Path(f"{file}.enough")
    if count == 1:
        train(enough, None)
    else:
        fork = multiprocessing.get_context("fork")
        together = fork.Barrier(count)
        started = [fork.Process(target=rank, args=(i, count, enough, together)) for i in range(count)]
        for each in started:
            each.start()
        for each in started:
            each.join()
            if each.exitcode:
                sys.exit(each.exitcode)
    Path(file).write_text("done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
