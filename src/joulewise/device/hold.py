"""``hold``: a lease on GPUs by whatever way this process has: the daemon, its own rights, or none at all.

The one call that scripts, tuners and the command line use; it decides nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from joulewise.core.errors import BadSpec, NoDaemon, NotPermitted, Unsupported
from joulewise.core.knob import KNOBS
from joulewise.device.controls import Controls
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease
from joulewise.device.local import LocalLease
from joulewise.device.saved import STATE


def hold(
    gpus: Sequence[Gpu] | Sequence[str],
    knobs: Collection[str] | None = None,
    *,
    ttl_s: float = 30.0,
    reason: str = "",
    socket: Path | None = None,
    state: Path = STATE,
) -> Lease:
    """A lease on ``knobs`` (None: all that these GPUs have in common) of ``gpus``, given as objects or as UUIDs.

    Virtual GPUs of this process are held in its memory. All others are held through the daemon if one answers on
    ``socket``, with ``ttl_s`` to live after each beat; without one, root holds them itself, with ``state`` as the
    directory of what was there. Raises NotPermitted, with the way out, where there is neither; else as ``take`` does.
    """
    if not gpus:
        raise BadSpec("a lease needs at least one GPU; see 'joulewise doctor' for those there are")
    virtual = _virtual(gpus)
    if virtual:
        return LocalLease.take(virtual, _chosen(virtual, knobs), state=None, reason=reason)
    uuids = [gpu if isinstance(gpu, str) else _uuid(gpu) for gpu in gpus]
    try:
        return _remote(uuids, knobs, ttl_s, reason, socket)
    except NoDaemon as error:
        if os.geteuid() != 0:
            raise NotPermitted(f"setting GPUs takes root, or the daemon: {error}") from None
    from joulewise.device.nvml_controls import NvmlControls

    controls = [NvmlControls(uuid) for uuid in uuids]
    return LocalLease.take(controls, _chosen(controls, knobs), state=state, reason=reason)


def _remote(
    uuids: Sequence[str], knobs: Collection[str] | None, ttl_s: float, reason: str, socket: Path | None
) -> Lease:
    from joulewise.device.remote import RemoteLease

    return RemoteLease.take(uuids, knobs, ttl_s=ttl_s, reason=reason, socket=socket)


def _virtual(gpus: Sequence[Gpu] | Sequence[str]) -> list[Controls]:
    """Controls of virtual GPUs, if these are such: all of them, or none."""
    backends = {"" if isinstance(gpu, str) else gpu.info.backend for gpu in gpus}
    if "virtual" not in backends:
        return []
    if backends != {"virtual"}:
        raise BadSpec("virtual and other GPUs cannot share a lease; take one for each kind")
    from joulewise.device.virtual import VirtualGpu
    from joulewise.device.virtual_controls import VirtualControls

    return [VirtualControls.of(gpu) for gpu in gpus if isinstance(gpu, VirtualGpu)]


def _uuid(gpu: Gpu) -> str:
    if gpu.info.backend not in ("nvml", "remote"):
        raise Unsupported(f"{gpu.info.uuid} is a {gpu.info.backend} GPU, and joulewise can set NVIDIA's only")
    return gpu.info.uuid


def _chosen(controls: Sequence[Controls], knobs: Collection[str] | None) -> Collection[str]:
    if knobs is not None:
        return knobs
    chosen = [knob.name for knob in KNOBS if all(knob.name in each.space.knobs for each in controls)]
    if not chosen:
        raise Unsupported("these GPUs have no knob in common that could be set; see 'joulewise doctor'")
    return chosen
