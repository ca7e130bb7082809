"""Trainers that tell metrics by our callback and stop when told: ``metric_train.py hf|lightning|ranks``."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from joulewise.frameworks import metric

metric.ANSWER_S = 60.0  # a busy machine may keep whoever answers waiting


def hugging_face() -> None:
    from hf_train import DATA, Net
    from transformers import Trainer, TrainingArguments

    from joulewise.frameworks.huggingface import StepCallback

    arguments = TrainingArguments(
        output_dir="trained",
        num_train_epochs=50,
        per_device_train_batch_size=32,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    accuracy: Any = lambda found: {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}  # noqa: E731
    trainer = Trainer(
        Net(),
        arguments,
        train_dataset=DATA,
        eval_dataset=DATA[:8],
        callbacks=[StepCallback()],
        compute_metrics=accuracy,
    )
    trainer.train()
    print(f"stopped after epoch {trainer.state.epoch:g}")


def lightning() -> None:
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning_train import DATA, Net
    from torch.utils.data import DataLoader

    from joulewise.frameworks.lightning import StepCallback

    class Logged(Net):
        def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
            self.log("val_loss", self.layer(batch[0]).pow(2).mean())

    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=50,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[StepCallback()],
    )
    trainer.fit(Logged(), DataLoader(DATA, batch_size=16), DataLoader(DATA, batch_size=16))
    print(f"stopped after epoch {trainer.current_epoch}")


def ranks() -> None:
    """Two ranks of gloo; rank 1 knows nothing of the directory, as on another node."""
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            _rank(rank)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def _rank(rank: int) -> None:
    if rank:
        del os.environ["JOULEWISE_METRICS"]
    import joulewise

    torch.distributed.init_process_group("gloo", init_method=f"file://{Path.cwd()}/ranks", rank=rank, world_size=2)
    for epoch in range(1, 51):
        joulewise.metric(epoch=epoch, loss=nn.functional.relu(torch.tensor(1.0 / epoch)))
        if joulewise.should_stop():
            break
    os.write(1, f"rank {rank} stopped after epoch {epoch}\n".encode())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    {"hf": hugging_face, "lightning": lightning, "ranks": ranks}[sys.argv[1]]()
