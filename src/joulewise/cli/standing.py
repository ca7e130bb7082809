"""How far a run's claim could be checked, beyond that it follows from its blocks: one of three labels.

``recomputed from blocks``: nothing, or not enough, was kept to check the blocks with. ``checked against readings``:
joules, seconds and work of every block fit what was kept, which the same user could have rewritten. Beside it stands
the saving that follows from the readings alone, with its tolerance: other joules in the journal move neither.
``countersigned by KEY``: besides, or instead, a key that the verifier trusts has signed this journal and these
readings, so that they have not been changed since.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Event, Finished
from joulewise.core.units import format_duration, format_percent

if TYPE_CHECKING:
    from joulewise.store.store import Store

FROM_BLOCKS: Final = "recomputed from blocks"
AGAINST_READINGS: Final = "checked against readings"
COUNTERSIGNED: Final = "countersigned by"
_EARLY_S: Final = 60.0
"""Clocks of two hosts may differ by so much: a signature cannot be older than what it signs."""


def standing(store: Store, run: str, events: Sequence[Event], trusted: Mapping[str, str]) -> dict[str, Any]:
    """``label``, ``readings`` (what they bear out), ``countersigned`` (null, or by whom and when), ``untrusted`` (keys
    that signed and that nobody here trusts), ``seal`` and ``problems``."""
    from joulewise.report.words import plainly
    from joulewise.store import countersignature
    from joulewise.store.evidence import evidence
    from joulewise.tune.audit import audit
    from joulewise.tune.seal import seal_words

    seal = next((event.facts.get("seal") for event in reversed(events) if isinstance(event, Finished)), None)
    problems: list[str] = []
    readings: dict[str, Any] = {"blocks": 0, "works": 0, "of": 0, "saving": None, "tolerance": None, "why_not": ""}
    digest, complete, timed = "", False, False
    try:
        kept = evidence(store, run, events)
        found = audit(events, kept)
        digest, complete, timed = kept.digest, found.complete, not kept.trouble and kept.speed == 1.0
        problems += map(plainly, found.problems)
        readings = {
            "blocks": found.blocks,
            "works": found.works,
            "of": found.of,
            "saving": found.saving,
            "tolerance": found.tolerance if found.saving is not None else None,
            "why_not": kept.trouble or found.why_not,
        }
    except BadSpec as error:
        problems.append(f"the readings cannot be read: {error}")
    signed = countersignature.kept(store, run)
    sealed = seal if isinstance(seal, dict) else {}
    checked = countersignature.check(signed, trusted, run=run, seal=sealed, readings=digest)
    problems += checked.problems
    if trusted and checked.by is None and not checked.problems:
        problems.append("no key that you named has countersigned this run")
    by = None
    if checked.by is not None:
        said = checked.by.statement
        ended_s = _ended_unix_s(events) if timed else None
        late_s = None if ended_s is None else said.at_unix_s - ended_s
        if late_s is not None and late_s < -_EARLY_S:
            problems.append(
                f"{checked.name} countersigned {format_duration(-late_s)} before the run says that it ended"
            )
        by = {"key": checked.by.key, "name": checked.name, "at_unix_s": said.at_unix_s, "after_s": late_s}
    label = f"{COUNTERSIGNED} {checked.name}" if by is not None else AGAINST_READINGS if complete else FROM_BLOCKS
    return {
        "label": label,
        "readings": {**readings, "complete": complete},
        "countersigned": by,
        "untrusted": list(checked.untrusted),
        "seal": seal_words(seal),
        "problems": problems,
    }


def label_lines(found: Mapping[str, Any]) -> list[str]:
    """The label of a run that fits, and what it rests on, as text."""
    if "label" not in found:
        return []
    readings, by = found["readings"], found["countersigned"]
    against = AGAINST_READINGS if readings["complete"] else FROM_BLOCKS
    if by is None:
        lines = [f"label: {found['label']} — not countersigned"]
    else:
        when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(by["at_unix_s"]))
        late = None if by["after_s"] is None else format_duration(max(0.0, by["after_s"]))
        after = f", {late} after the run's end" if late else ", when the run ended is not known"
        lines = [f"label: {found['label']}, {against}"]
        lines.append(f"  journal and readings existed at {when}{after}: not changed since, which is all that it says")
    if readings["complete"]:
        lines.append(f"  joules, seconds and work of {readings['of']} blocks fit the readings{_by_readings(readings)}")
    else:
        fit = f"joules and seconds of {readings['blocks']} of {readings['of']} blocks fit the readings; "
        lines.append(f"  {fit if readings['blocks'] else ''}{readings['why_not'] or 'no blocks'}")
    for each in found["untrusted"]:
        lines.append(f"  {each} has signed, and is no key that you trust: nothing follows from it")
    if found["seal"]:
        lines.append(f"  seal {found['seal']}")
    return lines


def _by_readings(readings: Mapping[str, Any]) -> str:
    """The saving that the readings tell without the journal's joules; empty where none is claimed."""
    saving, tolerance = readings["saving"], readings["tolerance"]
    if saving is None:
        return ""
    word = "saved" if saving <= 0 else "lost"
    return f"; these alone say {word} {format_percent(abs(saving))} energy, ± {format_percent(tolerance)} (tolerance)"


def _ended_unix_s(events: Sequence[Event]) -> float | None:
    """When a run whose clock goes as the wall's ended, in seconds since 1970; None where the journal does not tell."""
    starts = [event.facts for event in events if isinstance(event, Began)]
    ends = [event.time_s for event in events if isinstance(event, Finished)]
    start = starts[-1].get("unix_s") if starts else None
    return start + ends[-1] if ends and isinstance(start, int | float) else None
