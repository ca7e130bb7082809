"""Series as exporters leave them, joined window by window: whose joules, busy or idle, through gaps and resets."""

import math

import numpy as np
import pytest

from bench.estimate_history import Kept, Line, span_of
from joulewise.core.errors import NoReading
from joulewise.device.dcgm import METRICS
from joulewise.monitor import prometheus
from joulewise.monitor.fleet import Fleet, read
from joulewise.monitor.prometheus import Span

SERIES = {metric.name: metric for metric in METRICS}
START_S = span_of([Line("x", {}, [1.7e9], [0.0])]).start_s - 300.0
EVERY_S = 30.0
HOUR = 120  # scrapes


def lines(
    gpu: str = "GPU-1", *, job: str = "", hours: float = 1.0, first: float = 0.0, name: str = "NVIDIA H200", **values
) -> list[Line]:
    """Constant series of one GPU over some hours; values in our units."""
    labels = {"UUID": gpu, "modelName": name, "Hostname": "node", "instance": "node:9400"}
    if job:
        labels["hpc_job"] = job
    times = [START_S + 3600 * first + EVERY_S * (i + 1) for i in range(round(hours * HOUR))]
    return [
        Line(SERIES[metric].series, labels, times, [value / SERIES[metric].factor] * len(times))
        for metric, value in values.items()
    ]


def told(some: list[Line], **more) -> Fleet:
    return read(Kept(some), span_of(some), **more)


BUSY = {"power_w": 600.0, "sm_mhz": 1800.0, "engine": 0.9, "dram_active": 0.3, "limit_w": 700.0}
IDLE = {"power_w": 80.0, "sm_mhz": 345.0, "engine": 0.0, "dram_active": 0.0}


def test_a_job_has_its_joules_its_gpus_and_its_means():
    fleet = told(lines("GPU-1", job="a", **BUSY) + lines("GPU-2", job="a", **{**BUSY, "power_w": 400.0}))
    (work,) = fleet.works
    assert (work.job, work.gpus, work.busy_s) == ("a", 2, 7200.0)
    assert work.energy_j == pytest.approx(1000.0 * 3600.0)
    assert (work.sight.power_w, work.sight.sm_mhz, work.sight.busy) == pytest.approx((500.0, 1800.0, 0.9))
    assert (work.sight.dram_active, work.sight.limit_w) == pytest.approx((0.3, 700.0))
    assert work.sight.sm_active is None
    assert fleet.covered_s == 3600.0


def test_idle_energy_is_told_apart_and_by_whether_a_job_holds_the_gpu():
    some = lines(job="a", **BUSY) + lines(job="a", first=1.0, hours=0.5, **IDLE) + lines(first=1.5, hours=0.5, **IDLE)
    (kind,) = told(some).kinds
    assert (kind.held_j, kind.free_j) == pytest.approx((80.0 * 1800.0, 80.0 * 1800.0))
    assert kind.energy_j == pytest.approx(600.0 * 3600.0 + 80.0 * 3600.0)
    assert (kind.held_s, kind.free_s) == (1800.0, 1800.0)


def test_without_any_activity_idle_is_told_by_power():
    some = lines(job="a", power_w=600.0) + lines(job="a", first=1.0, power_w=85.0)
    fleet = told(some)
    assert [work.busy_s for work in fleet.works] == [3600.0]
    assert fleet.kinds[0].held_s == 3600.0
    assert {metric.name for metric in fleet.missing} == set(SERIES) - {"power_w"}


def test_little_power_at_a_high_clock_is_light_work_not_idleness_where_no_activity_is_exported():
    light = told(lines(job="a", power_w=130.0, sm_mhz=1980.0))
    assert [work.busy_s for work in light.works] == [3600.0]
    assert told(lines(job="a", power_w=85.0, sm_mhz=345.0)).works == ()


def test_windows_without_a_job_are_told_apart_by_how_they_look():
    some = lines("GPU-1", **BUSY) + lines("GPU-2", **{**BUSY, "power_w": 250.0, "dram_active": 0.8})
    fleet = told(some)
    assert sorted(round(work.sight.power_w) for work in fleet.works) == [250, 600]
    assert all(work.job == "" for work in fleet.works)


def test_one_gpu_counts_once_however_many_series_show_it():
    twice = lines("GPU-1", job="a", **BUSY)
    for line in lines("GPU-1", job="a", **BUSY):
        twice.append(Line(line.series, {**line.labels, "instance": "other:9400"}, line.times_s, line.values))
    assert told(twice).kinds[0].energy_j == pytest.approx(600.0 * 3600.0)
    assert told(twice).kinds[0].gpus == 1


