"""Train a few steps on two processes over gloo, sharded or tensor parallel, and write what torch's profiler saw.

python train_traced.py FOLDER fsdp|tensor… [--steps 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile, schedule

RANKS, WIDTH, LAYERS = 2, 192, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def work(rank: int, how: str, folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/{how}.store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    for block in model:
        if how == "fsdp":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if how == "fsdp":
        fully_shard(model, mesh=mesh)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(128, WIDTH)
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for _ in range(steps + 1):
            model(x).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"{how}.{rank}.json.gz"))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("how", nargs="+", choices=("fsdp", "tensor"))
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    for how in options.how:
        # Forked, since importing torch is most of what a rank would cost.
        arguments = (how, options.folder.resolve(), options.steps)
        mp.start_processes(work, arguments, nprocs=RANKS, start_method="fork")


if __name__ == "__main__":
    main()
