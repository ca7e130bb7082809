"""What a recurring job is registered with, in words: what two of one name differ in, and what runs are chosen by."""

from __future__ import annotations

from joulewise.core.series import Recurring
from joulewise.core.units import format_duration, format_percent


def objective(job: Recurring) -> str:
    """What runs are chosen by."""
    aim = job.objective
    match aim.get("what"):
        case "zeus":
            eta = float(aim.get("eta", 0.5))
            return f"least {eta:g} × energy + {1 - eta:g} × max power × time"
        case "money":
            prices = float(aim.get("gpu_hour_price") or 0.0), float(aim.get("kwh_price") or 0.0)
            host = f", {float(aim['host_w']):g} W for the node" if aim.get("host_w") else ""
            return f"least money: {prices[0]:g} a GPU hour, {prices[1]:g} a kWh{host}"
        case _ if aim.get("deadline_s") is not None:
            return f"least energy within {format_duration(float(aim['deadline_s']))}"
        case _ if aim.get("max_slowdown") is not None:
            return f"least energy, at most {format_percent(float(aim['max_slowdown']))} slower than the default"
        case _:
            return "least energy"


def differences(known: Recurring, wanted: Recurring) -> list[str]:
    """What ``wanted`` would change, a line each: ``"the target 'val_acc>=0.84', not 'val_acc>=0.9'"``."""
    before, now = _words(known), _words(wanted)
    same = {name for name in before if getattr(known, name) == getattr(wanted, name)}
    if _given(known) == _given(wanted):
        same.add("objective")
    return [
        f"{_KINDS[name]} {before[name]}, not {now[name]}"
        if before[name] != now[name]
        else f"another {name}"  # prices, say, that differ beyond what words show
        for name in before
        if name not in same
    ]


_KINDS = {
    "batch_sizes": "the batch sizes",
    "default": "the default",
    "max_epochs": "at most",
    "target": "the target",
    "objective": "the objective",
}


def _words(job: Recurring) -> dict[str, str]:
    return {
        "batch_sizes": ", ".join(map(str, job.batch_sizes)),
        "default": str(job.default),
        "max_epochs": f"{job.max_epochs} epoch{'s' * (job.max_epochs != 1)}",
        "target": repr(job.target),
        "objective": repr(objective(job)),
    }


def _given(job: Recurring) -> dict[str, object]:
    """Its objective without what is left open."""
    return {name: value for name, value in job.objective.items() if value is not None}
