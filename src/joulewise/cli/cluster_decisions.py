"""``simulate --decisions FILE``: every round of a simulation as a line of JSON, and what such a file says of one job.

A round's line has ``policy``, ``time_s``, ``begun_s`` (the first submission), its ``budget``, ``prices`` and ``gap``,
how each job runs from then on (``ways``), who ``waits``, who was given a way for which there is no room yet
(``held_back``: these wait for a node to boot, or run on as before), the ``moves``, the nodes switched ``on`` and
``off``, and for each job that starts, changes, stops or comes to be held back ``why``, in words. At a policy's end
follows a line for each span of each job as it came to be: ``policy``, ``job``, ``from_s``, ``to_s``, ``gpus``,
``nodes``, ``sm_mhz``, ``start_s``; ``bench.cluster energy --decisions`` writes the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from joulewise.cli.cluster_policies import Policy
from joulewise.cluster.change import same_way
from joulewise.cluster.explain import explain
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.round import Decision
from joulewise.cluster.state import Snapshot, Way
from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.parsing import json_value

_WRITTEN_BY = "give a file that 'joulewise cluster simulate --decisions' wrote"


class DecisionsFile(AbstractContextManager["DecisionsFile"]):
    """Written as rounds are decided: what an interrupted simulation leaves can be read."""

    def __init__(self, path: Path, begun_s: float) -> None:
        self._path = path
        self._begun_s = begun_s
        self._file: TextIO | None = None
        self._held_back: dict[str, Way] = {}

    def __enter__(self) -> DecisionsFile:
        self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def round(self, policy: Policy, snapshot: Snapshot, decision: Decision) -> None:
        """One round."""
        held = held_back(snapshot, decision)
        moved = {move.job for move in decision.moves if move.what != "migrate"}
        # Who is held back no more may run on as before: what was said of it last is no longer so. To say the same in
        # every round would take longer than to decide.
        before, self._held_back = self._held_back, held
        told = moved | {
            name
            for name in held.keys() | before.keys()
            if name not in held or name not in before or not same_way(held[name], before[name])
        }
        why = {job.name: why_so(policy, snapshot, decision, job.name) for job in snapshot.jobs if job.name in told}
        said = _round(snapshot, decision)
        said |= {"held_back": {name: _way(way) for name, way in held.items()}, "why": why}
        self._write({"policy": policy.name, "begun_s": self._begun_s, **said})

    def end(self, policy: str, outcome: Outcome) -> None:
        """What came of the rounds of a policy."""
        self._held_back = {}
        for span in outcome.spans:
            known = {"job": span.job, "from_s": span.from_s, "to_s": span.to_s, "gpus": span.gpus, "nodes": span.nodes}
            more = {"sm_mhz": span.setting.get("sm_mhz"), "start_s": span.start_s, "kind": span.kind}
            self._write({"policy": policy, **known, **more})

    def _write(self, value: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(value, allow_nan=False) + "\n")


def carried_out(snapshot: Snapshot, decision: Decision) -> dict[str, Way]:
    """How jobs run after a round. An allocation is only what is wanted: who has no room yet is not moved."""
    moved = {move.job: move.way for move in decision.moves}
    ways = {job.name: moved.get(job.name, job.way) for job in snapshot.jobs}
    return {name: way for name, way in ways.items() if way is not None}


def held_back(snapshot: Snapshot, decision: Decision) -> dict[str, Way]:
    """The ways that were given and not carried out: nodes that are on have no room for them."""
    ways = carried_out(snapshot, decision)
    given = decision.allocation.ways
    return {name: way for name, way in given.items() if name not in ways or not same_way(way, ways[name])}


def why_so(policy: Policy, snapshot: Snapshot, decision: Decision, job: str) -> str:
    """Why a job runs as it does after a round, or waits, in words. BadSpec for a job that is not there."""
    held = job in held_back(snapshot, decision)
    return explain(snapshot, decision.budget, decision.allocation, job, terms=policy.terms, held_back=held)


def _round(snapshot: Snapshot, decision: Decision) -> dict[str, Any]:
    allocation = decision.allocation
    ways = carried_out(snapshot, decision)
    return {
        "time_s": snapshot.now_s,
        "budget": asdict(decision.budget),
        "prices": asdict(allocation.prices),
        "gap": allocation.gap,
        "ways": {name: _way(way) for name, way in ways.items()},
        "waits": [job.name for job in snapshot.jobs if job.name not in ways],
        "moves": [
            {"job": move.job, "what": move.what, "nodes": [list(part) for part in move.place]}
            for move in decision.moves
        ],
        "on": [list(node) for node in decision.power_on],
        "off": [list(node) for node in decision.power_off],
    }


def _way(way: Way) -> dict[str, Any]:
    """How a job runs, and what is believed of it."""
    known = {"gpus": way.gpus, "kind": way.kind, "setting": dict(way.setting), "batch": way.batch}
    return known | {"unit_s": way.unit_s, "unit_j": way.unit_j}


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a file, in order. BadSpec for what is none of ours."""
    with input_files.opened_text(path, way_out=_WRITTEN_BY) as file:
        for number, line in enumerate(file, start=1):
            try:
                said = json_value(line)
            except ValueError:
                said = None
            if not isinstance(said, dict) or not ({"policy", "submission"} & set(said)):
                raise BadSpec(f"{path}, line {number} is no decision; {_WRITTEN_BY}")
            yield said
