"""Where ``bench.recurring_gpu`` runs its trainings: one GPU, one text, one run after another, each measured.

The script is examples/train_recurring.py, called in this process; an epoch is measured as ``joulewise recur run``
measures it, a run by a window of ``Monitor``. Reads only. With ``cpu`` the processor trains and joules are *modelled*,
those of a virtual H200 at rest: they say nothing.
"""

from __future__ import annotations

import importlib.util
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.recurring_gpu_score import Ran
from joulewise.cli.recur_epochs import Epochs
from joulewise.cli.recur_loop import platform_of
from joulewise.cli.recur_terms import Rate
from joulewise.core.measurement import Outcome
from joulewise.core.metric import Metric
from joulewise.core.series import EpochCost
from joulewise.device.discover import find
from joulewise.monitor import Monitor

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_recurring.py"
GoOn = Callable[[int, tuple[EpochCost, ...]], bool]
"""Asked after an epoch that did not reach the target: epochs done, and what one costs."""


class OutOfTime(Exception):
    """The time that was given is over."""


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, and how far."""

    batch_sizes: tuple[int, ...]
    default: int
    lr: float
    """At the default size; others get it times the square root of the ratio, which is right for AdamW."""
    max_epochs: int
    target: float
    """Validation loss, in nats a character."""
    width: int
    depth: int
    length: int
    texts: int


class Stage:
    """See the module. SystemExit where there is nothing to train on."""

    def __init__(self, training: Training, *, ends_s: float, cpu: bool = False) -> None:
        """``ends_s``: when the time is over, by the monotonic clock."""
        import torch

        if not cpu and not torch.cuda.is_available():
            raise SystemExit("bench.recurring_gpu: PyTorch sees no GPU here; --cpu trains on the processor")
        self.training, self.cpu = training, cpu
        self._torch, self._ends_s, self._device = torch, ends_s, "cpu" if cpu else "cuda"
        self._gpu = find("sim:h200" if cpu else "nvml")[0]
        self.platform = platform_of([self._gpu])
        if not self.platform.max_power_w > 0:
            raise SystemExit(f"bench.recurring_gpu: {self._gpu.info.name} does not say its highest power limit")
        self._rate = Rate(training.lr, training.default)
        self._script = _script()
        texts, validation, self._letters = self._script.read(training.length, training.texts)
        self._texts, self._validation = texts.to(self._device), validation.to(self._device)
        self._monitor = Monitor([self._gpu], sync=None if cpu else torch.cuda.synchronize)
        torch.set_num_threads(1)  # what the processor does is launching

    def close(self) -> None:
        """Stop measuring."""
        self._monitor.close()

    @property
    def left_s(self) -> float:
        """What is left of the time."""
        return self._ends_s - time.monotonic()

    def run(self, batch_size: int, seed: int, go_on: GoOn = lambda *_: True, target: float | None = None) -> Ran:
        """Train a new model to the target, to the most epochs, or as long as ``go_on`` says so. OutOfTime if that
        comes first. What the script does before its first epoch is no part of it."""
        training, clock, losses, thinking_s = self.training, self._monitor.time, list[float](), 0.0
        target = training.target if target is None else target
        self._torch.manual_seed(seed)
        model = self._script.Model(self._letters, training.width, training.depth, training.length).to(self._device)
        lr, most = self._rate.at(batch_size), training.max_epochs
        with self._monitor.window(f"batch size {batch_size}", settle=True) as window:
            epochs = Epochs(self._monitor.sampler, clock.now_s())
            epochs.told(Metric(clock.now_s(), 0, {}))
            for epoch, val_loss in self._script.train(model, self._texts, self._validation, batch_size, lr, most):
                now_s = clock.now_s()  # the GPU has been waited for, to know the loss
                losses.append(val_loss)
                epochs.told(Metric(now_s, epoch, {"val_loss": val_loss}))
                enough = val_loss <= target or epoch == most or not go_on(epoch, epochs.profile())
                thinking_s += clock.now_s() - now_s
                if self.left_s <= 0:
                    raise OutOfTime
                if enough:
                    break
        if losses[-1] <= target:
            outcome = Outcome.REACHED
        else:
            outcome = Outcome.FAILED if len(losses) == most else Outcome.STOPPED_EARLY
        found = window.report.total
        source = "modelled" if self.cpu else str(found.source)
        spent = (found.duration_s, found.energy_j, found.error_j)
        return Ran(batch_size, seed, outcome, len(losses), *spent, source, tuple(losses), epochs.profile(), thinking_s)

    def warm_up(self) -> None:
        """An epoch of every size: what is built on first use is built then, and the sensors' ticks are found."""
        for size in self.training.batch_sizes:
            self.run(size, 0, lambda *_: False, -math.inf)

    def provenance(self) -> dict[str, Any]:
        """Where, and with what."""
        info = self._gpu.info
        return {
            "gpu": f"none: joules are modelled, those of a virtual {info.name} at rest" if self.cpu else info.name,
            "driver": info.driver,
            "max_power_w": self.platform.max_power_w,
            "torch": str(self._torch.__version__),
            "cuda": self._torch.version.cuda,
            "python": platform.python_version(),
        }


def _script() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("train_recurring", EXAMPLE)
    if spec is None or spec.loader is None:
        raise SystemExit(f"bench.recurring_gpu: {EXAMPLE} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
