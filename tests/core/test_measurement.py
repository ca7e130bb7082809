import math

import pytest

from joulewise.core.knob import DEFAULT
from joulewise.core.measurement import Measurement, Outcome, SensorTiming, Source, total


def window(
    energy_j, error_j=1.0, gain_error=0.03, source=Source.COUNTER, outcome=Outcome.REACHED, duration_s=10.0, notes=()
):
    return Measurement(DEFAULT, duration_s, energy_j, error_j, gain_error, source, outcome=outcome, notes=notes)


def test_average_power_is_energy_over_time_and_unknown_for_no_time():
    assert window(3000).power_w == 300
    assert math.isnan(window(0, duration_s=0).power_w)


def test_gain_error_is_kept_apart_and_joins_only_in_the_total_error():
    assert window(1000, error_j=40).total_error_j == pytest.approx(50)


def test_energies_of_several_gpus_add_and_time_does_not():
    both = total([window(3000, error_j=3, notes=("a",)), window(1000, error_j=4, notes=("a", "b"))])
    assert (both.energy_j, both.duration_s, both.notes) == (4000, 10, ("a", "b"))
    assert both.error_j == pytest.approx(5)
    assert both.gain_error == pytest.approx(0.03 * math.hypot(3000, 1000) / 4000)


def test_the_weakest_source_and_an_unfinished_outcome_stand_for_the_whole():
    both = total(
        [window(1), window(1, source=Source.MODELLED), window(1, outcome=Outcome.FAILED, source=Source.INTEGRATED)]
    )
    assert both.source is Source.MODELLED
    assert both.outcome is Outcome.FAILED


def test_nothing_cannot_be_added_up():
    with pytest.raises(ValueError, match="nothing"):
        total([])


def test_a_part_time_sensor_has_a_duty_below_one():
    assert SensorTiming(power_update_s=0.1, power_window_s=0.025).power_duty == 0.25
    assert SensorTiming(power_update_s=0.1, power_window_s=1.0).power_duty == 1.0
