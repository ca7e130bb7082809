"""Schedules by name: torch's own where torch is, and ours equal to them where it is not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.plan.schedules_named import NAMES, named
from tests.peers.conftest import LONGEST_S, PEERS, ROOT, absent

CLIENT = Path(__file__).parent / "clients" / "torch_schedules.py"
BUILT_IN = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
}
ONE_A_RANK = ("gpipe", "1f1b")
CASES = [
    (name, BUILT_IN[name], ranks, chunks, microbatches)
    for name in BUILT_IN
    for ranks in (1, 2, 3, 4, 8)
    for chunks in ((1,) if name in ONE_A_RANK else (1, 2, 3))
    for microbatches in (ranks, ranks + 1, 3 * ranks)
    if microbatches >= ranks and microbatches % max(1, microbatches // ranks) == 0
]
FROM_TORCH = [
    ("zbv", "ScheduleZBVZeroBubble", 3, 2, 8),
    ("zbv", "ScheduleZBVZeroBubble", 4, 2, 2),
    ("dualpipe-v", "ScheduleDualPipeV", 4, 2, 10),
    ("looped-bfs", "ScheduleLoopedBFS", 2, 3, 4),
]
Answer = dict[str, Any]


@pytest.fixture(scope="module")
def torch_says(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Any, ...], Answer]:
    """Every case, asked of torch in one process of its own."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        absent(f"{PEERS.name} is not there; 'make peers' makes it")
    cases = [*CASES, *FROM_TORCH]
    done = subprocess.run(
        [python, CLIENT, tmp_path_factory.mktemp("csv")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def test_ours_are_torchs_own_lists(torch_says: dict[tuple[Any, ...], Answer]) -> None:
    for case in CASES:
        name, _, ranks, chunks, microbatches = case
        ours = named(name, stages=ranks * chunks, ranks=ranks, microbatches=microbatches, ask=False)
        said = torch_says[case]
        assert [[str(action) for action in row] for row in ours.rows] == said["read"] == said["asked"], case
        assert sorted([edge.before, edge.after] for edge in ours.dag.edges) == said["edges"]


def test_only_the_last_rank_of_torchs_1f1b_is_printed_otherwise_than_it_runs(
    torch_says: dict[tuple[Any, ...], Answer],
) -> None:
    for case, said in torch_says.items():
        differ = [rank for rank, row in enumerate(said["printed"]) if row != said["read"][rank]]
        assert differ == ([case[2] - 1] if case[0] == "1f1b" else []), case


def test_both_csv_formats_of_torch_give_the_same_order(torch_says: dict[tuple[Any, ...], Answer]) -> None:
    dumped = [said for said in torch_says.values() if "compute_only" in said]
    assert len(dumped) > len(FROM_TORCH)
    for said in dumped:
        assert said["compute_only"] == said["compute_comms"] == said["edges"]


def test_stages_are_where_torch_has_them(torch_says: dict[tuple[Any, ...], Answer]) -> None:
    assert torch_says[FROM_TORCH[0]]["stage_ranks"] == [0, 1, 2, 2, 1, 0]
    for said in torch_says.values():
        assert said["stage_ranks"] == said.get("torch_stage_ranks", said["stage_ranks"])


@given(
    stages=st.integers(1, 6), microbatches=st.integers(1, 12), name=st.sampled_from(["gpipe", "1f1b", "zero-bubble"])
)
def test_every_pipeline_of_one_stage_a_rank_can_be_run(stages: int, microbatches: int, name: str) -> None:
    schedule = named(name, stages=stages, microbatches=microbatches, ask=False)
    assert (schedule.ranks, schedule.stages, schedule.microbatches) == (stages, stages, microbatches)
    each = 3 if name == "zero-bubble" else 2
    assert len(schedule.dag.order) == each * stages * microbatches


def test_1f1b_is_as_long_as_the_textbook_says() -> None:
    stages, microbatches, forward_s, backward_s = 4, 12, 1.0, 2.0
    dag = named("1f1b", stages=stages, microbatches=microbatches, ask=False).dag
    durations = [forward_s if operation.kind == "forward" else backward_s for operation in dag.operations]
    ends = [start + length for start, length in zip(dag.starts_s(durations), durations, strict=True)]
    assert max(ends) == (microbatches + stages - 1) * (forward_s + backward_s)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"name": "2f2b"}, "no schedule is called '2f2b'; names are gpipe, 1f1b"),
        ({"stages": 0}, "0 stages"),
        ({"microbatches": 0}, "0 microbatches"),
        ({"microbatches": 10**9}, "make no pipeline"),
        ({"ranks": 2}, "4 stages on 2 ranks"),
        ({"name": "interleaved"}, "say on how many ranks"),
        ({"name": "interleaved", "ranks": 3}, "4 stages on 3 ranks"),
        ({"name": "interleaved", "ranks": 2, "microbatches": 7}, "take a multiple of 3"),
        ({"name": "zbv", "ranks": 2}, "known to torch only"),
        ({"name": "zbv", "stages": 5}, "2 of them on each rank"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_words(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        named(**{"name": "1f1b", "stages": 4, "microbatches": 8, "ask": False, **asked})


def test_every_name_is_tested_against_torch() -> None:
    assert {case[0] for case in (*CASES, *FROM_TORCH)} == set(NAMES)
