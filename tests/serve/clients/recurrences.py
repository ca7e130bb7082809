"""A client that plays recurrences of one job against a server, to be killed at any moment and started again.

    recurrences.py URL JOB NAME FIRST COUNT FOLDER

What it knows is in FOLDER/NAME.log, one line as soon as it happened: ``got TRIAL KEY``, ``told TRIAL``, ``done
RECURRENCE``. Started again it goes on with the recurrence that is not done, as a user does who submits it once more.
Until it has been killed once it does not come to its end: in its last trial it waits for that.
The training is made up: epochs that fall and rise with the batch size, and luck.
"""

import math
import os
import random
import signal
import sys
from pathlib import Path

from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform
from joulewise.serve.client import Client

LEASE_S = 3.0
MAX_EPOCHS = 30


def main(url: str, job: str, name: str, first: int, count: int, folder: Path) -> None:
    log = folder / f"{name}.log"
    again = log.exists()
    done = {line.split()[1] for line in log.read_text().splitlines() if line.startswith("done")} if log.exists() else ()
    desk = Client(url, job)
    with log.open("a", buffering=1) as says:
        for number in range(first, first + count):
            recurrence = f"r{number}"
            if recurrence in done:
                continue
            waits = not again and number == first + count - 1
            while not trial(desk, recurrence, name, says, waits=waits):
                pass
            says.write(f"done {recurrence}\n")


def trial(desk: Client, recurrence: str, name: str, says, *, waits: bool) -> bool:
    key = f"{name}:{os.getpid()}:{random.getrandbits(64):x}"
    asked = desk.ask(recurrence, Platform("made up", 1, 300.0), name, key, LEASE_S)
    says.write(f"got {asked.trial} {key}\n")
    while waits:
        signal.pause()
    needed = math.ceil(6 * (0.3 + (math.log2(asked.batch_size) - 6) ** 2 / 9) * random.lognormvariate(1, 0.15))
    cost = EpochCost(1 + 64 / asked.batch_size, 250 * (1 + 64 / asked.batch_size))
    most = desk.progress(asked.trial, 1, [cost], LEASE_S).most_epochs
    epochs = max(1, min(needed, most, MAX_EPOCHS))
    reached = needed <= epochs
    outcome = Outcome.REACHED if reached else Outcome.FAILED if epochs == MAX_EPOCHS else Outcome.STOPPED_EARLY
    desk.tell(
        asked.trial,
        outcome=outcome,
        epochs=epochs,
        duration_s=epochs * cost.duration_s,
        energy_j=epochs * cost.energy_j,
        profile=[cost],
    )
    while not desk.flush():  # the server is away for longer than the client's patience
        pass
    says.write(f"told {asked.trial}\n")
    return reached


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), Path(sys.argv[6]))
