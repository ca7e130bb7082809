"""``StepCallback`` for Lightning: tells steps, validation and checkpoints, and the metrics of a recurring job.

    from joulewise.frameworks.lightning import StepCallback

    Trainer(..., callbacks=[StepCallback()])

A step is a batch with which the optimisers moved on: batches that accumulate gradients are one step, and so is a batch
on which several optimisers step. Under ``joulewise recur run`` what was logged is told by its own names after each
validation (or epoch, where there is none), and training ends after one that says so. Without ``joulewise run`` around
it, it costs some function calls a batch. With ``max_slowdown`` it tunes by itself (see
``joulewise.frameworks.torch.tuning``). Importing this module loads nothing; asking for ``StepCallback`` loads
Lightning, as ``lightning`` or as ``pytorch_lightning``, whichever the job uses.

``EnergyCallback(gpu=None, every_s=10)`` puts the curves of ``energy_log`` into the trainer's loggers (TensorBoard, W&B
and others), next to the loss.
"""

# ruff: noqa: ARG002 (the framework hands them in)

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from joulewise.frameworks import hooks
from joulewise.frameworks.energy_log import EnergyLog
from joulewise.frameworks.metric import should_stop, tell

if TYPE_CHECKING:
    from joulewise.frameworks.torch import Job

WHO = "lightning"


class Told:
    """The callback's methods, apart from the class of Lightning that they go into."""

    def __init__(self, max_slowdown: float | None = None) -> None:
        self.job: Job | None = None
        """The loop that is tuned from here, once it trains: ``job.says`` tells how that stands, or ended."""
        self._max_slowdown = max_slowdown
        self._tuning = ExitStack()
        self._steps = 0
        self._validated = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins; compilation and the first batch may take long."""
        if self._max_slowdown is not None:
            from joulewise.frameworks.torch import tuning

            self.job = self._tuning.enter_context(tuning(max_slowdown=self._max_slowdown))
        self._steps = trainer.global_step
        tell(trainer.current_epoch, {})
        if (marker := hooks.marker()) is not None:
            marker.hello(WHO, hooks.CALLBACK)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Whatever was done besides steps is over."""
        hooks.resume()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done, and with it a step if an optimiser moved on."""
        marker = hooks.marker()
        if marker is not None and trainer.global_step > self._steps:
            self._steps = trainer.global_step
            marker.step(1.0, WHO, hooks.CALLBACK)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation, within training or by itself."""
        hooks.pause("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """What was logged is complete only here, not at ``on_validation_epoch_end``."""
        if not trainer.sanity_checking:
            self._validated = True
            self._tell(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch is over; its validation, if there is one, came before."""
        validated, self._validated = self._validated, False
        if not validated:
            self._tell(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A checkpoint is about to be written."""
        hooks.pause("checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        hooks.pause("end")
        self._tuning.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has failed."""
        self._tuning.__exit__(type(exception), exception, None)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Training is over, also where no end was told: a search for a learning rate or a batch size stops that way."""
        self._tuning.close()

    def _tell(self, trainer: Any) -> None:
        if trainer.state.fn != "fit":  # a validation by itself
            return
        batches, done = trainer.num_training_batches, trainer.fit_loop.batch_idx + 1
        part = done / batches if 0 < done < batches else 1.0  # validation may come within an epoch
        tell(trainer.current_epoch + part, trainer.callback_metrics)
        if should_stop():
            trainer.should_stop = True


class Logged:
    """The methods of ``EnergyCallback``, apart from the class of Lightning that they go into."""

    def __init__(self, gpu: str | None = None, every_s: float = 10.0) -> None:
        self._energy = EnergyLog(self._write, gpu=gpu, every_s=every_s)
        self._loggers: list[Any] = []
        self._steps = 0

    @property
    def energy(self) -> EnergyLog:
        """What measures; its ``report`` is there when training is over."""
        return self._energy

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins."""
        self._loggers, self._steps = list(trainer.loggers), trainer.global_step
        self._energy.begin()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done, and with it a step if an optimiser moved on."""
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self._energy.step(self._steps)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training is over."""
        self._energy.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has failed."""
        self._energy.close()

    def _write(self, values: Mapping[str, float], step: int | None) -> None:
        for logger in self._loggers:
            logger.log_metrics(dict(values), step=self._steps if step is None else step)


def _package() -> Any:
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda each: each not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("there is no Lightning here; 'pip install lightning'")


_PARTS = {"StepCallback": Told, "EnergyCallback": Logged}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = type(name, (_PARTS[name], _package().Callback), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = made
    return made
