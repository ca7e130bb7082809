"""What each node may draw, so that all of them together stay below the cap whatever each of them does.

What it is: one pure function. Every node gets what it is believed to need; what is left of the cap goes where it is
most likely needed: to nodes with jobs on them, in proportion to how much more they could draw than they are believed
to. Where the cap is less than what is believed, all give up the same part of what lies above their least (host and idle
GPUs), since watts above idle cost about as much time on one node as on another.
Why it exists: a ceiling is held by the node alone, in a fraction of a second, and goes on holding when the scheduler is
gone. Ceilings that sum to the cap are the cap.
What it is not: who lowers first and who raises after (``agents``), or how a node keeps its ceiling (the agent).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """One node. ``least_w``: with all its GPUs idle, or at their lowest clocks where jobs run; ``believed_w``: as
    decided; ``most_w``: with all its GPUs at their limits."""

    least_w: float
    believed_w: float
    most_w: float


def ceilings(room_w: float, needs: Mapping[str, Need]) -> dict[str, float]:
    """Watts by node: their sum is ``room_w`` at most, none is above its node's most.

    Each gets at least its least where the room is enough for that; where it is not, all get the same part of their
    least, which cannot be kept and will be said by the agents.
    """
    if not needs:
        return {}
    least = {node: max(0.0, min(need.least_w, need.most_w)) for node, need in needs.items()}
    wanted = {node: min(max(need.believed_w, least[node]), need.most_w) for node, need in needs.items()}
    least_w, wanted_w = sum(least.values()), sum(wanted.values())
    if room_w <= least_w:
        part = max(0.0, room_w) / least_w if least_w > 0 else 0.0
        return _down(room_w, {node: part * value for node, value in least.items()})
    if room_w <= wanted_w:
        part = (room_w - least_w) / (wanted_w - least_w)
        return _down(room_w, {node: least[node] + part * (wanted[node] - least[node]) for node in needs})
    # Room to spare: a node without a job will not need it before it is given one, and then there is a new decision.
    spare_w = room_w - wanted_w
    hungry = {node: need.most_w - wanted[node] for node, need in needs.items() if need.believed_w > need.least_w}
    given = _shared(spare_w, hungry)
    spare_w -= sum(given.values())
    rest = {node: need.most_w - wanted[node] for node, need in needs.items() if node not in hungry}
    given |= _shared(spare_w, rest)
    return _down(room_w, {node: wanted[node] + given.get(node, 0.0) for node in needs})


def _shared(spare_w: float, wants: Mapping[str, float]) -> dict[str, float]:
    whole_w = sum(wants.values())
    if whole_w <= 0 or spare_w <= 0:
        return dict.fromkeys(wants, 0.0)
    part = min(1.0, spare_w / whole_w)
    return {node: part * want_w for node, want_w in wants.items()}


def _down(room_w: float, watts: dict[str, float]) -> dict[str, float]:
    """Without the dust of rounding: never a hair more than there is."""
    if sum(watts.values()) > room_w:
        return {node: value * (1.0 - 1e-12) for node, value in watts.items()}
    return watts
