"""What does ``joulewise run --tune --dry-run`` cost a job on a real GPU, and how true are the steps that it is told?

Programs of ``bench.step_workloads`` run alone and watched, in turns whose order is drawn; each logs the ends of its own
steps by CUDA events. Reads only: nothing is set on the GPU. Needs PyTorch with CUDA and a GPU that nobody else uses.

    python -m bench.dry_run [--only resnet50,gcn,ncf] [--rounds 3] [--seconds 15] [--photos FILE.npz] [--json]

``slower`` is the mean time of a watched step against one alone, less 1, with one standard error from the rounds;
``cpu_share`` is the watching process's own CPU seconds a second.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

WARM_S = 4.0  # the first steps build caches and raise clocks


def step_s(log: Path) -> float:
    """Mean seconds of a step, warm-up left out, long ones (evaluations, checkpoints) left out."""
    with log.open(newline="") as file:
        rows = [(float(row["end_s"]), row["kind"]) for row in csv.DictReader(file) if row["kind"] != "part"]
    begin_s = rows[0][0] + WARM_S
    steps = [
        end_s - before_s for (before_s, _), (end_s, kind) in pairwise(rows) if kind == "step" and before_s >= begin_s
    ]
    usual_s = statistics.median(steps)
    return statistics.fmean(step for step in steps if step < 3.0 * usual_s)


def run(name: str, options: argparse.Namespace, folder: Path, *, watched: bool) -> dict[str, Any]:
    """One run of a program: its mean step, and what the watcher says and took."""
    log, result = folder / "steps.csv", folder / "result.json"
    command = [sys.executable, "-m", "bench.step_workloads", name, "--seconds", str(options.seconds)]
    command += ["--out", str(log)] + (["--photos", str(options.photos)] if options.photos else [])
    if watched:
        command = [
            *(sys.executable, "-m", "joulewise", "run", "--tune", "--dry-run", "--json", str(result), "--"),
            *command,
        ]
    with (folder / "stderr").open("w+") as complaints:
        environ = {**os.environ, "JOULEWISE_HOME": str(folder)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints, env=environ)
        cpu_share = own_cpu_share(process)
        complaints.seek(0)
        said = complaints.read()
    if process.returncode:
        raise SystemExit(f"{name} failed: {said.strip()[-500:]}")
    seen: dict[str, Any] = {"step_s": step_s(log), "cpu_share": cpu_share}
    if watched:
        seen["result"], seen["said"] = json.loads(result.read_text()), said
    return seen


def own_cpu_share(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process's end; CPU seconds a second of itself, without its children, after its own start-up."""
    marks: list[tuple[float, float]] = []
    while process.poll() is None:
        with suppress(OSError):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            marks.append((time.monotonic(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")))
        time.sleep(0.2)
    late = [mark for mark in marks if mark[0] >= marks[0][0] + WARM_S]
    return (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]) if len(late) > 1 else math.nan


def compare(name: str, options: argparse.Namespace, draw: random.Random) -> dict[str, Any]:
    """Rounds of one program, alone and watched."""
    ratios, last = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            order = [True, False]
            draw.shuffle(order)
            seen = {watched: run(name, options, Path(folder), watched=watched) for watched in order}
            ratios.append(seen[True]["step_s"] / seen[False]["step_s"] - 1.0)
            last = seen[True]
            print(f"{name} round {number + 1}: {ratios[-1]:+.3%}", file=sys.stderr, flush=True)
    return {
        "rounds": ratios,
        "slower": statistics.fmean(ratios),
        "slower_error": statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None,
        "step_s": last["step_s"],
        "cpu_share": last["cpu_share"],
        "result": last["result"],
        "said": last["said"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="resnet50,gcn,ncf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    seen = {name: compare(name, options, draw) for name in options.only.split(",")}
    if options.json:
        print(json.dumps({"figures": {f"slower_{n}": each["slower"] for n, each in seen.items()}, "runs": seen}))
        return
    for name, each in seen.items():
        error = "" if each["slower_error"] is None else f" ± {each['slower_error']:.3%}"
        step, watched = f"step {1e3 * each['step_s']:8.3f} ms", f"watched {each['slower']:+.3%}{error}"
        print(f"{name:16s} {step}   {watched}   CPU {each['cpu_share']:.2%}")


if __name__ == "__main__":
    main()
