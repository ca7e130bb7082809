"""A trainer that tunes by itself and fails as soon as something is set; then the GPU is free, in the same process.

trainer_fails.py huggingface|lightning

Once the GPU could be taken again it prints the setting at the failure.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import torch
from torch import nn

from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import DEFAULT
from joulewise.device import discover
from joulewise.device.hold import hold
from joulewise.device.work import work

STEPS = 2000


class Broken(Exception):
    """What the training raises."""


class Step:
    """One step of virtual work, and the failure."""

    def __init__(self) -> None:
        self.callback: Any = None
        self.setting: dict[str, float] = {}

    def __call__(self) -> None:
        work("transformer")  # long enough that the trainer's own time does not count
        status = self.callback.job.status
        if status is not None and status.setting != DEFAULT:
            self.setting = dict(status.setting)
            raise Broken


def huggingface(step: Step) -> None:
    from transformers import Trainer, TrainingArguments

    from joulewise.frameworks.huggingface import StepCallback

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            step()
            return {"loss": self.head(x).sum()}

    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=STEPS,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
    )
    step.callback = StepCallback(max_slowdown=0.05)
    data = [{"x": torch.zeros(1)}] * 8
    Trainer(Net(), arguments, train_dataset=data, callbacks=[step.callback]).train()


def lightning(step: Step) -> None:
    import lightning.pytorch as pl

    from joulewise.frameworks.lightning import StepCallback

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            step()
            return self.head(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    step.callback = StepCallback(max_slowdown=0.05)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[step.callback],
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.zeros(8, 1)))


def until_free() -> None:
    """Wait until the GPU can be taken."""
    while True:
        try:
            hold(discover.find(None), reason="whether it is free").release()
        except JoulewiseError:
            time.sleep(0.05)
        else:
            return


warnings.simplefilter("ignore")
step = Step()
try:
    {"huggingface": huggingface, "lightning": lightning}[sys.argv[1]](step)
except Broken:
    until_free()
    print(json.dumps(step.setting))
