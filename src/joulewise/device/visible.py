"""*My* GPUs: which of the GPUs on this machine belong to this process, and why we think so.

Measuring somebody else's GPU is the commonest mistake of energy tools. The environment answers: what CUDA or
ROCm was told (``CUDA_VISIBLE_DEVICES``, ``ROCR_`` and ``HIP_VISIBLE_DEVICES``), what the scheduler granted
(Slurm), what the container got (``NVIDIA_VISIBLE_DEVICES``), and which rank of a launcher this is (torchrun,
Slurm tasks). The lists are read as CUDA and PyTorch read them, odd forms included.

Pure: nothing here asks the hardware; the GPUs that it lists are passed in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.device.gpu import GpuInfo


@dataclass(frozen=True, slots=True)
class Visible:
    """The GPUs of this process, in the order in which it counts them (``cuda:0`` first)."""

    uuids: tuple[str, ...]
    why: str
    """One line in words a user can read."""
    node_uuids: tuple[str, ...] = ()
    """The GPUs of all ranks of this job on this node; equals ``uuids`` where there is one process."""
    certain: bool = True
    """False where the environment cannot tell for sure; ``why`` then says what would."""


@dataclass(frozen=True, slots=True)
class _Picked:
    """Positions in a list of GPUs, and the words for how they were found."""

    positions: tuple[int, ...]
    why: str
    certain: bool = True


def visible(
    environ: Mapping[str, str], gpus: Sequence[GpuInfo], mig_parents: Mapping[str, str] | None = None
) -> Visible:
    """Which of ``gpus`` are this process's own under ``environ``.

    ``gpus`` is what the backends list, AMD and NVIDIA together; each vendor's own variables apply to its own.
    ``mig_parents`` maps the UUID of a MIG instance to the UUID of the GPU it is a slice of, since power can
    only be read for the whole GPU.
    """
    nvidia = sorted((g for g in gpus if g.backend != "amd"), key=_pci_order)
    amd = sorted((g for g in gpus if g.backend == "amd"), key=_pci_order)
    found: list[str] = []
    picks: list[_Picked] = []
    for group, pick in ((nvidia, _nvidia(environ, nvidia, mig_parents or {})), (amd, _amd(environ, amd))):
        if group:
            picks.append(pick)
            found += [group[position].uuid for position in pick.positions]
    mine = Visible(
        uuids=tuple(found),
        why="; ".join(dict.fromkeys(pick.why for pick in picks)) or "there is no GPU",
        node_uuids=tuple(found),
        certain=all(pick.certain for pick in picks),
    )
    return _of_rank(environ, mine)


def _pci_order(info: GpuInfo) -> tuple[str, int]:
    """Bus order, which is also the order of ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""
    return ((info.pci_bus_id or "").lower(), info.index)


