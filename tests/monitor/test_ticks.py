"""Finding out when a sensor updates, from nothing but its readings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.timeline import VirtualTime
from joulewise.monitor.ticks import Look, Ticks, TickTracker, locate


class Sensor:
    """Shows the number of its last update."""

    def __init__(self, period_s: float, phase_s: float) -> None:
        self.time = VirtualTime()
        self.period_s, self.phase_s, self.looks = period_s, phase_s, 0

    def look(self) -> Look:
        self.looks += 1
        now_s = self.time.now_s()
        return Look(now_s, now_s, math.floor((now_s - self.phase_s) / self.period_s))

    def miss_s(self, ticks: Ticks, at_s: float) -> float:
        """How far off the expected updates are at ``at_s``."""
        return math.remainder(ticks.last_s(at_s) - self.phase_s, self.period_s)


def follow(sensor: Sensor, tracker: TickTracker, *, width_s: float, rounds: int) -> bool:
    """Look for ticks again and again, as a sampler does; whether the last search got there."""
    found = False
    for _ in range(rounds):
        sensor.time.sleep(min(60.0, tracker.good_for_s()))
        found = sensor.time.run(locate(tracker, sensor.look, sensor.time.now_s, width_s=width_s))
    return found


@given(
    nominal_s=st.sampled_from([0.02, 0.1]),
    off=st.floats(-0.015, 0.015),
    phase=st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_phase_and_period_are_found_within_the_stated_error(nominal_s: float, off: float, phase: float) -> None:
    sensor = Sensor(nominal_s * (1.0 + off), phase * nominal_s)
    tracker = TickTracker(nominal_s)
    assert follow(sensor, tracker, width_s=0.03 * nominal_s, rounds=5)
    ticks, later_s = tracker.ticks(), sensor.time.now_s() + 10.0
    assert ticks.period_s == pytest.approx(sensor.period_s, rel=1e-3)
    assert abs(sensor.miss_s(ticks, later_s)) < 3.0 * ticks.error_at_s(later_s)
    assert ticks.error_at_s(later_s) < 0.03 * nominal_s


def test_finding_the_ticks_takes_few_looks() -> None:
    sensor = Sensor(0.101, 0.033)
    follow(sensor, TickTracker(0.1), width_s=0.003, rounds=1)
    assert sensor.looks < 30


@pytest.mark.parametrize(("nominal_s", "real_s"), [(0.1, 0.02), (0.02, 0.01), (0.1, 0.05)])
def test_a_sensor_faster_than_its_catalogue_says_is_noticed(nominal_s: float, real_s: float) -> None:
    sensor = Sensor(real_s, 0.007)
    tracker = TickTracker(nominal_s)
    follow(sensor, tracker, width_s=0.03 * real_s, rounds=6)
    assert tracker.period_s == pytest.approx(real_s, rel=1e-2)


def test_a_counter_that_moves_all_the_time_is_taken_as_continuous() -> None:
    tracker = TickTracker(0.1)
    follow(Sensor(1e-5, 0.0), tracker, width_s=0.003, rounds=1)
    assert tracker.smooth
    assert tracker.ticks().known_at(100.0)


def test_a_reading_that_never_changes_leaves_the_phase_unknown_and_ends_the_search() -> None:
    sensor = Sensor(1e9, 0.0)
    tracker = TickTracker(0.1)
    assert not follow(sensor, tracker, width_s=0.003, rounds=1)
    assert not tracker.ticks().known_at(sensor.time.now_s())
    assert tracker.good_for_s() == 0.0
    assert sensor.looks < 30


def test_a_sensor_that_cannot_be_read_ends_the_search() -> None:
    time = VirtualTime()

    def gone() -> Look:
        return Look(time.now_s(), time.now_s(), None)

    assert not time.run(locate(TickTracker(0.1), gone, time.now_s, width_s=0.003))


def test_phase_knowledge_fades_with_time() -> None:
    ticks = Ticks(0.0, 0.1, 0.0005, drift=1e-4)
    errors_s = [ticks.error_at_s(at_s) for at_s in (0.0, 10.0, 100.0, 1e6)]
    assert errors_s == sorted(errors_s)
    assert errors_s[-1] == pytest.approx(0.1 / math.sqrt(12.0))
    assert ticks.known_at(10.0)
    assert not ticks.known_at(1e6)


def test_a_counter_that_stood_still_where_a_tick_was_due_is_looked_for_anew() -> None:
    tracker = TickTracker(0.1)
    tracker.changed(0.99, 1.01)
    tracker.unchanged(1.02, 1.09)
    assert tracker.ticks().known_at(1.1)
    tracker.unchanged(1.05, 1.16)
    assert not tracker.ticks().known_at(1.2)


def test_a_skipped_beat_moves_the_phase_to_what_was_seen_last() -> None:
    tracker = TickTracker(0.1)
    tracker.changed(0.999, 1.001)
    tracker.changed(1.149, 1.151)
    assert tracker.ticks().last_s(1.2) == pytest.approx(1.15, abs=0.002)


def test_cards_of_one_model_share_their_period_but_not_their_phase() -> None:
    known, fresh = TickTracker(0.1), TickTracker(0.1)
    sensor = Sensor(0.101, 0.0)
    follow(sensor, known, width_s=0.003, rounds=5)
    fresh.changed(5.000, 5.003)
    fresh.adopt(known)
    assert fresh.period_s == known.period_s
    assert fresh.ticks().last_s(5.05) == pytest.approx(5.0015)
    assert fresh.good_for_s() > 10.0


def test_two_updates_between_looks_say_nothing() -> None:
    tracker = TickTracker(0.1)
    tracker.changed(1.0, 1.5)
    assert not tracker.ticks().known_at(1.5)
