"""Metrics found in what a command prints: ``--metric-pattern``, for a script that nobody wants to change.

A pattern is a regular expression whose named groups are metrics: ``'epoch (?P<epoch>\\d+) val_acc=(?P<val_acc>\\S+)'``.
Without a group ``epoch`` its matches are counted. Pure: it is given lines.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Sequence

from joulewise.core.errors import BadSpec
from joulewise.core.metric import Metric

EPOCH = "epoch"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[78D=>])")


class Patterns:
    """What was found so far by some patterns. BadSpec for one that is none, or names no metric."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._counts = [0] * len(patterns)
        self._first: list[float | None] = [None] * len(patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def find(self, line: str) -> list[Metric]:
        """The metrics in one line of output, stamped with the present moment."""
        if not self._patterns:
            return []
        plain = _ESCAPES.sub("", line)
        found = []
        for place, pattern in enumerate(self._patterns):
            for match in pattern.finditer(plain):
                metric = self._metric(place, match)
                if metric is not None:
                    found.append(metric)
        return found

    def _metric(self, place: int, match: re.Match[str]) -> Metric | None:
        groups = match.groupdict()
        values = {
            name: number for name, text in groups.items() if name != EPOCH and (number := _number(text)) is not None
        }
        if EPOCH not in groups:
            if not values:
                return None
            self._counts[place] += 1
            return Metric(time.monotonic(), self._counts[place], values)
        epoch = _number(groups[EPOCH])
        if epoch is None or not 0 <= epoch < math.inf:
            return None
        first = self._first[place]
        if first is None:
            first = self._first[place] = epoch
        # A script that counts from 0 has done one epoch when it prints what epoch 0 came to.
        return Metric(time.monotonic(), epoch + 1 if first == 0 else epoch, values)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a later Python may read otherwise is no news to our user
            pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadSpec(f"--metric-pattern {text!r} is no regular expression: {error}") from None
    if not set(pattern.groupindex) - {EPOCH}:
        raise BadSpec(
            f"--metric-pattern {text!r} names no metric; write a group such as 'val_acc=(?P<val_acc>[0-9.]+)'"
        )
    return pattern


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
