"""Where the training steps of a trace begin and end: by the profiler's own marks, else by what repeats.

A step's spans are those that the host launched during it; a GPU may run a whole step behind its host, so what was
launched before the trace began is no part of the first steps, though it ran during them. A step's time runs from its
first span to the first of the next step, as the GPU sees it. Without marks the smallest cycle of names that explains
the trace is the step; where nothing repeats, the whole trace is one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.plan.trace import Lane, Span, Trace

MARKED, REPEATING, WHOLE = "marked", "repeating", "whole"

_PROJECTIONS = 16  # random signs a name; the share of equal names at a distance is told to ± 1/√(16·spans)
_ALIKE = 0.9  # of the names one cycle later must be the same
_NEARLY = 0.02  # a shorter cycle is taken unless a longer one explains this much more


@dataclass(frozen=True, slots=True)
class Step:
    """One step on one lane."""

    number: int
    lane: Lane
    spans: tuple[Span, ...]
    start_s: float
    end_s: float
    next_launch_s: float | None = None
    """When the host launched the next step's first span; None: not known."""

    @property
    def duration_s(self) -> float:
        """From its first span to the next step's, as the lane saw it."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Steps:
    """The whole steps of one rank, on every lane: ``lanes[i][k]`` is step k of lane i."""

    found: str
    lanes: tuple[tuple[Step, ...], ...]

    @property
    def count(self) -> int:
        """How many steps."""
        return len(self.lanes[0])


def find(trace: Trace) -> Steps:
    """The steps of ``trace``. Where there are several, the last is left out: its end cannot be told from its wait."""
    found = MARKED if trace.marks else REPEATING
    lanes = [_marked(trace, lane) if trace.marks else _repeating(lane) for lane in trace.lanes]
    if not trace.marks and any(len(steps) < 2 for steps in lanes):
        found, lanes = WHOLE, [[_of(0, lane, lane.spans, None)] for lane in trace.lanes]
    lanes = [steps for steps in lanes if steps]
    if not lanes:
        raise BadSpec(f"{trace.path} has marks of steps, but nothing ran in them; record more of the training")
    least = min(len(steps) for steps in lanes)
    return Steps(found, tuple(tuple(steps[:least]) for steps in lanes))


def _marked(trace: Trace, lane: Lane) -> list[Step]:
    """Spans by the mark in which they were launched."""
    starts = [mark.start_s for mark in trace.marks]
    last_s = trace.marks[-1].end_s
    parts: list[list[Span]] = [[] for _ in starts]
    for span, launched_s in zip(lane.spans, _launches(trace, lane), strict=True):
        place = -1 if launched_s is None else bisect_right(starts, launched_s) - 1
        if launched_s is not None and place >= 0 and launched_s <= last_s:
            parts[place].append(span)
    numbered = [(mark, part) for mark, part in zip(trace.marks, parts, strict=True) if part]
    if trace.on_cpu:  # the marks are on the thread that works
        return [Step(mark.number, lane, tuple(part), mark.start_s, mark.end_s, mark.end_s) for mark, part in numbered]
    steps = [
        _of(mark.number, lane, part, following)
        for (mark, part), (_, following) in zip(numbered, [*numbered[1:], (None, None)], strict=True)
    ]
    return steps[:-1] if len(steps) > 1 else steps


def _launches(trace: Trace, lane: Lane) -> Iterator[float | None]:
    """When each span was launched; where the trace does not say, when the one before it was; None: before the trace."""
    if trace.on_cpu or all(span.launched_s is None for span in lane.spans):
        yield from (span.start_s if span.launched_s is None else span.launched_s for span in lane.spans)
        return
    last_s: float | None = None
    for span in lane.spans:
        last_s = span.launched_s if span.launched_s is not None else last_s
        yield last_s


def _repeating(lane: Lane) -> list[Step]:
    length = cycle([span.name for span in lane.spans])
    if length is None:
        return []
    first = _longest_gap(lane.spans, length)
    cuts = range(first, len(lane.spans) - length, length)
    return [
        _of(number, lane, lane.spans[at : at + length], lane.spans[at + length :][:1]) for number, at in enumerate(cuts)
    ]


def _of(number: int, lane: Lane, spans: Sequence[Span], following: Sequence[Span] | None) -> Step:
    start_s, end_s = spans[0].start_s, max(span.end_s for span in spans)
    if not following:
        return Step(number, lane, tuple(spans), start_s, end_s)
    return Step(number, lane, tuple(spans), start_s, max(end_s, following[0].start_s), following[0].launched_s)


def cycle(names: Sequence[str]) -> int | None:
    """The smallest distance at which names repeat; None where less than nine in ten do, or it leaves no two cycles.

    The share of equal names at every distance at once: random signs for names, whose products average to 1 where names
    are equal and to 0 where not, correlated by Fourier transform.
    """
    count = len(names)
    if count < 4:
        return None
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    order = np.array([number[name] for name in names])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_PROJECTIONS, len(number)))
    padded = 1 << (2 * count - 1).bit_length()
    share = np.zeros(count // 2 + 1)
    for row in signs:
        spectrum = np.fft.rfft(row[order], padded)
        share += np.fft.irfft(np.abs(spectrum) ** 2, padded)[: len(share)]
    share /= _PROJECTIONS * (count - np.arange(len(share)))
    share[0] = 0.0
    if share.max() < _ALIKE:
        return None
    return int(np.argmax(share >= max(_ALIKE, share.max() - _NEARLY)))


def _longest_gap(spans: Sequence[Span], length: int) -> int:
    """Where in a cycle the lane rests longest: the host ends its step there."""
    starts = np.array([span.start_s for span in spans])
    ends = np.maximum.accumulate([span.end_s for span in spans])
    gaps = np.zeros(len(spans))
    gaps[1:] = np.maximum(0.0, starts[1:] - ends[:-1])
    whole = gaps[: len(gaps) // length * length].reshape(-1, length)
    return int(np.argmax(whole.mean(axis=0)))
