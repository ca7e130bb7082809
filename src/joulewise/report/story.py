"""A tuned run as its journal tells it: what was tried, held, changed and proven, in the order in which it happened.

Pure: a fold of events that the report, the end summary and ``verify`` share. Times are seconds since the run began.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joulewise.core.block import Block, Role
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted, to_json
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.seal import seal_words

WINDOWS = (Role.REFERENCE, Role.PROOF)
"""Baseline blocks that are there to be compared with what is around them."""
STRETCH = {
    Role.BASELINE: "baseline",
    Role.PROBE: "probe",
    Role.CANDIDATE: "verify",
    Role.REFERENCE: "verify",
    Role.HOLD: "hold",
    Role.PROOF: "hold",
}
"""What a stretch of blocks is called; the proof's baseline windows belong to the holding around them."""
OURS = frozenset(
    {"idle", "awake", "lost", "ruler", "slack", "unmarked", "refused", "void", "counters", "ready", "late", "waits"}
)
"""``Shifted.what`` of our own doing, or of what we may do: the job itself has not changed."""
_UNTOLD = frozenset({"idle", "awake", "void", "counters", "ready", "late", "waits"})
"""Those that no reader of a report needs: they are there for whoever replays the journal, or come by the hundred."""
_NEAR = 8  # blocks to look at for what a baseline window is about; a pair's other half is the next or the last


