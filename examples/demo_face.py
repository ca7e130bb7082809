"""Fill a folder with something of everything that the dashboard shows, on virtual GPUs and a simulated cluster.

    python examples/demo_face.py /tmp/demo            # about three minutes; --quick: half of one
    joulewise serve --database /tmp/demo/joulewise.db --plans /tmp/demo/plans --gpu 'sim:h200*2'

Every number comes from a process that a user would start: ``joulewise run`` tuned, plain and killed, ``joulewise recur
run``, ``joulewise plan solve`` and ``joulewise cluster up`` with its jobs. Only the training is virtual: its accuracy
is made up, its time and joules are the virtual GPU's law.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve()
TRAIN = HERE.with_name("train_virtual.py")
CLOCKS_MHZ = (810, 1005, 1200, 1395, 1590, 1785, 1980)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("folder", type=Path, nargs="?", default=Path("demo"))
    options.add_argument("--quick", action="store_true", help="fewer and shorter ones")
    options.add_argument("--train", type=int, metavar="BATCH_SIZE", help=argparse.SUPPRESS)  # what a recurrence runs
    chosen = options.parse_args()
    if chosen.train is not None:
        train(chosen.train)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    demo = Demo(chosen.folder.resolve(), quick=chosen.quick)
    demo.fill()
    where = f"--database {demo.database} --plans {demo.folder / 'plans'}"
    print(f"look at it with: joulewise serve {where} --gpu 'sim:h200*2'")


class Demo:
    """The folder: ``joulewise.db``, ``plans/``."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.database = folder / "joulewise.db"
        self._environ = {
            **os.environ,
            "JOULEWISE_HOME": str(folder),
            "JOULEWISE_DATABASE": str(self.database),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def fill(self) -> None:
        """All of it, one after the other: side by side they slow each other's virtual time, which --quick accepts."""
        if self.quick:
            parts = (lambda: self.tuned_run("recommender", 1000), lambda: self.recurring(2), self.plain_run)
            with ThreadPoolExecutor() as side_by_side:
                for each in [side_by_side.submit(part) for part in (*parts, self.plan, self.cluster)]:
                    each.result()
            return
        self.plan()
        self.cluster()
        self.recurring(7)
        self.plain_run()
        self.tuned_run("recommender", 2700)
        self.tuned_run("transformer", 1600)
        self.killed_run()

    def tuned_run(self, workload: str, steps: int) -> None:
        """Some minutes of a virtual GPU's life, tuned."""
        self._joulewise(
            *("run", "--gpu", "sim:h200", "--speed", "20", "--tune", "--", sys.executable, str(TRAIN)),
            *("--workload", workload, "--step-seconds", "0.15", "--epochs", "1", "--steps", str(steps)),
        )

    def plain_run(self) -> None:
        """Measured and left alone, on two GPUs."""
        self._joulewise(
            *("run", "--gpu", "sim:h200*2", "--speed", "20", "--", sys.executable, str(TRAIN)),
            *("--epochs", "2", "--steps", "80", "--seed", "7"),
        )

    def killed_run(self) -> None:
        """One that never came to its end."""
        argv = ["run", "--gpu", "sim:h200", "--speed", "20", "--tune", "--", sys.executable, str(TRAIN)]
        run = self._start(*argv, "--epochs", "1", "--steps", "100000", "--seed", "3")
        time.sleep(6.0)
        run.kill()
        run.communicate()

    def recurring(self, times: int) -> None:
        """A job that returns, and what is learnt of its batch sizes."""
        for _ in range(times):
            self._joulewise(
                *("recur", "run", "--job", "nightly", "--batch-sizes", "16..256", "--default", "32"),
                *("--target", "val_acc>=0.8", "--max-epochs", "16", "--gpu", "sim:h200", "--speed", "20"),
                *("--metric-pattern", r"epoch (?P<epoch>\d+) val_acc=(?P<val_acc>[0-9.]+)"),
                *("--", sys.executable, str(HERE), "--train", "{batch_size}"),
            )

    def plan(self) -> None:
        """The clocks of a pipeline whose stages are not alike."""
        plans = self.folder / "plans"
        plans.mkdir(exist_ok=True)
        profile = self.folder / "profile.csv"
        profile.write_text("\n".join(["stage,instruction,frequency,time,energy", *_profile()]) + "\n", "utf-8")
        self._joulewise(
            *("plan", "solve", str(profile), "--schedule", "1f1b", "--stages", "4", "--microbatches", "8"),
            *("--blocking-w", "110", "--points", "17", "--out", str(plans / "four-stages.json")),
        )

    def cluster(self) -> None:
        """A simulated day of a small cluster: more jobs than GPUs, a cap that falls and a budget."""
        up = self._start(
            *("cluster", "up", "--engine", "sim", "--gpu", "sim:a100-sxm*16", "--port", "0", "--speed", "300"),
            *("--socket", str(self.folder / "cluster.sock")),
            *("--power-cap", "9kW", "--energy-budget", "120kWh/day", "--database", str(self.database)),
        )
        said = ""
        while (found := re.search(r"--server (unix:\S+?)'", said)) is None:
            line = up.stderr.readline() if up.stderr else ""
            if not line:
                raise SystemExit(f"the cluster did not start: {said}")
            said += line
        there = ("--server", found[1])
        jobs = (("bert", "8"), ("resnet50", "4"), ("bert", "4"), ("resnet50", "2"), ("bert", "8"))[
            : 3 if self.quick else 5
        ]
        try:
            for number, (workload, gpus) in enumerate(jobs, 1):
                self._joulewise(
                    *("cluster", "submit", *there, "--engine", "sim", "--name", f"night-{number}", "--gpus", gpus),
                    *("--checkpoint", "c", "--steps", str(24_000 + 6_000 * number), "--workload", workload),
                    *("--", "python", "train.py"),
                )
            time.sleep(2.0 if self.quick else 8.0)
            self._joulewise("cluster", "cap", "4.5kW", "--for", "3h", *there)
            time.sleep(3.0 if self.quick else 16.0)
        finally:
            up.send_signal(signal.SIGTERM)
            up.communicate(timeout=60)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "joulewise", *arguments]
        return subprocess.Popen(argv, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _joulewise(self, *arguments: str) -> None:
        started_s = time.monotonic()
        process = self._start(*arguments)
        _, said = process.communicate()
        shown = " ".join(arguments[:3])
        print(f"{time.monotonic() - started_s:6.1f} s  joulewise {shown} …", file=sys.stderr, flush=True)
        if process.returncode:
            raise SystemExit(f"joulewise {' '.join(arguments)}: {process.returncode}\n{said}")


def _profile() -> list[str]:
    """Rows of a made-up profile: work that a clock slows down, work that it does not, and watts by its cube."""
    rows = []
    for stage, share in enumerate((1.0, 1.12, 0.94, 1.25)):
        for kind, base_s in (("forward", 0.05), ("backward", 0.098)):
            for clock_mhz in CLOCKS_MHZ:
                ratio = clock_mhz / CLOCKS_MHZ[-1]
                time_s = share * base_s * (0.35 + 0.65 / ratio)
                power_w = 190 + 430 * ratio**3
                rows.append(f"{stage},{kind},{clock_mhz},{time_s:.6f},{time_s * power_w:.4f}")
    return rows


def train(batch_size: int) -> None:
    """A training whose accuracy is made up: larger batches need more epochs, and have shorter ones."""
    from joulewise.device.work import work
    from joulewise.model import workloads

    job = workloads.get("transformer", seed=batch_size, step_s=0.05 + 0.001 * batch_size)
    luck = random.lognormvariate(0.0, 0.08)
    needed = max(2.0, (3.0 + (batch_size / 60) ** 1.2) * luck)
    for epoch in range(1, 17):
        for _ in range(max(1, 12_800 // batch_size)):
            work([job.loads[job.evaluated]])
        print(f"epoch {epoch} val_acc={min(0.95, 0.8 * epoch / needed):.4f}", flush=True)


if __name__ == "__main__":
    main()
