"""One step of one GPU, cut into the pieces that a plan can give a clock: runs of kernels, transfers, host work.

Kernels between two points where somebody waits for somebody are a *run*, and no run is long; within it the kernels of
each kind are one piece, since in what order they come makes no difference to anyone outside. Collectives and copies
over the bus are *links*: beside the runs, at the pace of a wire. What the host does between launches is a piece too,
whose time no clock of the GPU changes. So a gap before a kernel is a wait for a link, a wait for the host (both shrink
when the run before is slowed), or the GPU's own pause, which belongs to the run.

Who waits for whom is *read* where the trace says so (``enable_cuda_sync_events``; threads of a CPU trace); what is on
one stream keeps its order. Else it is inferred from the order seen: a link after everything that had ended when it
began. That is too strict where the order was chance; ``strict=False`` keeps only what ended right before. The truth
lies between the two.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.plan.trace import Span, Trace
from joulewise.plan.trace_kinds import LINKS, Kind, short_name
from joulewise.plan.trace_steps import Step
from joulewise.plan.xray_piece import HOST, LINK, RUN, Piece, by_kind

_SLACK_S = 1e-6  # clocks of host and GPU, and rounding, are apart by less
_TIGHT_S = 10e-6  # what begins within so much of another's end waited for it: launch latency of a queued kernel
_MOST_LATENCY_S = 20e-6  # from a launch to the start of its kernel on a waiting GPU; usually 3–8 µs


@dataclass(slots=True)
class Cut:
    """The pieces of one lane's step; ``edges`` are (before, after, lag in seconds) by index."""

    pieces: list[Piece]
    edges: list[tuple[int, int, float]]
    read: bool
    """Whether who waits for whom was read rather than inferred."""


