"""A small training with torch that is elastic: ``elastic_train.py FOLDER STEPS [SIGNAL RANK STEP]``.

As one process, or as several by RANK and WORLD_SIZE (gloo). In STEP, rank RANK sends itself SIGNAL. Prints a line of
JSON: where it began, the step boundaries at which it paused, how far its weights are from those of an undisturbed
training in one process, and how far these have moved.
"""

import json
import os
import signal
import sys

import torch
from torch import distributed, nn

import joulewise
from joulewise.cluster import progress

BATCH = 32


class Loop:
    """Model, optimiser and data; the batch of a step is a function of its number."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, step: int, rank: int = 0, world: int = 1) -> None:
        draw = torch.Generator().manual_seed(step)
        points = torch.randn(BATCH, 8, generator=draw)
        targets = points.sum(dim=1, keepdim=True).sin()
        mine = slice(rank, None, world)  # the global batch stays, whatever the world
        self.optimizer.zero_grad()
        loss = ((self.model(points[mine]) - targets[mine]) ** 2).sum() / BATCH
        loss.backward()
        if world > 1:
            for weight in self.model.parameters():
                distributed.all_reduce(weight.grad)
        self.optimizer.step()


def apart(one: Loop, other: Loop) -> float:
    """The most that any weight differs."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return max(float((mine - theirs).detach().abs().max()) for mine, theirs in pairs)


def main() -> None:
    folder, steps = sys.argv[1], int(sys.argv[2])
    number, whose, when = (*map(int, sys.argv[3:6]), -1, -1, -1)[:3]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    if world > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}.meet", rank=int(os.environ["RANK"]), world_size=world
        )

    loop = Loop()
    job = joulewise.elastic(folder, {"model": loop.model, "optimizer": loop.optimizer}, pause_s=0.3)
    paused = []
    real = progress.write
    progress.write = lambda where, now: (paused.append(now.step) if now.paused else None, real(where, now))
    for step in job.steps(steps):
        if (job.rank, step) == (whose, when):
            signal.raise_signal(number)
        loop.step(step, job.rank, job.world)

    alone = Loop()
    for step in range(steps):
        alone.step(step)
    told = {"rank": job.rank, "world": job.world, "from": job.start_step, "paused": paused}
    print(json.dumps({**told, "apart": apart(loop, alone), "moved": apart(alone, Loop())}), flush=True)
    if world > 1:
        distributed.destroy_process_group()


main()
