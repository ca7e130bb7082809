"""lowtime, the published solver of Perseus, as a baseline: run in a Python of its own, and its plans priced anew.

lowtime plans on floored times and a fitted exponential. ``repriced`` plays its choices of measured options at their
measured times and energies, on the same graph and with the same blocking power as ours.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.frontier_cases import Case
from joulewise.core.errors import BadSpec, MissingPart
from joulewise.plan.problem import Problem

S = TypeVar("S")

PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
_SCRIPT = Path(__file__).with_name("frontier_lowtime_run.py")


@dataclass(frozen=True, slots=True)
class Lowtime:
    """What lowtime found: its own idea of each point, slowest first, and some of its plans (indexes of options)."""

    points: tuple[tuple[float, float], ...]
    """Seconds and total joules."""
    plans: tuple[tuple[int, ...], ...]
    cpu_s: float
    finished: bool
    memory_mb: float
    """Peak of its process."""


def run(case: Case, unit_s: float, *, limit_s: float, filter_effective: bool = False, python: Path = PYTHON) -> Lowtime:
    """lowtime's frontier of a case; stopped after ``limit_s`` CPU seconds. MissingPart where it is not installed.

    ``filter_effective``: its Pareto filter sees effective energy; as published it sees whole energy.
    """
    if not python.exists():
        raise MissingPart(f"{python} is not there; 'make peers' installs it, with lowtime, or give --lowtime-python")
    asked = {
        "unit_s": unit_s,
        "blocking_w": case.blocking_w,
        "curves": [[(point.time_s, point.energy_j) for point in points] for points in case.distinct],
        "curve_of": [case.index_of[id(points)] for points in case.options],
        "edges": [(edge.before, edge.after) for edge in case.edges],
        "limit_s": limit_s,
        "filter_effective": filter_effective,
    }
    done = subprocess.run(
        [str(python), str(_SCRIPT)], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if "No module named 'lowtime'" in done.stderr:
        raise MissingPart(f"{python} has no lowtime; 'make peers' installs it")
    if done.returncode:
        raise BadSpec(f"lowtime failed on {case.name}: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    waiting_w = case.lanes * case.blocking_w
    return Lowtime(
        tuple((time_s, cost_j + waiting_w * time_s) for time_s, cost_j in found["points"]),
        tuple(map(tuple, found["plans"])),
        found["cpu_s"],
        found["finished"],
        found["memory_mb"],
    )


def repriced(problem: Problem[S], plans: Iterable[tuple[int, ...]]) -> list[tuple[float, float]]:
    """True seconds and total joules of plans: measured times and energies, waiting charged until the end."""
    priced = []
    for plan in plans:
        points = [options[at] for options, at in zip(problem.options, plan, strict=True)]
        time_s = problem.end_s([point.time_s for point in points])
        effective_j = sum(point.energy_j - problem.blocking_w * point.time_s for point in points)
        priced.append((time_s, effective_j + problem.waiting_w * time_s))
    return priced
