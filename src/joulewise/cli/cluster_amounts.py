"""``500kWh/day`` on a command line: joules, and for how long they must last. Pure."""

from __future__ import annotations

from joulewise.cli.plan_amounts import joules
from joulewise.core.errors import BadSpec

_PERIODS_S = {"h": 3600.0, "hour": 3600.0, "d": 86_400.0, "day": 86_400.0, "week": 604_800.0}


def energy_budget(flag: str, text: str) -> tuple[float, float]:
    """Joules and seconds. BadSpec for anything else."""
    amount, slash, period = (part.strip() for part in text.partition("/"))
    if not slash or period not in _PERIODS_S:
        raise BadSpec(f"{flag} {text[:40]!r} does not say for how long; write 500kWh/day, 20kWh/h or 3MWh/week")
    if amount.endswith("MWh"):
        return 1000.0 * joules(flag, amount[:-3] + "kWh"), _PERIODS_S[period]
    return joules(flag, amount), _PERIODS_S[period]
