from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.knob import DEFAULT, Choices, Setting
from joulewise.daemon.agent_ceiling import Ceiling, GpuNow

LOOK_S = 0.15
LIMITS, CLOCKS = Choices(150.0, 400.0), Choices(210.0, 1410.0, 15.0)
IDLE_W = 80.0


@dataclass
class Card:
    """A GPU as simple as can be: power above idle goes with clock and load, and the firmware keeps the limit."""

    uuid: str
    limits: Choices | None = LIMITS
    clocks: Choices | None = CLOCKS
    declared: Setting = DEFAULT
    setting: Setting = DEFAULT
    load: float = 1.0

    @property
    def sm_mhz(self):
        free_w = self.load * 340.0
        by_clock = self.setting.get("sm_mhz", CLOCKS.high)
        by_limit = CLOCKS.high * (self.setting.get("power_limit_w", 400.0) - IDLE_W) / free_w if free_w else 1e9
        return max(CLOCKS.low, min(by_clock, by_limit, CLOCKS.high))

    @property
    def power_w(self):
        return IDLE_W + self.load * 340.0 * self.sm_mhz / CLOCKS.high

    def now(self):
        return GpuNow(self.uuid, self.power_w, IDLE_W, 400.0, self.sm_mhz, self.limits, self.clocks, self.declared)


class Node:
    def __init__(self, *cards, other_w=200.0):
        self.cards, self.other_w, self.control, self.writes = cards, other_w, Ceiling(), 0
        self.lowest = False

    def look(self, ceiling_w):
        held = self.control.hold(ceiling_w, self.other_w, [card.now() for card in self.cards])
        for card in self.cards:
            self.writes += held.settings[card.uuid] != card.setting
            card.setting = held.settings[card.uuid]
        self.lowest = held.lowest

    @property
    def power_w(self):
        return self.other_w + sum(card.power_w for card in self.cards)


def cards(count, **how):
    return [Card(f"GPU-{number}", **how) for number in range(count)]


def test_without_a_ceiling_everything_is_as_declared():
    node = Node(*cards(2, declared=Setting(sm_mhz=900)))
    node.look(None)
    assert [card.setting for card in node.cards] == [Setting(sm_mhz=900)] * 2


def test_a_ceiling_that_cannot_be_reached_changes_nothing():
    node = Node(*cards(4))
    node.look(1800.0)
    assert [card.setting for card in node.cards] == [DEFAULT] * 4


def test_a_step_down_is_met_in_one_look():
    node = Node(*cards(8))
    node.look(None)
    assert node.power_w == pytest.approx(3400.0)
    node.look(2000.0)
    assert node.power_w <= 2000.0


def test_the_reduction_is_one_factor_of_power_above_idle_for_all_jobs():
    small, large = Card("GPU-0", load=0.4), Card("GPU-1", load=0.9)
    node = Node(small, large, other_w=0.0)
    for _ in range(40):
        node.look(400.0)
    assert node.power_w == pytest.approx(400.0, rel=0.03)
    assert small.power_w < IDLE_W + 0.4 * 340.0


def test_who_draws_little_lends_its_room_to_who_is_held_down():
    quiet, busy = Card("GPU-0", load=0.0), Card("GPU-1", load=0.9)
    node = Node(quiet, busy, other_w=0.0)
    for _ in range(40):
        node.look(560.0)
    assert busy.power_w == pytest.approx(IDLE_W + 0.9 * 340.0, rel=0.01), "half of 560 W each would hold it down"


def test_who_lent_its_room_has_its_share_again_soon_after_its_work_comes():
    quiet, busy = Card("GPU-0", load=0.0), Card("GPU-1", load=0.9)
    node = Node(quiet, busy, other_w=0.0)
    for _ in range(40):
        node.look(500.0)
    quiet.load = 0.9
    for _ in range(round(3.0 / LOOK_S)):
        node.look(500.0)
        assert node.power_w <= 500.0
    assert quiet.power_w == pytest.approx(busy.power_w, rel=0.05)


def test_clocks_that_were_cut_are_let_go_once_the_limit_holds():
    node = Node(*cards(2), other_w=0.0)
    node.look(500.0)
    assert all("sm_mhz" in card.setting for card in node.cards)
    for _ in range(40):
        node.look(500.0)
    assert all("sm_mhz" not in card.setting for card in node.cards)
    assert node.power_w <= 500.0


def test_nothing_is_ever_above_what_was_declared():
    card = Card("GPU-0", declared=Setting(sm_mhz=900, power_limit_w=250))
    node = Node(card, other_w=0.0)
    for ceiling_w in (150.0, 180.0, 240.0, 400.0, None):
        for _ in range(20):
            node.look(ceiling_w)
            assert card.setting["sm_mhz"] <= 900
            assert card.setting["power_limit_w"] <= 250
    assert card.setting == card.declared


def test_below_the_lowest_limits_every_gpu_goes_to_its_lowest_clock_and_stays():
    node = Node(*cards(4), other_w=100.0)
    for _ in range(10):
        node.look(680.0)
        assert node.lowest
        assert [card.setting for card in node.cards] == [Setting(sm_mhz=210, power_limit_w=150)] * 4
    for _ in range(30):
        node.look(1200.0)
    assert not node.lowest
    assert node.power_w > 1000.0


def test_for_a_gpu_that_no_limit_holds_the_others_make_room():
    stubborn, busy = Card("GPU-0", load=0.0, limits=Choices(90.0, 400.0)), Card("GPU-1", load=0.9)
    node = Node(stubborn, busy, other_w=0.0)
    for _ in range(40):
        node.look(460.0)
    stubborn.load = 0.9  # at its lowest clock it draws 126 W, whatever its limit
    for _ in range(3):
        node.look(460.0)
    assert node.power_w <= 460.0


def test_gpus_whose_limit_cannot_be_set_are_held_by_their_clocks():
    node = Node(*cards(4, limits=None))
    node.look(None)
    for _ in range(4):
        node.look(1000.0)
    assert node.power_w <= 1000.0
    for _ in range(60):
        node.look(1000.0)
    assert 900.0 < node.power_w <= 1010.0


def test_gpus_whose_clocks_cannot_be_set_are_held_by_their_limits():
    node = Node(*cards(4, clocks=None))
    node.look(1000.0)
    assert node.power_w <= 1000.0


def test_a_steady_node_is_not_written_to():
    node = Node(*cards(8))
    for _ in range(80):
        node.look(2000.0)
    node.writes = 0
    for number in range(100):
        node.other_w = 200.0 + number % 3  # a host is never quite still
        node.look(2000.0)
    assert node.writes == 0


loads = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(300.0, 2000.0), st.lists(loads, min_size=8, max_size=8)), min_size=1, max_size=6),
    st.floats(0.0, 300.0),
)
def test_whatever_the_loads_do_the_second_after_one_period_is_within_the_ceiling_or_all_are_at_their_lowest(
    steps, other_w
):
    node = Node(*cards(4), other_w=other_w)
    for ceiling_w, course in steps:
        for before in range(8):  # a period of one second
            node.look(ceiling_w)
            for card, load in zip(node.cards, course[before], strict=True):
                card.load = load
        seen_w = []
        for now in course:
            for card, load in zip(node.cards, now, strict=True):
                card.load = load
            seen_w.append(node.power_w)
            node.look(ceiling_w)
        at_lowest = all(card.setting == Setting(sm_mhz=210, power_limit_w=150) for card in node.cards)
        assert sum(seen_w) / len(seen_w) <= ceiling_w + 1e-6 or (node.lowest and at_lowest)
