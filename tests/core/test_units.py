import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core import units


def test_vendor_units_become_si_units():
    assert units.watts_from_milliwatts(312_400) == 312.4
    assert units.milliwatts_from_watts(312.4) == 312_400
    assert units.joules_from_millijoules(2_561_000) == 2561.0
    assert units.joules_from_microjoules(15_300_000) == 15.3
    assert units.kwh_from_joules(3_600_000) == 1.0


@given(st.integers(min_value=0, max_value=2_000_000))
def test_a_limit_survives_the_way_to_milliwatts_and_back(power_mw):
    assert units.milliwatts_from_watts(units.watts_from_milliwatts(power_mw)) == power_mw


@pytest.mark.parametrize(
    ("energy_j", "error_j", "text"),
    [
        (2561.0, 31.0, "2.561 ± 0.031 kJ"),
        (2561.0, None, "2.561 kJ"),
        (12.34, 5.6, "12.3 ± 5.6 J"),
        (3.2e6, 4100.0, "3.2000 ± 0.0041 MJ"),
        (0.5, 40.0, "0 ± 40 J"),
        (0.0, 0.02, "0 ± 20 mJ"),
    ],
)
def test_energy_shows_as_many_digits_as_its_error_justifies(energy_j, error_j, text):
    assert units.format_energy(energy_j, error_j) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.412, "412 ms"),
        (8.2, "8.20 s"),
        (59.99, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (-2, "-2.00 s"),
    ],
)
def test_durations_read_as_people_say_them(duration_s, text):
    assert units.format_duration(duration_s) == text


def test_numbers_carry_si_prefixes():
    assert units.format_si(2561, "J") == "2.56 kJ"
    assert units.format_si(999.7, "J") == "1.00 kJ"
    assert units.format_si(0, "J") == "0 J"
    assert units.format_power(312.44) == "312 W"
    assert units.format_percent(0.0123) == "1.2 %"
