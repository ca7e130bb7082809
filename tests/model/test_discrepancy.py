"""What the law cannot say: nothing at the default, alike for neighbours."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulewise.model.discrepancy import Departure

features = st.lists(
    st.tuples(st.floats(-1.5, 0.2), st.floats(-0.8, 0.0), st.floats(0.0, 0.7)), min_size=1, max_size=8
).map(np.array)


@given(features)
def test_covariances_are_covariances(a: np.ndarray) -> None:
    covariance = Departure(0.03).covariance(a, a)
    assert np.allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    assert np.diag(covariance).max() <= 0.03**2 + 1e-15


@given(features)
def test_the_default_does_not_depart(a: np.ndarray) -> None:
    assert np.allclose(Departure(0.05).covariance(np.zeros((1, 3)), a), 0.0, atol=1e-15)


def test_settings_near_the_default_depart_less_than_far_ones() -> None:
    near, middle, far = (
        float(Departure(0.03).covariance(np.array([[x, 0.0, 0.0]]), np.array([[x, 0.0, 0.0]]))[0, 0]) ** 0.5
        for x in (-0.02, -0.2, -1.0)
    )
    assert near < 0.003 < middle < far < 0.03
