"""An estimate of a fleet in words and plain values: the same sentences for the terminal, the page and the picture."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from joulewise.core.units import format_percent
from joulewise.model.fleet import Interval
from joulewise.report.fleet import UNKNOWNS, Findings, JobSaving, Saving
from joulewise.report.worth import Carbon

MOST_JOBS = 12
"""Shown to people; the rest is in the JSON."""
_STARTS = 3


def headline(found: Findings) -> str:
    """The result in a sentence."""
    slower = format_percent(found.max_slowdown)
    if found.saving.kwh <= 0.0:
        resting, split = found.held_kwh + found.free_kwh > 0.0, found.split_kwh > 0.0
        who = " and ".join(["idle GPUs"] * (resting or not split) + ["GPUs split into MIG instances"] * split)
        return f"Nothing to tune was seen: all of {amount(found.kwh)} kWh a day was taken by {who}."
    return (
        f"Tuning would save {between(found.saving.reached)} kWh a day, {percents(found.share)} "
        f"of what the GPUs take, at most {slower} slower."
    )


def about(found: Findings) -> str:
    """What was looked at."""
    days = f"{found.days:.3g} days" if found.days >= 2 else f"{24 * found.days:.3g} hours"
    first, last = (
        datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M") for at_s in (found.start_s, found.end_s)
    )
    gpus = f"{found.gpus} GPU{'s' * (found.gpus != 1)}"
    return f"{gpus}, {days} of readings between {first} and {last} UTC, {amount(found.kwh)} kWh a day"


def worth(found: Findings, kwh_price: float | None, carbon: Carbon | None) -> Iterator[str]:
    """What the saving is worth, a day and a year."""
    reached = found.saving.reached
    if kwh_price is not None:
        money = reached.times(kwh_price)
        yield f"{between(money)} a day, {between(money.times(365))} a year, at {kwh_price:g} a kWh"
    if carbon is not None:
        carbon_kg = reached.times(carbon.g_per_kwh / 1000.0)
        source = f"source: {carbon.source}" if carbon.source else "no source was given"
        yield (
            f"{between(carbon_kg)} kg CO2e a day, {between(carbon_kg.times(0.365))} t a year, "
            f"at {carbon.g_per_kwh:g} g a kWh, {source}"
        )


def savings(found: Findings) -> Iterator[str]:
    """How much is possible, and how much of that is stated."""
    saving = found.saving
    if saving.kwh <= 0.0:
        return
    yield (
        f"Busy GPUs take {amount(saving.kwh)} kWh a day. The best settings would save "
        f"{percents(saving.possible_share)} of that, if somebody knew them; the online tuner keeps about "
        f"{format_percent(found.reached_share)} of it after probing and caution: {percents(saving.share)}."
    )


def idle(found: Findings) -> Iterator[str]:
    """What tuning cannot save."""
    kwh = found.held_kwh + found.free_kwh
    if kwh > 0.0 and found.kwh > 0.0:
        yield (
            f"Idle GPUs take {amount(kwh)} kWh a day ({format_percent(kwh / found.kwh)}): {amount(found.held_kwh)} "
            f"while a job holds them, {amount(found.free_kwh)} while nobody does. Tuning saves none of it; ending such "
            "jobs, sharing, or power-off would."
        )
    if found.split_kwh > 0.0:
        yield f"GPUs split into MIG instances take {amount(found.split_kwh)} kWh a day while busy: not estimated."


def starts(found: Findings) -> str:
    """Which jobs to begin with."""
    named = [job for job in found.jobs if not job.job.startswith("(")][:_STARTS]
    if not named:
        return "" if not found.jobs else "No label names a job; --by LABEL tells by which to divide."
    told = ", ".join(f"{job.job} ({amount(job.saving.reached.mean)} kWh a day)" for job in named)
    return f"Start with {told}: joulewise run --tune -- COMMAND."


def rests_on(found: Findings) -> tuple[str, ...]:
    """What stands in for what was not exported, and which law for which GPU."""
    return found.rests_on


def unknowns() -> tuple[str, ...]:
    """What no such history can tell."""
    return UNKNOWNS


def plain(found: Findings, kwh_price: float | None, carbon: Carbon | None) -> dict[str, Any]:
    """Everything as plain values for JSON, every number in full; energies in kWh a day."""
    told = asdict(found)
    told["share"] = asdict(found.share)
    told["saving"] = _plain_saving(found.saving)
    for plain_model, model in zip(told["models"], found.models, strict=True):
        plain_model["saving"] = _plain_saving(model.saving)
    for plain_job, job in zip(told["jobs"], found.jobs, strict=True):
        plain_job["saving"] = _plain_saving(job.saving)
    told["cannot_know"] = list(UNKNOWNS)
    reached = found.saving.reached
    told["kwh_price"] = kwh_price
    told["carbon_g_per_kwh"] = None if carbon is None else carbon.g_per_kwh
    told["carbon_source"] = None if carbon is None else carbon.source
    told["money_a_day"] = None if kwh_price is None else asdict(reached.times(kwh_price))
    told["carbon_g_a_day"] = None if carbon is None else asdict(reached.times(carbon.g_per_kwh))
    told["headline"] = headline(found)
    return told


def _plain_saving(saving: Saving) -> dict[str, Any]:
    return {
        "kwh": saving.kwh,
        "possible_kwh": asdict(saving.possible),
        "reached_kwh": asdict(saving.reached),
        "possible_share": asdict(saving.possible_share),
        "reached_share": asdict(saving.share),
    }


def clock(job: JobSaving) -> str:
    """The clock that would likely be set, against the one seen."""
    return "as it is" if job.clock > 0.995 else f"−{format_percent(1.0 - job.clock)}"


def amount(value: float) -> str:
    """A number with three digits and no exponent."""
    if value == 0.0 or not math.isfinite(value):
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 6)}f}" if decimals <= 6 else f"{value:.2g}"


def between(interval: Interval) -> str:
    """``"41 (25 to 66)"``: as many decimals as the width of the interval justifies."""
    width = interval.high - interval.low
    decimals = 0 if width <= 0.0 else min(6, max(0, 1 - math.floor(math.log10(width))))
    low, high = max(0.0, interval.low), interval.high
    return f"{interval.mean:,.{decimals}f} ({low:,.{decimals}f} to {high:,.{decimals}f})"


def percents(interval: Interval) -> str:
    """``"5.1 % (2.9 to 8.0 %)"``."""
    return f"{100 * interval.mean:.1f} % ({100 * max(0.0, interval.low):.1f} to {100 * interval.high:.1f} %)"
