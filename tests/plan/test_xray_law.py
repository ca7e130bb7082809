"""What is believed of kinds of work by clock: bounded by what no GPU does, and moved by what the user has seen."""

import numpy as np
import pytest

from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.plan.trace_kinds import Kind
from joulewise.plan.xray_law import CLOCKS, EVEN, KINDS, SEEN, Laws, believed

H200 = catalog.load("h200")
DENSE = {Kind.COMPUTE: 0.9, Kind.MEMORY: 0.08}
COMPUTE, MEMORY, LINK = (KINDS.index(kind) for kind in (Kind.COMPUTE, Kind.MEMORY, Kind.COMMUNICATION))


@pytest.fixture(scope="module")
def laws() -> Laws:
    return believed(H200, DENSE, draws=200)


def test_no_work_is_faster_or_hungrier_at_a_lower_clock(laws):
    order = np.argsort(-CLOCKS[1:]) + 1
    assert (np.diff(laws.own.time[:, :, order], axis=2) >= -1e-9).all()
    assert (np.diff(laws.own.power_w[:, :, order], axis=2) <= 1e-6).all()
    assert (np.diff(laws.own.wait_w[:, order], axis=1) <= 1e-9).all()
    assert laws.own.time[:, :, SEEN] == pytest.approx(1.0)
    assert laws.locked.time[:, :, SEEN] == pytest.approx(1.0)


def test_dense_kernels_follow_the_clock_and_collectives_hardly(laws):
    lower = int(np.argmin(np.abs(CLOCKS - 0.85)))
    slower = np.median(laws.own.time[:, :, lower] / laws.own.time[:, :, EVEN], axis=0)
    assert 1.10 < slower[COMPUTE] < 1.0 / 0.85
    assert slower[MEMORY] < 1.06
    assert slower[LINK] < 1.04
    power = np.median(laws.own.power_w[:, :, EVEN], axis=0)
    assert power[COMPUTE] > power[MEMORY] > power[LINK] > np.median(laws.own.wait_w[:, EVEN])


def test_a_dense_job_is_held_by_the_power_limit_and_an_idle_one_is_not(laws):
    mean_w = (laws.own.power_w[:, :, SEEN] * [0.9, 0.08, 0, 0]).sum(axis=1) + 0.02 * laws.own.wait_w[:, SEEN]
    assert mean_w.max() < 1.12 * H200.default_limit_w
    assert np.mean(laws.default_mhz < 0.99 * H200.chip.sm_max_mhz) > 0.5
    idle = believed(H200, {Kind.MEMORY: 0.2}, draws=50)
    assert idle.default_mhz == pytest.approx(H200.chip.sm_max_mhz)


@pytest.mark.parametrize("sm_mhz", [1200.0, 1639.0, H200.chip.sm_max_mhz])
def test_a_clock_that_was_seen_is_the_mean_and_the_limit_that_held_it_holds_still(sm_mhz):
    laws = believed(H200, DENSE, draws=60, sm_mhz=sm_mhz)
    assert laws.default_mhz == pytest.approx(sm_mhz, rel=2e-3)
    if sm_mhz < H200.chip.sm_max_mhz:
        above = int(np.argmax(CLOCKS))
        # A lock above what the limiter allows changes nothing, but where power hardly depends on the clock.
        assert np.quantile(np.abs(laws.locked.time[:, COMPUTE, above] - 1.0), 0.8) < 0.01


def test_a_lock_below_leaves_the_limiter_room(laws):
    """Where hungry kernels were held lowest, evening the clocks out speeds them up and costs no more power."""
    held = laws.default_mhz < 0.95 * H200.chip.sm_max_mhz
    assert laws.locked.time[held, COMPUTE, EVEN].mean() < 1.0
    assert (laws.locked.time[:, COMPUTE, -1] > 1.0).all()


def test_a_clock_and_a_power_that_were_seen_narrow_what_is_believed(laws):
    clocked = believed(H200, DENSE, draws=100, sm_mhz=1500.0)
    assert clocked.default_mhz == pytest.approx(1500.0, rel=0.03)
    weighed = believed(H200, DENSE, draws=100, power_w=520.0)
    dense_w = weighed.own.power_w[:, COMPUTE, SEEN]
    assert np.std(dense_w) < 0.75 * np.std(laws.own.power_w[:, COMPUTE, SEEN])
    assert np.median(dense_w) == pytest.approx(540.0, rel=0.08)


@pytest.mark.parametrize(
    ("seen", "says"), [({"sm_mhz": 2500.0}, "MHz is outside"), ({"power_w": 2000.0}, "no mean power")]
)
def test_what_this_gpu_cannot_have_shown_is_refused(seen, says):
    with pytest.raises(BadSpec, match=says):
        believed(H200, DENSE, draws=10, **seen)


def test_the_same_seed_believes_the_same():
    one, same, other = (believed(H200, DENSE, draws=20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.own.time, same.own.time)
    assert not np.array_equal(one.own.time, other.own.time)
