"""A plan in a few words: what it is worth, what it is of, and its figures as people read them.

Pure, and the same in the terminal, on a plan's page and in the dashboard. Not its tables and pictures: those are each
one's own.
"""

from __future__ import annotations

from joulewise.core.units import format_si
from joulewise.plan.plan import Plan, PlanPoint


def as_fast(plan: Plan) -> PlanPoint:
    """Least energy without being slower than nothing set; the fastest where all are slower."""
    return plan.by_deadline(max(plan.baseline.time_s, plan.points[0].time_s))


def headline(plan: Plan) -> str:
    """What the plan is worth, in a line or two."""
    same, least = as_fast(plan), plan.points[-1]
    return f"{saved(plan, same)} energy {slower(plan, same)}; at most {saved(plan, least)}, {slower(plan, least)}."


def about(plan: Plan) -> str:
    """What it is a plan of."""
    fact = plan.identity.parallelism
    return (fact.says if fact else plan.schedule.name) + f", waiting at {plan.costs.blocking_w:g} W"


def time(point: PlanPoint) -> str:
    """Seconds with four digits, so that neighbours differ: ``"2.960 s"``."""
    return f"{point.time_s:#.4g}".rstrip(".") + " s"


def power(point: PlanPoint) -> str:
    """The mean, of all GPUs."""
    return format_si(point.power_w, "W")


def percent(share: float) -> str:
    """A share with one digit: ``"−8.7 %"``."""
    return f"{share * 100 + 0.0:.1f} %".replace("-0.0", "0.0").replace("-", "−")


def saved(plan: Plan, point: PlanPoint) -> str:
    """The change of energy against nothing set."""
    return f"{percent(point.energy_j / plan.baseline.energy_j - 1)}"


def slower(plan: Plan, point: PlanPoint) -> str:
    """How much slower or faster than nothing set."""
    share = point.time_s / plan.baseline.time_s - 1
    if abs(share) < 0.0005:
        return "at the same speed"
    return f"{percent(abs(share))} {'slower' if share > 0 else 'faster'}"
