"""What a plan was made for, by hash: model, parallelism, GPU, driver. A plan that meets anything else is refused.

A hash says "the same or not"; the words beside it say what it was, for the one who has to do something about it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields

from joulewise.core.errors import BadSpec
from joulewise.plan.plan_fields import Fields
from joulewise.plan.schedules import Schedule

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that must be the same where a plan is used. ``says`` is for people, ``sha256`` decides."""

    says: str
    sha256: str

    @classmethod
    def of(cls, what: object, says: str | None = None) -> Fact:
        """The fact of anything that is plain data: text, numbers, lists, dicts. The order of a dict's keys is none."""
        canonical = json.dumps(what, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        says = says if says is not None else what if isinstance(what, str) else canonical
        return cls(says[:200], hashlib.sha256(canonical.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Identity:
    """What a plan was made for, or what is here. None: not stated."""

    model: Fact | None = None
    parallelism: Fact | None = None
    gpu: Fact | None = None
    driver: Fact | None = None

    def refuse(self, here: Identity) -> str | None:
        """Why a plan for this is not for ``here``, every difference in one line; None where nothing speaks against it.

        What the plan states must be known here, and the same. What it does not state cannot be compared: ``unstated``.
        """
        reasons = []
        for name in NAMES:
            mine, theirs = getattr(self, name), getattr(here, name)
            if mine is None or (theirs is not None and mine.sha256 == theirs.sha256):
                continue
            if theirs is None:
                reasons.append(f"it is for the {name} {mine.says}, and which there is here is not known")
            elif mine.says == theirs.says:
                reasons.append(f"its {name} {mine.says} is not the same as here in all that counts")
            else:
                reasons.append(f"it is for the {name} {mine.says}, and here is {theirs.says}")
        return f"the plan is refused: {'; '.join(reasons)}" if reasons else None

    def unstated(self) -> list[str]:
        """What the plan does not say that it is for."""
        return [name for name in NAMES if getattr(self, name) is None]

    def to_json(self) -> dict[str, dict[str, str] | None]:
        """As plain data."""
        found = {name: getattr(self, name) for name in NAMES}
        return {name: fact and {"says": fact.says, "sha256": fact.sha256} for name, fact in found.items()}

    @classmethod
    def read(cls, given: Fields) -> Identity:
        """The reverse. BadSpec where it is not that."""
        given.only(*NAMES)
        return cls(**{name: _fact(given.one(name)) for name in NAMES if given.has(name)})


NAMES = tuple(field.name for field in fields(Identity))


def parallelism(schedule: Schedule, gpus_per_rank: int) -> Fact:
    """The order of every rank and how many GPUs do as one rank does."""
    rows = [[str(action) for action in row] for row in schedule.rows]
    says = (
        f"{schedule.name}, {schedule.stages} stages on {schedule.ranks} ranks, {schedule.microbatches} microbatches, "
        f"{gpus_per_rank} GPU{'' if gpus_per_rank == 1 else 's'} a rank"
    )
    return Fact.of({"rows": rows, "gpus_per_rank": gpus_per_rank}, says)


def _fact(given: Fields) -> Fact:
    given.only("says", "sha256")
    digest = given.text("sha256")
    if len(digest) != 64 or not _HEX.issuperset(digest):
        raise BadSpec(f"{given.place}: sha256 {digest[:12]!r} is no hash of 64 hex digits")
    return Fact(given.text("says"), digest)
