"""Pipeline schedules: what each rank does in which order, read from action lists, and the Dag that follows from it.

A schedule is read, never re-invented: from lists (``read_actions``), from the CSV that torch.distributed.pipelining
dumps in either of its formats (``read_csv``), or from its schedule objects (``from_schedule``). Which stage is on
which rank is seen in the lists, so V-shaped schedules need no word more than others. For schedules by name see
``plan.schedules_named``.

The rules of order: a rank does its list from left to right; the forward of a stage follows the forward of the stage
before it, the gradient of a stage that of the stage after it. What leaves a rank does so at the end of its action (an
overlap ends as one), or where its SEND stands; a transfer between ranks may take ``transfer_s``. Unsharding,
resharding, reducing gradients and waiting for a SEND are not planned: they are no operations here. Nor is an action
with a word that is not known: torch adds some with each version, and ``unknown`` lists them for the user.

Ranks that work in lockstep, tensor- or data-parallel, are one rank here: see ``gpus_per_rank`` in ``plan.profile``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.plan.actions import COMPUTES, SENDS, Action, parse
from joulewise.plan.dag import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Dag, Edge, Operation

Rows = Sequence[Sequence[object]] | Mapping[int, Sequence[object]]
_Key = tuple[int, str, int]  # stage, kind, microbatch


@dataclass(frozen=True)
class Schedule:
    """The lists of all ranks, without what has no bearing on the order. BadSpec where they cannot be a schedule."""

    rows: tuple[tuple[Action, ...], ...]
    name: str = "given"
    transfer_s: float = 0.0
    stage_ranks: Mapping[int, int] = field(init=False, compare=False)
    """Stage → rank."""
    unknown: tuple[str, ...] = field(default=(), compare=False)
    """Words of actions that were passed over because nothing is known of them."""

    def __post_init__(self) -> None:
        ranks: dict[int, int] = {}
        for rank, row in enumerate(self.rows):
            computed = [part for action in row for part in action.computes]
            if not computed:
                raise BadSpec(f"rank {rank} of {len(self.rows)} has nothing to compute; is a row of its list missing?")
            for part in computed:
                if ranks.setdefault(part.stage, rank) != rank:
                    raise BadSpec(f"stage {part.stage} is on rank {ranks[part.stage]} and on rank {rank}; it needs one")
        if not ranks:
            raise BadSpec("the schedule is empty: it has no rank with anything to compute")
        missing = next(stage for stage in range(len(ranks) + 1) if stage not in ranks)
        if missing < len(ranks):
            raise BadSpec(f"stage {missing} is missing; stages up to {max(ranks)} are there, and count from 0")
        object.__setattr__(self, "stage_ranks", ranks)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many there are in the whole model."""
        return len(self.stage_ranks)

    @property
    def microbatches(self) -> int:
        """How many one iteration has."""
        return 1 + max(operation.microbatch for operation in self.dag.operations)

    @cached_property
    def dag(self) -> Dag:
        """The operations, rank by rank in their order, and what waits for what. BadSpec names what does not fit."""
        places: dict[_Key, int] = {}
        leaves: dict[_Key, int] = {}
        operations: list[Operation] = []
        edges: list[Edge] = []
        for rank, row in enumerate(self.rows):
            first = len(operations)
            for action in row:
                if action.what in SENDS:
                    _send(action, leaves, len(operations) - 1)
                for part in action.computes:
                    key = _key(part)
                    if key in places:
                        raise BadSpec(f"{part} is there twice, on rank {rank}; a microbatch passes a stage once")
                    places[key] = len(operations)
                    operations.append(Operation(rank, *key))
                for part in action.computes:
                    leaves[_key(part)] = len(operations) - 1
            edges += [Edge(index, index + 1) for index in range(first, len(operations) - 1)]
        _complete(places)
        for before, after in _needs(places):
            if operations[places[before]].rank != operations[places[after]].rank:
                edges.append(Edge(leaves[before], places[after], self.transfer_s))
            elif places[before] > places[after]:
                raise BadSpec(f"{_words(after)} stands before {_words(before)} on its rank, but needs it")
        return Dag(tuple(operations), tuple(edges), self.ranks)


def read_actions(rows: Rows, *, name: str = "given", transfer_s: float = 0.0) -> Schedule:
    """A schedule from lists, one per rank, of texts like ``2F0`` or objects that print so; None and "" are idle steps.

    BadSpec says what cannot be: an unknown word, a stage on two ranks, a backward without its forward, ranks that wait
    for each other for ever.
    """
    if isinstance(rows, Mapping):
        if sorted(rows) != list(range(len(rows))):
            raise BadSpec(f"a schedule has ranks {list(rows)[:8]}, but needs 0…{len(rows) - 1}")
        rows = [rows[rank] for rank in range(len(rows))]
    read: list[tuple[Action, ...]] = []
    unknown: dict[str, None] = {}
    for rank, row in enumerate(rows):
        try:
            actions = [action for action in map(parse, row) if action is not None]
        except BadSpec as problem:
            raise BadSpec(f"rank {rank}: {problem}") from None
        unknown |= dict.fromkeys(action.what for action in actions if not action.known)
        read.append(_ordering(actions))
    schedule = Schedule(tuple(read), name, transfer_s, unknown=tuple(unknown))
    _ = schedule.dag  # checked now, not when first used
    return schedule


