"""One rank: a host that runs ahead of its GPU, and what its operations took."""

from __future__ import annotations

import pytest

from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.local import LocalLease
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from joulewise.model.physics import Load
from joulewise.monitor.sampler import Sampler
from joulewise.tune.follow_rank import Op, Rank

LOW = Setting(sm_mhz=1005)
ORDER: list[Op] = [(0, "forward", 0), (0, "forward", 1), (0, "backward", 0), (0, "backward", 1)]
SETTINGS = [LOW, DEFAULT, LOW, DEFAULT]
LASTS_S, GAP_S = 0.2, 0.05


class Later:
    """An operation that was launched now and that the GPU does later."""

    def __init__(self, time: VirtualTime, from_s: float) -> None:
        self._time, self._from_s = time, from_s

    def began_s(self) -> float | None:
        return self._from_s if self._time.now_s() >= self._from_s else None

    def ended_s(self) -> float | None:
        return self._from_s + LASTS_S if self._time.now_s() >= self._from_s + LASTS_S else None


class Stage:
    def __init__(self) -> None:
        self.time = VirtualTime()
        self.gpu = VirtualGpu(catalog.load("h200"), time=self.time)
        self.sampler = Sampler([self.gpu], seed=0)
        self.rank = Rank(ORDER, self.gpu, self.sampler)
        self.sampler.start()
        self.sampler.opened()
        self.gpu.submit(Load(1e4, 0.8, 400.0))

    def launch_all(self, number: int, start_s: float) -> list[float]:
        """A whole iteration launched at once; when the GPU will begin each operation."""
        self.rank.iteration(number, SETTINGS, SETTINGS)
        begins_s = [start_s + at * (LASTS_S + GAP_S) for at in range(len(ORDER))]
        for op, begin_s in zip(ORDER, begins_s, strict=True):
            self.rank.begin(op, Later(self.time, begin_s))
            self.rank.end()
        return begins_s


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_clocks_follow_the_gpu_and_not_the_host_that_runs_ahead_of_it(stage: Stage) -> None:
    stage.rank.arm(LocalLease.take([VirtualControls.of(stage.gpu)], ["sm_mhz"], state=None))
    stage.rank.expect({((0, kind), setting): LASTS_S for kind in ("forward", "backward") for setting in SETTINGS})
    begins_s = stage.launch_all(0, 1.0) + stage.launch_all(1, 3.0)
    seen: list[float] = []

    def look() -> Loop[None]:
        for begin_s in begins_s:
            yield begin_s + 0.02 - stage.time.now_s()
            seen.append(stage.gpu.truth().sm_mhz)

    stage.time.spawn(look())
    stage.time.run_until(5.0)
    # The very first could not be asked for ahead.
    assert seen[1:] == [1980, 1005, 1980, 1005, 1980, 1005, 1980]
    assert stage.rank.trouble == ""
    assert stage.rank.switch_s == pytest.approx(0.025, rel=0.5)
    stage.rank.close()


def test_what_operations_took_is_known_when_the_gpu_has_done_them(stage: Stage) -> None:
    stage.launch_all(0, 1.0)
    stage.launch_all(1, 2.5)
    stage.launch_all(2, 4.0)
    stage.time.run_until(0.9)
    stage.rank.end()
    assert stage.rank.window(0, 0) is None
    stage.time.run_until(6.0)
    stage.rank.end()
    assert stage.rank.iteration_s(1) == pytest.approx(1.5)
    assert stage.rank.span_s(0, 2) == pytest.approx(4 * LASTS_S + 3 * GAP_S)
    window = stage.rank.window(0, 1)
    assert window is not None
    power_w = stage.gpu.truth().power_w
    for time_s, energy_j, error_j in window:
        assert time_s == pytest.approx(1.5)
        assert energy_j == pytest.approx(1.5 * power_w, rel=0.02)
        assert 0 < error_j < 0.05 * energy_j
    seen, waiting_w = stage.rank.seen(0, 1, DEFAULT)
    assert seen[0, "forward"].time_s == pytest.approx(LASTS_S)
    assert seen[0, "backward"].power_w == pytest.approx(power_w, rel=0.02)
    assert waiting_w == pytest.approx(power_w, rel=0.05)
    assert stage.rank.latest_mhz == 1980


def test_drift_is_the_time_of_operations_against_what_was_expected_of_them(stage: Stage) -> None:
    stage.rank.expect({((0, "forward"), LOW): 0.1, ((0, "forward"), DEFAULT): 0.2, ((0, "backward"), LOW): 0.2})
    stage.launch_all(0, 1.0)
    stage.time.run_until(3.0)
    stage.rank.end()
    found = stage.rank.drift({0})
    assert found[0, "forward"] == (pytest.approx(1.5), pytest.approx(0.5))
    assert found[0, "backward"][0] == pytest.approx(1.0)
    assert stage.rank.drift({1}) == {}


def test_an_iteration_that_was_cut_short_ends_it(stage: Stage) -> None:
    stage.rank.iteration(0, SETTINGS, SETTINGS)
    stage.rank.begin(ORDER[0], Later(stage.time, 1.0))
    stage.rank.iteration(1, SETTINGS, SETTINGS)
    assert stage.rank.trouble == "iteration 0 ran 1 of 4 operations"