def test_moments_without_a_series_are_neither_time_nor_energy():
    some = lines(job="a", **BUSY) + lines(job="a", first=5.0, **BUSY)
    fleet = told(some)
    assert fleet.covered_s == 7200.0
    assert fleet.kinds[0].energy_j == pytest.approx(600.0 * 7200.0)


def test_energy_counters_correct_what_sampled_power_misses_through_a_reset():
    some = lines(job="a", **BUSY)
    counter = [660.0 * EVERY_S * i for i in range(HOUR // 2)] + [660.0 * EVERY_S * i for i in range(HOUR // 2)]
    some.append(Line(SERIES["energy_j"].series, some[0].labels, some[0].times_s, [j * 1000.0 for j in counter]))
    fleet = told(some)
    assert fleet.kinds[0].counted
    assert fleet.kinds[0].energy_j == pytest.approx(660.0 * 3600.0, rel=0.02)


def test_energy_counters_in_another_unit_are_not_used_and_that_is_said():
    some = lines(job="a", **BUSY)
    counter = [0.6 * EVERY_S * i for i in range(HOUR)]
    some.append(Line(SERIES["energy_j"].series, some[0].labels, some[0].times_s, counter))
    fleet = told(some)
    assert not fleet.kinds[0].counted
    assert fleet.kinds[0].energy_j == pytest.approx(600.0 * 3600.0)
    assert any("are not used" in note for note in fleet.notes)


def test_what_dcgm_writes_for_no_value_is_no_value():
    some = lines(job="a", **BUSY)
    for line in some:
        if line.series == SERIES["sm_mhz"].series:
            line.values[:] = [9.2e18] * len(line.values)
    assert told(some).works[0].sight.sm_mhz is None


def test_split_gpus_are_marked():
    some = lines(job="a", **BUSY)
    for line in some:
        line.labels["GPU_I_ID"] = "2"
    assert told(some).works[0].split


def test_a_clock_is_that_of_the_work_not_of_the_pauses():
    some = lines("GPU-1", job="a", **BUSY) + lines(
        "GPU-1", job="a", first=1.0, **{**BUSY, "engine": 0.1, "sm_mhz": 600.0}
    )
    assert told(some).works[0].sight.sm_mhz == pytest.approx(0.9 * 1800.0 + 0.1 * 600.0)


def test_a_range_read_in_pieces_gives_the_same_as_in_one(monkeypatch):
    some = lines("GPU-1", job="a", **BUSY) + lines("GPU-2", first=0.5, **{**BUSY, "power_w": 300.0})
    whole = told(some)
    monkeypatch.setattr(prometheus, "MOST_VALUES", 20)
    asked: list[str] = []
    pieces = told(some, progress=asked.append)
    assert len(asked) > 2
    assert [(work.job, work.busy_s) for work in pieces.works] == [(work.job, work.busy_s) for work in whole.works]
    assert [work.energy_j for work in pieces.works] == pytest.approx([work.energy_j for work in whole.works])
    assert pieces.covered_s == whole.covered_s


def test_memory_does_not_grow_with_the_length_of_the_history():
    """What is kept of ten times as many windows is no more."""

    def kept(hours: float) -> int:
        fleet = told(lines(job="a", hours=hours, **BUSY) + lines("GPU-2", hours=hours, **BUSY))
        return len(fleet.works) + len(fleet.kinds)

    assert kept(10.0) == kept(1.0)


class Nothing(Kept):
    """A server without power series; ``some``: other DCGM series."""

    def __init__(self, some: float) -> None:
        super().__init__([])
        self._some = some

    def now(self, query, time_s):
        return [({}, self._some)] if "__name__" in query and self._some else []


@pytest.mark.parametrize(
    ("some", "match", "words"),
    [
        (0.0, "", "has no DCGM series in the last"),
        (5.0, "", "but no DCGM_FI_DEV_POWER_USAGE"),
        (5.0, 'cluster="b"', "check --match"),
    ],
)
def test_where_there_is_nothing_to_read_the_way_out_is_said(some, match, words):
    with pytest.raises(NoReading, match=words):
        read(Nothing(some), Span(START_S, 300.0, 12), match=match)


def test_the_error_of_a_mean_power_falls_with_the_windows():
    rng = np.random.default_rng(0)
    some = lines(job="a", hours=8.0, **BUSY)
    for line in some:
        if line.series == SERIES["power_w"].series:
            line.values[:] = list(rng.normal(600.0, 200.0, len(line.values)))
    assert told(some).works[0].sight.power_error == pytest.approx(200.0 / 600.0 / math.sqrt(8.0 * HOUR), rel=0.3)