def read_csv(path: Path, *, transfer_s: float = 0.0) -> Schedule:
    """A schedule from a CSV of torch.distributed.pipelining, compute_only or compute_comms: one row per rank."""
    try:
        with input_files.opened_text(path) as file:
            rows = list(csv.reader(file))
    except csv.Error as problem:
        raise BadSpec(f"{path} cannot be read: it is no CSV file ({problem})") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    try:
        return read_actions(rows, name=path.name, transfer_s=transfer_s)
    except BadSpec as problem:
        raise BadSpec(f"{path}: {problem}") from None


def from_schedule(schedule: Any, *, transfer_s: float = 0.0) -> Schedule:
    """A schedule from an object of torch.distributed.pipelining, of one stage a rank or of several. Reads it only."""
    rows = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None)
    if rows is None and hasattr(schedule, "_get_pipeline_order"):
        rows = schedule._get_pipeline_order()
    name = type(schedule).__name__
    if not rows:
        raise BadSpec(f"{name} does not say in which order it runs; write its actions down and read those")
    parsed = {rank: [action for action in map(parse, row) if action] for rank, row in rows.items()}
    return read_actions({rank: _from_zero(row) for rank, row in parsed.items()}, name=name, transfer_s=transfer_s)


def _ordering(row: list[Action]) -> tuple[Action, ...]:
    """Only what bears on the order: computations, and SENDs that do not follow at once what they send."""
    kept: list[Action] = []
    just_done: set[tuple[int, int | None]] = set()
    for action in row:
        if action.computes:
            just_done = {(part.stage, part.microbatch) for part in action.computes}
            kept.append(action)
        elif action.what in SENDS and (action.stage, action.microbatch) not in just_done:
            kept.append(action)
    return tuple(kept)


def _from_zero(row: list[Action]) -> list[Action]:
    """The list with forwards that count from 0.

    torch 2.13 prints the last rank of 1F1B with forwards 1…M beside backwards 0…M-1; it runs 0…M-1 in that order.
    """
    forwards = {action.microbatch for action in row if action.what == "F"}
    backwards = {action.microbatch for action in row if action.what == "B"}
    if forwards != {number + 1 for number in backwards if number is not None} or not backwards:
        return row
    return [
        Action(action.stage, "F", action.microbatch - 1) if action.what == "F" and action.microbatch else action
        for action in row
    ]


def _key(part: Action) -> _Key:
    assert part.microbatch is not None  # the parser sees to it
    return part.stage, COMPUTES[part.what], part.microbatch


def _send(action: Action, leaves: dict[_Key, int], last: int) -> None:
    """What is sent leaves after the last computation before the SEND."""
    assert action.microbatch is not None
    kinds = (FORWARD,) if action.what == "SEND_F" else (BACKWARD, INPUT_GRAD)
    sent = [key for kind in kinds if (key := (action.stage, kind, action.microbatch)) in leaves]
    if not sent:
        raise BadSpec(f"{action} stands before what it sends has been computed")
    for key in sent:
        leaves[key] = last


def _complete(places: Iterable[_Key]) -> None:
    """Every stage sees every microbatch, and each once back as often as forth; or there is no way back at all."""
    kinds: dict[str, set[tuple[int, int]]] = {kind: set() for kind in COMPUTES.values()}
    for stage, kind, microbatch in places:
        kinds[kind].add((stage, microbatch))
    stages, microbatches = ({one for one, _ in kinds[FORWARD]}, {two for _, two in kinds[FORWARD]})
    if microbatches and max(microbatches) >= len(microbatches):
        gap = next(number for number in range(len(microbatches)) if number not in microbatches)
        raise BadSpec(f"no forward of microbatch {gap} is there; microbatches count from 0 without a gap")
    whole = kinds[FORWARD]
    if len(whole) < len(stages) * len(microbatches):
        # The first alone: all of them may be far more than the list has entries.
        every = ((stage, microbatch) for stage in sorted(stages) for microbatch in sorted(microbatches))
        _same({next(each for each in every if each not in whole)}, whole, "has no forward")
    _same(kinds[INPUT_GRAD], kinds[WEIGHT_GRAD], "has an input_grad and no weight_grad")
    _same(kinds[WEIGHT_GRAD], kinds[INPUT_GRAD], "has a weight_grad and no input_grad")
    _same(whole, whole - (kinds[BACKWARD] & kinds[INPUT_GRAD]), "has a whole backward and a split one")
    back = kinds[BACKWARD] | kinds[INPUT_GRAD]
    _same(back, whole & back, "has a backward and no forward")
    if back:
        _same(whole, back, "has no backward")


def _same(wanted: set[tuple[int, int]], there: set[tuple[int, int]], otherwise: str) -> None:
    if missing := wanted - there:
        stage, microbatch = min(missing)
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise BadSpec(f"microbatch {microbatch} at stage {stage} {otherwise}{more}; is the list cut short?")


def _needs(places: Iterable[_Key]) -> Iterable[tuple[_Key, _Key]]:
    """Every (before, after) that the mathematics asks for."""
    there = set(places)
    for stage, kind, microbatch in places:
        after: _Key = (stage, kind, microbatch)
        if kind == WEIGHT_GRAD:
            yield (stage, INPUT_GRAD, microbatch), after
            continue
        if kind == FORWARD:
            if stage:
                yield (stage - 1, FORWARD, microbatch), after
            continue
        yield (stage, FORWARD, microbatch), after
        for gradient in (BACKWARD, INPUT_GRAD):
            if (before := (stage + 1, gradient, microbatch)) in there:
                yield before, after


def _words(key: _Key) -> str:
    stage, kind, microbatch = key
    return f"{kind} of stage {stage}, microbatch {microbatch},"


def _why(problem: Exception) -> str:
    return (problem.strerror or str(problem)).lower() if isinstance(problem, OSError) else str(problem)
