"""Loops and trainers that log energy next to the loss; what was really written is printed as JSON.

energy_train.py wandb|tensorboard|huggingface|lightning
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = 8
STEP_S = 0.3
EVERY_S = 1.0
Curves = dict[str, list[tuple[int, float]]]


def work() -> float:
    """Something that takes its time."""
    time.sleep(STEP_S)
    return 0.5


def with_wandb() -> Curves:
    import wandb

    from joulewise.frameworks.wandb import EnergyLog

    with wandb.init(project="test", mode="offline", settings=wandb.Settings(silent=True)) as run:
        with EnergyLog(run, every_s=EVERY_S) as energy:
            for _ in range(STEPS):
                loss = work()
                energy.step()
                run.log({"loss": loss})
        assert energy.trouble is None, energy.trouble
        assert run.summary["energy/total_j"] == energy.report.energy_j
    return written_by_wandb()


def written_by_wandb() -> Curves:
    """The history of the one offline run, from its file; another process of W&B's writes it, in its own time."""
    from wandb.proto import wandb_internal_pb2 as messages

    deadline_s = time.monotonic() + 60.0
    ended, curves = False, {}
    while not ended:
        assert time.monotonic() < deadline_s, "the run's file has no end"
        time.sleep(0.1)
        curves = {}
        (file,) = Path("wandb").glob("offline-run-*/*.wandb")
        for data in records(file.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            ended = ended or record.WhichOneof("record_type") == "exit"
            if record.WhichOneof("record_type") == "history":
                told = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
                for key in (key for key in told if not key.startswith("_")):
                    curves.setdefault(key, []).append((int(told["_step"]), json.loads(told[key])))
    return curves


def records(file: bytes) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format, after a header of 7 bytes."""
    block, place, whole = 32768, 7, b""
    while place + 7 <= len(file):
        if block - place % block < 7:  # no room for another header in this block
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", file, place)
        if kind == 0:
            return
        whole += file[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def with_tensorboard() -> Curves:
    from torch.utils.tensorboard import SummaryWriter

    from joulewise.frameworks.tensorboard import EnergyLog

    with SummaryWriter("events") as writer, EnergyLog(writer, every_s=EVERY_S) as energy:
        for step in range(STEPS):
            writer.add_scalar("loss", work(), step)
            energy.step(step)
    assert energy.trouble is None, energy.trouble
    return written_to_tensorboard("events")


def written_to_tensorboard(folder: str) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def with_huggingface() -> Curves:
    os.environ["WANDB_MODE"], os.environ["WANDB_SILENT"] = "offline", "true"
    import torch
    import wandb
    from transformers import Trainer, TrainingArguments

    from joulewise.frameworks.huggingface import EnergyCallback
    from joulewise.frameworks.wandb import EnergyLog

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            work()
            logits = self.head(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    energy = EnergyLog(every_s=EVERY_S)
    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        report_to="wandb",
        disable_tqdm=True,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=3,
    )
    data = [{"x": torch.ones(2) * (number % 3), "labels": number % 2} for number in range(64)]
    trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[EnergyCallback(energy)])
    trainer.train()
    assert energy.trouble is None, energy.trouble
    wandb.finish()
    return {key.replace("train/loss", "loss"): points for key, points in written_by_wandb().items()}


def with_lightning() -> Curves:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.loggers import TensorBoardLogger
    from torch.utils.data import DataLoader, TensorDataset

    from joulewise.frameworks.lightning import EnergyCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            work()
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    logger = TensorBoardLogger("logs", name="", version="")
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[EnergyCallback(every_s=EVERY_S)],
    )
    trainer.fit(Module(), DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=4))
    logger.finalize("success")
    return written_to_tensorboard(logger.log_dir)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\ncurves", json.dumps(globals()[f"with_{sys.argv[1]}"]()))
