"""Holding: windows have a neighbour on each side, and which of the two counts is a fair draw."""

from __future__ import annotations

import pytest

from joulewise.core.block import Block, Role
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.hold import Hold
from joulewise.tune.proof import Schedule

HELD = Setting(sm_mhz=1500)
UNIT_S = 0.1


def hold(seed: int, over_s: float, windows: int = 40) -> tuple[list[Role], list[str]]:
    """What is run, and on which side of its window each pair's held block lies; long blocks last ``over_s`` longer."""
    held = Hold(Schedule(seed, 0.02, window_s=2.0), seed=seed, window=(5.0, 2.0), chunk=(10.0, 10.0))
    now_s, roles, sides = 0.0, [], []
    while roles.count(Role.PROOF) < windows:
        role, (work, least_s) = held.next(UNIT_S)
        seconds = max(least_s, work * UNIT_S)
        seconds += over_s if seconds > 3.0 else 0.0
        setting = DEFAULT if role is Role.PROOF else HELD
        block = Block(setting, now_s, now_s + seconds, seconds / UNIT_S, seconds, 400.0 * seconds, 1.0, 0.001)
        now_s += seconds
        roles.append(role)
        if (pair := held.tell(role, block)) is not None:
            sides.append("before" if pair[0].start_s < pair[1].start_s else "after")
            assert {pair[0].end_s, pair[1].end_s} & {pair[0].start_s, pair[1].start_s}  # neighbours
            assert pair[0].duration_s == pytest.approx(pair[1].duration_s)
    return roles, sides


@pytest.mark.parametrize("over_s", [0.0, 4.0])
def test_either_side_is_equally_likely_however_long_blocks_turn_out(over_s: float) -> None:
    sides = [side for seed in range(20) for side in hold(seed, over_s)[1]]
    assert len(sides) > 700  # hardly any window goes without a pair
    assert 0.44 < sides.count("before") / len(sides) < 0.56


def test_one_short_block_at_most_is_held_while_a_window_is_due() -> None:
    held = Hold(Schedule(3, 0.02, window_s=2.0), seed=3, window=(5.0, 2.0), chunk=(10.0, 10.0))
    long = Block(HELD, 0.0, 500.0, 5000.0, 500.0, 2e5, 1.0, 0.001)
    assert held.tell(Role.HOLD, long) is None
    assert held.next(UNIT_S) == (Role.HOLD, (5.0, 2.0))
    held.tell(Role.HOLD, Block(HELD, 500.0, 502.0, 20.0, 2.0, 800.0, 1.0, 0.001))
    assert held.next(UNIT_S)[0] is Role.PROOF
