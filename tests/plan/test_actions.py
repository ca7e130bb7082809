"""Actions read back what they print, and nothing else passes for one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.plan.actions import Action, parse

NUMBERS = st.integers(0, 999_999)
OF_A_MICROBATCH = st.builds(
    Action,
    NUMBERS,
    st.sampled_from(["F", "B", "I", "W", "SEND_F", "SEND_B", "RECV_F", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B"]),
    NUMBERS,
)
OF_A_STAGE = st.builds(
    Action, NUMBERS, st.sampled_from(["UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD", "PREFETCH"])
)
COMPUTING = st.builds(Action, NUMBERS, st.sampled_from(["F", "B", "I", "W"]), NUMBERS)
OVERLAPS = st.builds(
    Action, st.just(-1), st.just("OVERLAP_F_B"), st.none(), st.lists(COMPUTING, min_size=1, max_size=3).map(tuple)
)


@given(OF_A_MICROBATCH | OF_A_STAGE | OVERLAPS)
def test_an_action_reads_back_as_it_is_printed(action: Action) -> None:
    assert parse(f" {action} ") == action
    assert parse(action) == action


@pytest.mark.parametrize("idle", [None, "", "  "])
def test_an_idle_step_is_no_action(idle: str | None) -> None:
    assert parse(idle) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2X0", "is no action"),
        ("F0", "is no action"),
        ("-1F0", "is no action"),
        ("1F0garbage", "is no action"),
        ("٣F0", "is no action"),
        ("1F9999999", "is no action"),
        ("1F", "needs a microbatch"),
        ("1UNSHARD3", "is of a whole stage"),
        ("1WAIT_SEND_F", "needs a microbatch"),
        ("1WAIT_REDUCE_GRAD3", "is of a whole stage"),
        ("1PREFETCH_", "is no action"),
        ("1Prefetch2", "is no action"),
        ("1" + "X" * 41, "is no action"),
        ("1OVERLAP_F_B", "is no action"),
        ("(1F0;2B1)OVERLAP_X", "is no action"),
        ("()OVERLAP_F_B", "is no action"),
        ("(1SEND_F0)OVERLAP_F_B", "holds no computation"),
        ("(1F0;2Q1)OVERLAP_F_B", "'2Q1' is no action"),
        ("x" * 10_000, "is no action"),
    ],
)
def test_anything_else_is_refused_in_a_short_line(text: str, why: str) -> None:
    with pytest.raises(BadSpec, match=why) as refused:
        parse(text)
    assert len(str(refused.value)) < 200


@given(st.text(max_size=20))
def test_no_text_does_worse_than_be_refused(text: str) -> None:
    try:
        action = parse(text)
    except BadSpec:
        return
    assert action is None or parse(str(action)) == action


@pytest.mark.parametrize("text", ["3PREFETCH", "3PREFETCH_W7"])
def test_a_word_that_is_not_known_is_an_action_that_computes_nothing(text: str) -> None:
    action = parse(text)
    assert action is not None
    assert not action.known
    assert action.computes == ()


def test_an_object_that_computes_what_is_not_known_is_refused() -> None:
    class New(SimpleNamespace):
        def __str__(self) -> str:
            return "0REFORWARD2"

    assert parse(New(is_compute_op=False)) == Action(0, "REFORWARD", 2)
    with pytest.raises(BadSpec, match="'0REFORWARD2' is a computation that cannot be planned"):
        parse(New(is_compute_op=True))
