"""Local search: draws that go through what was measured, and grow wide away from it."""

from __future__ import annotations

import math

import numpy as np

from joulewise.core.knob import Setting
from joulewise.tune.search import Measured, draws

DEFAULT_IS = Setting(sm_mhz=1980.0, memory_mhz=3201.0, power_limit_w=700.0)
SETTINGS = [Setting(sm_mhz=mhz) for mhz in (1965.0, 1800.0, 1600.0, 1200.0)]


def spreads(measured: dict[Setting, Measured]) -> np.ndarray:
    time, _ = draws(measured, SETTINGS, DEFAULT_IS, seed=0)
    return np.asarray(np.log(time).std(axis=0))


def test_what_is_near_the_default_is_like_the_default() -> None:
    time, energy = draws({}, SETTINGS, DEFAULT_IS, seed=0)
    assert abs(np.log(time[:, 0])).max() < 0.06
    assert np.log(time).std(axis=0)[0] < 0.01 < np.log(energy).std(axis=0)[3]
    assert (np.diff(np.log(time).std(axis=0)) > 0).all()


def test_a_measured_setting_is_believed_and_teaches_its_neighbours() -> None:
    seen = {SETTINGS[2]: Measured(math.log(1.02), 0.002, math.log(0.8), 0.005)}
    time, energy = draws(seen, SETTINGS, DEFAULT_IS, seed=0)
    assert abs(np.log(time[:, 2]).mean() - math.log(1.02)) < 0.003
    assert abs(np.log(energy[:, 2]).mean() - math.log(0.8)) < 0.006
    assert (spreads(seen) < spreads({})).all()
    assert np.log(time[:, 1]).mean() < 0.05  # the trend would have said more


def test_the_same_measurements_give_the_same_draws() -> None:
    seen = {SETTINGS[1]: Measured(0.01, 0.002, -0.05, 0.005)}
    one, other = draws(seen, SETTINGS, DEFAULT_IS, seed=3), draws(seen, SETTINGS, DEFAULT_IS, seed=3)
    assert (one[0] == other[0]).all()
    assert (one[1] == other[1]).all()


def test_a_knob_whose_default_nobody_knows_counts_for_nothing() -> None:
    time, _ = draws({}, [Setting(power_limit_w=400.0)], Setting(sm_mhz=1980.0), seed=0)
    assert abs(np.log(time)).max() < 0.001
