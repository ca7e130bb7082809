"""Schedules of torch on one rank, with two stages where they may have several: what is wrapped, run and left. As JSON.

python pipeline_wrapped.py FOLDER
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from joulewise.frameworks.pipelining import follow

STEPS, MICROBATCHES = 3, 2
SEVERAL = ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble")
NAMES = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def made(name: str) -> Any:
    """A schedule of two stages on this rank, or of one where it cannot have more."""
    torch.manual_seed(0)
    kind = getattr(schedules, name)
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    count = 1 if single else 2
    stages = [PipelineStage(nn.Linear(4, 4), index, count, torch.device("cpu")) for index in range(count)]
    return kind(stages[0] if single else stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)


def trained(schedule: Any) -> list[str]:
    losses = []
    for step in range(STEPS):
        batch = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        each: list[torch.Tensor] = []
        schedule.step(batch, target=batch, losses=each)
        losses += [loss.item().hex() for loss in each]
    return losses


def followed(name: str) -> dict[str, Any]:
    plain = trained(made(name))
    schedule = made(name)
    with follow(schedule, gpu="sim:h200") as job:
        losses = trained(schedule)
        if not hasattr(schedule, "_stages"):  # torch 2.13 cannot evaluate several stages of one rank
            schedule.eval(torch.zeros(4, 4), target=torch.zeros(4, 4))
        assert job.session is not None
        rank = job.session.rank
        ran = [[span.stage, span.kind, span.microbatch] for span in rank._done() if span.iteration == STEPS - 1]
        found = {"off": job.session.off, "why": job.session.why, "expected": [list(op) for op in rank.order]}
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    wrapped = [each for part in (*stages, schedule) for each in (*NAMES, "step") if each in part.__dict__]
    return {**found, "ran": ran, "losses": losses, "plain": plain, "wrapped": wrapped}


def main(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    single = {name: followed(name) for name in ("ScheduleGPipe", "Schedule1F1B")}
    several = {name: followed(name) for name in SEVERAL}
    methods = {name: inspect.signature(getattr(PipelineStage, name)).parameters for name in NAMES}
    said: dict[str, Any] = {
        "schedules": {**single, **several},
        "parameters": {name: [each for each in found if each != "self"] for name, found in methods.items()},
        "zero-bubble kinds": sorted({kind for _, kind, _ in several["ScheduleInterleavedZeroBubble"]["ran"]}),
        "no gpu": follow(made("Schedule1F1B"), gpu="sim:h200*2").says,
        "not a schedule": follow(nn.Linear(1, 1)).says,
    }
    try:
        follow(made("Schedule1F1B"), max_slowdown=-1)
    except ValueError as error:
        said["bad bound"] = str(error)
    print(json.dumps(said))
    dist.destroy_process_group()


main(Path(sys.argv[1]))
