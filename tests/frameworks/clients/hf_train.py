"""A Hugging Face Trainer: 12 steps of 2 batches, an evaluation every 4 steps, a checkpoint after 8.

hf_train.py told|untold        with our callback, or without
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

TOKENS = 6
DATA = [{"input_ids": torch.tensor([(3 * i + j) % 32 for j in range(TOKENS)]), "labels": i % 2} for i in range(96)]


class Net(nn.Module):
    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        logits = self.head(self.embed(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main(how: str) -> None:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=8,
        include_num_input_tokens_seen="all",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    callbacks = []
    if how == "told":
        from joulewise.frameworks.huggingface import StepCallback

        callbacks.append(StepCallback())
    Trainer(Net(), arguments, train_dataset=DATA, eval_dataset=DATA[:8], callbacks=callbacks).train()


if __name__ == "__main__":
    for how in ("told", "untold"):
        child = os.fork()
        if child == 0:
            main(how)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(f"pid {child}")
