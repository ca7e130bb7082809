"""The partition simulator: laws that hold whatever the parameters, and a fit that finds what made the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import ModelError
from joulewise.model import catalog
from joulewise.model.partition import SEQUENTIAL, Collective, Operation, Partition, Schedule, alone, simulate
from joulewise.model.partition_fit import Clocked, Measured, errors, fit

CHIP = catalog.load("a100-sxm").chip
PARTITION = Partition(
    (
        Operation("norm", 5e-5, 1e-4, 0.01, latency=2.0),
        Operation("linear", 8e-4, 3e-4, 0.2, latency=0.4, queue=0.3),
        Operation("attention", 5e-4, 2e-4, 0.12, latency=0.5, tiles=300),
    ),
    Collective({512: 150.0, 1024: 300.0}, link_per_s=2500.0, hbm_s=1e-4, energy_j=0.02, sm_w=1.0),
    108,
    CHIP,
    80.0,
)
schedules = st.builds(
    lambda window, sms, block, mhz: Schedule(*window, sms, block, mhz),
    st.sampled_from([(-1, -1), (0, 0), (0, 2), (1, 1), (1, 2), (2, 2)]),
    st.integers(1, 40),
    st.sampled_from([512, 1024]),
    st.sampled_from([900.0, 1200.0, 1410.0]),
)


@given(schedules)
def test_overlap_is_never_faster_than_compute_or_communication_alone(schedule: Schedule) -> None:
    x = np.array([(schedule.sm_mhz or 1410.0) / CHIP.sm_max_mhz])
    compute, joules = alone(PARTITION, x)
    told = simulate(
        PARTITION, [schedule, Schedule(SEQUENTIAL, SEQUENTIAL, schedule.sms, schedule.block, schedule.sm_mhz)]
    )
    communication = told.time_s[1] - compute[0]
    assert told.time_s[0] >= max(compute[0], communication) * (1 - 1e-9)
    assert told.energy_j[0] > joules[0]


@given(schedules)
def test_sequential_time_is_the_sum_of_both(schedule: Schedule) -> None:
    one = Schedule(SEQUENTIAL, SEQUENTIAL, schedule.sms, schedule.block, schedule.sm_mhz)
    told = simulate(PARTITION, [one])
    collective = PARTITION.collective
    x = (schedule.sm_mhz or 1410.0) / CHIP.sm_max_mhz
    by_sm = schedule.sms * collective.sm_per_s[schedule.block] * x**collective.clock_power
    rate = (by_sm**-2.0 + collective.link_per_s**-2.0) ** -0.5
    assert told.time_s[0] == pytest.approx(alone(PARTITION, np.array([x]))[0][0] + 1.0 / rate, rel=1e-9)


@settings(max_examples=40)
@given(schedules, st.floats(150.0, 400.0))
def test_a_power_limit_slows_and_is_kept(schedule: Schedule, limit_w: float) -> None:
    free, held = simulate(PARTITION, [schedule]), simulate(PARTITION, [schedule], limit_w=limit_w)
    assert held.time_s[0] >= free.time_s[0] * (1 - 1e-9)
    assert held.energy_j[0] / held.time_s[0] <= limit_w * 1.001 or held.x[0] < 0.2
    assert held.x[0] <= free.x[0] + 1e-12


def test_schedules_do_not_know_of_each_other() -> None:
    several = [Schedule(0, 2, 6, 1024), Schedule(SEQUENTIAL, SEQUENTIAL, 3, 512), Schedule(2, 2, 20, 1024, 1100.0)]
    together = simulate(PARTITION, several, limit_w=300.0)
    for index, schedule in enumerate(several):
        one = simulate(PARTITION, [schedule], limit_w=300.0)
        assert one.time_s[0] == pytest.approx(together.time_s[index], rel=1e-12)
        assert one.energy_j[0] == pytest.approx(together.energy_j[index], rel=1e-12)


def test_whole_waves_cost_where_an_sm_less_begins_another() -> None:
    long = Collective({1024: 800.0}, link_per_s=1e6, hbm_s=1e-5, energy_j=0.02, sm_w=1.0)
    tiled = replace(PARTITION, operations=(Operation("tiled", 1e-3, 1e-5, 0.1, tiles=216),), collective=long)
    plain = replace(tiled, operations=(replace(tiled.operations[0], tiles=0),))
    beside = [Schedule(0, 0, 1, 1024)]  # 216 tiles are two waves of 108 SMs and three of 107
    assert simulate(plain, beside).time_s[0] == pytest.approx(1 / 800.0, rel=1e-3)
    assert simulate(tiled, beside).time_s[0] > 1.1 / 800.0


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (Schedule(0, 3, 4, 512), "outside operations"),
        (Schedule(2, 1, 4, 512), "outside operations"),
        (Schedule(-1, 0, 4, 512), "outside operations"),
        (Schedule(0, 1, 108, 512), "outside 1–107"),
        (Schedule(0, 1, 4, 256), "no rate for blocks"),
        (Schedule(0, 1, 4, 512, 2000.0), "outside 0–1410"),
    ],
)
def test_what_cannot_run_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        simulate(PARTITION, [schedule])


def test_a_fit_predicts_schedules_and_clocks_that_it_has_not_seen() -> None:
    windows = [(-1, -1), (0, 0), (0, 2), (1, 1), (1, 2), (2, 2), (0, 1)]
    every = [Schedule(*window, k, block) for window in windows for k in (1, 3, 6, 12, 20) for block in (512, 1024)]
    smooth = replace(PARTITION, operations=tuple(replace(one, tiles=0) for one in PARTITION.operations))
    told = simulate(smooth, every)
    rows = [Measured(s, float(t), float(e)) for s, t, e in zip(every, told.time_s, told.energy_j, strict=True)]
    x = np.array([1.0, 0.85, 0.7])
    clocks = [
        Clocked(CHIP.sm_max_mhz * part, 7.0 * float(t), 3.0 * float(e))
        for part, t, e in zip(x, *alone(smooth, x), strict=True)
    ]
    found = fit(
        [row for row in rows if row.schedule.sms != 6],
        ("norm", "linear", "attention"),
        sms=108,
        chip=CHIP,
        static_w=85.0,
        clocked=clocks,
    )
    time, energy = errors(found, [row for row in rows if row.schedule.sms == 6])
    assert np.abs(time).mean() < 0.02
    assert np.abs(energy).mean() < 0.02
    other = [replace(schedule, sm_mhz=1100.0) for schedule in every]
    there = simulate(smooth, other)
    rows = [Measured(s, float(t), float(e)) for s, t, e in zip(other, there.time_s, there.energy_j, strict=True)]
    assert np.abs(errors(found, rows)[0]).mean() < 0.04


def test_too_few_schedules_are_refused() -> None:
    with pytest.raises(ModelError, match="cannot tell"):
        fit([Measured(Schedule(0, 0, 1, 512), 1.0, 1.0)], ("a",), sms=108, chip=CHIP, static_w=80.0)
