"""A tariff: weights of mean 1, integrals that add up, files read and refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.tariff import Tariff, read_tariff
from joulewise.core.errors import BadSpec

DAY = [100.0 + 10.0 * hour for hour in range(24)]


def test_a_day_of_hours_is_the_same_every_day() -> None:
    tariff = Tariff(DAY)
    assert tariff.weight(0.0) == tariff.weight(5 * 86_400.0) == tariff.weight(-86_400.0) == pytest.approx(100.0 / 215.0)
    assert tariff.weight(86_399.0) == pytest.approx(330.0 / 215.0)
    assert tariff.next_s(0.0) == 3600.0
    assert tariff.next_s(3599.0) == 3600.0
    assert tariff.integral(0.0, 86_400.0) == pytest.approx(86_400.0)
    assert tariff.integral(-86_400.0, 3 * 86_400.0) == pytest.approx(4 * 86_400.0)


def test_grams_are_kilowatt_hours_times_the_hours_own_value() -> None:
    tariff = Tariff(DAY)
    moments = [(0.0, 1000.0), (3600.0, 2000.0), (7200.0, 0.0)]
    assert tariff.of(moments, 7200.0) == pytest.approx(1.0 * 100.0 + 2.0 * 110.0)
    assert tariff.amount(3.6e6) == pytest.approx(215.0)
    assert Tariff(DAY, unit="eur_per_mwh").amount(3.6e9) == pytest.approx(215.0)


def test_after_the_last_hour_the_last_day_comes_again() -> None:
    first_s = 1_700_000_000.0 // 3600 * 3600
    tariff = Tariff([50.0] * 24 + DAY, first_s=first_s)
    assert tariff.end_s == first_s + 48 * 3600.0
    assert tariff.weight(first_s + 49 * 3600.0) == tariff.weight(first_s + 25 * 3600.0)
    assert tariff.weight(first_s - 1.0) == tariff.weight(first_s)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(1.0, 500.0), min_size=1, max_size=60),
    st.floats(-2e5, 4e5),
    st.floats(0.0, 2e5),
    st.floats(0.0, 2e5),
    st.sampled_from([1.0, -1.0, 0.0]),
)
def test_integrals_add_up_and_agree_with_the_weights(
    values: list[float], from_s: float, one_s: float, two_s: float, power: float
) -> None:
    tariff = Tariff(values, first_s=0.0)
    middle_s, to_s = from_s + one_s, from_s + one_s + two_s
    parts = tariff.integral(from_s, middle_s, power) + tariff.integral(middle_s, to_s, power)
    assert tariff.integral(from_s, to_s, power) == pytest.approx(parts, rel=1e-6, abs=1e-3)
    end_s = min(to_s, tariff.next_s(from_s))
    assert tariff.integral(from_s, end_s, power) == pytest.approx(
        (end_s - from_s) * tariff.weight(from_s) ** power, rel=1e-6, abs=1e-3
    )


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_dates_and_json_with_hours_are_read(tmp_path: Path) -> None:
    dates = "time,g_per_kwh\n2026-01-05T00:00Z,100\n2026-01-05T01:00Z,300\n\n"
    tariff = read_tariff(write(tmp_path, "a.csv", dates))
    assert tariff.mean == 200.0
    assert tariff.weight(1_767_571_200.0 + 3600.0) == 1.5
    assert tariff.says == ()
    hours = json.dumps({"unit": "eur_per_mwh", "values": DAY})
    assert read_tariff(write(tmp_path, "b.json", hours)).counts == "EUR"
    objects = json.dumps([{"time": 3600.0 * at, "value": 5 + at} for at in range(30)])
    assert read_tariff(write(tmp_path, "c.json", objects)).end_s == 30 * 3600.0
    day = "time,eur_per_mwh\n" + "".join(f"{hour},{value}\n" for hour, value in enumerate(DAY))
    assert read_tariff(write(tmp_path, "d.csv", day)).end_s == float("inf")


def test_missing_hours_are_said_and_count_as_the_dearer_neighbour(tmp_path: Path) -> None:
    text = "time,g_per_kwh\n2026-01-05T00:00Z,100\n2026-01-05T03:00Z,300\n"
    tariff = read_tariff(write(tmp_path, "a.csv", text))
    assert tariff.says == (
        "2 hours are missing (2026-01-05 01:00, 2026-01-05 02:00); each counts as the dearer of its neighbours",
    )
    assert tariff.mean == 250.0


def test_prices_below_nothing_count_as_a_little_and_that_is_said() -> None:
    tariff = Tariff([-20.0, *[100.0] * 23], unit="eur_per_mwh")
    assert tariff.weight(0.0) == 0.05
    assert tariff.says == ("1 hours below 5% of the mean count as that much",)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.csv", "", "first line must be"),
        ("a.csv", "time,pounds\n0,1\n", "first line must be"),
        ("a.csv", "time,g_per_kwh\n", "holds no value"),
        ("a.csv", "time,g_per_kwh\nsoon,1\n", "line 2: 'soon' is neither"),
        ("a.csv", "time,g_per_kwh\n0,cheap\n", "line 2: 'cheap' is not a number"),
        ("a.csv", "time,g_per_kwh\n0,nan\n", "line 2: 'nan'"),
        ("a.csv", "time,g_per_kwh\n0,1,2\n", "line 2 has 3 columns"),
        ("a.csv", "time,g_per_kwh\n0,1\n1,2\n", "and 2, 3, 4"),
        ("a.csv", "time,g_per_kwh\n100000,1\n1e12,2\n", "it spans"),
        ("a.csv", "time,g_per_kwh\n100000,0\n103600,0\n", "mean of a tariff must be above 0"),
        ("a.json", "{", "it is not JSON"),
        ("a.json", '{"unit": "beans", "values": []}', "it must be a list"),
        ("a.json", "[{}]", "value 0 must be an object"),
        ("a.json", "[1, 2]", "and 2, 3, 4"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str, text: str, why: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(BadSpec) as refused:
        read_tariff(path)
    assert str(path) in str(refused.value)
    assert why in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"none\.csv cannot be read: no such file"):
        read_tariff(tmp_path / "none.csv")


def test_a_day_with_too_few_hours_is_refused() -> None:
    with pytest.raises(BadSpec, match="needs 24 values, not 2"):
        Tariff([1.0, 2.0])