def _nvidia(environ: Mapping[str, str], gpus: Sequence[GpuInfo], mig_parents: Mapping[str, str]) -> _Picked:
    if (cuda := environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        alike = len({gpu.name for gpu in gpus}) <= 1
        in_bus_order = alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return _listed("CUDA_VISIBLE_DEVICES", cuda, gpus, mig_parents, in_bus_order=in_bus_order)
    if (slurm := _slurm(environ, gpus)) is not None:
        return slurm
    container = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if container and container not in ("all", "none", "void"):
        # "void" and "none" tell the runtime to mount nothing by this way; what is there came another way.
        return _granted("NVIDIA_VISIBLE_DEVICES", container, gpus, mig_parents)
    return _Picked(tuple(range(len(gpus))), f"all {len(gpus)}: CUDA_VISIBLE_DEVICES is not set")


def _amd(environ: Mapping[str, str], gpus: Sequence[GpuInfo]) -> _Picked:
    """ROCR's list is applied first, HIP's selects inside it; HIP also obeys CUDA's variable."""
    hip_name = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    rocr, hip = environ.get("ROCR_VISIBLE_DEVICES"), environ.get(hip_name)
    if rocr is None and hip is None:
        if (slurm := _slurm(environ, gpus)) is not None:
            return slurm
        return _Picked(tuple(range(len(gpus))), f"all {len(gpus)}: ROCR_ and HIP_VISIBLE_DEVICES are not set")
    if rocr is None:
        assert hip is not None
        return _listed(hip_name, hip, gpus, {})
    outer = _listed("ROCR_VISIBLE_DEVICES", rocr, gpus, {})
    if hip is None:
        return outer
    asked, given = len(hip.split(",")), len(rocr.split(","))
    if asked > given:
        why = f"none: {hip_name} names {asked} GPUs, ROCR_VISIBLE_DEVICES leaves {given}, and ROCm refuses that"
        return _Picked((), why)
    inner = _listed(hip_name, hip, [gpus[position] for position in outer.positions], {})
    chosen = tuple(outer.positions[position] for position in inner.positions)
    return _Picked(chosen, f"{outer.why}, then {inner.why}")


def _listed(
    name: str,
    value: str,
    gpus: Sequence[GpuInfo],
    mig_parents: Mapping[str, str],
    *,
    in_bus_order: bool = True,
) -> _Picked:
    """Read a list as CUDA does: the first entry fixes the kind, a bad one ends it, a repeated one empties it."""
    if not value.strip():
        return _Picked((), f"none: {name} is empty")
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith(("GPU-", "MIG-")):
        picked = _by_uuid(entries, gpus, mig_parents)
    else:
        picked = _by_number(entries, len(gpus))
        if not in_bus_order and 0 < len(picked.positions) < len(gpus):
            doubt = "GPUs differ, so CUDA counts the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID to be sure"
            picked = _Picked(picked.positions, "; ".join(filter(None, (picked.why, doubt))), certain=False)
    shown = value if len(value) <= 60 else value[:59] + "…"
    return replace(picked, why=f"{name}={shown}" + (f" ({picked.why})" if picked.why else ""))


def _by_uuid(entries: Sequence[str], gpus: Sequence[GpuInfo], mig_parents: Mapping[str, str]) -> _Picked:
    """UUIDs of one kind (GPU or MIG instance), each in full or as a prefix that only one has."""
    kind = entries[0][:4]
    of_kind = list(itertools.takewhile(lambda entry: entry.startswith(kind), entries))
    if len(set(of_kind)) < len(of_kind):
        return _Picked((), "none: a name is repeated")
    why = f"ends at {entries[len(of_kind)]!r}" if len(of_kind) < len(entries) else ""
    owner: dict[str, int] = {}
    for entry in of_kind:
        matches = _matches(entry, gpus, mig_parents)
        if len(matches) != 1:
            why = f"ends at {entry!r}, which {'several have' if matches else 'none has'}"
            break
        ((uuid, position),) = matches.items()
        if uuid in owner:
            return _Picked((), "none: a name is repeated")
        owner[uuid] = position
    if kind == "MIG-" and owner:
        why = "; ".join(filter(None, (why, "a MIG instance: power and energy are of its whole GPU")))
    # Two instances of one GPU are one GPU to a power sensor.
    return _Picked(tuple(dict.fromkeys(owner.values())), why)


def _matches(entry: str, gpus: Sequence[GpuInfo], mig_parents: Mapping[str, str]) -> dict[str, int]:
    """The GPUs or MIG instances that ``entry`` may mean, each with the position of its GPU."""
    place = {gpu.uuid: position for position, gpu in enumerate(gpus)}
    if entry.startswith("GPU-"):
        return {uuid: position for uuid, position in place.items() if uuid.startswith(entry)}
    if entry.startswith("MIG-GPU-"):  # drivers before 470: MIG-GPU-<uuid>/<gpu instance>/<compute instance>
        parent = entry.removeprefix("MIG-").split("/")[0]
        return {entry: place[parent]} if parent in place else {}
    return {
        instance: place[parent]
        for instance, parent in mig_parents.items()
        if instance.startswith(entry) and parent in place
    }


def _by_number(entries: Sequence[str], count: int) -> _Picked:
    """Numbers as C's strtoul reads them (``1gpu2`` is 1), up to the first negative or unreadable one."""
    numbers: list[int] = []
    why = ""
    for entry in entries:
        match = re.match(r"[+-]?\d+", entry)
        number = int(match.group()) if match else -1
        if number in numbers:
            return _Picked((), f"none: {number} is repeated")
        if number < 0:
            why = f"ends at {entry!r}"
            break
        numbers.append(number)
    inside = list(itertools.takewhile(lambda number: number < count, numbers))
    if len(inside) < len(numbers):
        why = f"ends at {numbers[len(inside)]}, since {count} can be seen"
    return _Picked(tuple(inside), why)


def _slurm(environ: Mapping[str, str], gpus: Sequence[GpuInfo]) -> _Picked | None:
    """What Slurm granted to this step, else to this job; None outside Slurm. Its numbers are the node's."""
    job, step = environ.get("SLURM_JOB_GPUS"), environ.get("SLURM_STEP_GPUS")
    if step and job:
        inside, all_of_job = _numbers(step), _numbers(job)
        if inside and all_of_job and len(all_of_job) == len(gpus) and set(inside) <= set(all_of_job):
            # The job's cgroup hides the rest of the node: what we see are the job's GPUs, lowest number first.
            seen = sorted(all_of_job)
            return _Picked(tuple(seen.index(number) for number in inside), f"SLURM_STEP_GPUS={step} of {job}")
    if step:
        return _granted("SLURM_STEP_GPUS", step, gpus, {})
    return _granted("SLURM_JOB_GPUS", job, gpus, {}) if job else None


def _granted(name: str, value: str, gpus: Sequence[GpuInfo], mig_parents: Mapping[str, str]) -> _Picked:
    """Read what a scheduler or container runtime granted, counted over the whole node.

    Where it also hides the other GPUs (device cgroup, container), the numbers are the node's and ours start
    at 0; then everything that is left is ours.
    """
    everything = tuple(range(len(gpus)))
    if value.startswith(("GPU-", "MIG-")):
        return _listed(name, value, gpus, mig_parents)
    numbers = _numbers(value)
    if numbers is None:
        return _Picked(everything, f"all {len(gpus)}: {name}={value} names no numbers", certain=False)
    if len(gpus) <= len(numbers):
        return _Picked(everything, f"all {len(gpus)} that {name}={value} leaves")
    if max(numbers) >= len(gpus):
        why = f"all {len(gpus)}: {name}={value} counts GPUs that cannot be seen from here"
        return _Picked(everything, why, certain=False)
    return _Picked(tuple(numbers), f"{name}={value}, in PCI order")


def _numbers(text: str) -> list[int] | None:
    """Numbers and ranges (``0,2-3``), in order and once each; None if there is none or anything else."""
    numbers: list[int] = []
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", entry)
        if match is None:
            return None
        numbers += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    return list(dict.fromkeys(numbers)) or None


def _of_rank(environ: Mapping[str, str], node: Visible) -> Visible:
    """Narrow the job's GPUs on this node to those of this rank: one rank owns one GPU."""
    count = len(node.uuids)
    if count <= 1:
        return node
    rank = _count(environ.get("LOCAL_RANK"))
    name = "LOCAL_RANK"
    if rank is None and _slurm_tasks_here(environ) == count:
        # One Slurm task a GPU and no launcher between: tasks take GPUs by their local id.
        name, rank = "SLURM_LOCALID", _count(environ.get("SLURM_LOCALID"))
    if rank is None:
        return node
    turn = f", so number {rank % count} of {count}" + (" (ranks share GPUs)" if rank >= count else "")
    return replace(node, uuids=(node.uuids[rank % count],), why=f"{name}={rank}{turn} in: {node.why}")


def _slurm_tasks_here(environ: Mapping[str, str]) -> int | None:
    """How many tasks of this step run on this node; None unless every node has as many."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    match = re.fullmatch(r"(\d+)(?:\(x\d+\))?", text)
    return int(match.group(1)) if match else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d+", text) else None
