"""Stalls, which no block shows: a setting that loses by them is found out, and chance is not."""

from __future__ import annotations

import random

import pytest

from joulewise.core.knob import DEFAULT, Setting
from joulewise.monitor.steplog import Step
from joulewise.tune.stalls import Stalls

SLOW = Setting(sm_mhz=1200)


def run(stalls: Stalls, setting: Setting, count: int, every: int, stall_s: float, *, draw: random.Random) -> None:
    """``count`` steps of 0.1 s, on average one in ``every`` a stall."""
    now_s = 0.0
    for _ in range(count):
        stalled = draw.random() < 1.0 / every
        long_s = stall_s * draw.uniform(0.8, 1.2) if stalled else 0.1
        stalls.tell(setting, Step(now_s, now_s + long_s, 1.0, "", "stall" if stalled else ""))
        now_s += long_s


def test_a_setting_whose_stalls_are_longer_breaks_the_bound_all_in_all() -> None:
    stalls, draw = Stalls(), random.Random(1)
    for _ in range(20):
        run(stalls, DEFAULT, 500, 50, 2.0, draw=draw)
        run(stalls, SLOW, 500, 50, 4.0, draw=draw)
    whole = stalls.breaks(SLOW, 0.01, 0.02)
    assert whole is not None
    assert whole == pytest.approx(1.01 * 1.4 - 1.0, abs=0.15)  # 2 s more in 5 s of work
    assert stalls.lost_s(SLOW) == pytest.approx(0.4 * 980.0, rel=0.4)
    stalls.restart()
    assert stalls.breaks(SLOW, 0.01, 0.02) is None


def test_stalls_that_have_nothing_to_do_with_the_setting_refuse_nothing() -> None:
    refused = 0
    for seed in range(100):
        stalls, draw = Stalls(), random.Random(seed)
        for _ in range(20):  # the default is seen for a fiftieth of the time
            run(stalls, DEFAULT, 10, 300, 3.0, draw=draw)
            run(stalls, SLOW, 500, 300, 3.0, draw=draw)
            if stalls.breaks(SLOW, 0.01, 0.02) is not None:
                refused += 1
                break
    assert refused <= 2


def test_what_clean_work_refuses_already_is_not_said_twice() -> None:
    stalls, draw = Stalls(), random.Random(1)
    for _ in range(20):
        run(stalls, DEFAULT, 500, 50, 2.0, draw=draw)
        run(stalls, SLOW, 500, 50, 4.0, draw=draw)
    assert stalls.breaks(SLOW, 0.03, 0.02) is None


def test_short_steps_that_grow_together_count_once() -> None:
    stalls = Stalls()
    for number in range(1, 5):
        stalls.tell(DEFAULT, Step(0.0, 0.005 * number, float(number), ""))
    stalls.tell(DEFAULT, Step(0.02, 1.02, 1.0, "", "stall"))
    for _ in range(3):
        stalls.tell(SLOW, Step(1.02, 1.04, 4.0, ""))
        stalls.tell(SLOW, Step(1.04, 2.04, 1.0, "", "stall"))
    found = stalls.excess(SLOW)
    assert found is not None
    assert found[0] == pytest.approx((3 - 1) * (1.0 - 0.005) / 0.02)
