"""A Lightning Trainer: 12 steps of 2 batches, a validation after 6 steps each, a checkpoint after each.

lightning_train.py told|untold        with our callback, or without
"""

from __future__ import annotations

import os
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DATA = TensorDataset(torch.arange(96, dtype=torch.float32).reshape(48, 2) / 96)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def main(how: str) -> None:
    warnings.simplefilter("ignore")
    callbacks = []
    if how == "told":
        from joulewise.frameworks.lightning import StepCallback

        callbacks.append(StepCallback())
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(Net(), DataLoader(DATA, batch_size=4), DataLoader(DATA, batch_size=16))


if __name__ == "__main__":
    for how in ("told", "untold"):
        child = os.fork()
        if child == 0:
            main(how)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(f"pid {child}")