@dataclass(frozen=True, slots=True)
class Story:
    """One run. ``events`` is everything, in order; the rest is sorted out of it."""

    events: tuple[Event, ...]
    run: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    began_s: float = 0.0
    decided: tuple[Decided, ...] = ()
    seen: tuple[Seen, ...] = ()
    shifted: tuple[Shifted, ...] = ()
    proven: tuple[Proven, ...] = ()
    finished: Finished | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> Story:
        """What ``events`` tell; an empty journal tells nothing."""
        told = tuple(events)
        began = next((event for event in told if isinstance(event, Began)), None)
        first_s = began.time_s if began is not None else min((event.time_s for event in told), default=0.0)
        return cls(
            told,
            began.run if began is not None else "",
            began.facts if began is not None else {},
            first_s,
            tuple(event for event in told if isinstance(event, Decided)),
            tuple(event for event in told if isinstance(event, Seen)),
            tuple(event for event in told if isinstance(event, Shifted)),
            tuple(event for event in told if isinstance(event, Proven)),
            next((event for event in reversed(told) if isinstance(event, Finished)), None),
        )

    def since_s(self, time_s: float) -> float:
        """Seconds since the run began."""
        return time_s - self.began_s

    @property
    def span_s(self) -> float:
        """From the first event to the last thing known to have happened; the time between two lives included."""
        ends = [event.time_s for event in self.events[-1:]] + [event.block.end_s for event in self.seen[-1:]]
        return max((self.since_s(end) for end in ends), default=0.0)

    @property
    def watched_s(self) -> float:
        """For how long somebody watched: a run that was killed and gone on with later has several lives."""
        watched_s = 0.0
        first_s = last_s = self.began_s
        for event in self.events:
            if isinstance(event, Began):
                watched_s += last_s - first_s
                first_s = event.time_s
            last_s = event.time_s
        return watched_s + last_s - first_s if self.events else self.span_s

    @property
    def judged_s(self) -> float:
        """Seconds of clean work in blocks: what the claim is about."""
        return sum(each.block.duration_s for each in self.seen if 0 < each.block.energy_j < math.inf)

    @property
    def changes(self) -> tuple[Shifted, ...]:
        """When the job itself changed; its idle gaps and what became of us are none of it."""
        return tuple(change for change in self.shifted if change.what not in OURS)

    @property
    def lost(self) -> Shifted | None:
        """When tuning stopped for good, and why; None if it did not."""
        return next((change for change in self.shifted if change.what == "lost"), None)

    def until(self, blocks: int) -> Story:
        """The run as it stood when so many blocks had been seen."""
        end_s = self.seen[blocks - 1].block.end_s if 0 < blocks <= len(self.seen) else self.began_s
        shifted = tuple(change for change in self.shifted if change.time_s <= end_s)
        return replace(self, seen=self.seen[:blocks], shifted=shifted, events=(), finished=None)

    def digest(self) -> str:
        """A hash of every event, in order: the same journal gives the same, an edited one does not."""
        return hashlib.sha256("\n".join(map(to_json, self.events)).encode()).hexdigest()

    @property
    def seal(self) -> str | None:
        """The seal of the journal as people note it down; None where it has none."""
        return seal_words(self.finished.facts.get("seal")) if self.finished is not None else None

    def held(self) -> Setting | None:
        """The setting that was held last; None if none ever was."""
        return next((seen.block.setting for seen in reversed(self.seen) if seen.role is Role.HOLD), None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks that belong together: one probe, one verification, one holding. Times since the run began."""

    kind: str
    """"baseline", "probe", "verify", "hold"; or the word of a shift."""
    start_s: float
    end_s: float
    setting: Setting
    reason: str
    phase: str = ""
    blocks: int = 0
    windows: int = 0
    """Baseline windows within: of a verification's pairs, or of the proof."""
    says: str = ""
    """The guard's last word on it."""


def stretches(story: Story) -> list[Stretch]:
    """The run in chapters: what was done when, and why; changes of the job in between.

    Pairs that are compared while a setting is held already belong to the holding.
    """
    chapters: list[Stretch] = []
    for each, setting, reason in zip(story.seen, _meant(story.seen), _reasons(story.events), strict=True):
        kind, phase = STRETCH[each.role], each.block.phase
        window = each.role in WINDOWS
        block = Stretch(
            kind,
            story.since_s(each.block.start_s),
            story.since_s(each.block.end_s),
            setting,
            "" if window else reason,  # why a baseline block is run says nothing of the setting
            phase,
            1,
            int(window),
            each.says,
        )
        last = chapters[-1] if chapters else None
        if last is not None and _goes_on(last, block):
            chapters[-1] = replace(
                last,
                end_s=block.end_s,
                reason=block.reason if _held(block.reason) else last.reason or block.reason,
                blocks=last.blocks + 1,
                windows=last.windows + block.windows,
                says=block.says or last.says,
            )
        else:
            chapters.append(block)
    chapters += [_shift(story, change) for change in story.shifted if change.what not in _UNTOLD]
    return sorted(chapters, key=lambda chapter: chapter.start_s)


def _goes_on(last: Stretch, block: Stretch) -> bool:
    """Whether a block belongs to the chapter before it."""
    if (last.phase, last.setting) != (block.phase, block.setting):
        return False
    if last.kind != "hold":
        return last.kind == block.kind
    same = block.reason == last.reason or (_held(block.reason) and _held(last.reason))
    return block.kind in ("hold", "verify") and (not block.reason or same or not last.reason)


def _held(reason: str) -> bool:
    """Whether a reason is how well a setting is known that is held before it is verified: it changes pair by pair."""
    return reason.startswith("held")


def _meant(seen: Sequence[Seen]) -> list[Setting]:
    """For each block the setting that it was about: a baseline window is about the one that it is compared with."""
    meant: list[Setting] = []
    for place, each in enumerate(seen):
        if each.role not in WINDOWS:
            meant.append(each.block.setting)
            continue
        kind = STRETCH[each.role]
        near = (*reversed(seen[max(0, place - _NEAR) : place]), *seen[place + 1 : place + 1 + _NEAR])
        if each.role is Role.REFERENCE:  # the pair's other half may be the one before or the one after
            near = (*seen[place + 1 : place + 2], *near)
        about = (other for other in near if other.role not in WINDOWS and STRETCH[other.role] == kind)
        meant.append(next((other.block.setting for other in about), DEFAULT))
    return meant


def _reasons(events: Iterable[Event]) -> list[str]:
    """For each block seen the reason of the decision that it came of: the last one for its setting before it."""
    reasons: list[str] = []
    latest: dict[Setting, str] = {}
    for event in events:
        if isinstance(event, Decided):
            latest[event.decision.setting] = event.decision.reason
        elif isinstance(event, Seen):
            reasons.append(latest.get(event.block.setting, ""))
    return reasons


def _shift(story: Story, change: Shifted) -> Stretch:
    at_s = story.since_s(change.time_s)
    return Stretch(change.what, at_s, at_s, DEFAULT, change.says, change.phase)


@dataclass(frozen=True, slots=True)
class Tried:
    """What one setting did, relative to default: −0.08 is 8 % less. Errors: one standard error."""

    setting: Setting
    phase: str
    time_change: float
    time_error: float
    energy_change: float
    energy_error: float
    seconds: float
    """For how long it ran, clean work only."""
    held: bool
    """Whether it was ever held, not only tried."""


def tried(seen: Sequence[Seen]) -> list[Tried]:
    """Every setting that ran, against all baseline blocks of the same phase; default itself first.

    A picture of what was seen, drift included; the proof, which is stricter, is ``tune.proof``'s.
    """
    result: list[Tried] = []
    for phase in dict.fromkeys(each.block.phase for each in seen):
        blocks = [each for each in seen if each.block.phase == phase]
        default = [each.block for each in blocks if each.block.setting == DEFAULT]
        if not default:
            continue
        for setting in dict.fromkeys((DEFAULT, *(each.block.setting for each in blocks))):
            own = [each for each in blocks if each.block.setting == setting]
            held = any(each.role is Role.HOLD for each in own)
            result.append(_against(setting, phase, [each.block for each in own], default, held=held))
    return result


def _against(setting: Setting, phase: str, own: Sequence[Block], default: Sequence[Block], *, held: bool) -> Tried:
    seconds = sum(block.duration_s for block in own)
    if setting == DEFAULT:
        return Tried(setting, phase, 0.0, 0.0, 0.0, 0.0, seconds, held)
    time_change, time_error = _ratio([(block.duration_s, block.work) for block in own], default, "duration_s")
    energy_change, energy_error = _ratio([(block.energy_j, block.work) for block in own], default, "energy_j")
    if len(own) == 1:
        time_error, energy_error = own[0].time_error, math.hypot(own[0].time_error, own[0].power_error)
    return Tried(setting, phase, time_change, time_error, energy_change, energy_error, seconds, held)


def _ratio(own: Sequence[tuple[float, float]], default: Sequence[Block], amount: str) -> tuple[float, float]:
    """Change of the mean amount a unit of work against default's, and its standard error by the blocks' own spread."""
    mine, mine_error = _mean([value / work for value, work in own], [work for _, work in own])
    theirs, theirs_error = _mean(
        [getattr(block, amount) / block.work for block in default], [block.work for block in default]
    )
    if not theirs > 0:
        return 0.0, math.inf
    return mine / theirs - 1, math.hypot(mine_error, mine / theirs * theirs_error) / theirs


def _mean(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Weighted mean and its standard error from the values' own spread."""
    total = sum(weights)
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / total
    if len(values) < 2:
        return mean, 0.0
    spread = sum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True)) / total
    return mean, math.sqrt(spread / (len(values) - 1))
