"""Placement: blocks are buddies, what fits by number fits after one repack, few nodes, and the book always adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.placement import Floor, Placer
from joulewise.core.errors import BadSpec
from tests.cluster.toys import TOY

# Requests of any size, and departures of the n-th oldest job.
STEPS = st.lists(st.one_of(st.integers(1, 32), st.integers(-12, -1)), max_size=40)
POWERS = st.sampled_from([1, 2, 4, 8, 16, 32])
WIDTHS = st.sampled_from([4, 6, 8, 16])


def played(steps: list[int], *, width: int = 8, placer: Placer = "buddy", repack: bool = False) -> Floor:
    """Jobs come (a number of GPUs) and go (a negative number); who does not fit is turned away."""
    floor = Floor(replace(TOY, nodes=4, gpus_per_node=width), placer=placer)
    here: list[str] = []
    for at, step in enumerate(steps):
        if step < 0:
            if here:
                floor.release(here.pop(-step % len(here)))
        elif floor.place(f"j{at}", step) is not None or (repack and floor.repack_for(f"j{at}", step) is not None):
            here.append(f"j{at}")
        check_book(floor, here)
    return floor


def check_book(floor: Floor, here: list[str]) -> None:
    """No GPU is given twice, and places, blocks and counts say the same."""
    given = Counter(
        (node, gpu) for job in here for node, first, size in floor.blocks(job) for gpu in range(first, first + size)
    )
    assert all(times == 1 for times in given.values())
    assert len(given) == floor.used == floor.on * floor.kind.gpus_per_node - floor.free
    assert set(floor.places) == set(here)
    assert sum(gpus for place in floor.places.values() for _, gpus in place) == floor.used
    assert len({node for node, _ in given}) == floor.busy
    assert floor.busy + len(floor.empty) == floor.on


@settings(deadline=None)
@given(STEPS, WIDTHS, st.booleans())
def test_blocks_are_buddies(steps: list[int], width: int, repack: bool) -> None:
    floor = played(steps, width=width, repack=repack)
    for job in floor.places:
        for _, first, size in floor.blocks(job):
            assert size == width or size.bit_count() == 1
            assert first % size == 0
            assert first + size <= width


@settings(deadline=None)
@given(STEPS)
def test_a_power_of_two_is_one_block_or_whole_nodes(steps: list[int]) -> None:
    sizes = [abs(step) if step < 0 else 1 << step.bit_length() - 1 for step in steps]
    signed = [-size if step < 0 else size for size, step in zip(sizes, steps, strict=True)]
    floor = played(signed, repack=True)
    for job, place in floor.places.items():
        gpus = sum(count for _, count in place)
        assert len(floor.blocks(job)) == max(1, gpus // 8)
        assert len(place) == max(1, gpus // 8)


@settings(deadline=None)
@given(STEPS, st.lists(POWERS, max_size=12))
def test_powers_of_two_that_fit_by_number_can_all_be_placed_after_at_most_one_repack_each(
    steps: list[int], wanted: list[int]
) -> None:
    floor = played(steps)
    for at, gpus in enumerate(wanted):
        before = floor.places
        free = floor.free
        moved = floor.repack_for(f"w{at}", gpus)
        if gpus > free:
            assert moved is None
            assert floor.places == before
            continue
        assert moved is not None
        after = floor.places
        assert sum(count for _, count in after[f"w{at}"]) == gpus
        for job, place in before.items():  # whoever was not named as moved is where it was, all have what they had
            assert job in moved or after[job] == place
            assert sum(count for _, count in after[job]) == sum(count for _, count in place)


@settings(deadline=None)
@given(STEPS, WIDTHS, st.integers(1, 64))
def test_any_count_that_fits_by_number_fits_after_a_repack_on_nodes_of_any_width(
    steps: list[int], width: int, gpus: int
) -> None:
    floor = played(steps, width=width)
    assert (floor.repack_for("new", gpus) is not None) == (
        gpus <= floor.free + sum(n for _, n in floor.place_of("new"))
    )


@settings(deadline=None)
@given(STEPS, st.sampled_from(["spread", "first fit"]), st.integers(1, 32))
def test_the_other_placers_always_place_what_fits_by_number(steps: list[int], placer: Placer, gpus: int) -> None:
    floor = played(steps, placer=placer)
    free = floor.free
    assert (floor.place("new", gpus) is not None) == (gpus <= free)


@settings(deadline=None)
@given(STEPS)
def test_what_is_saved_can_be_restored_after_any_repack(steps: list[int]) -> None:
    floor = played(steps)
    before, free = {job: floor.blocks(job) for job in floor.places}, floor.free
    saved = floor.saved()
    floor.repack_for("new", 8)
    floor.restore(saved)
    assert {job: floor.blocks(job) for job in floor.places} == before
    assert floor.free == free
    check_book(floor, list(before))


@settings(deadline=None)
@given(STEPS)
def test_vacating_empties_the_node_opens_no_other_and_keeps_everybodys_gpus(steps: list[int]) -> None:
    floor = played(steps)
    for node in floor.least_used():
        before, busy, empty = floor.places, floor.busy, floor.empty
        moved = floor.vacate(node)
        if moved is None:
            assert floor.places == before
        else:
            assert floor.busy == busy - 1
            assert set(floor.empty) == {*empty, node}
            assert set(moved) == {job for job, place in before.items() if any(at == node for at, _ in place)}
            break
    check_book(floor, list(floor.places))


def test_six_gpus_are_four_and_two_of_one_node() -> None:
    floor = Floor(TOY)
    assert floor.place("six", 6) == ((0, 6),)
    assert floor.blocks("six") == ((0, 0, 4), (0, 4, 2))
    assert floor.place("twelve", 12) == ((1, 8), (2, 4))


def test_the_smallest_hole_is_filled_first_and_full_nodes_before_empty_ones() -> None:
    floor = Floor(TOY)
    floor.place("four", 4)
    floor.place("one", 1)
    assert floor.place("two", 2) == ((0, 2),)
    assert floor.place("last", 1) == ((0, 1),)
    assert floor.blocks("last") == ((0, 5, 1),)
    assert floor.busy == 1


def test_whole_nodes_of_a_job_lie_close_together() -> None:
    floor = Floor(replace(TOY, nodes=8))
    for at in range(8):
        floor.place(f"n{at}", 8)
    for at in (0, 3, 6, 7):
        floor.release(f"n{at}")
    assert floor.place("two nodes", 16) == ((6, 8), (7, 8))


def test_making_room_moves_the_least() -> None:
    floor = Floor(replace(TOY, nodes=2))
    for name, gpus in (("a", 4), ("b", 4), ("c", 4), ("d", 2), ("e", 1)):
        floor.place(name, gpus)
    floor.release("a")  # node 0: 4 free, b; node 1: c, d, e and one free
    assert floor.repack_for("whole", 8) is None
    floor.release("c")
    assert floor.repack_for("whole", 8) == ("d", "e")
    assert floor.place_of("whole") == ((1, 8),)


def test_a_node_that_sleeps_or_boots_is_not_given_out() -> None:
    floor = Floor(TOY)
    floor.place("a", 8)
    for node in (1, 2, 3):
        floor.shut(node)
    assert (floor.on, floor.free) == (1, 0)
    assert floor.place("b", 1) is None
    floor.boot(2)
    assert floor.place("b", 1) is None
    floor.booted(2)
    assert floor.place("b", 1) == ((2, 1),)
    with pytest.raises(ValueError, match="node 2 of toy is not powered and empty"):
        floor.shut(2)


def test_spread_takes_from_the_emptiest_nodes_and_first_fit_from_the_first() -> None:
    spread = Floor(TOY, placer="spread")
    assert [spread.place(name, 2) for name in "abcd"] == [((0, 2),), ((1, 2),), ((2, 2),), ((3, 2),)]
    assert spread.place("e", 8) == ((0, 6), (1, 2))
    first = Floor(TOY, placer="first fit")
    assert [first.place(name, 3) for name in "abc"] == [((0, 3),), ((0, 3),), ((1, 3),)]


def test_an_unknown_placer_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(BadSpec, match="'best'; there are buddy, together, spread, first fit"):
        Floor(TOY, placer="best")  # type: ignore[arg-type]


def test_a_job_is_adopted_where_it_is_however_its_gpus_lie_there() -> None:
    floor = Floor(TOY)
    assert floor.adopt("large", {0: 8, 2: 8})
    assert floor.adopt("five", {1: 5})
    assert floor.adopt("three", {1: 3})
    assert floor.places == {"large": ((0, 8), (2, 8)), "five": ((1, 5),), "three": ((1, 3),)}
    assert floor.free == 8
    assert not floor.adopt("fourth", {1: 1})
    assert floor.place_of("fourth") == ()
    floor.shut(3)
    assert not floor.adopt("fifth", {3: 1})


def test_one_that_is_fixed_is_never_moved_to_make_room() -> None:
    moved = Floor(TOY)
    fixed = Floor(TOY, placer="together")
    for floor in (moved, fixed):
        for node in range(4):
            assert floor.adopt(f"small{node}", {node: 1}, fixed=floor is fixed)
    assert moved.repack_for("large", 8) is not None
    before = fixed.places
    assert fixed.repack_for("large", 8) is None
    assert fixed.vacate(0) is None
    assert fixed.least_used() == []
    assert fixed.places == before
    fixed.release("small2")
    assert fixed.repack_for("large", 8) == ()
    assert fixed.place_of("large") == ((2, 8),)


def test_together_means_on_one_node_or_nowhere() -> None:
    split, whole = Floor(TOY), Floor(TOY, placer="together")
    for floor in (split, whole):
        for node in range(4):
            assert floor.adopt(f"large{node}", {node: 4}, fixed=True)
    assert split.place("six", 6) is not None
    assert whole.place("six", 6) is None
    assert whole.repack_for("six", 6) is None
    assert whole.place("four", 4) is not None
