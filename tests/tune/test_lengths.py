"""How long blocks are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.tune.lengths import LENGTHS, usual_s


@given(st.floats(1e-4, 1.0), st.floats(1e-3, 0.1))
def test_pairs_are_as_long_as_their_noise_demands_and_never_more_than_four_times_the_least(
    error: float, wanted: float
) -> None:
    work, least_s = LENGTHS.pair_for(error, wanted)
    times = work / LENGTHS.pair[0]
    assert least_s == pytest.approx(times * LENGTHS.pair[1])
    assert 1.0 <= times <= 4.0
    # As noise averages out, or at the end of what is reasonable.
    assert error / times**0.5 <= wanted * (1 + 1e-9) or times == 4.0


def test_a_block_takes_its_work_or_its_seconds_whichever_is_longer() -> None:
    assert usual_s((10.0, 3.0), 0.1) == 3.0
    assert usual_s((10.0, 3.0), 2.0) == 20.0
