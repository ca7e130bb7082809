"""Who writes down what happens, while it does: what the scheduler says of itself, and a meter that asks nobody.

The scheduler's status goes to a file, a line each time, as ``joulewise cluster status --json --live`` writes it. The
meter reads what the virtual GPUs really draw, hosts as declared, some ten times a second: what a meter at the wall
would see, whatever the scheduler believes.
"""

import json
import threading
import time
from pathlib import Path

from joulewise.core.plain import plain
from joulewise.testing.slurm_stack import SlurmStack

STATUS_S, METER_S = 0.5, 0.1


class Watch:
    """Writes until ``close``. ``power_w`` is the meter's last mean."""

    def __init__(self, stack: SlurmStack, folder: Path) -> None:
        self.watched, self.meter = folder / "watched.jsonl", folder / "meter.csv"
        self._stack = stack
        self._ending = threading.Event()
        self._recent: list[tuple[float, float]] = []
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._measure)]
        for thread in self._threads:
            thread.start()

    def mean_w(self, over_s: float) -> float:
        """Mean of what was drawn lately."""
        since_s = time.time() - over_s
        seen = [watts for time_s, watts in list(self._recent) if time_s >= since_s]
        return sum(seen) / len(seen) if seen else 0.0

    def close(self) -> None:
        """No more lines."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _follow(self) -> None:
        with self.watched.open("w") as file:
            while not self._ending.wait(STATUS_S):
                status = self._stack.status()
                if status is not None:
                    print(json.dumps(plain(status)), file=file, flush=True)

    def _measure(self) -> None:
        with self.meter.open("w") as file:
            print("time_s,power_w", file=file)
            while not self._ending.wait(METER_S):
                time_s, watts = time.time(), self._stack.power_w()
                self._recent.append((time_s, watts))
                print(f"{time_s:.3f},{watts:.1f}", file=file, flush=True)
