"""The ranks of a script: which one this is, of how many, and how they agree to do something at the same step.

``torch.distributed`` where it is initialised, else what the launcher says (``RANK``, ``WORLD_SIZE``; Slurm's tasks).
Only where ranks can talk do they agree: through torch, or through what the script passes in.

Plain Python from 3.9 on, standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Agree = Callable[[int], int]
"""The highest of the numbers that all ranks call it with, on each of them."""

# The tasks of a Slurm step, not of the job (SLURM_NTASKS): a batch script without srun is one process, whatever it has.
_NAMES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


class Ranks:
    """``rank`` of ``count``; ``agree`` is None where they cannot talk to each other."""

    def __init__(self, rank: int, count: int, agree: Agree | None) -> None:
        self.rank, self.count, self.agree = rank, count, agree

    @classmethod
    def here(cls, agree: Agree | None = None, environ: Mapping[str, str] | None = None) -> Ranks:
        """As it is now. Where torch.distributed is initialised all ranks must call it together (a group is made)."""
        distributed = sys.modules.get("torch.distributed")
        if agree is None and distributed is not None and distributed.is_available() and distributed.is_initialized():
            size = int(distributed.get_world_size())
            return cls(int(distributed.get_rank()), size, _by_torch(distributed) if size > 1 else None)
        environ = os.environ if environ is None else environ
        for rank_name, count_name in _NAMES:
            rank, count = _number(environ.get(rank_name)), _number(environ.get(count_name))
            if rank is not None and count is not None and rank < count:
                return cls(rank, count, agree if count > 1 else None)
        return cls(0, 1, None)

    def highest(self, number: int) -> int:
        """Of all ranks where they can talk, else this one's own."""
        return number if self.agree is None else self.agree(number)


def _by_torch(distributed: Any) -> Agree:
    """Through a group on the processor: asking a GPU at each step would make it wait for the script."""
    torch = sys.modules["torch"]
    own = distributed.get_backend() == "gloo"
    group = None if own else distributed.new_group(backend="gloo")

    def highest(number: int) -> int:
        value = torch.tensor([number], dtype=torch.int64)
        distributed.all_reduce(value, op=distributed.ReduceOp.MAX, group=group)
        return int(value.item())

    return highest


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def visible_gpus() -> int:
    """As CUDA_VISIBLE_DEVICES counts them; 1 where it does not say."""
    named = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return max(1, len(named))
