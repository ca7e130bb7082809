"""Schedules by their ordinary names: ``1f1b``, ``gpipe``, ``interleaved``, ``zero-bubble`` and those torch has besides.

Where torch can be imported it is asked, so that a plan is made for the order that will run. Where it cannot, the four
names above are still known; the tests hold them equal to torch's own lists.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.plan.schedules import Schedule, from_schedule, read_actions

# Name → torch's class, and how many stages a rank has: None for as many as the caller says.
_IN_TORCH: dict[str, tuple[str, int | None]] = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", None),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", None),
    "looped-bfs": ("ScheduleLoopedBFS", None),
    "zbv": ("ScheduleZBVZeroBubble", 2),
    "dualpipe-v": ("ScheduleDualPipeV", 2),
}
NAMES = tuple(_IN_TORCH)
_BUILT_IN = ("gpipe", "1f1b", "interleaved", "zero-bubble")
_MOST = 1_000_000  # operations; the largest pipelines reported have some ten thousand


def named(
    name: str, *, stages: int, microbatches: int, ranks: int | None = None, transfer_s: float = 0.0, ask: bool = True
) -> Schedule:
    """The schedule of that name. ``ranks`` defaults to one stage a rank (two for the V-shaped ones).

    ``ask`` is whether torch is asked where it can be imported. BadSpec where the name is unknown, the numbers do not
    fit it, or only torch knows it and is not there.
    """
    if name not in _IN_TORCH:
        raise BadSpec(f"no schedule is called {name!r}; names are {', '.join(NAMES)}, or give the CSV of one")
    if min(stages, microbatches) < 1 or 3 * stages * microbatches > _MOST:
        raise BadSpec(f"{stages} stages and {microbatches} microbatches make no pipeline; both are 1 or more")
    chunks = _IN_TORCH[name][1]
    if ranks is None:
        if name == "interleaved":
            raise BadSpec("an interleaved schedule has several stages on a rank: say on how many ranks, with --ranks")
        ranks = stages // (chunks or 1)
    if ranks < 1 or stages % ranks or (chunks is not None and stages != ranks * chunks):
        each = f"{chunks} of them" if chunks else "an equal number"
        raise BadSpec(f"{name} needs {each} on each rank; {stages} stages on {ranks} ranks are not that")
    answer = _asked(name, stages, ranks, microbatches) if ask else None
    if answer is not None and not isinstance(answer, Exception):
        return replace(from_schedule(answer), name=name, transfer_s=transfer_s)
    if name in _BUILT_IN:
        rows = [_row(name, rank, ranks, stages // ranks, microbatches) for rank in range(ranks)]
        return read_actions(rows, name=name, transfer_s=transfer_s)
    if answer is not None:
        raise BadSpec(f"torch does not make this {name} schedule: {answer}")
    raise BadSpec(f"the {name} schedule is known to torch only, which is not installed here; give its CSV instead")


def _asked(name: str, stages: int, ranks: int, microbatches: int) -> Any:
    """torch's schedule object; the exception where it makes none; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        from torch.distributed.pipelining import schedules as known

        # A schedule asks its stages no more than this until it runs; no process group is needed.
        local = [
            SimpleNamespace(
                stage_index=chunk * ranks,
                num_stages=stages,
                group_size=ranks,
                group_rank=0,
                is_first=chunk == 0,
                is_last=chunk * ranks == stages - 1,
                submod=None,
            )
            for chunk in range(stages // ranks)
        ]
        made = getattr(known, _IN_TORCH[name][0])
        return made(local[0] if name in ("gpipe", "1f1b") else local, microbatches)
    except Exception as problem:  # whatever a torch of another version raises from its private parts
        return problem


def _row(name: str, rank: int, ranks: int, chunks: int, microbatches: int) -> list[str]:
    """What a rank does. Chunk c of a rank is stage c × ranks + rank."""
    rounds = max(1, microbatches // ranks) if chunks > 1 else 1
    if microbatches % rounds:
        raise BadSpec(
            f"{microbatches} microbatches cannot be done in {rounds} equal rounds over {ranks} ranks; "
            f"take a multiple of {rounds}"
        )
    size = microbatches // rounds
    forth, back = (
        [
            (chunk * ranks + rank, number)
            for start in range(0, microbatches, size)
            for chunk in order
            for number in range(start, start + size)
        ]
        for order in (range(chunks), range(chunks - 1, -1, -1))
    )
    forwards = [f"{stage}F{number}" for stage, number in forth]
    if name == "gpipe":
        return forwards + [f"{stage}B{number}" for stage, number in back]
    # Forwards ahead of the first backward: enough to fill the stages behind this one, and all earlier chunks.
    hops = 2 if name == "interleaved" else 1
    ahead = min((chunks - 1) * size + hops * (ranks - 1 - rank), len(forth))
    backwards = [[f"{stage}B{number}"] for stage, number in back]
    if name == "zero-bubble":
        # The gradient of the weights fills what would be bubbles: ``rank`` of them are kept back until then.
        backwards = [[f"{stage}I{number}"] for stage, number in back]
        for at, (stage, number) in enumerate(back):
            backwards[min(at + rank, len(back) - 1)].append(f"{stage}W{number}")
    row = forwards[:ahead]
    for at, done in enumerate(backwards):
        row += [*forwards[ahead + at : ahead + at + 1], *done]
    return row
