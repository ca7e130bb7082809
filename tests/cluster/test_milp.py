"""The exact allocation: limits are kept, more budget never lengthens, and prices come near it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.milp import Limit, best, shortest
from joulewise.cluster.state import Budget, Snapshot
from joulewise.core.errors import BadSpec
from tests.cluster.allocators.snapshots import job, snapshot, snapshots
from tests.tiers import examples


def test_the_best_of_a_small_case_is_what_counting_finds() -> None:
    value = np.array([[3.0, 5.0], [2.0, 6.0], [2.5, -1.0]])
    gpus = np.array([[1, 2], [1, 3], [1, 1]])
    found = best(value, [Limit(gpus, 4.0)])
    assert found.ended
    assert found.worth == 9.5  # 5 + 2 + 2.5 on 4 GPUs; with the 6 only 3 more fit beside it
    assert found.choice.tolist() == [1, 0, 0]
    assert found.bound == pytest.approx(9.5)
    assert best(-value[:1], [Limit(gpus, 4.0)]).choice.tolist() == [-1]


@pytest.mark.sampled
@given(seen=snapshots(), energy_j=st.floats(1e3, 1e8), power_w=st.floats(1e3, 2e4), more=st.floats(1.0, 3.0))
@settings(max_examples=examples(40), deadline=None)
def test_more_budget_never_lengthens_the_optimum(seen: Snapshot, energy_j: float, power_w: float, more: float) -> None:
    tight, least_s = shortest(seen, Budget(energy_j=energy_j, power_w=power_w), gap=1e-6)
    for budget in (
        Budget(energy_j=more * energy_j, power_w=power_w),
        Budget(energy_j=energy_j, power_w=more * power_w),
    ):
        _, wider_s = shortest(seen, budget, gap=1e-6)
        assert wider_s <= least_s * (1 + 1e-5) + 1e-6
    assert all(tight.gpus(kind) <= there for kind, there in seen.gpus.items())


def test_where_everyone_must_run_and_cannot_the_way_out_is_told() -> None:
    seen = snapshot(*(job(f"job-{n}") for n in range(9)), nodes=1)
    with pytest.raises(BadSpec, match="9 jobs cannot all run within the limits; let some wait"):
        shortest(seen, Budget(), everyone=True)
    said, whole_s = shortest(seen, Budget())
    assert len(said.ways) < 9
    assert whole_s > 0
    assert said.gap == pytest.approx(0.0, abs=1e-3)


def test_nobody_is_nobody() -> None:
    assert shortest(Snapshot(0.0, snapshot().kinds, ()), Budget())[1] == 0.0
