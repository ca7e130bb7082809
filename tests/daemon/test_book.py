"""Who holds what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import LeaseTaken, NotNow
from joulewise.daemon.book import MOST_PARTIES, PARTY_S, Book, Held, Stage
from joulewise.device.lease import Owner


class Nobody:
    uid = pid = gid = 7
    groups: frozenset[int] = frozenset()
    command, started, pending = "x", 0, 0

    def cgroups(self) -> tuple[str, ...]:
        return ()

    def send(self, line: bytes) -> None:
        raise AssertionError("a book tells nobody anything")


def held(book: Book, gpus: tuple[str, ...], knobs: frozenset[str], client: Any = None) -> Held:
    return Held(Owner(book.new_name(), 7, 7), client or Nobody(), gpus, knobs, 10.0, 20.0, {})


SOME = st.sets(st.sampled_from(["a", "b", "c"]), min_size=1).map(lambda gpus: tuple(sorted(gpus)))
KNOBS = st.frozensets(st.sampled_from(["sm_mhz", "memory_mhz", "power_limit_w"]), min_size=1)


@given(st.lists(st.tuples(st.booleans(), SOME, KNOBS), max_size=40))
def test_a_knob_has_at_most_one_holder_and_is_free_again_when_it_is_back(acts: list[tuple[bool, Any, Any]]):
    book = Book()
    taken: dict[tuple[str, str], Held] = {}
    for takes, gpus, knobs in acts:
        if takes:
            wanted = {(gpu, knob) for gpu in gpus for knob in knobs}
            if wanted & taken.keys():
                with pytest.raises(LeaseTaken):
                    book.check_free(gpus, knobs, 0.0)
                continue
            book.check_free(gpus, knobs, 0.0)
            new = held(book, gpus, knobs)
            book.claim(new)
            taken |= dict.fromkeys(wanted, new)
        elif taken:
            one = next(iter(taken.values()))
            for gpu in one.gpus:
                book.give_back(one, gpu)
            taken = {pair: each for pair, each in taken.items() if each is not one}
    for gpu in "abc":
        for knob in ("sm_mhz", "memory_mhz", "power_limit_w"):
            assert book.holder(gpu, knob) is taken.get((gpu, knob))
    assert set(book) == set(taken.values())
    assert set(book.leased()) == {gpu for gpu, _ in taken}


def test_gpus_come_back_one_by_one_and_the_lease_goes_with_the_last():
    book = Book()
    lease = held(book, ("a", "b"), frozenset({"sm_mhz"}))
    book.claim(lease)
    book.give_back(lease, "a")
    book.check_free(("a",), lease.knobs, 0.0)
    assert book.get(lease.name) is lease
    book.give_back(lease, "b")
    assert book.get(lease.name) is None
    assert len(book) == 0


def test_a_conflict_says_what_is_going_on():
    book = Book()
    lease = held(book, ("a",), frozenset({"sm_mhz"}))
    lease.stage = Stage.HELD
    book.claim(lease)
    with pytest.raises(LeaseTaken, match=r"sm_mhz of a .* uid 7 pid 7 .* 15\.0 s"):
        book.check_free(("a",), lease.knobs, 5.0)
    lease.stage, lease.why = Stage.ENDING, "its owner died"
    with pytest.raises(LeaseTaken, match=r"being restored .*its owner died"):
        book.check_free(("a",), lease.knobs, 5.0)


def test_names_are_never_used_again_not_even_after_a_restart():
    names = [Book().new_name() for _ in range(100)]
    assert len(set(names)) == 100


def test_quiet_lasts_until_the_last_who_asked_for_it_is_content():
    book = Book()
    one, other = Nobody(), Nobody()
    book.set_quiet(one, ("a", "b"), 10.0, "capture")
    book.set_quiet(other, ("a",), 20.0, "checkpoint")
    with pytest.raises(NotNow, match="checkpoint") as caught:
        book.check_not_quiet("a", 5.0)
    assert caught.value.retry_s == 15.0
    book.set_quiet(other, ("a",), None, "")
    with pytest.raises(NotNow, match="capture"):
        book.check_not_quiet("a", 5.0)
    book.check_not_quiet("a", 10.0)
    book.set_quiet(one, ("b",), 30.0, "")
    book.forget_client(one)
    book.check_not_quiet("b", 11.0)
    book.check_not_quiet("c", 0.0)


def test_acts_of_a_lease_take_turns():
    lease = held(Book(), ("a",), frozenset({"sm_mhz"}))
    done: list[int] = []
    lease.in_turn(lambda: done.append(1))
    lease.in_turn(lambda: done.append(2))
    assert done == [1]
    lease.next_turn()
    assert done == [1, 2]
    lease.next_turn()
    lease.in_turn(lambda: done.append(3))
    assert done == [1, 2, 3]


def test_a_party_that_is_over_is_remembered_for_a_while_and_then_forgotten():
    book = Book()
    party = book.party(7, "job", 2, 0.0)
    assert book.party(7, "job", 2, 1.0) is party
    assert book.party(8, "job", 2, 1.0) is not party
    party.failed = "refused"
    assert book.party(7, "job", 2, PARTY_S - 1) is party
    assert book.party(7, "job", 2, PARTY_S) is not party


def test_a_user_begins_only_so_many_parties_and_others_none_the_less():
    book = Book()
    parties = [book.party(1, f"party-{number}", 2, 0.0) for number in range(MOST_PARTIES)]
    with pytest.raises(NotNow, match="64 parties"):
        book.party(1, "one-more", 2, 0.0)
    assert book.party(1, "party-3", 2, 0.0) is parties[3]
    assert book.party(2, "party-3", 2, 0.0) is not parties[3]
    book.forget_party(parties[5])
    book.forget_party(parties[5])
    assert book.party(1, "one-more", 2, 0.0).name == "one-more"
    with pytest.raises(NotNow):
        book.party(1, "another", 2, 0.0)
