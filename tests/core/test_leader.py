"""Which of several optimisers' steps are iterations."""

from __future__ import annotations

from joulewise.core.leader import MOST_WITHOUT_LEADER, Leader


class Thing:
    """An optimiser, as far as this goes."""


def test_one_alone_leads() -> None:
    leader, one = Leader(), Thing()
    assert [leader.leads(one) for _ in range(5)] == [True] * 5


def test_of_two_that_take_turns_the_first_leads() -> None:
    leader, one, other = Leader(), Thing(), Thing()
    told = [leader.leads(each) for _ in range(50) for each in (one, other, other, other, other, other)]
    assert told == [True, False, False, False, False, False] * 50


def test_one_that_is_gone_is_followed_by_the_next_at_once() -> None:
    leader, one, other = Leader(), Thing(), Thing()
    leader.leads(one)
    del one
    assert leader.leads(other)


def test_one_that_steps_no_more_is_followed_in_the_end() -> None:
    leader, one, other = Leader(), Thing(), Thing()
    leader.leads(one)
    told = [leader.leads(other) for _ in range(MOST_WITHOUT_LEADER + 5)]
    assert told == [False] * MOST_WITHOUT_LEADER + [True] * 5
    assert not leader.leads(one)
