"""What torch itself says of its schedules, as one JSON object: lists as printed, and its own two CSV formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules as known

from joulewise.plan.schedules import from_schedule, read_csv
from joulewise.plan.schedules_named import named


def stage(index: int, stages: int, ranks: int) -> SimpleNamespace:
    ends = {"is_first": index == 0, "is_last": index == stages - 1}
    return SimpleNamespace(stage_index=index, num_stages=stages, group_size=ranks, group_rank=0, submod=None, **ends)


def made(cls: str, ranks: int, chunks: int, microbatches: int) -> Any:
    stages = [stage(chunk * ranks, ranks * chunks, ranks) for chunk in range(chunks)]
    single = cls in ("ScheduleGPipe", "Schedule1F1B")
    return getattr(known, cls)(stages[0] if single else stages, microbatches)


def printed(schedule: Any) -> list[list[str]]:
    """The computations of torch's list, as texts."""
    rows = schedule.pipeline_order
    return [[str(action) for action in rows[rank] if action and action.is_compute_op] for rank in range(len(rows))]


def main(folder: Path) -> None:
    answers = []
    for name, cls, ranks, chunks, microbatches in json.load(sys.stdin):
        schedule = made(cls, ranks, chunks, microbatches)
        read = from_schedule(schedule)
        answer = {
            "printed": printed(schedule),
            "read": [[str(action) for action in row] for row in read.rows],
            "asked": [
                [str(action) for action in row]
                for row in named(name, stages=ranks * chunks, ranks=ranks, microbatches=microbatches).rows
            ],
            "edges": sorted((edge.before, edge.after) for edge in read.dag.edges),
            "stage_ranks": [read.stage_ranks[index] for index in range(read.stages)],
        }
        if hasattr(schedule, "_dump_csv"):
            for form in ("compute_only", "compute_comms"):
                path = folder / f"{form}.csv"
                schedule._dump_csv(str(path), format=form)
                again = read_csv(path)
                answer[form] = sorted((edge.before, edge.after) for edge in again.dag.edges)
            answer["torch_stage_ranks"] = [schedule.stage_index_to_group_rank[index] for index in range(read.stages)]
        answers.append(answer)
    json.dump(answers, sys.stdout)


main(Path(sys.argv[1]))
