"""The tuner's words in a user's: what a block is for, and sentences without the terms of our trade.

Pure. Tuner, guard and proof speak of candidates, references and wealth, and name settings as programs do; journals keep
that as it was said. Whoever shows it to people lets it pass through here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from joulewise.core.block import Role
from joulewise.core.knob import KNOBS, Setting
from joulewise.report import knobs

_DOING: Mapping[Role, str] = {
    Role.BASELINE: "measuring the default",
    Role.PROBE: "trying it",
    Role.CANDIDATE: "comparing it with the default",
    Role.REFERENCE: "to compare with",
    Role.HOLD: "held",
    Role.PROOF: "to compare with, for the proof",
}
_NAMES = "|".join(knob.name for knob in KNOBS)
_KNOB = re.compile(rf"\b({_NAMES})=(\d+(?:\.\d+)?)")
_NAME = re.compile(rf"\b(?:{_NAMES})\b")
_UNSTEADY = re.compile(
    r"unit time errs by ([\d.]+) ?% over ([\d.]+) s, (?:too coarse for the bound|more than [\d.]+ ?%)"
)
_SO_FAR = r"([-+][\d.]+%(?: ± [\d.]+%)?) after (\d+ pairs?)"
_AHEAD = r"(?:^|(?<=; ))"
SHOWN = "shown to keep the bound"
"""By pairs, by a test that is valid at any time; the journal's word for it is "verified"."""
_SAID: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r",? wealth [-+\d.einf]+"), ""),
    (re.compile(r"Setting\(\)"), "default"),
    (re.compile(r"Setting\(([^()]*)\)"), r"\1"),
    (re.compile(r" teaches most about the settings still open"), ": it tells most about the settings not tried yet"),
    (_UNSTEADY, r"its pace is too unsteady: \1 % over \2 s"),
    # Whether a setting keeps the bound by itself; "verified" is what ``joulewise verify`` says of a whole run.
    (re.compile(r", which keeps the bound, not verified: "), ", so that the whole keeps the bound, not verified: "),
    (re.compile(rf"{_AHEAD}held, not verified: "), "held: by itself it costs "),
    (re.compile(r", not verified: "), "; by itself it costs "),
    # An objective that weighs time itself promises that its cost falls: a bound of 0.
    (re.compile(rf"{_AHEAD}verified: within \+0\.0%: "), "shown to cost no more than the default: "),
    (re.compile(rf"{_AHEAD}verified: within [-+\d.]+%: "), f"{SHOWN} by itself: "),
    (re.compile(rf"{_AHEAD}verified: "), f"{SHOWN} by itself: "),
    (re.compile(rf"(\bshown to [a-z ]+: ){_SO_FAR}, error ≤ ([\d.]+%)"), r"\1\2 (\3, error ≤ \4)"),
    (re.compile(rf"(by itself it costs ){_SO_FAR}"), r"\1\2 (\3)"),
    (re.compile(r": to be verified again"), ": to be compared again"),
    (re.compile(r" energy at ([-+−])"), r" energy, \1"),
    (re.compile(r", bound ([-+\d.]+%), met with (\d+%)"), r"; within \1 with a chance of \2"),
    (
        re.compile(r"the saving by drawn windows alone: they are few, (\d+) verification pairs serve beside them"),
        r"the saving from windows at random times alone: they are few, so \1 pairs with the default count too",
    ),
    (re.compile(r"\bthe candidate\b|\bcandidates?\b"), "the setting"),
    (re.compile(r"\bthe reference\b|\breferences?\b"), "the default"),
    (re.compile(r"\bon trial\b"), "being compared"),
    (re.compile(r"\bas (?:a )?trial\b|\btrials?\b"), "comparison"),
    (re.compile(r"(\d)%"), r"\1 %"),
    (re.compile(r"(?<![\w.])-(?=\d)"), "−"),
)
LOST = ("nothing is tuned any more: ", "nothing is tuned: ")
"""How the tuner begins to say that it has stopped, or could not begin."""
_ALONE = "left alone: "


def plainly(says: str) -> str:
    """A sentence of the tuner as a user reads it."""
    for pattern, words in _SAID:
        says = pattern.sub(words, says)
    says = _KNOB.sub(lambda found: knobs.ceiling(found[1], float(found[2])), says)
    return _NAME.sub(lambda found: knobs.name(found[0]), says)


def reason(says: str) -> str:
    """The same without what the tuner puts before its reasons: ``"left alone: …"``, ``"nothing is tuned: …"``."""
    for beginning in (*LOST, _ALONE):
        says = says.removeprefix(beginning)
    return plainly(says)


def doing(role: Role | None, *, verified: bool = False, default: bool = False) -> str:
    """What the present block is for, after the setting in force; empty where there is nothing to say."""
    if role is None:
        return ""
    if role is Role.HOLD:
        if default:
            return "left alone"
        return f"held, {SHOWN}" if verified else "held, still being compared with the default"
    return _DOING[role]


def verdict(says: str) -> str:
    """What the tuner's word after a comparison says of the setting compared; it may be about the next one instead."""
    if " given up" in says:
        return plainly(says.partition("; ")[0])
    return plainly(says) if says.startswith(("verified", "held", "not decided", "within", "slower")) else ""


def named(setting: Setting) -> str:
    """``"SM clock at most 1500 MHz"``; the default by its name."""
    return knobs.chosen(setting) if setting else "default"
