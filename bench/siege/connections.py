"""Half-open connections beside honest requests."""

from __future__ import annotations


def figures(seconds_s: float) -> dict[str, float]:
    raise NotImplementedError(seconds_s)
