"""Schedules are read from lists; what cannot be run is refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from joulewise.core.errors import BadSpec
from joulewise.plan.actions import OVERLAP, Action
from joulewise.plan.dag import Edge, Operation
from joulewise.plan.schedules import from_schedule, read_actions, read_csv
from joulewise.plan.schedules_named import named

# What torch itself prints of its schedules: made by tests/plan/clients/torch_actions.py, a file for each version.
TORCH = {path.stem: path for path in (Path(__file__).parent / "recorded" / "torch_actions").glob("*.txt")}
TWO = [["0F0", None, "0F1", "0B0", "", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def _edges(rows: list[list[str | None]], transfer_s: float = 0.0) -> set[tuple[str, str, float]]:
    dag = read_actions(rows, transfer_s=transfer_s).dag
    words = [f"{each.stage}{each.kind[0]}{each.microbatch}" for each in dag.operations]
    return {(words[edge.before], words[edge.after], edge.lag_s) for edge in dag.edges}


def test_a_rank_keeps_its_order_and_stages_wait_for_their_neighbours() -> None:
    own = {("0f0", "0f1"), ("0f1", "0b0"), ("0b0", "0b1"), ("1f0", "1b0"), ("1b0", "1f1"), ("1f1", "1b1")}
    between = {("0f0", "1f0"), ("0f1", "1f1"), ("1b0", "0b0"), ("1b1", "0b1")}
    assert _edges(TWO, 0.25) == {(*pair, 0.0) for pair in own} | {(*pair, 0.25) for pair in between}
    assert read_actions(TWO).dag.operations[3] == Operation(0, 0, "backward", 1)


def test_a_split_backward_hands_on_the_gradient_of_its_input() -> None:
    edges = _edges([["0F0", "0B0"], ["1F0", "1I0", "1W0"]])
    assert ("1i0", "0b0", 0.0) in edges
    assert not any(before == "1w0" for before, _, _ in edges)


def test_a_v_shaped_schedule_needs_no_transfer_where_it_turns() -> None:
    schedule = read_actions([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]], transfer_s=1.0)
    assert schedule.stage_ranks == {0: 0, 3: 0, 1: 1, 2: 1}
    lags = [edge for edge in schedule.dag.edges if edge.lag_s]
    assert len(lags) == 4


def test_an_overlap_hands_on_what_it_made_when_all_of_it_is_done() -> None:
    rows: list[list[str | None]] = [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    edges = _edges(rows)
    assert ("0b0", "1f1", 0.0) in edges
    assert ("0f1", "1f1", 0.0) not in edges
    assert ("0f1", "0b0", 0.0) in edges


def test_a_send_says_when_something_leaves() -> None:
    rows: list[list[str | None]] = [["0F0", "0F1", "0SEND_F0", "0SEND_F1", "0B0", "0B1"], list(TWO[1])]
    assert ("0f1", "1f0", 0.0) in _edges(rows)
    assert ("0f0", "1f0", 0.0) not in _edges(rows)


def test_a_schedule_of_forwards_only_is_one() -> None:
    assert read_actions([["0F0", "0F1"], ["1F0", "1F1"]]).microbatches == 2


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "is empty"),
        ([["0F0", "0B0"], []], "rank 1 of 2 has nothing to compute"),
        ([["0F0", "0B0"], ["0UNSHARD"]], "rank 1 of 2 has nothing to compute"),
        ([["0F0", "0B0"], ["2F0", "2B0"]], "stage 1 is missing"),
        ([["0F0", "1B0", "0B0"], ["1F0"]], "stage 1 is on rank 0 and on rank 1"),
        ([["0F0", "0F0"]], "0F0 is there twice"),
        ([["0F0", "0B0", "0F1"]], "microbatch 1 at stage 0 has no backward"),
        ([["0F0", "0F1"], ["1F0"]], "microbatch 1 at stage 1 has no forward"),
        ([["0F0", "0F2"]], "no forward of microbatch 1"),
        ([["0F0", "0B0", "0B1"]], "microbatch 1 at stage 0 has a backward and no forward"),
        ([["0F0", "0I0"]], "input_grad and no weight_grad"),
        ([["0F0", "0W0", "0B0"]], "weight_grad and no input_grad"),
        ([["0F0", "0I0", "0W0", "0B0"]], "a whole backward and a split one"),
        ([["0F0", "0W0", "0I0"]], "weight_grad of stage 0, microbatch 0, stands before input_grad"),
        ([["0B0", "0F0"]], "backward of stage 0, microbatch 0, stands before forward"),
        ([["0SEND_F0", "0F0", "0B0"], ["1F0", "1B0"]], "0SEND_F0 stands before"),
        ([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]], "wait for each other in a circle"),
        ([["0F0", "0B0", "what"]], "rank 0: 'what' is no action"),
    ],
)
def test_what_cannot_be_run_is_refused(rows: list[list[str | None]], why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        read_actions(rows)


def test_a_list_full_of_gaps_is_refused_at_once() -> None:
    """Were every gap looked at, this would be 10¹⁰ of them."""
    with pytest.raises(BadSpec, match="microbatch 1 at stage 0 has no forward"):
        read_actions([[f"{number}F{number}" for number in range(100_000)]])


def test_ranks_are_counted_from_zero() -> None:
    with pytest.raises(BadSpec, match=r"ranks \[1, 2\], but needs 0…1"):
        read_actions({1: TWO[0], 2: TWO[1]})


def test_a_csv_reads_as_its_lists(tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text("0F0,,0F1,0B0,,0B1\n1F0,1B0,1F1,1B1\n\n")
    assert read_csv(path).dag == read_actions(TWO).dag
    assert read_csv(path).name == "order.csv"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: no such file"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "is empty"),
        (b"stage,instruction,frequency\n0,forward,1410\n", "rank 0: 'stage' is no action"),
        (b"0F0,0F1,0B0\n1F0,1B0,1F1,1B1", "microbatch 1 at stage 0 has no backward; is the list cut short"),
    ],
)
def test_a_foreign_or_truncated_csv_is_refused_by_its_name(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "order.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadSpec, match=why) as refused:
        read_csv(path)
    assert "order.csv" in str(refused.value)


def test_an_object_that_prints_its_order_is_read_and_one_that_does_not_is_refused() -> None:
    order = dict(enumerate(TWO))
    assert from_schedule(SimpleNamespace(_get_pipeline_order=lambda: order)).dag == read_actions(TWO).dag
    with pytest.raises(BadSpec, match="does not say in which order"):
        from_schedule(SimpleNamespace(pipeline_order=None))
    with pytest.raises(BadSpec, match="does not say in which order"):
        from_schedule(object())


def test_an_edge_is_never_given_twice() -> None:
    edges = read_actions([["0F0", "0B0"], ["1F0", "1I0", "1W0"]]).dag.edges
    assert len(edges) == len({(edge.before, edge.after) for edge in edges})
    assert Edge(0, 1) in edges


def _printed(version: str) -> tuple[list[str], dict[tuple[str, ...], list[list[str]]]]:
    """The words of a torch's actions, and its lists: a row of texts for each rank, by the line that heads them."""
    words, *blocks = TORCH[version].read_text().split("\n\n")
    lists = {}
    for block in blocks:
        head, *rows = block.splitlines()
        lists[tuple(head.split())] = [row.split(",") for row in rows]
    return words.split(), lists


