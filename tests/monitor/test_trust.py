"""Stated errors are what errors are: the bench on a small scale, for other seeds than anybody looked at."""

from __future__ import annotations

import statistics

import pytest

from bench import measure


@pytest.fixture(scope="module")
def seen() -> list[measure.Seen]:
    loads = ("square", "in_step", "bursty", "training", "wandering")
    return [
        window
        for load in loads
        for sensor in measure.SENSORS
        for index in range(3)
        for window in measure.run(load, sensor, f"test {index}")
    ]


def test_two_standard_errors_hold_the_truth_nearly_always(seen: list[measure.Seen]) -> None:
    assert measure.score(seen)[0]["coverage_2se"] > 0.93


@pytest.mark.parametrize("sensor", measure.SENSORS)
def test_they_do_with_every_kind_of_sensor(seen: list[measure.Seen], sensor: str) -> None:
    covered = [abs(each.energy_j - each.truth_j) <= 2.0 * each.error_j for each in seen if each.sensor == sensor]
    assert sum(covered) / len(covered) > 0.88


def test_errors_are_not_stated_so_wide_that_they_say_nothing(seen: list[measure.Seen]) -> None:
    assert measure.score(seen)[0]["sharpness"] < 3.0  # three windows of most cells: their rms error is often small
    long = [each.error_j / each.truth_j for each in seen if each.window_s == 30.0 and "exact" in each.sensor]
    assert statistics.median(long) < 0.002


def test_short_windows_beat_the_plain_counter_difference(seen: list[measure.Seen]) -> None:
    assert measure.score(seen)[0]["short_error_ratio"] < 0.6


def test_the_same_seed_gives_the_same_windows() -> None:
    assert list(measure.run("training", "exact, 100 ms", "x")) == list(measure.run("training", "exact, 100 ms", "x"))
