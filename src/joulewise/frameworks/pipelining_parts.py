"""What following a pipeline takes, put together: this rank's GPU, its lease, its sampler, the talk with other ranks.

All ranks come through here together. Where one of them cannot go on, all are told, and none does.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, JoulewiseError, NoDaemon
from joulewise.core.knob import SM_MHZ
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease
from joulewise.frameworks.pipelining_files import FACTS_FILE, PROFILE_FILE, SCHEDULE_FILE
from joulewise.frameworks.pipelining_group import Group
from joulewise.monitor.sampler import Sampler
from joulewise.plan import plan_files, profile_files
from joulewise.plan.plan import Plan
from joulewise.plan.schedules import Schedule, from_schedule
from joulewise.tune.follow import Session
from joulewise.tune.follow_rank import Rank

PLAN = "JOULEWISE_PLAN"
"""A plan's file."""
_POLL_S, _POLL_WALL_S = 0.1, 0.02
"""Between two readings of power, by the wall's clock too: where a simulator's time runs faster, they cost 1 ms."""
_NAME_CHARACTERS = 60  # of the script, in the reason of a lease, which others may read


@dataclass
class Parts:
    """Of one rank."""

    session: Session
    group: Group
    sampler: Sampler
    write_to: Path | None

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return self.group.rank == 0

    def exchange(self, said: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """What all ranks say."""
        return self.group.exchange(said)

    def over(self) -> None:
        """Nothing is followed any more: sample no more, and leave what was measured where it was asked for."""
        self.sampler.stop()
        if self.first and self.write_to is not None:
            try:
                _write(self.write_to, self.session)
            except OSError as error:
                self.session.why = f"what was measured could not be written: {(error.strerror or '').lower()}"
            self.write_to = None

    def close(self) -> None:
        """The end. Idempotent."""
        self.over()


def make(
    schedule: Any,
    stages: Sequence[Any],
    *,
    plan: Plan | str | os.PathLike[str] | None,
    gpu: str | None,
    write_to: Path | None,
    max_slowdown: float,
    gpus_per_rank: int,
    model: str | None,
) -> Parts:
    """The parts of this rank. BadSpec, the same on all ranks, where one of them cannot take part."""
    group = Group(getattr(stages[0], "group", None))
    trouble, found, given, order = "", None, None, None
    try:
        order = from_schedule(schedule)
        found = _own_gpu(gpu)
        if group.rank == 0 and write_to is None:
            given = _given(plan)
    except JoulewiseError as error:
        trouble = str(error)
    for rank, each in enumerate(group.exchange({"trouble": trouble})):
        if each["trouble"]:
            raise BadSpec(f"rank {rank}: {each['trouble']}")
    assert found is not None
    assert order is not None
    speed = float(getattr(found.time, "speed", 1.0))
    sampler = Sampler([found], interval_s=max(_POLL_S, _POLL_WALL_S * speed))
    session = Session(
        Rank(_ops(order, group.rank), found, sampler),
        group.rank,
        order,
        {"host": socket.gethostname(), "gpu": found.info.name, "driver": found.info.driver, "model": _digest(stages)},
        take=lambda party: _take(found, party),
        job=secrets.token_hex(8),
        plan=given,
        only_measure=write_to is not None,
        max_slowdown=max_slowdown,
        gpus_per_rank=gpus_per_rank,
        model=model,
    )
    sampler.start()
    sampler.opened()
    return Parts(session, group, sampler, write_to)


def _write(folder: Path, session: Session) -> None:
    """What was measured: a profile, the schedule, and the rest that a plan needs; or why there is none."""
    facts: dict[str, Any] = {"why": session.why}
    measured, here = session.measured, session.identity
    if measured is not None and here is not None:
        profile_files.write(measured.profile, folder / PROFILE_FILE)
        rows = [",".join(map(str, row)) for row in session.schedule.rows]
        (folder / SCHEDULE_FILE).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        facts |= {
            "blocking_w": measured.blocking_w,
            "switch_s": measured.switch_s,
            "transfer_s": measured.transfer_s(session.schedule),
            # As ``joulewise plan solve`` takes them.
            **{name: fact and fact.says for name, fact in (("model", here.model), ("gpu", here.gpu))},
            "driver": here.driver and here.driver.says,
        }
    (folder / FACTS_FILE).write_text(json.dumps(facts), encoding="utf-8")


def _ops(order: Schedule, rank: int) -> list[tuple[int, str, int]]:
    return [(each.stage, each.kind, each.microbatch) for each in order.dag.operations if each.rank == rank]


def _given(plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
    named = os.environ.get(PLAN) if plan is None else plan
    return named if named is None or isinstance(named, Plan) else plan_files.read(Path(named))


def _own_gpu(spec: str | None) -> Gpu:
    from joulewise.device import discover

    found = discover.find(spec)
    if len(found) != 1:
        raise BadSpec(f"this rank has {len(found)} GPUs; name the one that its stage runs on, with gpu=")
    return found[0]


def _take(gpu: Gpu, party: tuple[str, int]) -> Lease:
    """A lease on the clock, together with the other ranks of this node where a daemon can see to that."""
    from joulewise.device.hold import hold
    from joulewise.device.remote import RemoteLease

    name = "".join(letter if letter.isprintable() else "?" for letter in Path(sys.argv[0]).name)
    reason = f"a plan in {name[:_NAME_CHARACTERS] or 'a Python session'}"
    if gpu.info.backend in ("nvml", "remote"):
        try:
            return RemoteLease.take([gpu.info.uuid], [SM_MHZ.name], reason=reason, together=party)
        except NoDaemon:
            pass  # then by our own rights, if we have any
    return hold([gpu], [SM_MHZ.name], reason=reason)


def _digest(stages: Sequence[Any]) -> str:
    """A hash of this rank's part of the model: names, shapes and types of its parameters."""
    parameters = [
        [int(stage.stage_index), name, list(each.shape), str(each.dtype)]
        for stage in stages
        for name, each in stage.submod.named_parameters()
    ]
    return hashlib.sha256(json.dumps(parameters).encode()).hexdigest()
