"""Prints the action lists of the torch that runs it, for ``tests/plan/recorded/torch_actions``: one file a version.

    python tests/plan/clients/torch_actions.py > tests/plan/recorded/torch_actions/2.15.txt

The first line has the words of all its actions. A block begins with the schedule's name here, torch's name, its ranks,
stages a rank and microbatches, and which of torch's two lists it is; a line for each rank follows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules as known

CASES = [
    ("gpipe", "ScheduleGPipe", 2, 1, 3),
    ("1f1b", "Schedule1F1B", 4, 1, 8),
    ("interleaved", "ScheduleInterleaved1F1B", 2, 2, 4),
    ("zero-bubble", "ScheduleInterleavedZeroBubble", 2, 2, 4),
    ("looped-bfs", "ScheduleLoopedBFS", 2, 2, 3),
    ("zbv", "ScheduleZBVZeroBubble", 2, 2, 4),
    ("dualpipe-v", "ScheduleDualPipeV", 2, 2, 6),
]


def stage(index: int, stages: int, ranks: int) -> SimpleNamespace:
    """As much of a stage as a schedule looks at before it runs."""
    ends = {"is_first": index == 0, "is_last": index == stages - 1}
    return SimpleNamespace(stage_index=index, num_stages=stages, group_size=ranks, group_rank=0, submod=None, **ends)


def made(cls: str, ranks: int, chunks: int, microbatches: int) -> Any:
    """torch's schedule."""
    stages = [stage(chunk * ranks, ranks * chunks, ranks) for chunk in range(chunks)]
    single = cls in ("ScheduleGPipe", "Schedule1F1B")
    return getattr(known, cls)(stages[0] if single else stages, microbatches)


print(*sorted(each.value for each in known._ComputationType))
for name, cls, ranks, chunks, microbatches in CASES:
    schedule = made(cls, ranks, chunks, microbatches)
    for order in ("pipeline_order", "pipeline_order_with_comms"):
        rows = getattr(schedule, order, None)
        if rows:
            print(f"\n{name} {cls} {ranks} {chunks} {microbatches} {order}")
            for rank in sorted(rows):
                print(",".join("" if action is None else str(action) for action in rows[rank]))
