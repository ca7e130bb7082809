"""What is known of one setting moves what is believed of its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from joulewise.tune.outlook import _told


def test_a_measured_setting_has_its_value_and_its_neighbours_follow_as_far_as_they_go_together() -> None:
    random = np.random.default_rng(1)
    common, own = random.normal(0.03, 0.01, 4000), random.normal(0.0, 0.01, (4000, 2))
    # The second goes with the first, the third with nothing.
    draws = np.exp(np.stack([common, 2.0 * common, 0.05 + own[:, 0]], axis=1))
    logs = np.log(_told(draws, 0, (0.01, 0.001)))
    assert logs.mean(axis=0) == pytest.approx([0.01, 0.02, 0.05], abs=1e-3)
    assert logs.std(axis=0) == pytest.approx([0.001, 0.002, 0.01], abs=5e-4)


def test_draws_that_all_agree_are_overruled_too() -> None:
    draws = np.full((8, 2), 1.05)
    logs = np.log(_told(draws, 0, (0.01, 0.001)))
    assert logs[:, 0] == pytest.approx(0.01)
    assert np.isfinite(logs).all()
