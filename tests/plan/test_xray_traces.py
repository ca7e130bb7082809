"""Traces that torch's own profiler wrote of sharded and tensor-parallel training: two processes over gloo."""

import os
import subprocess
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec
from joulewise.plan import trace, trace_steps, xray
from joulewise.plan.trace_kinds import Kind
from tests.peers.conftest import LONGEST_S, PEERS, absent

CLIENT = Path(__file__).parent / "clients" / "train_traced.py"
STEPS = 3
COLLECTIVES = {"fsdp": {"gloo:all_gather", "gloo:all_reduce"}, "tensor": {"gloo:all_reduce"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Both ranks' traces of a model that was sharded, and of one that was split."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        absent(f"{PEERS.name} is not there; 'make peers' makes it")
    made = tmp_path_factory.mktemp("traces")
    done = subprocess.run(
        [python, CLIENT, made, *COLLECTIVES, "--steps", str(STEPS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(params=COLLECTIVES)
def traced(request, folder) -> tuple[str, list[Path]]:
    """How the model was split, and both ranks' traces."""
    return request.param, sorted(folder.glob(f"{request.param}.*.json.gz"))


@pytest.mark.slow
def test_steps_collectives_and_waits_are_found_and_a_plan_is_priced(traced):
    how, paths = traced
    read = [trace.read(path) for path in paths]
    assert [(one.rank, one.world, one.gpu) for one in read] == [(0, 2, None), (1, 2, None)]
    for one in read:
        steps = trace_steps.find(one)
        assert (steps.found, steps.count) == (trace_steps.MARKED, STEPS)
        for step in steps.lanes[0]:
            names = {span.name for span in step.spans if span.kind is Kind.COMMUNICATION}
            assert names == COLLECTIVES[how]
            assert {"aten::mm", "aten::addmm"} <= {span.name for span in step.spans if span.kind is Kind.COMPUTE}
            assert all(span.launched_s is not None for span in step.spans if span.kind is Kind.COMMUNICATION)
    found = xray.look(read)
    assert (found.lanes, found.ranks, found.on_cpu, found.read) == (2, (0, 1), True, True)
    # Six collectives of a step join the ranks where the model is split, nine where it is sharded.
    assert found.joined == (9 if how == "fsdp" else 6)
    # Both ranks share a busy machine's cores, so one may wait for more than the trace shows; most of it is explained.
    assert 0.5 < found.explained < 1.05
    assert {wait.name for wait in found.waits if wait.cause == "link"} <= COLLECTIVES[how]
    assert sum(wait.time for wait in found.waits) > 0.02
    limit = next(each for each in found.savings if (each.plan, each.slowdown) == ("each_run", 0.03))
    assert 0.0 < limit.saving.low <= limit.saving.high < 0.6


@pytest.mark.slow
def test_one_rank_alone_takes_exactly_what_it_took_and_half_a_trace_is_refused(traced, tmp_path):
    _, paths = traced
    found = xray.look([trace.read(paths[0])], slowdowns=(0.01,))
    assert found.explained == pytest.approx(1.0, abs=0.01)
    assert found.joined == 0
    half = tmp_path / "half.json.gz"
    half.write_bytes(paths[0].read_bytes()[: paths[0].stat().st_size // 2])
    with pytest.raises(BadSpec, match="truncated"):
        trace.read(half)
