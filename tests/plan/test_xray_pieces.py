"""A step's pieces: runs of kernels, links, host work, and who waits for whom. Played back they take what was seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.plan import trace_steps, xray_dag
from joulewise.plan.trace import Lane, Mark, Span, StreamWait, Trace
from joulewise.plan.trace_kinds import Kind
from joulewise.plan.xray_dag import Graph
from joulewise.plan.xray_piece import HOST, LINK, RUN

MS = 1e-3


def span(kind: Kind, start: float, end: float, *, stream: int = 7, launched: float | None = None, call: int = -1):
    """Times in ms."""
    at = None if launched is None else launched * MS
    return Span(kind.value, kind, start * MS, end * MS, stream, at, call, "[0, 1]" if stream == 9 else "")


def graph(*spans: Span, end: float | None = None, **more: object) -> Graph:
    """One step on one GPU, from 0 to ``end`` ms."""
    return joined([list(spans)], end=end, **more)


def joined(ranks: list[list[Span]], *, end: float | None = None, strict: bool = True, **more: object) -> Graph:
    traces, found = [], []
    for rank, spans in enumerate(ranks):
        lane = Lane(0, tuple(sorted(spans, key=lambda one: one.start_s)), more.get("waits", ()), "waits" in more)
        trace = Trace(
            Path(f"{rank}"), rank, len(ranks), "NVIDIA H200", (lane,), (Mark(0, -1.0, 1.0),), more.get("blocks", ())
        )
        last_s = max(one.end_s for one in spans) if end is None else end * MS
        step = trace_steps.Step(0, lane, lane.spans, 0.0, last_s, more.get("next_launch_s"))
        traces.append(trace)
        found.append(trace_steps.Steps(trace_steps.MARKED, ((step,),)))
    return xray_dag.build(traces, found, 0, strict=strict)


def took_ms(seen: Graph, **slower: float) -> float:
    """The step in ms if work of a kind takes so many times as long."""
    durations = [
        sum(seconds * slower.get(kind.value, 1.0) for kind, seconds in piece.busy_s.items()) + piece.fixed_s
        for piece in seen.pieces
    ]
    return float(seen.finish(np.array(durations)[:, None])[0]) / MS


def test_work_beside_a_longer_collective_may_be_slowed_for_nothing():
    seen = graph(
        span(Kind.COMPUTE, 0, 2, launched=-9),
        span(Kind.COMMUNICATION, 2, 8, stream=9, launched=-8),
        span(Kind.MEMORY, 2, 5, launched=-7),
        span(Kind.COMPUTE, 8, 10, launched=-6),
    )
    assert took_ms(seen) == pytest.approx(10.0)
    assert took_ms(seen, memory=1.9) == pytest.approx(10.0)
    assert took_ms(seen, memory=2.5) == pytest.approx(11.5)
    assert [(cause, round(seconds / MS, 6)) for _, cause, _, seconds in seen.waits()] == [(LINK, 3.0)]


def test_kernels_of_a_run_are_one_piece_a_kind():
    kinds = [Kind.COMPUTE, Kind.MEMORY] * 20
    seen = graph(*(span(kind, place, place + 1.0, launched=-9) for place, kind in enumerate(kinds)), end=40)
    assert took_ms(seen) == pytest.approx(40.0)
    assert took_ms(seen, compute=1.5) == pytest.approx(50.0)
    assert all(len(piece.busy_s) == 1 for piece in seen.pieces if piece.what == RUN)


def test_a_gap_that_the_host_causes_shrinks_when_the_gpu_is_slower_and_its_own_pause_does_not():
    late = graph(
        span(Kind.COMPUTE, 0, 2, launched=-1), span(Kind.COMPUTE, 5, 7, launched=4.995), end=7, next_launch_s=0.0
    )
    assert took_ms(late) == pytest.approx(7.0, abs=0.03)
    assert took_ms(late, compute=1.5) == pytest.approx(8.0, abs=0.03)
    assert [cause for _, cause, _, _ in late.waits()] == [HOST]
    paused = graph(span(Kind.COMPUTE, 0, 2, launched=-1), span(Kind.COMPUTE, 5, 7, launched=-0.5), end=7)
    assert took_ms(paused) == pytest.approx(7.0)
    assert took_ms(paused, compute=1.5) == pytest.approx(9.0)


def test_a_host_that_waits_for_its_gpu_waits_longer_for_a_slower_one():
    seen = graph(
        span(Kind.COMPUTE, 0, 4, launched=-1),
        span(Kind.COMPUTE, 6, 8, launched=5.995),
        blocks=((1 * MS, 4.01 * MS),),
        end=8,
    )
    assert took_ms(seen) == pytest.approx(8.0, abs=0.05)
    # 2 ms of host work between the kernels remain.
    assert took_ms(seen, compute=2.0) == pytest.approx(8 + 2 + 4, abs=0.05)


def test_waits_that_the_trace_shows_stand_and_chance_order_does_not():
    def spans() -> list[Span]:
        return [
            span(Kind.COMPUTE, 0, 2, launched=-9, call=10),
            span(Kind.COMMUNICATION, 3, 8, stream=9, launched=-8, call=12),
            span(Kind.COMPUTE, 2, 6, launched=-7, call=14),
            span(Kind.MEMORY, 8, 9, launched=-6, call=20),
        ]

    read = graph(*spans(), waits=(StreamWait(7, 18, 9, 13),))
    assert read.read
    assert took_ms(read) == pytest.approx(9.0)
    # The collective waits for nobody: kernels twice as slow end at 12 and the last follows.
    assert took_ms(read, compute=1.2) == pytest.approx(9.0)
    inferred = graph(*spans())
    assert not inferred.read
    # By the order seen, the collective comes after the first kernel.
    assert took_ms(inferred, compute=1.2) == pytest.approx(9.4)
    loose = joined([spans()], strict=False)
    assert took_ms(loose, compute=1.2) == pytest.approx(9.0)


def test_what_is_on_one_stream_keeps_its_order_whatever_else_is_known():
    spans = (
        span(Kind.COMPUTE, 0, 2, launched=-9, call=1),
        span(Kind.COPY, 2.1, 3, launched=-8, call=2),
        span(Kind.COMPUTE, 3, 5, launched=-7, call=3),
    )
    for more in ({}, {"strict": False}, {"waits": ()}):
        seen = graph(*spans, **more)
        assert seen.read
        assert took_ms(seen) == pytest.approx(5.0)
        assert took_ms(seen, compute=2.0) == pytest.approx(9.0)


def test_streams_of_which_the_trace_shows_no_wait_do_not_wait():
    spans = (
        span(Kind.COMPUTE, 0, 2, launched=-9, call=1),
        span(Kind.COMMUNICATION, 2, 4, stream=9, launched=-8, call=2),
        span(Kind.COMPUTE, 4, 5, launched=-7, call=3),
    )
    inferred, read = graph(*spans), graph(*spans, waits=())
    assert (inferred.read, read.read) == (False, True)
    assert took_ms(inferred, communication=2.0) == pytest.approx(7.0)
    assert took_ms(read, communication=2.0) == pytest.approx(6.0)  # the last kernel does not wait for it


def test_a_collective_of_several_ranks_begins_with_the_last_of_them():
    fast = [span(Kind.COMPUTE, 0, 2, launched=-9), span(Kind.COMMUNICATION, 2, 7, stream=9, launched=-8)]
    slow = [span(Kind.COMPUTE, 0, 6, launched=-9), span(Kind.COMMUNICATION, 6, 7, stream=9, launched=-8)]
    for one in (fast, slow):
        one.append(span(Kind.MEMORY, 7, 9, launched=-7))
    both = joined([fast, slow])
    assert both.joined == 1
    assert took_ms(both) == pytest.approx(9.0)
    waits = [(lane, cause, round(seconds / MS, 3)) for lane, cause, _, seconds in both.waits()]
    assert (0, LINK, 5.0) in waits
    alone = joined([fast])
    assert (alone.joined, took_ms(alone)) == (0, pytest.approx(9.0))


def test_ranks_that_saw_different_numbers_of_a_collective_are_not_joined():
    one = [span(Kind.COMPUTE, 0, 2), span(Kind.COMMUNICATION, 2, 3, stream=9), span(Kind.COMMUNICATION, 3, 4, stream=9)]
    other = [span(Kind.COMPUTE, 0, 2), span(Kind.COMMUNICATION, 2, 4, stream=9)]
    assert joined([one, other]).joined == 0


def test_beyond_so_many_links_the_short_ones_are_folded_into_the_runs():
    spans = []
    for place in range(600):
        spans.append(span(Kind.COMPUTE, 2 * place, 2 * place + 1.5, launched=-2))
        length = 0.5 if place % 3 else 0.4
        spans.append(span(Kind.COMMUNICATION, 2 * place + 1.5, 2 * place + 1.5 + length, stream=9, launched=-1))
    seen = graph(*spans)
    assert sum(piece.what == LINK for piece in seen.pieces) <= 250
    assert took_ms(seen) == pytest.approx(1200.0, rel=0.02)


kernels = st.tuples(st.sampled_from([Kind.COMPUTE, Kind.MEMORY]), st.floats(0.05, 3.0), st.floats(0.0, 1.0))


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(kernels, min_size=1, max_size=30),
    talk=st.lists(st.tuples(st.integers(0, 29), st.floats(0.05, 6.0)), max_size=8),
    ahead=st.booleans(),
)
def test_what_was_seen_is_what_the_graph_takes(work, talk, ahead):
    """Whatever ran on one GPU, gaps and all: played at the times seen, the step takes what it took."""
    spans, at = [], 0.0
    for number, (kind, length, gap) in enumerate(work):
        launched = -5.0 if ahead else max(0.0, at + gap - 0.004)
        spans.append(span(kind, at + gap, at + gap + length, launched=launched, call=number))
        at += gap + length
    free = 0.0
    for after, length in sorted(talk):
        begin = max(free, spans[min(after, len(work) - 1)].end_s / MS)
        free = begin + length
        spans.append(span(Kind.COMMUNICATION, begin, free, stream=9, launched=-4.0, call=100))
    first = min(one.start_s for one in spans)
    moved = [
        replace(s, start_s=s.start_s - first, end_s=s.end_s - first, launched_s=(s.launched_s or 0.0) - first)
        for s in spans
    ]
    seen = graph(*moved)
    assert took_ms(seen) == pytest.approx(seen.seen_s / MS, rel=0.01, abs=0.05)
    assert took_ms(seen, compute=1.5, memory=1.2) >= took_ms(seen) - 1e-9
