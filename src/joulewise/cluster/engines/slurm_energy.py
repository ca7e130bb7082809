"""A job's energy in Slurm's accounting: what stands in a job's administrator's comment, and how it is put there."""

from __future__ import annotations

import re

_ENERGY = re.compile(r"joulewise energy_j=(\d+(?:\.\d+)?)")
_WHY = re.compile(r"joulewise(?: energy_j=[^;\s]+;|:) (.*)", re.DOTALL)


def comment(before: str, *, energy_j: float | None = None, why: str = "") -> str:
    """The comment with an energy or a reason put in; what others have written into it stays in front of ours.

    ``joulewise energy_j=81234.5; why``, as ``sacct -o jobid,admincomment`` shows it.
    """
    others, _, ours = before.partition("joulewise energy_j=") if _ENERGY.search(before) else (before, "", "")
    if not ours:
        others, _, said = before.partition("joulewise: ")
    else:
        said = ours.partition("; ")[2]
    energy_j = energy(before) if energy_j is None else energy_j
    why = why or said
    parts = [others.strip()] if others.strip() else []
    if energy_j is not None:
        parts.append(f"joulewise energy_j={energy_j:.1f}" + (f"; {why}" if why else ""))
    elif why:
        parts.append(f"joulewise: {why}")
    return " ".join(parts)


def energy(comment: str) -> float | None:
    """The joules that a comment names; None where it names none."""
    found = _ENERGY.search(comment)
    return float(found[1]) if found else None


def why(comment: str) -> str:
    """The reason that a comment names; empty where it names none."""
    found = _WHY.search(comment)
    return found[1].strip() if found else ""
