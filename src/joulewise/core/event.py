"""What the journal holds. Events are facts in the order in which they happened; state is a fold of them.

Every event is a frozen dataclass of plain values; ``to_json`` and ``from_json`` are exact inverses. Settings travel as
mappings of knob names to numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from joulewise.core.block import Block, Role, Rung
from joulewise.core.decision import Decision, Expectation, Verdict
from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.measurement import Measurement, Outcome, Source
from joulewise.core.parsing import json_value
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring


@dataclass(frozen=True, slots=True)
class Began:
    """A run begins. ``facts`` are plain values: what runs, on what, under which bound, and the seed of every draw."""

    time_s: float
    run: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, written before it is applied: a crash from here on leaves a trace."""

    time_s: float
    decision: Decision[Setting]


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen under a decision, and whether it kept its promise."""

    time_s: float
    decision: Decision[Setting]
    seen: Measurement[Setting]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Seen:
    """A block of work that a job tuner had asked for, and the guard's word on it, if it had one."""

    time_s: float
    role: Role
    block: Block
    says: str = ""


@dataclass(frozen=True, slots=True)
class Shifted:
    """The job changed: another phase, another pace, idle, awake. ``what`` is a word, ``says`` a sentence."""

    time_s: float
    what: str
    says: str
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """A recurring job is known from here on. Times of a recurring job's events are in seconds since 1970."""

    time_s: float
    job: Recurring


@dataclass(frozen=True, slots=True)
class Asked:
    """A trial of a recurring job was handed out. ``trial`` counts per job from 0."""

    time_s: float
    trial: int
    recurrence: str
    """The submission that it serves; a second trial of the same one follows a first that did not reach the target."""
    batch_size: int
    platform: Platform
    purpose: Purpose
    reason: str
    expires_s: float
    """When it counts as lost unless something is heard of it."""
    owner: str = ""
    key: str = ""
    """The asker's own name for this ask: asking again under it gives the same trial."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A trial is alive: epochs done so far, and what an epoch costs, setting by setting, where that is known."""

    time_s: float
    trial: int
    epochs: int
    expires_s: float
    profile: tuple[EpochCost, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """A trial came back: how it ended, after how many epochs, and what it took in all."""

    time_s: float
    trial: int
    outcome: Outcome
    epochs: int
    duration_s: float
    energy_j: float
    profile: tuple[EpochCost, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """A trial never came back: its owner died or its time ran out."""

    time_s: float
    trial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Proven:
    """A saving against interleaved baselines. Changes are relative (−0.08 is 8 % less); errors one standard error."""

    time_s: float
    energy_change: float
    energy_change_error: float
    time_change: float
    time_change_error: float


@dataclass(frozen=True, slots=True)
class Led:
    """A scheduler takes a cluster over; ``epoch`` is above every one before. Times of a cluster's events are in seconds
    since 1970."""

    time_s: float
    epoch: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ordered:
    """A job has been handed in to a cluster. ``facts`` are those of its order, as plain values."""

    time_s: float
    name: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Aimed:
    """What shall become of a job, written before anything is done about it: ``what`` is start, resize, retune, preempt,
    migrate or stop; ``facts`` its way and place."""

    time_s: float
    epoch: int
    name: str
    what: str
    facts: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turned:
    """What became of a job, as its engine and its nodes tell: ``what`` is started, stopped, ended, failed, cancelled,
    lost, found (it was over, and is there again) or measured."""

    time_s: float
    name: str
    what: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limited:
    """An operator's word, or a signal: ``what`` is cap or budget; ``facts`` how much and until when."""

    time_s: float
    what: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A run ended, in order or not. ``facts`` are plain values: what it used, and what could not be judged."""

    time_s: float
    why: str
    facts: Mapping[str, Any]


Event = (
    Began
    | Decided
    | Seen
    | Shifted
    | Observed
    | Registered
    | Asked
    | Progressed
    | Told
    | Expired
    | Proven
    | Led
    | Ordered
    | Aimed
    | Turned
    | Limited
    | Finished
)

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}


def to_json(event: Event) -> str:
    """One line of JSON."""
    return json.dumps({"event": type(event).__name__, **_plain(event)}, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Event:
    """The event that ``to_json`` wrote; BadSpec, naming the fault, for anything else."""
    try:
        fields = dict(json_value(line))
        name = fields.pop("event")
        kind = _EVENTS[name]
        built: Event = kind(**{key: _rebuild(key, value) for key, value in fields.items()})
    except (ValueError, TypeError, KeyError, AttributeError, Unsupported) as fault:
        raise BadSpec(f"not an event: {line[:80]!r} ({type(fault).__name__}: {fault})") from fault
    return built


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Setting | Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _rebuild(key: str, value: Any) -> Any:
    match key:
        case "setting":
            return Setting(**value)
        case "decision":
            return Decision(Setting(**value["setting"]), value["reason"], Expectation(**value["expected"]))
        case "seen":
            return _measurement(value)
        case "block":
            return Block(**{**value, "setting": Setting(**value["setting"]), "rung": Rung(value["rung"])})
        case "role":
            return Role(value)
        case "purpose":
            return Purpose(value)
        case "outcome":
            return Outcome(value)
        case "job":
            return Recurring(**{**value, "batch_sizes": tuple(value["batch_sizes"])})
        case "platform":
            return Platform(**value)
        case "profile":
            return tuple(EpochCost(**{**each, "setting": Setting(**each["setting"])}) for each in value)
        case "notes":
            return tuple(value)
        case "verdict":
            return Verdict(**value)
        case _:
            return value


def _measurement(fields: Mapping[str, Any]) -> Measurement[Setting]:
    return Measurement(
        **{
            **fields,
            "setting": Setting(**fields["setting"]),
            "source": Source(fields["source"]),
            "outcome": Outcome(fields["outcome"]),
            "notes": tuple(fields["notes"]),
        }
    )
