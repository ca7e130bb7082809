"""Which GPUs a training script is on: those that were named, else those of all its ranks on this node.

For local rank 0, which looks after the node's GPUs for the others (``torch.tuning``, ``energy_log``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulewise.device.gpu import Gpu


def job_gpus(spec: str | None) -> list[Gpu]:
    """The GPUs that ``spec`` names, or those of all ranks of this job on this node. Raises what ``discover`` raises."""
    from joulewise.device import discover

    if spec is not None:
        return discover.find(spec)
    mine, seen = discover.mine()
    if set(seen.node_uuids) <= set(seen.uuids):
        return mine
    known = {each.info.uuid: each for each in discover.listed()[0]}
    return [known[uuid] for uuid in seen.node_uuids]
