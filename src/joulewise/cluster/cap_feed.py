"""A cap that somebody else writes into a file: a utility's signal, a building's controller. It fails closed.

What it is: the reading of one file, again and again. The file holds one word or a list of them, as JSON:

    {"cap_w": 20000, "until_unix_s": 1790000000}
    [{"cap_w": null}, {"cap_w": 15000, "at": 1790003600, "for": 10800}]

``cap_w`` null is no limit. Of those in force the one that began last holds. Where the file is missing, cannot be read,
makes no sense, or says nothing for now, the cap is the lowest of the last one known and the one declared safe, and the
reason is said in words. As soon as the file speaks again, it is heard again.
Why it exists: a signal that is lost must not be taken for leave to draw more.
What it is not: a clock (``now_s`` is passed in) or the place where caps of several origins meet (``limits``).
"""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.units import format_power

# A word is a line; a file of megabytes is not a signal, and must not stop a scheduler.
_MOST_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class CapWord:
    """A cap of ``cap_w`` (None: no limit) from ``from_s`` until ``until_s`` (None: until another word). On its way in
    and out it moves at most ``ramp_w_per_s`` (None: at once)."""

    cap_w: float | None
    from_s: float = -math.inf
    until_s: float | None = None
    ramp_w_per_s: float | None = None
    by: str = ""
    """Whose word it is, where that is known."""

    def holds(self, now_s: float) -> bool:
        """Whether it is in force."""
        return self.from_s <= now_s and (self.until_s is None or now_s < self.until_s)


@dataclass(frozen=True, slots=True)
class FeedSays:
    """What a feed comes to at one moment. ``trouble``: why it had to fall back; empty where it spoke. ``known_w``: the
    last cap that the file itself gave, for the next time (None: no limit, or never heard)."""

    cap_w: float | None
    until_s: float | None = None
    trouble: str = ""
    known_w: float | None = None


def parse_words(text: str) -> tuple[CapWord, ...]:
    """The words of a file. BadSpec, with the offending value, for anything else than the module's docstring shows."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise BadSpec(f"it is not JSON ({error})") from None
    except RecursionError:
        raise BadSpec("it is nested too deeply") from None
    items = read if isinstance(read, list) else [read]
    if not items:
        raise BadSpec("it holds no word")
    return tuple(_word(item) for item in items)


def read_words(path: Path) -> tuple[CapWord, ...]:
    """The words of the file at ``path``. BadSpec where it is missing, cannot be read or makes no sense."""
    try:
        # Not to wait: a pipe that nobody writes into would stop the scheduler for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadSpec("it is no plain file")
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8")
    except FileNotFoundError:
        raise BadSpec("it is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec(f"it cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from None
    if len(raw) > _MOST_BYTES:
        raise BadSpec(f"it is larger than {_MOST_BYTES} bytes")
    return parse_words(text)


def in_force(words: tuple[CapWord, ...], now_s: float) -> CapWord | None:
    """Of the words that hold now, the one that began last; of several, the last in order."""
    best = None
    for word in words:
        if word.holds(now_s) and (best is None or word.from_s >= best.from_s):
            best = word
    return best


class CapFeed:
    """The file at ``path``; ``safe_w`` is the declared safe cap, None if there is none."""

    def __init__(self, path: Path, *, safe_w: float | None = None) -> None:
        if safe_w is not None and not safe_w > 0:
            raise BadSpec(f"a safe cap of {safe_w:g} W makes no sense; it must be above 0")
        self.path = path
        self.safe_w = safe_w

    def look(self, now_s: float, known_w: float | None) -> FeedSays:
        """What it says now; ``known_w`` is the last cap that it gave (None: none, or no limit).

        BadSpec where it has to fall back and there is neither a last cap nor a safe one.
        """
        try:
            words = read_words(self.path)
            word = in_force(words, now_s)
            if word is None:
                raise BadSpec(_nothing_now(words, now_s))
        except BadSpec as error:
            return self._closed(str(error), known_w)
        return FeedSays(word.cap_w, word.until_s, known_w=word.cap_w)

    def _closed(self, why: str, known_w: float | None) -> FeedSays:
        choices = [watts for watts in (known_w, self.safe_w) if watts is not None]
        if not choices:
            raise BadSpec(
                f"the cap feed {self.path} gives no cap: {why}; no earlier one is known, and none is declared safe "
                "(--cap-safe)"
            )
        held_w = min(choices)
        last = "none is known" if known_w is None else format_power(known_w)
        safe = "none is declared" if self.safe_w is None else format_power(self.safe_w)
        said = f"cap feed {self.path}: {why}; held at {format_power(held_w)} (last: {last}; safe: {safe})"
        return FeedSays(held_w, trouble=said, known_w=known_w)


def _nothing_now(words: tuple[CapWord, ...], now_s: float) -> str:
    ends = [word.until_s for word in words if word.until_s is not None and word.until_s <= now_s]
    return "its last word has expired" if ends else "its first word has not begun"


def _word(item: Any) -> CapWord:
    if not isinstance(item, dict) or "cap_w" not in item:
        raise BadSpec('a word must be an object with "cap_w"')
    strange = set(item) - {"cap_w", "at", "for", "until_unix_s", "ramp_w_per_s", "says"}
    if strange:
        raise BadSpec(f"it says {sorted(strange)[0]!r}, which is not known here")
    cap_w = _number(item, "cap_w", least=0.0)
    at_s = _number(item, "at")
    for_s = _number(item, "for", least=0.0)
    until_s = _number(item, "until_unix_s")
    if for_s is not None:
        if at_s is None:
            raise BadSpec('"for" needs "at"')
        until_s = at_s + for_s if until_s is None else min(until_s, at_s + for_s)
    return CapWord(cap_w, -math.inf if at_s is None else at_s, until_s, _number(item, "ramp_w_per_s", least=0.0))


def _number(item: dict[str, Any], name: str, *, least: float = -math.inf) -> float | None:
    value = item.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSpec(f'"{name}" is {value!r}, not a number')
    try:
        number = float(value)
    except OverflowError:  # JSON has whole numbers of any length
        raise BadSpec(f'"{name}" is a number of {len(str(value))} digits, which makes no sense') from None
    if not (math.isfinite(number) and number > least):
        raise BadSpec(f'"{name}" is {number:g}, which makes no sense')
    return number