class _Lane:
    """A step being cut."""

    def __init__(self, trace: Trace, step: Step, lane: int, *, strict: bool, most_links: int, most_runs: int) -> None:
        self.trace, self.step, self.lane = trace, step, lane
        self.strict, self.most_runs = strict, most_runs
        lengths = sorted((span.duration_s for span in step.spans if span.kind in LINKS), reverse=True)
        least_s = lengths[most_links] if len(lengths) > most_links else -1.0
        self.links = [span for span in step.spans if span.kind in LINKS and span.duration_s > least_s]
        self.kernels = [span for span in step.spans if span.kind not in LINKS or span.duration_s <= least_s]
        self.starts = [span.start_s for span in self.kernels]
        self.ends = np.maximum.accumulate([span.end_s for span in self.kernels]).tolist()
        self.waits = step.lane.waits
        self.calls: dict[int, list[tuple[int, int]]] = {}  # stream → launching calls and their kernels, in order
        for place, span in enumerate(self.kernels):
            self.calls.setdefault(span.stream, []).append((span.correlation, place))
        self.recorded = bool(self.waits) or step.lane.waits_recorded
        self.read = self.recorded or trace.on_cpu or len({span.stream for span in step.spans}) == 1
        self.latency_s = _latency_s(self.kernels)

    def cut(self) -> Cut:
        before = [self._before(link) for link in self.links]  # last kernel that a link waits for
        after = [self._after(link) for link in self.links]  # first kernel that waits for a link
        blocks = [] if self.trace.on_cpu else self._blocks()
        ends_after = [place for _, _, place in blocks]
        bounds = {0, *self._slices(), *(place + 1 for place in (*before, *ends_after) if place is not None)}
        bounds |= {place for place in after if place is not None}
        firsts = sorted(bound for bound in bounds if bound < len(self.kernels))
        pieces = self._runs(firsts, self._released(after))
        run_of = [bisect_right(firsts, place) - 1 for place in range(len(self.kernels))]
        edges = [(run, run + 1, 0.0) for run in range(len(firsts) - 1)]
        last_on: dict[int, int] = {}
        for link, earlier, later in zip(self.links, before, after, strict=True):
            index = len(pieces)
            known_s = [self.step.start_s]
            if link.stream in last_on:
                known_s.append(self.links[last_on[link.stream] - len(firsts)].end_s)
            if earlier is not None:
                known_s.append(self.ends[earlier])
            if link.launched_s is not None and not self.trace.on_cpu:
                known_s.append(link.launched_s + self.latency_s)
            pieces.append(self._link(link, max(known_s)))
            if earlier is not None:
                edges.append((run_of[earlier], index, 0.0))
            if later is not None:
                edges.append((index, run_of[later], 0.0))
            if link.stream in last_on:
                edges.append((last_on[link.stream], index, 0.0))
            last_on[link.stream] = index
        edges += self._link_waits(len(firsts))
        if not self.trace.on_cpu:
            self._host(pieces, edges, firsts, blocks, run_of)
        if firsts:
            pieces[len(firsts) - 1].fixed_s += self._rest_s()
        return Cut(*by_kind(pieces, edges), self.read)

    def _slices(self) -> Iterator[int]:
        """Kernels at which another stretch of the step begins: runs that nobody waits for are cut there."""
        length_s = self.step.duration_s / self.most_runs
        last = -1
        for place, start_s in enumerate(self.starts):
            if length_s > 0 and (now := int((start_s - self.step.start_s) / length_s)) > last:
                last = now
                yield place

    def _before(self, link: Span) -> int | None:
        own = self._last(link.stream, link.correlation)
        if self.recorded:
            heard = [wait for wait in self.waits if wait.stream == link.stream and wait.wait < link.correlation]
            since = self._launched_before(link.stream, link.correlation)
            places = [own, *(self._last(wait.on_stream, wait.record) for wait in heard if wait.wait > since)]
            return max((place for place in places if place is not None), default=None)
        at_s = link.start_s if link.launched_s is None or not self.trace.on_cpu else link.launched_s
        place = bisect_right(self.ends, at_s + _SLACK_S) - 1
        if place < 0:
            return own
        tight = self.trace.on_cpu or self.strict or at_s - self.ends[place] <= _TIGHT_S
        return place if tight else own

    def _after(self, link: Span) -> int | None:
        if self.recorded:
            later = [self._first(link.stream, link.correlation)]
            later += [
                self._first(wait.stream, wait.wait)
                for wait in self.waits
                if wait.on_stream == link.stream and wait.record > link.correlation
            ]
            return min((place for place in later if place is not None), default=None)
        place = bisect_left(self.starts, link.end_s - _SLACK_S)
        while place < len(self.kernels) and _earlier(self.kernels[place], link):
            place += 1
        return place if place < len(self.kernels) else None

    def _launched_before(self, stream: int, correlation: int) -> int:
        """The call that launched the span before this one on its stream."""
        return max(
            (s.correlation for s in self.links if s.stream == stream and s.correlation < correlation), default=-1
        )

    def _last(self, stream: int, before: int) -> int | None:
        """The last kernel on ``stream`` that was launched before a call."""
        calls = self.calls.get(stream, [])
        place = bisect_left(calls, (before, -1)) - 1
        return calls[place][1] if place >= 0 else None

    def _first(self, stream: int, after: int) -> int | None:
        """The first kernel on ``stream`` that was launched after a call."""
        calls = self.calls.get(stream, [])
        place = bisect_right(calls, (after, len(self.kernels)))
        return calls[place][1] if place < len(calls) else None

    def _link_waits(self, runs: int) -> list[tuple[int, int, float]]:
        """Links on one stream that wait for links on another."""
        edges = []
        for wait in self.waits:
            earlier = [
                i for i, s in enumerate(self.links) if s.stream == wait.on_stream and s.correlation < wait.record
            ]
            later = [i for i, s in enumerate(self.links) if s.stream == wait.stream and s.correlation > wait.wait]
            if earlier and later and wait.stream != wait.on_stream:
                edges.append((runs + earlier[-1], runs + later[0], 0.0))
        return edges

    def _released(self, after: Sequence[int | None]) -> dict[int, float]:
        """Kernel → when the last link that it waited for had ended."""
        released: dict[int, float] = {}
        for link, place in zip(self.links, after, strict=True):
            if place is not None:
                released[place] = max(released.get(place, 0.0), link.end_s)
        return released

    def _runs(self, firsts: list[int], released: dict[int, float]) -> list[Piece]:
        """Runs of kernels. Where kernels overlap, the time is the earlier one's."""
        pieces: list[Piece] = []
        until_s = self.step.start_s
        bounds = set(firsts)
        for place, span in enumerate(self.kernels):
            if place in bounds:
                pieces.append(Piece(RUN, self.lane, span.start_s - self.step.start_s))
            piece = pieces[-1]
            excused_s = released.get(place, 0.0)
            if span.launched_s is not None:
                excused_s = max(excused_s, span.launched_s + self.latency_s)
            piece.fixed_s += max(0.0, span.start_s - max(until_s, excused_s))
            own_s = max(0.0, span.end_s - max(span.start_s, until_s))
            until_s = max(until_s, span.end_s)
            piece.busy_s[span.kind] = piece.busy_s.get(span.kind, 0.0) + own_s
            piece.names[span.kind, short_name(span.name)] += own_s  # type: ignore[assignment]  # Counter of seconds
        return pieces

    def _link(self, span: Span, free_s: float) -> Piece:
        """A link that could have begun at ``free_s`` for all that is known; what passed until it did is its own."""
        piece = Piece(LINK, self.lane, span.start_s - self.step.start_s, {span.kind: span.duration_s})
        piece.fixed_s = max(0.0, span.start_s - free_s)
        piece.names[span.kind, short_name(span.name)] = span.duration_s  # type: ignore[assignment]
        if span.kind is Kind.COMMUNICATION:
            piece.key = (span.group, short_name(span.name))
        return piece

    def _rest_s(self) -> float:
        """Between the last thing seen and the step's end, where no launch of the next step explains it."""
        known_s = max(span.end_s for span in self.step.spans)
        if self.step.next_launch_s is not None and not self.trace.on_cpu:
            known_s = max(known_s, self.step.next_launch_s + self.latency_s)
        return max(0.0, self.step.end_s - known_s)

    def _blocks(self) -> list[tuple[float, float, int]]:
        """When the host waited for the GPU, and for which kernel: the last that had ended."""
        found = []
        for start_s, end_s in self.trace.blocks:
            if self.step.start_s < end_s < self.step.end_s:
                place = bisect_right(self.ends, end_s) - 1
                if place >= 0 and self.ends[place] > start_s:
                    found.append((start_s, end_s, place))
        return found

    def _host(
        self,
        pieces: list[Piece],
        edges: list[tuple[int, int, float]],
        firsts: list[int],
        blocks: list[tuple[float, float, int]],
        run_of: list[int],
    ) -> None:
        """Append the host's work between launches, and what waits for it."""
        # (when, until when it was blocked, the piece launched or waited for, whether it was launched)
        acts = [(start_s, end_s, run_of[place], False) for start_s, end_s, place in blocks]
        targets = [*(self.kernels[first] for first in firsts), *self.links]
        for index, span in enumerate(targets):
            # What was launched before the step began here needs no host: it was ahead.
            if span.launched_s is not None and span.launched_s > self.step.start_s:
                acts.append((span.launched_s, span.launched_s, index, True))
        if self.step.next_launch_s is not None:
            at_s = self.step.next_launch_s
            acts.append((at_s, at_s, -1, True))
        at_s, chain = self.step.start_s, -1
        for start_s, end_s, target, launched in sorted(acts):
            index = len(pieces)
            pieces.append(Piece(HOST, self.lane, at_s - self.step.start_s, fixed_s=max(0.0, start_s - at_s)))
            if chain >= 0:
                edges.append((chain, index, 0.0))
            chain, at_s = index, max(at_s, end_s)
            if target < 0:
                pieces[index].fixed_s += min(self.latency_s, max(0.0, self.step.end_s - start_s))
            elif launched:
                edges.append((index, target, min(self.latency_s, targets[target].start_s - start_s)))
            else:  # a piece of no length: what the host does next waits for the GPU
                pieces.append(Piece(HOST, self.lane, at_s - self.step.start_s))
                edges += [(index, index + 1, 0.0), (target, index + 1, 0.0)]
                chain = index + 1


def cut(trace: Trace, step: Step, lane: int, *, strict: bool = True, most_links: int, most_runs: int) -> Cut:
    """The pieces of ``step``, for lane number ``lane``, and who waits for whom.

    So that a plan stays small: beyond ``most_links`` the shorter links are folded into the runs, and runs are cut into
    no more than ``most_runs`` stretches besides where somebody waits.
    """
    return _Lane(trace, step, lane, strict=strict, most_links=most_links, most_runs=most_runs).cut()


def _latency_s(kernels: Sequence[Span]) -> float:
    """From a launch to its kernel's start where the GPU was waiting: the shortest tenth."""
    delays = [span.start_s - span.launched_s for span in kernels if span.launched_s is not None]
    return min(_MOST_LATENCY_S, float(np.quantile(delays, 0.1))) if delays else 0.0


def _earlier(kernel: Span, link: Span) -> bool:
    """Whether ``kernel`` was launched before ``link``, and so cannot wait for it."""
    if kernel.launched_s is None or link.launched_s is None:
        return False
    return kernel.launched_s < link.launched_s
