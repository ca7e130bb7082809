"""One sample a second of whatever a sampler reads, and nothing that grows while nobody fetches it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.measurement import EnergyReading, Reading
from joulewise.store.thinned import HELD_S, MOST_WAITING, Thinned


class Seen:
    """A recording that remembers what it was given."""

    def __init__(self):
        self.got = []

    def reading(self, index, reading):
        self.got.append((index, reading))

    def energy(self, index, energy):
        self.got.append((index, energy))


def test_a_second_is_the_mean_of_its_readings_in_unix_time():
    thinned = Thinned(1, unix_s=1000.0)
    for tick in range(20):
        thinned.reading(0, Reading(5.0 + tick / 10, power_w=100.0 + tick, sm_mhz=1500.0, power_limit_w=700.0))
    thinned.end()
    first, second = thinned.fetch(0)
    assert (first.at_s, first.power_w) == (pytest.approx(1005.45), pytest.approx(104.5))
    assert (second.at_s, second.power_w, second.sm_mhz, second.limit_w) == (
        pytest.approx(1006.45),
        pytest.approx(114.5),
        1500.0,
        700.0,
    )
    assert thinned.fetch(0) == []


def test_what_was_not_read_is_none_and_never_0():
    thinned = Thinned(1, unix_s=0.0)
    thinned.reading(0, Reading(1.0))
    thinned.reading(0, Reading(2.0, power_w=None, temperature_c=50.0))
    thinned.end()
    first, second = thinned.fetch(0)
    assert (first.power_w, first.sm_mhz, first.utilization, first.temperature_c) == (None, None, None, None)
    assert (second.power_w, second.temperature_c) == (None, 50.0)


def test_everything_goes_on_to_the_recording():
    seen = Seen()
    thinned = Thinned(2, unix_s=0.0, recorder=seen)
    reading, energy = Reading(1.0, power_w=5.0), EnergyReading(1.0, 7.0)
    thinned.reading(1, reading)
    thinned.energy(0, energy)
    assert seen.got == [(1, reading), (0, energy)]


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200).map(sorted))
def test_there_is_at_most_one_sample_a_second_and_time_never_goes_back(times):
    thinned = Thinned(1, unix_s=0.0)
    for time_s in times:
        thinned.reading(0, Reading(time_s, power_w=1.0))
    thinned.end()
    got = [sample.at_s for sample in thinned.fetch(0)]
    assert len({int(at_s) for at_s in got}) == len(got) == len({int(time_s) for time_s in times})
    assert got == sorted(got)


def test_what_nobody_fetches_is_bounded_and_what_could_not_be_kept_waits_again():
    thinned = Thinned(1, unix_s=0.0)
    for second in range(MOST_WAITING + 500):
        thinned.reading(0, Reading(float(second), power_w=1.0))
    waiting = thinned.fetch(0)
    assert len(waiting) == MOST_WAITING
    thinned.put_back(0, waiting[-3:])
    thinned.end()
    again = thinned.fetch(0)
    assert [sample.at_s for sample in again] == [waiting[-3].at_s, waiting[-2].at_s, waiting[-1].at_s, 7699.0]
    for second in range(MOST_WAITING):
        thinned.reading(0, Reading(float(10_000 + second), power_w=1.0))
    thinned.end()
    thinned.put_back(0, again)  # no room: the newer ones stay
    assert thinned.fetch(0)[0].at_s == 10_000.0


def fed(power_w, counted_w, seconds=60, looks_every=4):
    """A GPU whose readings say ``power_w`` and whose counter runs at ``counted_w``, both functions of the time."""
    thinned, joules = Thinned(1, unix_s=0.0), 0.0
    for tick in range(10 * seconds):
        now_s = tick / 10
        if tick % (10 * looks_every) == 0:
            thinned.energy(0, EnergyReading(now_s, joules))
        thinned.reading(0, Reading(now_s, power_w=power_w(now_s)))
        joules += counted_w(now_s) / 10
    thinned.energy(0, EnergyReading(float(seconds), joules))
    thinned.end()
    return thinned


def test_readings_in_step_with_the_job_are_scaled_to_what_the_counter_says():
    thinned = fed(lambda now_s: 520.0 if now_s < 24 else 850.0, lambda _: 540.0)
    powers = [sample.power_w for sample in thinned.fetch(0)]
    assert powers == pytest.approx([540.0] * 60, rel=0.01)
    assert 0.2 < thinned.readings_error < 0.3  # 1.04 for 24 s, 0.64 for 36 s


def test_readings_that_agree_with_the_counter_are_left_as_they_are_but_for_the_boards_gain():
    thinned = fed(lambda now_s: 300.0 if int(now_s) % 2 else 500.0, lambda now_s: 306.0 if int(now_s) % 2 else 510.0)
    powers = [sample.power_w for sample in thinned.fetch(0)]
    assert powers == pytest.approx([510.0, 306.0] * 30, rel=0.01)
    assert thinned.readings_error < 0.005


def test_without_a_counter_a_second_is_ready_when_it_is_over():
    thinned = Thinned(1, unix_s=0.0)
    for tick in range(25):
        thinned.reading(0, Reading(tick / 10, power_w=100.0))
    assert [sample.power_w for sample in thinned.fetch(0)] == [100.0, 100.0]
    assert thinned.readings_error == 0.0


@pytest.mark.parametrize("shown_j", [0.0, 1.0, 1e9], ids=["reset", "stands still", "jumps"])
def test_a_counter_that_makes_no_sense_changes_no_reading(shown_j):
    thinned = Thinned(1, unix_s=0.0)
    thinned.energy(0, EnergyReading(0.0, 0.5))
    for tick in range(100):
        thinned.reading(0, Reading(tick / 10, power_w=100.0))
    thinned.energy(0, EnergyReading(10.0, shown_j))
    thinned.end()
    assert [sample.power_w for sample in thinned.fetch(0)] == [100.0] * 10


def test_readings_wait_a_while_for_a_counter_that_is_not_looked_at_any_more():
    thinned = Thinned(1, unix_s=0.0)
    thinned.energy(0, EnergyReading(0.0, 0.0))
    for second in range(int(HELD_S) + 1):
        thinned.reading(0, Reading(float(second), power_w=100.0))
        assert thinned.fetch(0) == []
    thinned.reading(0, Reading(HELD_S + 1.0, power_w=100.0))
    assert len(thinned.fetch(0)) == HELD_S + 1


@given(
    st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(1.0, 1000.0), st.floats(0.5, 2.0), st.booleans()), max_size=200)
)
def test_no_second_is_lost_however_readings_and_looks_fall(rows):
    """However readings and looks fall, no second is lost, and their order stays."""
    thinned, now_s, joules, seconds = Thinned(1, unix_s=0.0), 0.0, 0.0, set()
    thinned.energy(0, EnergyReading(0.0, 0.0))
    for passed_s, power_w, gain, looked in rows:
        now_s += passed_s
        joules += gain * power_w * passed_s
        thinned.reading(0, Reading(now_s, power_w=power_w))
        seconds.add(int(now_s))
        if looked:
            thinned.energy(0, EnergyReading(now_s, joules))
    thinned.end()
    kept = thinned.fetch(0)
    assert [int(sample.at_s) for sample in kept] == sorted(seconds)
    assert all(sample.power_w > 0 for sample in kept)
    assert thinned.readings_error >= 0.0
