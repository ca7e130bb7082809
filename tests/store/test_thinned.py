"""One sample a second of whatever a sampler reads, and nothing that grows while nobody fetches it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.measurement import EnergyReading, Reading
from joulewise.store.thinned import MOST_WAITING, Thinned


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
