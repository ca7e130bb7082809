"""The power of each kind of operation, told apart from readings that mix them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.tune.follow_spans import Readings, held_to, mean_and_error, powers_w

Piece = tuple[str, float, float]


def pipeline(forward_s: float, backward_s: float, wait_s: float, times: int) -> list[Piece]:
    """Forward, backward, waiting, over and over."""
    pieces, now_s = [], 0.0
    for _ in range(times):
        pieces += [
            ("forward", now_s, now_s + forward_s),
            ("backward", now_s + forward_s, now_s + forward_s + backward_s),
        ]
        now_s += forward_s + backward_s + wait_s
    return pieces


def read(pieces: list[Piece], watts: dict[str, float], window_s: float, every_s: float, phase_s: float) -> Readings:
    """What a sensor shows: means over its window."""
    fine_s = 1e-3
    end_s = pieces[-1][2]
    moments = np.arange(0.0, end_s, fine_s)
    power_w = np.full(len(moments), watts["waiting"])
    for name, from_s, to_s in pieces:
        power_w[(moments >= from_s) & (moments < to_s)] = watts[name]
    ends = np.arange(phase_s + window_s, end_s, every_s)
    means = [power_w[(moments >= end - window_s) & (moments < end)].mean() for end in ends]
    return Readings(ends, np.array(means), window_s)


@given(st.floats(150.0, 600.0), st.floats(150.0, 600.0), st.floats(60.0, 140.0), st.floats(0.0, 0.1))
@settings(max_examples=30, deadline=None)
def test_operations_longer_than_the_sensor_looks_are_told_apart_exactly(
    forward_w: float, backward_w: float, waiting_w: float, phase_s: float
) -> None:
    watts = {"forward": forward_w, "backward": backward_w, "waiting": waiting_w}
    pieces = pipeline(0.23, 0.41, 0.17, 24)
    found = powers_w(pieces, "waiting", read(pieces, watts, 0.025, 0.1, phase_s), 0.0, pieces[-1][2])
    assert {name: power_w for name, (power_w, _) in found.items()} == pytest.approx(watts, rel=0.02)


def test_operations_shorter_than_the_sensor_looks_are_told_apart_as_far_as_their_mixtures_differ() -> None:
    watts = {"forward": 500.0, "backward": 350.0, "waiting": 120.0}
    pieces = pipeline(0.031, 0.047, 0.013, 400)
    found = powers_w(pieces, "waiting", read(pieces, watts, 0.1, 0.1, 0.0), 0.0, pieces[-1][2])
    for name, (power_w, error_w) in found.items():
        assert power_w == pytest.approx(watts[name], abs=max(3.0 * error_w, 15.0))
    assert max(error_w for _, error_w in found.values()) < 60.0


def test_what_was_never_seen_alone_is_as_unsure_as_it_should_be() -> None:
    watts = {"forward": 500.0, "backward": 350.0, "waiting": 120.0}
    pieces = pipeline(0.02, 0.03, 0.05, 100)  # in step with the sensor: every reading is the same mixture
    found = powers_w(pieces, "waiting", read(pieces, watts, 0.1, 0.1, 0.0), 0.0, pieces[-1][2])
    assert all(abs(power_w - watts[name]) < 2.0 * error_w for name, (power_w, error_w) in found.items())
    assert all(error_w > 50.0 for _, error_w in found.values())


def test_without_readings_nothing_is_said() -> None:
    assert powers_w([("forward", 0.0, 1.0)], "waiting", Readings(np.zeros(0), np.zeros(0), 0.1), 0.0, 1.0) == {}


def test_powers_are_held_to_the_counter() -> None:
    held = held_to({"forward": (400.0, 4.0), "waiting": (100.0, 1.0)}, {"forward": 2.0, "waiting": 1.0}, 990.0)
    assert held == {"forward": pytest.approx((440.0, 4.4)), "waiting": pytest.approx((110.0, 1.1))}


def test_one_value_has_an_error_all_the_same() -> None:
    assert mean_and_error([3.0]) == (3.0, pytest.approx(0.06))
    assert mean_and_error([1.0, 3.0]) == (2.0, pytest.approx(1.0))
