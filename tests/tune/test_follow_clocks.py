"""Clocks asked for ahead of time: when they are there, what is skipped, and what happens when the lease says no."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import LeaseLost, NotNow
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.lease import Applied
from joulewise.device.local import LocalLease
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from joulewise.model.physics import Load
from joulewise.tune.follow_clocks import Clocks, ceiling_mhz, without_short_runs

LOW, MIDDLE, HIGH = Setting(sm_mhz=1005), Setting(sm_mhz=1500), DEFAULT
SWITCH_S = 0.025


def runs(settings: Sequence[Setting], durations_s: Sequence[float]) -> list[float]:
    """How long each stretch of one setting lasts, the end of the iteration followed by its begin."""
    changes = [at for at in range(len(settings)) if settings[at] != settings[at - 1]]
    if not changes:
        return []
    around = [*changes[1:], changes[0] + len(settings)]
    return [
        sum(durations_s[at % len(settings)] for at in range(first, end))
        for first, end in zip(changes, around, strict=True)
    ]


sequences = st.lists(st.tuples(st.sampled_from([LOW, MIDDLE, HIGH]), st.floats(0.001, 0.1)), min_size=1, max_size=12)


@given(sequences)
def test_no_change_is_over_before_it_is_there_and_no_operation_gets_a_lower_clock(
    given_: list[tuple[Setting, float]],
) -> None:
    settings, durations_s = [each for each, _ in given_], [duration_s for _, duration_s in given_]
    smooth = without_short_runs(settings, durations_s, SWITCH_S)
    assert len(smooth) == len(settings)
    assert all(lasts_s >= SWITCH_S - 1e-9 for lasts_s in runs(smooth, durations_s))
    assert all(ceiling_mhz(now) >= ceiling_mhz(before) for now, before in zip(smooth, settings, strict=True))


@given(sequences)
def test_long_operations_keep_their_clocks(given_: list[tuple[Setting, float]]) -> None:
    settings = [each for each, _ in given_]
    assert without_short_runs(settings, [SWITCH_S] * len(settings), SWITCH_S) == settings


def test_a_short_slow_operation_joins_its_neighbour_and_a_short_fast_one_takes_it_along() -> None:
    assert without_short_runs([HIGH, LOW, HIGH], [0.1, 0.01, 0.1], SWITCH_S) == [HIGH] * 3
    assert without_short_runs([LOW, HIGH, MIDDLE, LOW], [0.1, 0.01, 0.05, 0.1], SWITCH_S) == [LOW, HIGH, HIGH, LOW]


class Stage:
    """A busy virtual GPU in virtual time, held by a lease."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.gpu = VirtualGpu(catalog.load("h200"), time=self.time)
        self.lease = LocalLease.take([VirtualControls.of(self.gpu)], ["sm_mhz"], state=None)
        self.gpu.submit(Load(1e4, 0.8, 400.0))

    @property
    def sm_mhz(self) -> float:
        return self.gpu.truth().sm_mhz


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_clock_asked_for_ahead_is_there_when_it_is_wanted_and_how_long_it_took_is_learnt(stage: Stage) -> None:
    clocks = Clocks(stage.lease, stage.gpu)
    assert clocks.switches_seen == 0
    stage.time.run_until(0.5)
    for number in range(1, 9):
        clocks.at(LOW if number % 2 else HIGH, number - clocks.switch_s)
        stage.time.run_until(number - 3 * SWITCH_S)
        before_mhz = stage.sm_mhz
        stage.time.run_until(number + 0.3 * SWITCH_S)
        assert stage.sm_mhz == (1005 if number % 2 else 1980)
        assert before_mhz == (1980 if number % 2 else 1005)
        stage.time.run_until(number + 0.5)
    assert clocks.switches_seen == 4
    assert clocks.switch_s == pytest.approx(SWITCH_S, rel=0.4)
    assert clocks.asked == 8
    clocks.close()
    assert stage.sm_mhz == 1980


def test_what_is_wanted_later_is_forgotten_when_something_else_is_wanted_before(stage: Stage) -> None:
    clocks = Clocks(stage.lease, stage.gpu)
    clocks.at(LOW, 2.0)
    clocks.at(MIDDLE, 1.0)
    stage.time.run_until(3.0)
    assert stage.sm_mhz == 1500
    clocks.at(MIDDLE, 3.0)
    stage.time.run_until(4.0)
    assert clocks.asked == 1
    assert stage.gpu.board.state.asked.sm_mhz == (345.0, 1500.0)


class Reluctant:
    """A lease that lets others write first, so many times, or is lost."""

    def __init__(self, error: Exception, times: int, inner: LocalLease) -> None:
        self._error, self._times, self._inner = error, times, inner

    def apply(self, setting: Setting) -> Applied:
        self._times -= 1
        if self._times >= 0:
            raise self._error
        return self._inner.apply(setting)


def test_a_lease_that_says_not_now_is_asked_again(stage: Stage) -> None:
    clocks = Clocks(Reluctant(NotNow("too often", 0.2), 2, stage.lease), stage.gpu)  # type: ignore[arg-type]
    clocks.at(LOW, 1.0)
    stage.time.run_until(1.3)
    assert stage.sm_mhz == 1980
    stage.time.run_until(2.0)
    assert stage.sm_mhz == 1005
    assert (clocks.put_off, clocks.asked, clocks.problem) == (2, 1, "")


def test_what_is_put_off_is_let_be_when_something_else_is_wanted_by_then(stage: Stage) -> None:
    clocks = Clocks(Reluctant(NotNow("too often", 0.2), 1, stage.lease), stage.gpu)  # type: ignore[arg-type]
    clocks.at(LOW, 1.0)
    clocks.at(MIDDLE, 1.1)
    stage.time.run_until(2.0)
    assert stage.sm_mhz == 1500
    assert clocks.asked == 1


def test_a_lost_lease_ends_it_and_says_why(stage: Stage) -> None:
    clocks = Clocks(Reluctant(LeaseLost("an admin took it"), 9, stage.lease), stage.gpu)  # type: ignore[arg-type]
    clocks.at(LOW, 1.0)
    stage.time.run_until(2.0)
    clocks.at(MIDDLE, 2.0)
    stage.time.run_until(3.0)
    assert clocks.problem == "an admin took it"
    assert clocks.asked == 0


def test_a_gpu_that_does_not_heed_its_clock_is_found_out(stage: Stage) -> None:
    class Deaf:
        def apply(self, setting: Setting) -> Applied:
            return Applied(setting, {})

    clocks = Clocks(Deaf(), stage.gpu)  # type: ignore[arg-type]
    for number in range(12):
        clocks.at(LOW if number % 2 else HIGH, 1.0 + number)
    stage.time.run_until(14.0)
    assert clocks.problem == "the GPU does not heed its clock: 1980 MHz where 1005 MHz were asked for"
