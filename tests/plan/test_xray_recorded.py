"""A trace that torch 2.11 wrote on an H200 (``bench/record_trace.py``), cut to one step and to what is read of it.

Twelve layers of a transformer in bfloat16, its GPU a whole step behind its host. Without the profiler such a step took
77.6 ms, at 1639 MHz and 694 W on average.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from joulewise.plan import trace, trace_steps, xray
from joulewise.plan.trace_kinds import Kind

RECORDED = Path(__file__).parent / "recorded" / "transformer_h200.json.gz"
STEP_S, SM_MHZ, POWER_W = 0.0776, 1639.0, 694.0


@pytest.fixture(scope="module")
def read() -> trace.Trace:
    return trace.read(RECORDED)


@pytest.fixture(scope="module")
def found(read: trace.Trace) -> xray.Findings:
    return xray.look([read], sm_mhz=SM_MHZ, power_w=POWER_W)


def test_what_was_launched_before_the_trace_is_no_part_of_its_first_step(read):
    (step,) = trace_steps.find(read).lanes[0]
    late = [span for span in read.lanes[0].spans if span.launched_s is None]
    assert len(late) == 60  # of the step before: they ran after the mark of this one
    assert all(read.marks[0].start_s < span.start_s < step.start_s for span in late)
    assert len(step.spans) == 803
    assert step.duration_s == pytest.approx(STEP_S, rel=0.02)


def test_kernels_are_told_by_name(read):
    (step,) = trace_steps.find(read).lanes[0]
    names = defaultdict(set)
    seconds = defaultdict(float)
    for span in step.spans:
        names[span.kind].add(span.name)
        seconds[span.kind] += span.duration_s
    assert set(names) == {Kind.COMPUTE, Kind.MEMORY}  # copies and fills are all on the device
    assert all("nvjet" in name or "sdpa" in name for name in names[Kind.COMPUTE])
    streaming = " ".join(names[Kind.MEMORY])
    for name in (
        "multi_tensor_apply",
        "Memcpy DtoD",
        "Memset",
        "compute_dot_do_o",
        "convert_dq",
        "SoftMax",
        "GammaBeta",
    ):
        assert name in streaming
    assert seconds[Kind.COMPUTE] / step.duration_s == pytest.approx(0.63, abs=0.02)


def test_one_stream_keeps_its_order_and_is_explained_whole(found):
    assert (found.lanes, found.steps, found.read) == (1, 1, True)
    assert found.explained == pytest.approx(1.0, abs=1e-6)
    still = next(place for place in found.where if place.kind == "wait")
    assert still.time == pytest.approx(0.017, abs=0.003)


def test_what_was_seen_is_what_is_believed(found):
    assert (found.seen_mhz, found.seen_w) == (SM_MHZ, POWER_W)
    assert found.default_mhz.middle == pytest.approx(SM_MHZ, rel=1e-3)
    assert found.power_w.middle == pytest.approx(POWER_W, rel=0.05)
    limit = {each.slowdown: each.saving for each in found.savings if each.plan == "each_run"}
    assert 0.0 < limit[0.01].low < limit[0.01].middle < limit[0.01].high < 0.25