@pytest.mark.parametrize("version", ["2.13", "2.14", "2.15"])
def test_the_lists_of_each_torch_are_read_whole_and_mean_what_they_meant(version: str) -> None:
    words, lists = _printed(version)
    assert [word for word in words if word != OVERLAP and not Action(0, word).known] == []
    assert len(lists) == 12  # seven schedules, five of them with their transfers, too
    for (name, _, ranks, chunks, microbatches, attribute), rows in lists.items():
        read = from_schedule(SimpleNamespace(**{attribute: dict(enumerate(rows))}))
        assert read.unknown == ()
        assert (read.ranks, read.stages, read.microbatches) == (int(ranks), int(ranks) * int(chunks), int(microbatches))
        assert read.dag == from_schedule(SimpleNamespace(pipeline_order=dict(enumerate(_without_waits(rows))))).dag
        if name in ("gpipe", "1f1b", "interleaved", "zero-bubble"):
            ours = named(name, stages=read.stages, ranks=read.ranks, microbatches=read.microbatches, ask=False)
            assert read.rows == ours.rows, (name, attribute)


def test_the_versions_differ_in_words_alone() -> None:
    assert set(TORCH) == {"2.13", "2.14", "2.15"}
    old, new = (set(_printed(version)[0]) for version in ("2.13", "2.15"))
    assert new - old == {"WAIT_REDUCE_GRAD", "WAIT_SEND_B", "WAIT_SEND_F"}
    for head, rows in _printed("2.13")[1].items():
        assert [_without_waits(_printed(version)[1][head]) for version in sorted(TORCH)] == [_without_waits(rows)] * 3


def _without_waits(rows: list[list[str]]) -> list[list[str]]:
    return [[each for each in row if "WAIT" not in each] for row in rows]


def test_unknown_words_are_passed_over_and_listed_once_and_a_cut_list_is_still_refused() -> None:
    rows = [["0PREFETCH", "0F0", "0NEW_WAIT0", "0F1", "0NEW_WAIT1", "0B0", "0B1"], TWO[1]]
    read = read_actions(rows)
    assert read.dag == read_actions(TWO).dag
    assert read.unknown == ("PREFETCH", "NEW_WAIT")
    assert from_schedule(SimpleNamespace(pipeline_order=dict(enumerate(rows)))).unknown == read.unknown
    with pytest.raises(BadSpec, match="microbatch 1 at stage 0 has no backward"):  # a word that was misspelt
        read_actions([["0F0", "0F1", "0B0", "0BB1"], TWO[1]])
