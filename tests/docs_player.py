"""Runs the Python of the pages, block by block, with what each takes from the reader's own script: a program.

docs_player.py plain|torch < BLOCKS > OUTCOMES

BLOCKS is a JSON list of [page, text]. Blocks of a page follow one another, as they do for who reads it; the reader's
own names (a loader, a model, what trains) are given anew to each. OUTCOMES has a line of JSON for each block: what it
printed, the names that it left, and the error that ended it, or null.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
import warnings
from typing import Any

from joulewise.device.work import work


class Batch:
    """What a loader gives."""

    num_tokens = 512


class Kept:
    """Whatever has a state."""

    def state_dict(self) -> dict[str, int]:
        return {"weights": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == self.state_dict()


def train(batch: object = None) -> float:
    """A step on the virtual GPU; its loss."""
    work("transformer")
    return 0.5


def prepare(candidate: tuple[object, ...]) -> Any:
    """How to run one way of doing a partition."""

    def run(times: int) -> None:
        work([(0.2 * (1.0 + 10.0 / float(candidate[1])), 0.8, 300.0)] * times)

    return run


def plain() -> dict[str, Any]:
    """The names that a reader has who has no framework."""
    return {
        "loader": [Batch() for _ in range(5)],
        "train": train,
        "train_one": lambda step: None,  # of ten thousand
        "train_one_epoch": lambda: [train() for _ in range(5)],
        "train_for_a_while": train,
        "generate": train,
        "evaluate": lambda: 0.9,
        "save": lambda: None,
        "epochs": 2,
        "model": Kept(),
        "optimizer": Kept(),
        "global_batch": 64,
        "tokens": 512,
        "candidates": [(1980, 8, "sequential"), (1980, 20, "rope")],
        "prepare": prepare,
    }


def torch() -> dict[str, Any]:
    """The names that a reader has who has PyTorch, Hugging Face and Lightning."""
    import lightning
    import torch
    import transformers
    import wandb
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.tensorboard import SummaryWriter

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            return {"loss": torch.nn.functional.cross_entropy(self.head(x), labels)}

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4)

    args = transformers.TrainingArguments(
        output_dir="trained", max_steps=4, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no"
    )
    data = [{"x": torch.ones(2), "labels": number % 2} for number in range(16)]

    def trainer(*own: object, callbacks: list[Any]) -> object:
        """Of either, by whose callbacks these are; the dots stand for what a reader passes otherwise."""
        assert own == (...,)
        if isinstance(callbacks[0], lightning.Callback):
            made = lightning.Trainer(max_steps=4, accelerator="cpu", logger=False, callbacks=callbacks)
            made.fit(Module())
        else:
            made = transformers.Trainer(model=Net(), args=args, train_dataset=data, callbacks=callbacks)
            made.train()
        return made

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    stage = PipelineStage(torch.nn.Linear(2, 2), 0, 1, torch.device("cpu"))
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    model = torch.nn.Linear(2, 1)
    return {
        **plain(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "args": args,
        "data": data,
        "Trainer": trainer,
        "SummaryWriter": SummaryWriter,
        "wandb": wandb,
        "schedule": Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss),
        "rank": 0,
        "huggingface_model": Net(),
        "lightning_model": Module(),
    }


def main() -> None:
    given = {"plain": plain, "torch": torch}[sys.argv[1]]()
    rooms: dict[str, dict[str, Any]] = {}
    for page, text in json.load(sys.stdin):
        room = rooms.setdefault(page, {"__name__": "__main__"})
        room |= given
        kind = page.rpartition("/")[2].removesuffix(".md")
        if f"{kind}_model" in given:
            room["model"] = given[f"{kind}_model"]
        printed, error = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(text, page, "exec"), room)
            except BaseException:
                error = traceback.format_exc()
        names = sorted(room.keys() - given.keys() - {"__name__", "__builtins__"})
        print(json.dumps({"printed": printed.getvalue(), "names": names, "error": error}), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
