"""Holding: long blocks, and windows that the schedule draws between two neighbours of their own length."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from joulewise.core.block import Block, Role
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.hold import Hold, Length
from joulewise.tune.proof import Schedule

HELD = Setting(sm_mhz=1500)
WINDOW: Length = (5.0, 2.0)
CHUNK: Length = (10.0, 10.0)


@dataclass
class Held:
    """A setting that is held for a while; blocks are as long as they are asked for, in steps of ``unit_s``."""

    seed: int = 0
    unit_s: float = 0.1
    now_s: float = 0.0
    blocks: list[tuple[Role, Block]] = field(default_factory=list)
    pairs: list[tuple[Block, Block]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hold = Hold(Schedule(self.seed, 0.02, window_s=2.0), seed=self.seed, window=WINDOW, chunk=CHUNK)

    def turn(self) -> tuple[Role, Block]:
        """One block as it is asked for."""
        role, (work, least_s) = self.hold.next(self.unit_s)
        made = self.block(role, max(least_s, work * self.unit_s))
        if (pair := self.hold.tell(role, made)) is not None:
            self.pairs.append(pair)
        return role, made

    def block(self, role: Role, duration_s: float) -> Block:
        start_s, self.now_s = self.now_s, self.now_s + duration_s
        work = duration_s / self.unit_s
        block = Block(DEFAULT if role is Role.PROOF else HELD, start_s, self.now_s, work, duration_s, work, 0.0, 0.0)
        self.blocks.append((role, block))
        return block

    def until_window(self) -> Block:
        """Up to the next window, that included."""
        while True:
            role, block = self.turn()
            if role is Role.PROOF:
                return block


def test_far_from_a_window_blocks_are_long() -> None:
    held = Held(seed=3)
    assert held.hold.schedule.wait_s > 30.0
    assert held.hold.next(0.1) == (Role.HOLD, CHUNK)
    assert held.hold.calm


@pytest.mark.parametrize("unit_s", [0.1, 1.5])
def test_a_window_stands_between_two_blocks_of_its_own_length(unit_s: float) -> None:
    held = Held(unit_s=unit_s)
    length_s = max(WINDOW[1], WINDOW[0] * unit_s)
    while len(held.pairs) < 12:
        held.turn()
    found = [i for i, (role, _) in enumerate(held.blocks) if role is Role.PROOF]
    assert len(found) == 12
    for place in found:
        around = [held.blocks[i] for i in (place - 1, place, place + 1)]
        assert [role for role, _ in around] == [Role.HOLD, Role.PROOF, Role.HOLD]
        assert [block.duration_s for _, block in around] == [pytest.approx(length_s)] * 3


def test_a_long_block_ends_in_time_for_the_window() -> None:
    held = Held()
    while not held.hold.schedule.windows:
        held.turn()
    *_, (_, before), (_, window) = held.blocks
    late_s = window.start_s - held.blocks[0][1].start_s - Schedule(0, 0.02, window_s=2.0).due_s
    assert 0.0 <= late_s <= 1.5 * WINDOW[1] + 1e-9
    assert before.duration_s == pytest.approx(WINDOW[1])


def test_each_window_gives_one_pair_with_one_of_its_neighbours() -> None:
    held = Held()
    while len(held.pairs) < 40:
        held.turn()
    blocks = [block for _, block in held.blocks]
    sides: Counter[int] = Counter()
    for neighbour, window in held.pairs:
        assert neighbour.setting == HELD
        assert window.setting == DEFAULT
        sides[blocks.index(neighbour) - blocks.index(window)] += 1
    assert set(sides) == {-1, 1}
    assert min(sides.values()) > 10


def test_the_coin_is_of_the_seed_the_phase_and_the_window() -> None:
    def drawn(seed: int) -> list[bool]:
        held = Held(seed=seed)
        while len(held.pairs) < 16:
            held.turn()
        return [neighbour.start_s < window.start_s for neighbour, window in held.pairs]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_while_a_window_waits_for_its_second_neighbour_nothing_else_may_come() -> None:
    held = Held()
    held.until_window()
    assert not held.hold.calm
    held.turn()
    assert held.hold.calm


def test_a_window_that_is_due_makes_a_hold_uncalm() -> None:
    held = Held()
    held.hold.tell(Role.HOLD, held.block(Role.HOLD, held.hold.schedule.wait_s + 1.0))
    assert not held.hold.calm


def test_a_window_that_falls_due_in_a_long_block_waits_for_a_short_one() -> None:
    held = Held()
    held.hold.tell(Role.HOLD, held.block(Role.HOLD, held.hold.schedule.wait_s + 1.0))
    assert held.turn()[0] is Role.HOLD
    assert held.turn()[0] is Role.PROOF
    held.turn()
    assert len(held.pairs) == 1


def test_what_was_held_before_something_else_is_no_neighbour() -> None:
    held = Held()
    held.until_window()
    held.hold.interrupted()
    assert held.hold.calm
    held.turn()
    assert held.pairs == []
    held.until_window()
    held.turn()
    assert len(held.pairs) == 1


def test_a_neighbour_that_was_cut_off_before_the_window_has_to_be_held_again() -> None:
    held = Held()
    while not held.hold.schedule.due:
        held.turn()
    held.hold.interrupted()
    assert held.hold.next(held.unit_s) == (Role.HOLD, WINDOW)
    held.turn()
    assert held.hold.next(held.unit_s) == (Role.PROOF, WINDOW)


def test_a_window_that_came_to_nothing_makes_way_for_the_next_stretch() -> None:
    held = Held()
    while not held.hold.schedule.due:
        held.turn()
    held.hold.missed()
    assert held.hold.schedule.windows == 1
    assert held.hold.calm
    assert held.turn()[0] is Role.HOLD
    assert held.pairs == []


def test_windows_take_no_more_than_their_share() -> None:
    held = Held()
    while held.now_s < 5000.0:
        held.turn()
    spent_s = sum(block.duration_s for role, block in held.blocks if role is Role.PROOF)
    assert 0.015 * held.now_s < spent_s <= 0.02 * held.now_s + WINDOW[1]
