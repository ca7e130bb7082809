"""Does ``joulewise serve`` tell what the driver tells, while a job runs, and what does serving cost?

    python -m bench.serve_gpu [--seconds 60] [--json] -- python examples/train_torch.py --steps 2000

The server and ``joulewise run -- COMMAND`` are processes of their own, with a store of their own; meanwhile this one
scrapes ``/metrics`` every second and asks the driver itself, through nvidia-ml-py, for the same GPU's counter and
power. Reads only: nothing is set. On a machine without a GPU, under ``joulewise sim -- …``.

``energy_error`` is the growth of the scraped counter over that of the driver's, less 1, between the first and the last
scrape; ``power_error`` the same of mean power; ``run_error`` of the joules that the finished run has at ``/api/runs``,
against the driver's counter from its start to its end, process start included. ``server_cpu_share`` is processor
seconds of the server a second, one scrape a second, GPUs read once a second.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

_WARM_S = 5.0  # the server's first readings, before anything is compared


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=60.0, help="how long to look, at most")
    options.add_argument("--json", action="store_true", help="end with one object {'figures': {…}}")
    options.add_argument("command", nargs="+", metavar="-- COMMAND", help="the job")
    chosen = options.parse_args()
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOULEWISE_HOME"] = folder
        with serving(Path(folder)) as (url, server):
            time.sleep(_WARM_S)
            figures = compare(url, server, gpu, chosen.command, chosen.seconds)
    for name, figure in figures.items():
        print(f"{name:20} {figure:.4g}")
    if chosen.json:
        print(json.dumps({"figures": figures, "gpu": pynvml.nvmlDeviceGetName(gpu)}))


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """A server on a free port: its address and its process."""
    with (folder / "serve.log").open("w") as log:
        words = [sys.executable, "-m", "joulewise", "serve", "--port", "0", "--gpu", "nvml:0"]
        words.append("--trust-local-users")  # what a scrape costs, not what a token does
        server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + 60.0
            while not (at := re.search(r"http://[^\s,;]+", (folder / "serve.log").read_text())):
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the server did not start: {(folder / 'serve.log').read_text().strip()[-500:]}")
                time.sleep(0.1)
            yield at[0].rstrip("/."), server.pid
        finally:
            server.terminate()
            server.wait(20.0)


def compare(url: str, server: int, gpu: Any, command: list[str], seconds: float) -> dict[str, float]:
    """Run the job, look at both sides once a second, and say how far they are apart."""
    began_cpu_s, began_s = cpu_s(server), time.monotonic()
    began_j = driver_j(gpu)
    watched = [sys.executable, "-m", "joulewise", "-q", "run", "--gpu", "nvml:0", "--", *command]
    with subprocess.Popen(watched, stdout=subprocess.DEVNULL) as job:
        scraped: list[tuple[float, float, float, float]] = []
        scrape_ms: list[float] = []
        while job.poll() is None and time.monotonic() < began_s + seconds:
            asked_s = time.monotonic()
            text = get(url + "/metrics")
            scrape_ms.append(1e3 * (time.monotonic() - asked_s))
            theirs = metric(text, "joulewise_gpu_energy_joules_total"), metric(text, "joulewise_gpu_power_watts")
            scraped.append((*theirs, driver_j(gpu), pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3))
            time.sleep(max(0.0, asked_s + 1.0 - time.monotonic()))
        cpu_share = (cpu_s(server) - began_cpu_s) / (time.monotonic() - began_s)
        if job.wait():
            raise SystemExit(f"the job failed: exit code {job.returncode}")
    spent_j = driver_j(gpu) - began_j
    (run, *_) = json.loads(get(url + "/api/runs"))["runs"]
    first, last = scraped[0], scraped[-1]
    return {
        "energy_error": (last[0] - first[0]) / (last[2] - first[2]) - 1.0,
        "power_error": statistics.fmean(row[1] for row in scraped) / statistics.fmean(row[3] for row in scraped) - 1.0,
        "run_error": run["energy_j"] / spent_j - 1.0,
        "mean_power_w": statistics.fmean(row[3] for row in scraped),
        "server_cpu_share": cpu_share,
        "scrape_ms": statistics.median(scrape_ms),
        "scrapes": len(scraped),
    }


def driver_j(gpu: Any) -> float:
    """The GPU's own counter."""
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3


def cpu_s(pid: int) -> float:
    """Processor seconds of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30.0) as answer:
        return str(answer.read().decode())


def metric(text: str, name: str) -> float:
    """The first sample of a metric; it must be there."""
    at = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE)
    if at is None:
        raise SystemExit(f"/metrics has no {name}")
    return float(at[1])


if __name__ == "__main__":
    main()
