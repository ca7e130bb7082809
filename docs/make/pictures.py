"""The pictures of the site, drawn by the program that they are about; none is kept in the repository.

``frontier.svg`` is the GPU law of the catalogue's H200 for three kinds of work, ``plan.png`` and ``cluster.png`` are
what ``plan show`` and ``cluster simulate`` draw, of a pipeline and a trace that are written here. No GPU is needed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from joulewise.model import catalog, physics, workloads
from joulewise.report.plot import HUES, STYLE

_WORK = ("transformer", "recommender", "cnn-loader")
_TRACE = """name,submitted_s,gpus,duration_s,model
night-1,0,8,9000,bert
night-2,300,8,7200,gpt2
try-1,600,1,900,
try-2,660,1,600,
big,900,16,5400,resnet50
"""


def draw(into: Path) -> None:
    """All pictures, into the folder ``into``."""
    into = into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    frontier(into / "frontier.svg")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "trace.csv").write_text(_TRACE)
        gpus, policies = ("--gpu", "sim:a100-sxm*16"), ("--policy", "priced", "--policy", "tiresias")
        _joulewise("cluster", "simulate", "trace.csv", *gpus, *policies, "--plot", str(into / "cluster.png"), at=where)
        (where / "profile.csv").write_text("\n".join(_profile()) + "\n")
        pipeline = ("--schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--blocking-w", "85")
        _joulewise("plan", "solve", "profile.csv", *pipeline, "--out", "plan.json", at=where)
        _joulewise("plan", "show", "plan.json", "--plot", str(into / "plan.png"), at=where)


def frontier(path: Path) -> None:
    """Time and energy of a step at every SM clock of a virtual H200, relative to nothing set."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.figure import Figure

    gpu = catalog.load("h200")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for hue, name in zip(HUES, _WORK, strict=False):
            loads = [phase.load for phase in workloads.get(name, gpu=gpu).step()]
            points = [_step(gpu, loads, x / 100) for x in range(35, 101)]
            time_s, energy_j = _step(gpu, loads, 1.0)
            axes.plot([t / time_s for t, _ in points], [e / energy_j for _, e in points], color=hue, label=name)
        axes.plot([1], [1], "o", color="black", label="nothing set")
        axes.axvspan(1, 1.02, color="#009e73", alpha=0.15, label="at most 2 % slower")
        axes.set(xlim=(0.99, 1.3), xlabel="time of a step, relative", ylabel="energy of a step, relative")
        axes.legend(frameon=False)
        figure.savefig(path)


def _step(gpu: catalog.GpuModel, loads: list[physics.Load], lock: float) -> tuple[float, float]:
    """Seconds and joules of one step with the SM clock locked at ``lock`` of its maximum, under the default limit."""
    lock_mhz = lock * gpu.chip.sm_max_mhz
    settled = [physics.operate(gpu.chip, load, lock_mhz=lock_mhz, limit_w=gpu.default_limit_w) for load in loads]
    return sum(each.step_s for each in settled), sum(each.energy_j for each in settled)


def _profile() -> Iterator[str]:
    """Four stages of a made-up pipeline, the last one heavier, at eleven clocks of the H200's law."""
    gpu = catalog.load("h200")
    (load, *_) = (phase.load for phase in workloads.get("transformer", gpu=gpu).step())
    yield "stage,instruction,frequency,time,energy"
    for stage, heavier in enumerate((1.0, 0.92, 0.96, 1.15)):
        for kind, longer in (("forward", 1.0), ("backward", 2.0)):
            for clock in range(10, 21):
                time_s, energy_j = _step(gpu, [load], clock / 20)
                size = heavier * longer * 0.05 / load.gpu_s
                yield f"{stage},{kind},{gpu.chip.sm_max_mhz * clock / 20:.0f},{time_s * size},{energy_j * size}"


def _joulewise(*words: str, at: Path) -> None:
    """Run the command line in the folder ``at``, for what it draws. CalledProcessError if it fails."""
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "JOULEWISE_HOME": str(at)}
    command = [sys.executable, "-m", "joulewise", "-q", *words]
    subprocess.run(command, cwd=at, env=environ, check=True, stdout=subprocess.DEVNULL)
