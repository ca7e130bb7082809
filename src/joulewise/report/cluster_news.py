"""What a scheduler writes down, as lines for whoever watches it: started, resized, capped, lost.

What it is: words of journal events, and a journal that says them aloud as they are written. What was decided and what
came of it are both events, so the watcher hears what a restart would read, no more and no less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from joulewise.core.caller import named
from joulewise.core.event import Aimed, Event, Led, Limited, Ordered, Turned
from joulewise.core.units import format_duration, format_energy, format_si, kwh_from_joules
from joulewise.store.journal import Journal


class Overheard:
    """A journal whose events are told, once they are written."""

    def __init__(self, journal: Journal, tell: Callable[[Event], None]) -> None:
        self._journal = journal
        self._tell = tell

    @property
    def trouble(self) -> str | None:
        """The journal's own."""
        return self._journal.trouble

    def append(self, event: Event, after: int | None = None) -> int:
        """As ``Journal.append``."""
        number = self._journal.append(event, after)
        self._tell(event)
        return number

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """As ``Journal.read``; what was written before is not told."""
        return self._journal.read(since)


def line(event: Event) -> str | None:
    """One event in a line, its time of day here first; None for one that is no news."""
    return _after(time.strftime("%H:%M:%S", time.localtime(event.time_s)), says(event))


def dated(event: Event) -> str | None:
    """The same with its day, in UTC: for what is read elsewhere and later."""
    return _after(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(event.time_s)), says(event))


def _after(when: str, said: str | None) -> str | None:
    # Some of it is the word of agents and users: in a line of its own that could pass for one of ours.
    return None if said is None else f"{when}  {' '.join(said.split())}"


def says(event: Event) -> str | None:
    """The same without its time."""
    match event:
        case Led():
            return f"this scheduler leads the cluster (epoch {event.epoch})"
        case Ordered():
            return f"{event.name} was handed in{_by(event.facts)}: {_asked(event.facts)}"
        case Aimed():
            return _aimed(event)
        case Turned():
            return _turned(event)
        case Limited():
            return _limited(event.what, event.facts, event.time_s)
        case _:
            return None


def _asked(facts: Mapping[str, Any]) -> str:
    gpus = _gpus(facts.get("gpus"))
    if facts.get("checkpoint") is None:
        return f"{gpus}, rigid"
    most = facts.get("most_gpus")
    return f"{gpus}, elastic from {facts.get('least_gpus', 1)}" + (f" to {most}" if most else "")


def _aimed(event: Aimed) -> str | None:
    way, place = event.facts.get("way") or {}, event.facts.get("place") or {}
    how = f"{_gpus(way.get('gpus'))} of {', '.join(place)}, {_clock(way)}"
    words = {
        "start": f"{event.name} starts on {how}",
        "resize": f"{event.name} is resized to {how}",
        "migrate": f"{event.name} moves to {how}",
        "retune": f"{event.name} goes to {_clock(way)}",
        "preempt": f"{event.name} is stopped, to go on later",
        "stop": f"{event.name} is ended",
    }
    says = words.get(event.what)
    return says if says is None or not event.reason else f"{says}: {event.reason}"


def _turned(event: Turned) -> str | None:
    facts = event.facts
    energy = facts.get("energy_j")
    used = f", {format_energy(sum(energy.values()))} so far" if isinstance(energy, Mapping) and energy else ""
    why = f": {facts['why']}" if facts.get("why") else ""
    code = facts.get("exit_code")
    words = {
        "started": f"{event.name} runs",
        "stopped": f"{event.name} has saved and waits",
        "ended": f"{event.name} has ended{used}{why}",
        "failed": f"{event.name} has failed{'' if code is None else f' with exit code {code}'}{used}{why}",
        "cancelled": f"{event.name} was cancelled{used}{why}",
        "lost": f"{event.name} is lost{why or ': its engine no longer knows it'}",
    }
    return words.get(event.what)


def _limited(what: str, facts: Mapping[str, Any], time_s: float) -> str | None:
    if what == "budget":
        if facts.get("energy_j") is None:
            return f"no energy budget any more{_by(facts)}"
        every = format_duration(facts.get("period_s") or 86_400.0)
        return f"energy budget: {kwh_from_joules(facts['energy_j']):,.4g} kWh in every {every}{_by(facts)}"
    if what != "cap":
        return None
    if facts.get("forget"):
        return "no power cap any more"
    cap_w, until_s = facts.get("cap_w"), facts.get("until_s")
    says = "no power cap" if cap_w is None else f"power cap: {format_si(cap_w, 'W')}"
    if until_s is not None:
        says += f" for {format_duration(max(0.0, until_s - time_s))}"
    if facts.get("ramp_w_per_s"):
        says += f", moving {format_si(60.0 * facts['ramp_w_per_s'], 'W')} a minute"
    if facts.get("source") == "feed":
        says += " (by the feed)"
    says += _by(facts)
    return f"{says}: {facts['trouble']}" if facts.get("trouble") else says


def _by(facts: Mapping[str, Any]) -> str:
    who = named(facts.get("by"))
    return f", by {who}" if who else ""


def _gpus(count: Any) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _clock(way: Mapping[str, Any]) -> str:
    setting = way.get("setting") or {}
    said = []
    if setting.get("sm_mhz") is not None:
        said.append(f"{setting['sm_mhz']:g} MHz")
    if setting.get("power_limit_w") is not None:
        said.append(f"{setting['power_limit_w']:g} W a GPU")
    return ", ".join(said) or "highest clock"
