"""A pipeline of several processes that finds, plays and checks a plan of its own clocks: one line of joulewise in it.

joulewise sim --gpu 'sim:h200*4' --speed 4 -- torchrun --nproc-per-node 4 examples/train_pipeline.py
torchrun --nproc-per-node 4 examples/train_pipeline.py        (on real GPUs, as root or with joulewise's daemon)

Every stage really trains, on a GPU where there is one. Without one it trains on the processor, and a virtual GPU does
the work of each forward and backward besides, at its present clock; the stage waits for it. When a stage was done on
the virtual GPU travels to the next stage beside the activations (and back beside the gradients), so that the virtual
pipeline is as fast as its GPUs, whatever this machine is busy with. Nothing of it touches what is computed.
"""

import argparse
import json
import os
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from joulewise import follow
from joulewise.device import work

# What a microbatch is to a stage's virtual GPU: seconds, share that follows the SM clock, watts, host, share of memory.
FORWARD = (1.0, 0.75, 400.0, 0.0, 0.15)
BACKWARD = (2.0, 0.60, 360.0, 0.0, 0.25)
UNEQUAL = (1.0, 0.80, 0.90, 1.15)  # stages of real models are not equally long either
JITTER = 0.005  # relative, from one microbatch to the next


class VirtualGpu:
    """This rank's virtual GPU: pieces of work one after another, each as soon as what it needs is there."""

    def __init__(self, stage: int, seconds: float) -> None:
        self.link = work.current()
        self.index = self.link.hello["mine"][0]
        self.seconds = seconds * UNEQUAL[stage % len(UNEQUAL)]
        self.luck = random.Random(stage)
        self.free_s = 0.0

    def do(self, load: tuple[float, ...], after_s: float) -> float:
        """Do a load that needs what was done at ``after_s``; when it was done."""
        seconds = load[0] * self.seconds * self.luck.gauss(1.0, JITTER)
        request = {"op": "work", "gpu": self.index, "loads": [[seconds, *load[1:]]]}
        if since_s := max(self.free_s, after_s):
            request["since_s"] = since_s
        self.free_s = self.link.finish(self.link.send(request)).finished_s
        return self.free_s

    def drawn_j(self) -> float:
        """What it has drawn so far, in truth."""
        return float(self.link.ask({"op": "truth", "gpu": self.index})["energy_j"])


class OnVirtualGpu(torch.autograd.Function):
    """Passes activations and gradients on as they are, after the virtual GPU has done its part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, done: torch.Tensor, gpu: VirtualGpu) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.gpu = gpu
        return x.view_as(x), torch.full_like(done, gpu.do(FORWARD, float(done)))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return gradient, torch.full_like(done, ctx.gpu.do(BACKWARD, float(done))), None


class Stage(nn.Module):
    """A few layers of the model; with a virtual GPU it takes and gives the moment of being done, too."""

    def __init__(self, width: int, gpu: VirtualGpu | None, last: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2)))
        self.gpu, self.last = gpu, last

    def forward(self, x: torch.Tensor, done: torch.Tensor | None = None) -> Any:
        x = self.layers(x)
        if self.gpu is None:
            return x
        x, done = OnVirtualGpu.apply(x, torch.zeros(1, dtype=torch.float64) if done is None else done, self.gpu)
        return x if self.last else (x, done)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--iterations", type=int, default=60)
    options.add_argument("--microbatches", type=int, default=8)
    options.add_argument("--width", type=int, default=None, help="default: 4096 on a GPU, 16 on a processor")
    options.add_argument("--seconds", type=float, default=0.1, help="a forward on the virtual GPU")
    options.add_argument("--plain", action="store_true", help="without joulewise")
    options.add_argument("--max-slowdown", type=float, default=0.0)
    options.add_argument("--log", type=Path, help="a folder for what each rank has done, iteration by iteration")
    chosen = options.parse_args(arguments)

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    virtual = VirtualGpu(rank, chosen.seconds) if not cuda and work.ENVIRONMENT in os.environ else None

    torch.manual_seed(rank)
    width = chosen.width or (4096 if cuda else 16)
    model = Stage(width, virtual, last=rank == ranks - 1).to(device)
    stage = PipelineStage(model, rank, ranks, device)
    schedule = Schedule1F1B(stage, chosen.microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = (chosen.log / f"rank{rank}.jsonl").open("w") if chosen.log else None

    with nullcontext() if chosen.plain else follow(schedule, max_slowdown=chosen.max_slowdown) as job:
        for iteration in range(chosen.iterations):
            draw = torch.Generator().manual_seed(iteration)
            batch = torch.randn(8 * chosen.microbatches, width, generator=draw).to(device)
            losses: list[torch.Tensor] = []
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(batch)
            elif rank == ranks - 1:
                schedule.step(target=batch.roll(1, dims=1), losses=losses)
                loss = torch.stack(losses).mean().item()
                print(f"iteration {iteration:3d}  loss {loss:.6f}", flush=True)
            else:
                schedule.step()
            optimizer.step()
            if log is not None:
                seen: dict[str, Any] = {"iteration": iteration, "losses": [each.item().hex() for each in losses]}
                if virtual is not None:
                    seen |= {"time_s": virtual.free_s, "energy_j": virtual.drawn_j()}
                if job is not None:
                    seen["doing"] = job.doing
                print(json.dumps(seen), file=log, flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
