"""Energy between two moments, from a counter that ticks and power that updates (R20)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import NoReading
from joulewise.core.measurement import EnergyReading, SensorTiming, Source
from joulewise.device.power_trace import PowerTrace
from joulewise.device.sensors import Sensors
from joulewise.monitor.estimate import Estimate, Evidence, estimate
from joulewise.monitor.ticks import Ticks
from tests.monitor.played import EXACT_20, EXACT_100, NO_COUNTER, QUARTER_100, Segments, constant, square
from tests.scenario_table import Shown

PHASE_S = 0.037


class Scene:
    """A load seen by sensors of known phase, and what a sampler would have read of it."""

    def __init__(self, segments: Segments, timing: SensorTiming, *, phase_s: float = PHASE_S, length_s: float = 20.0):
        self.trace = PowerTrace(start_s=-2.0, keep_s=math.inf)
        self.timing, self.phase_s = timing, phase_s
        self.sensors = Sensors(timing, self.trace, phase_s=phase_s)
        for duration_s, power_w in segments:
            self.trace.append(self.trace.end_s + duration_s, power_w, 0.0 if power_w < 100.0 else 1.0)
            if self.trace.end_s > length_s:
                return

    def truth_j(self, from_s: float, to_s: float) -> float:
        return self.trace.energy_j(to_s) - self.trace.energy_j(from_s)

    def evidence(self, polls_s: Sequence[float], looks_s: Sequence[float] = ()) -> Evidence:
        """Read power at ``polls_s`` and the counter at ``looks_s``."""
        power_w, busy = [], []
        looks: list[EnergyReading] = []
        for at_s, poll in sorted([(t, True) for t in polls_s] + [(t, False) for t in looks_s]):
            if poll:
                power_w.append(self.sensors.power_w(at_s) or math.nan)
                busy.append(self.sensors.utilization(at_s) or 0.0)
            else:
                looks.append(EnergyReading(at_s, self.sensors.counter_j(at_s) or 0.0))
        times_s, watts = np.array(sorted(polls_s)), np.array(power_w)
        rises_j = 0.5 * (watts[1:] + watts[:-1]) * np.diff(times_s)
        summed_j = np.concatenate(([0.0], np.cumsum(rises_j)))[: len(watts)]
        ticks = Ticks(self.phase_s, self.timing.power_update_s, 2e-4)
        return Evidence(
            timing=self.timing,
            time_s=times_s,
            power_w=watts,
            utilization=np.array(busy),
            summed_j=summed_j,
            power_ticks=ticks,
            counter_ticks=None if self.timing.counter_update_s is None else ticks,
            counter=tuple(looks),
            idle_power_w=75.0,
            limit_w=700.0,
        )

    def measured(self, from_s: float, to_s: float, change: Callable[[Evidence], Evidence] = lambda e: e) -> Estimate:
        """A window as a monitor would measure it: 10 Hz, and both edges."""
        polls_s = [*np.arange(0.05, to_s, 0.1), from_s, to_s]
        looks_s = [] if self.timing.counter_update_s is None else [from_s, to_s]
        return estimate(from_s, to_s, change(self.evidence(polls_s, looks_s)))


WINDOWS = st.tuples(st.floats(5.0, 8.0), st.sampled_from([0.01, 0.05, 0.1, 0.3, 1.0, 10.0]))
SENSORS = st.sampled_from([EXACT_100, EXACT_20, QUARTER_100, NO_COUNTER])


@given(window=WINDOWS, timing=SENSORS, power_w=st.floats(100.0, 700.0))
@settings(max_examples=60, deadline=None)
def test_constant_power_is_measured_to_the_last_digit_at_any_phase(
    window: tuple[float, float], timing: SensorTiming, power_w: float
) -> None:
    from_s, to_s = window[0], window[0] + window[1]
    found = Scene(constant(power_w), timing).measured(from_s, to_s)
    assert found.energy_j == pytest.approx(power_w * window[1], abs=0.01 * window[1] + 0.002)


@given(from_s=st.floats(5.0, 8.0))
@settings(max_examples=30, deadline=None)
def test_a_window_shorter_than_one_tick_is_not_zero(from_s: float) -> None:
    scene = Scene(square(0.5, 150.0, 600.0), EXACT_100)
    found = scene.measured(from_s, from_s + 0.02)
    assert 0.02 * 140.0 < found.energy_j < 0.02 * 610.0


LOADS = {
    "constant": lambda: constant(450.0),
    "1 Hz square wave": lambda: square(1.0, 90.0, 650.0),
    "50 ms bursts": lambda: square(0.25, 90.0, 650.0, share=0.2),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("timing", [EXACT_100, EXACT_20], ids=["100 ms", "20 ms"])
def test_the_counter_path_is_within_one_period_times_power(
    load: str, timing: SensorTiming, scenario: Callable[..., Shown]
) -> None:
    period_s = timing.counter_update_s or 0.0
    shown = scenario(
        "R20", f"counter every {period_s * 1e3:.0f} ms against the truth", criterion="error ≤ 1 period × P"
    )
    worst = []
    for start in np.linspace(5.0, 6.0, 23):
        for length_s in (0.3, 1.0, 5.0):
            scene = Scene(LOADS[load](), timing)
            found = scene.measured(start, start + length_s)
            worst.append(abs(found.energy_j - scene.truth_j(start, start + length_s)))
            assert found.source is Source.COUNTER
    assert max(worst) <= period_s * 650.0
    shown.saw(f"{load}: {max(worst) / (period_s * 650.0):.2f}")


@pytest.mark.parametrize("load", LOADS)
def test_the_integrated_path_states_an_error_that_covers_the_truth(load: str, scenario: Callable[..., Shown]) -> None:
    shown = scenario("R20", "integrated power against the truth", criterion="within 2 σ stated, > 90 % of windows")
    within, ratios = [], []
    for start in np.linspace(5.0, 6.0, 23):
        for length_s in (0.3, 1.0, 5.0):
            scene = Scene(LOADS[load](), NO_COUNTER)
            found = scene.measured(start, start + length_s)
            off_j = abs(found.energy_j - scene.truth_j(start, start + length_s))
            assert found.source is Source.INTEGRATED
            within.append(off_j <= 2.0 * found.error_j)
            ratios.append(found.error_j / (length_s * 650.0))
    assert np.mean(within) > 0.9
    assert np.median(ratios) < 0.05
    shown.saw(f"{load}: {np.mean(within):.0%}")


def test_two_halves_add_up_to_the_whole() -> None:
    scene = Scene(square(0.37, 120.0, 600.0), EXACT_100)
    whole = scene.measured(5.0, 8.0)
    first, second = (Scene(square(0.37, 120.0, 600.0), EXACT_100).measured(a, b) for a, b in ((5.0, 6.61), (6.61, 8.0)))
    apart_j = abs(first.energy_j + second.energy_j - whole.energy_j)
    assert apart_j < 2.0 * math.hypot(first.error_j, second.error_j, whole.error_j)


def test_a_longer_window_is_relatively_surer() -> None:
    relative = []
    for length_s in (0.1, 1.0, 10.0):
        found = Scene(square(0.37, 120.0, 600.0), EXACT_100).measured(5.0, 5.0 + length_s)
        relative.append(found.error_j / found.energy_j)
    assert relative[0] > 3.0 * relative[1] > 9.0 * relative[2]


def test_a_load_in_step_with_a_part_time_sensor_gets_an_error_bar_that_covers_the_bias() -> None:
    scene = Scene(square(0.1, 80.0, 600.0), QUARTER_100, phase_s=0.03)
    found = scene.measured(5.0, 15.0)
    truth_j = scene.truth_j(5.0, 15.0)
    assert abs(found.energy_j - truth_j) > 0.2 * truth_j  # it sees one and the same quarter of each step
    assert abs(found.energy_j - truth_j) < 2.0 * found.error_j


def test_the_same_load_with_another_step_is_measured_well() -> None:
    scene = Scene(square(0.137, 80.0, 600.0), QUARTER_100)
    found = scene.measured(5.0, 15.0)
    assert abs(found.energy_j - scene.truth_j(5.0, 15.0)) < 2.0 * found.error_j
    assert found.error_j < 0.06 * found.energy_j


def test_unknown_ticks_cost_up_to_one_tick_and_say_so() -> None:
    def forget(evidence: Evidence) -> Evidence:
        return replace(evidence, power_ticks=Ticks.unknown(0.1), counter_ticks=Ticks.unknown(0.1))

    known = Scene(constant(400.0), EXACT_100).measured(5.0, 10.0)
    guessed = Scene(constant(400.0), EXACT_100).measured(5.0, 10.0, forget)
    assert abs(guessed.energy_j - 2000.0) <= 0.1 * 400.0
    assert guessed.error_j == pytest.approx(400.0 * 0.1 / math.sqrt(6.0), rel=0.6)
    assert guessed.error_j > 1.3 * known.error_j


@pytest.mark.parametrize("early_s", [-0.001, 0.0005, 0.002])
def test_where_a_look_may_belong_to_either_tick_power_decides(early_s: float) -> None:
    def blur(evidence: Evidence) -> Evidence:
        ticks = Ticks(PHASE_S + 0.0015, 0.1, 0.003)  # half a standard error late
        return replace(evidence, power_ticks=ticks, counter_ticks=ticks)

    edge_s = 5.0 + PHASE_S + early_s
    found = Scene(constant(400.0), EXACT_100).measured(edge_s, edge_s + 3.05, blur)
    assert found.energy_j == pytest.approx(1220.0, abs=4.0)  # a tick is 40 J
    assert abs(found.energy_j - 1220.0) < 2.0 * found.error_j


def test_where_power_cannot_decide_between_two_ticks_the_error_says_so() -> None:
    def look_late(evidence: Evidence) -> Evidence:
        ticks = Ticks(PHASE_S + 0.0005, 0.02, 0.0006)
        return replace(evidence, power_ticks=ticks, counter_ticks=ticks)

    edge_s = 5.0 + PHASE_S + 0.0004
    sure = Scene(square(0.26, 120.0, 600.0), EXACT_20).measured(edge_s + 0.01, edge_s + 10.03)
    torn = Scene(square(0.26, 120.0, 600.0), EXACT_20).measured(edge_s, edge_s + 10.02, look_late)
    assert torn.error_j > 1.5 * sure.error_j


def test_energy_is_never_negative() -> None:
    scene = Scene([(6.95, 600.0), (30.0, 0.5)], EXACT_100)
    for start_s in np.arange(4.9, 5.4, 0.013):
        assert scene.measured(start_s, start_s + 0.01).energy_j >= 0.0


def test_without_any_reading_there_is_no_energy() -> None:
    empty = np.zeros(0)
    nothing = Evidence(EXACT_100, empty, empty, empty, empty, Ticks.unknown(0.1))
    with pytest.raises(NoReading, match="doctor"):
        estimate(0.0, 1.0, nothing)


def test_a_counter_without_power_is_enough_for_a_window_of_several_ticks() -> None:
    scene = Scene(square(1.0, 120.0, 600.0), EXACT_100)
    full = scene.evidence([], [5.0, 9.0])
    found = estimate(5.0, 9.0, full)
    assert abs(found.energy_j - scene.truth_j(5.0, 9.0)) < 0.1 * 600.0
    assert found.source is Source.COUNTER
    with pytest.raises(NoReading):
        estimate(5.0, 5.01, scene.evidence([], [5.0, 5.01]))


def test_one_reading_gives_an_energy_with_a_wide_error() -> None:
    scene = Scene(constant(400.0), NO_COUNTER)
    found = estimate(5.0, 6.0, scene.evidence([5.2]))
    assert found.energy_j == pytest.approx(400.0, rel=1e-3)
    assert found.error_j > 10.0


def test_a_stuck_counter_is_called_out_instead_of_believed() -> None:
    def stuck(evidence: Evidence) -> Evidence:
        looks = [replace(look, energy_j=10.0 + 0.001 * i) for i, look in enumerate(evidence.counter)]
        return replace(evidence, counter=tuple(looks))

    found = Scene(constant(400.0), EXACT_100).measured(5.0, 10.0, stuck)
    assert any("disagree" in note for note in found.notes)
    assert found.error_j > 1500.0


def test_a_hole_in_the_readings_widens_the_error() -> None:
    scene = Scene(square(0.7, 120.0, 600.0), NO_COUNTER)
    polls_s = np.arange(0.05, 15.0, 0.1)
    whole = estimate(5.0, 14.0, scene.evidence(list(polls_s)))
    holed = estimate(
        5.0,
        14.0,
        Scene(square(0.7, 120.0, 600.0), NO_COUNTER).evidence([t for t in polls_s if not 8.0 < t < 11.0]),
    )
    assert holed.error_j > 3.0 * whole.error_j
    assert abs(holed.energy_j - scene.truth_j(5.0, 14.0)) < 2.0 * holed.error_j


def test_readings_left_out_of_a_long_window_are_replaced_by_their_sum() -> None:
    scene = Scene(square(0.7, 120.0, 600.0), NO_COUNTER, length_s=80.0)
    full = scene.evidence(list(np.arange(0.05, 70.0, 0.1)))
    keep = (full.time_s < 6.0) | (full.time_s > 45.0)
    part = replace(
        full,
        time_s=full.time_s[keep],
        power_w=full.power_w[keep],
        utilization=full.utilization[keep],
        summed_j=full.summed_j[keep],
        left_out=int(np.count_nonzero(full.time_s < 6.0)),
    )
    found = estimate(5.0, 69.0, part)
    assert found.energy_j == pytest.approx(scene.truth_j(5.0, 69.0), abs=2.0 * found.error_j)
    assert found.error_j < 0.02 * found.energy_j


def test_a_slow_average_is_a_sensor_too() -> None:
    timing = replace(NO_COUNTER, power_window_s=1.0)
    scene = Scene([(9.95, 200.0), (30.0, 500.0)], timing)
    found = scene.measured(5.0, 15.0)
    assert found.energy_j == pytest.approx(scene.truth_j(5.0, 15.0), abs=2.0 * found.error_j)
    assert found.energy_j == pytest.approx(scene.truth_j(5.0, 15.0), rel=0.02)
