"""One run in a row of a list: when, what, on what, what it used, what it saved, and how it stands.

Pure: made of what the journal says (``store.views`` for its edges, ``report.story`` for all of it). Which runs there
are, and that this is not computed again for each look, is ``report.summaries``'s.
"""

from __future__ import annotations

import math
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from joulewise.core.marks import start_of
from joulewise.core.units import format_duration, format_energy, format_power
from joulewise.report.claim import STANDARD_ERRORS, Claim, percent
from joulewise.report.story import Story
from joulewise.store.views import Run

SILENT_S = 180.0
"""A run that is alive writes readings every few seconds, and events as it goes; whoever is silent for longer, and whose
process cannot be found, has been killed."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    KILLED = "killed"
    """It never came to its end, and nothing has been heard of it since."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in short. Changes are relative to default (−0.08 is 8 % less); ``…_half`` is half of a 95 % interval."""

    name: str
    began_s: float
    """In seconds since 1970, by the clock that its events and readings go by."""
    ended_s: float | None
    """None while it runs, and where nobody knows."""
    state: State
    command: str
    """As one would type it, its secrets masked."""
    gpus: tuple[str, ...]
    """Names of the models, GPU by GPU."""
    virtual: bool
    """Whether its GPUs were simulated: then nothing of it was ever spent or saved."""
    tuned: bool
    """Whether it was to be tuned, not only measured."""
    energy_j: float | None = None
    """What the whole command used on its GPUs; None where nobody measured it to its end."""
    energy_error_j: float | None = None
    """One standard error of sampling, without the sensor's own."""
    duration_s: float | None = None
    """Of what was measured, or watched; up to now while it runs."""
    saved_j: float | None = None
    saved_half_j: float | None = None
    energy_change: float | None = None
    energy_half: float | None = None
    time_change: float | None = None
    time_half: float | None = None
    bound: float | None = None
    """How much slower it might get: 0.02 is 2 %."""
    exit_code: int | None = None
    headline: str = ""


def state_of(run: Run, heard_s: float, now_s: float) -> State:
    """How it stands, where something was last heard of it at ``heard_s`` (seconds since 1970)."""
    if run.finished is not None:
        return State.FINISHED
    return State.RUNNING if now_s - heard_s < SILENT_S or _lives(run.facts) else State.KILLED


def summary(run: Run, state: State, now_s: float, story: Story | None = None, *, heard_s: float = 0.0) -> RunSummary:
    """The run in short. Without its ``story`` what only all of its events can tell is left out or provisional."""
    facts, measured = run.facts, run.measured or {}
    claim = Claim.of(story) if story is not None and story.seen else None
    return RunSummary(
        name=run.name,
        began_s=run.began_at_s,
        ended_s=_ended_s(run, state, heard_s),
        state=state,
        command=_command(facts),
        gpus=tuple(map(str, _list(facts.get("gpu_names")))),
        virtual=bool(facts.get("virtual") or facts.get("simulated")),
        tuned=_tuned(run),
        energy_j=_number(measured.get("energy_j")),
        energy_error_j=_number(measured.get("energy_error_j")),
        duration_s=_duration_s(run, state, now_s, claim, heard_s),
        bound=_number(facts.get("bound")) if _tuned(run) else None,
        exit_code=code if isinstance(code := measured.get("exit_code"), int) else None,
        headline=_headline(run, state, story, claim),
        **_saving(run, claim),
    )


def recalled(values: Mapping[str, Any], now_s: float) -> RunSummary:
    """The summary that ``core.plain.plain`` made ``values`` of; one that ran then is told as of now. ValueError or
    TypeError for anything else."""
    told = RunSummary(**{**values, "state": State(values["state"]), "gpus": tuple(values["gpus"])})
    return replace(told, duration_s=max(0.0, now_s - told.began_s)) if told.state is State.RUNNING else told


def words_of(told: RunSummary) -> str:
    """What a search looks through, in small letters."""
    return "\n".join((told.name, told.command, *dict.fromkeys(told.gpus), told.headline)).lower()


def _saving(run: Run, claim: Claim | None) -> dict[str, float | None]:
    if claim is not None:
        names = ("saved_j", "saved_half_j", "energy_change", "energy_half", "time_change", "time_half")
        return {name: _number(getattr(claim, name)) for name in names}
    proven = run.proven
    if proven is None:
        return {}
    return {
        "energy_change": _number(proven.energy_change),
        "energy_half": _number(STANDARD_ERRORS * proven.energy_change_error),
        "time_change": _number(proven.time_change),
        "time_half": _number(STANDARD_ERRORS * proven.time_change_error),
    }


def _headline(run: Run, state: State, story: Story | None, claim: Claim | None) -> str:
    if state is State.RUNNING:
        return "running"
    killed = "killed" if state is State.KILLED else ""
    if not _tuned(run):
        return killed or _used(run)
    if story is not None:
        from joulewise.report import outcome

        return "; ".join(filter(None, (killed, outcome.headline(story, claim or Claim.of(story)))))
    if run.proven is not None:
        half = STANDARD_ERRORS * run.proven.energy_change_error
        return f"{percent(run.proven.energy_change, half, sign=True)} energy"
    return killed or "finished"


def _used(run: Run) -> str:
    """``"412 ± 3 kJ in 5.0 min, 1373 W on average"``; first what a dry run would set, last how it ended if not well."""
    measured = run.measured or {}
    energy_j, duration_s = _number(measured.get("energy_j")), _number(measured.get("duration_s"))
    parts = []
    if isinstance(why := run.facts.get("untuned"), str):
        parts.append(f"not tuned: {why}")
    if isinstance(advised := run.facts.get("advised"), str):
        parts.append(advised)
    if energy_j is not None and duration_s:
        used = f"{format_energy(energy_j, _number(measured.get('energy_error_j')))} in {format_duration(duration_s)}"
        parts.append(f"{used}, {format_power(energy_j / duration_s)} on average")
    else:
        parts.append("no energy was measured")
    if measured.get("exit_code"):
        parts.append(f"ended with exit code {measured['exit_code']}")
    return "; ".join(parts)


def _tuned(run: Run) -> bool:
    """Only runs that were not tuned say so: those of earlier versions were."""
    return run.facts.get("tuned") is not False


def _ended_s(run: Run, state: State, heard_s: float) -> float | None:
    if state is State.RUNNING:
        return None
    if run.finished is None:
        return max(heard_s, run.last_at_s)
    return run.last_at_s if run.unix_s is None else run.unix_s + run.finished.time_s


def _duration_s(run: Run, state: State, now_s: float, claim: Claim | None, heard_s: float) -> float | None:
    measured_s = _number((run.measured or {}).get("duration_s"))
    if measured_s is not None:
        return measured_s
    if claim is not None:
        return claim.watched_s
    until_s = now_s if state is State.RUNNING else _ended_s(run, state, heard_s)
    return None if until_s is None else max(0.0, until_s - run.began_at_s)


def _lives(facts: Mapping[str, Any]) -> bool:
    """Whether the run's process is one of this machine and still there."""
    pid, start = facts.get("pid"), facts.get("pid_start")
    if not isinstance(pid, int) or start is None:
        return False
    here = facts.get("host") == socket.gethostname() and facts.get("boot") == _boot()
    return here and start_of(pid) == start


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _command(facts: Mapping[str, Any]) -> str:
    command = facts.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: object) -> float | None:
    """A number out of JSON that somebody may have edited."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)
