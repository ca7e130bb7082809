"""Steps are found by the profiler's marks, else by what repeats."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joulewise.plan import trace_steps
from joulewise.plan.trace import Lane, Mark, Span, Trace
from joulewise.plan.trace_kinds import Kind


def lane(names: list[str], *, ahead_s: float | None = 0.5, gap_every: int = 0) -> Lane:
    """A kernel a second, launched a little earlier."""
    spans, at_s = [], 0.0
    for place, name in enumerate(names):
        at_s += 0.3 if gap_every and place % gap_every == 0 else 0.0
        launched_s = None if ahead_s is None else at_s - ahead_s
        spans.append(Span(name, Kind.MEMORY, at_s, at_s + 0.9, 7, launched_s, place))
        at_s += 1.0
    return Lane(0, tuple(spans))


def traced(one: Lane, *marks: Mark, gpu: str | None = "NVIDIA H200") -> Trace:
    return Trace(Path("t.json"), 0, 1, gpu, (one,), marks)


def test_a_kernel_belongs_to_the_step_that_launched_it_though_it_runs_later():
    marks = [Mark(4, -0.6, 2.4), Mark(5, 2.4, 5.4), Mark(6, 5.4, 8.4)]
    found = trace_steps.find(traced(lane(list("abcabcabc")), *marks))
    assert found.found == trace_steps.MARKED
    first, second = found.lanes[0]  # the third has no end
    assert [step.number for step in (first, second)] == [4, 5]
    assert ["".join(span.name for span in step.spans) for step in (first, second)] == ["abc", "abc"]
    assert (first.start_s, first.end_s, first.next_launch_s) == (0.0, 3.0, 2.5)


def test_what_was_launched_before_the_trace_belongs_to_no_step_though_it_runs_in_one():
    """A GPU two kernels behind its host: the first two were launched before the trace began."""
    behind = [replace(span, launched_s=span.start_s - 2.0) for span in lane(list("bcabcabcabc")).spans]
    behind[:2] = [replace(span, launched_s=None) for span in behind[:2]]
    behind[6] = replace(behind[6], launched_s=None)  # one whose launch was lost: with the one before it
    marks = [Mark(1, -0.1, 2.9), Mark(2, 2.9, 5.9), Mark(3, 5.9, 9.0)]
    found = trace_steps.find(traced(Lane(0, tuple(behind)), *marks))
    assert ["".join(span.name for span in step.spans) for step in found.lanes[0]] == ["abc", "abc"]


def test_marks_on_the_working_thread_itself_are_exact():
    marks = [Mark(1, 0.0, 2.95), Mark(2, 3.0, 6.0)]
    found = trace_steps.find(traced(lane(list("abcabc"), ahead_s=None), *marks, gpu=None))
    assert [(step.start_s, step.end_s) for step in found.lanes[0]] == [(0.0, 2.95), (3.0, 6.0)]


def test_without_marks_what_repeats_is_the_step_and_begins_after_the_longest_rest():
    found = trace_steps.find(traced(lane(list("bca") * 7, gap_every=3)))
    assert found.found == trace_steps.REPEATING
    assert {len(step.spans) for step in found.lanes[0]} == {3}
    assert found.lanes[0][0].spans[0].name == "b"
    assert found.count == 6


def test_where_nothing_repeats_the_whole_trace_is_one_step():
    found = trace_steps.find(traced(lane([f"kernel {place}" for place in range(20)])))
    assert (found.found, found.count) == (trace_steps.WHOLE, 1)
    assert len(found.lanes[0][0].spans) == 20


@given(
    body=st.lists(st.sampled_from("abcdefgh"), min_size=3, max_size=40),
    times=st.integers(3, 8),
    layers=st.integers(1, 5),
)
def test_the_cycle_found_explains_the_trace(body, times, layers):
    """Layers repeat within a step, with something else at its end: the step is the cycle, not the layer."""
    step = body * layers + ["optimiser", "zero"]
    length = trace_steps.cycle(step * times)
    assert length is not None
    same = [a == b for a, b in zip((step * times)[length:], step * times, strict=False)]
    assert sum(same) / len(same) >= 0.85
    assert length <= len(step)


def test_too_little_has_no_cycle():
    assert trace_steps.cycle(["a", "a"]) is None
    assert trace_steps.cycle([f"{place}" for place in range(100)]) is None
