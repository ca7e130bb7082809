"""The ranks of one pipeline, talking to each other: a group of their own over gloo, beside the job's.

It never touches the job's own group, whose traffic is on the GPUs. Without ``torch.distributed`` there is one rank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


class Group:
    """All ranks of the job make one at the same point; ``group`` is their pipeline's, None: all of them."""

    def __init__(self, group: Any = None) -> None:
        distributed = sys.modules.get("torch.distributed")
        self._dist: Any = None
        self.rank, self.size = 0, 1
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        self._dist = distributed
        mine = distributed.get_process_group_ranks(group) if group is not None else list(range(_world(distributed)))
        everyone: list[Any] = [None] * _world(distributed)
        distributed.all_gather_object(everyone, sorted(mine))
        # Every rank takes part in making every group, in the same order.
        for ranks in sorted({tuple(each) for each in everyone}):
            made = distributed.new_group(list(ranks), backend="gloo")
            if distributed.get_rank() in ranks:
                self._group = made
                self.rank, self.size = ranks.index(distributed.get_rank()), len(ranks)

    def exchange(self, said: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """What each rank says, in order of rank; returns when all have said something."""
        if self._dist is None:
            return [said]
        heard: list[Any] = [None] * self.size
        self._dist.all_gather_object(heard, said, group=self._group)
        return heard


def _world(distributed: Any) -> int:
    return int(distributed.get_world_size())
