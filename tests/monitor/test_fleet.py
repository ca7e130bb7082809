"""Series as exporters leave them, joined window by window: whose joules, busy or idle, through gaps and resets."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.estimate_history import Kept, Line, span_of
from joulewise.core.errors import BadSpec, NoReading
from joulewise.device.dcgm import METRICS
from joulewise.monitor import prometheus
from joulewise.monitor.fleet import Fleet, read
from joulewise.monitor.prometheus import Span

SERIES = {metric.name: metric for metric in METRICS}
START_S = span_of([Line("x", {}, [1.7e9], [0.0])]).start_s - 300.0
EVERY_S = 30.0
HOUR = 120  # scrapes


def lines(
    gpu: str = "GPU-1",
    *,
    job: str = "",
    hours: float = 1.0,
    first: float = 0.0,
    name: str = "NVIDIA H200",
    every_s: float = EVERY_S,
    instance: str = "",
    **values,
) -> list[Line]:
    """Constant series of one GPU over some hours; values in our units. ``instance``: of a split GPU."""
    labels = {"UUID": gpu, "modelName": name, "Hostname": "node", "instance": "node:9400"}
    if job:
        labels["hpc_job"] = job
    if instance:
        labels["GPU_I_ID"] = instance
    times = [START_S + 3600 * first + every_s * (i + 1) for i in range(round(hours * 3600.0 / every_s))]
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


def test_a_split_gpu_is_busy_where_one_of_its_instances_is_and_its_energy_is_nobodys():
    resting, training = {**BUSY, "engine": 0.0, "sm_active": 0.0}, {**BUSY, "engine": 0.95, "sm_active": 0.9}
    some = lines(job="notebook", instance="1", **resting) + lines(job="train", instance="2", **training)
    for order in (some, some[::-1]):
        fleet = told(order)
        (work,) = fleet.works
        assert (work.split, work.job, work.gpus) == (True, "", 1)
        assert work.energy_j == pytest.approx(600.0 * 3600.0)
        assert (fleet.kinds[0].held_j, fleet.kinds[0].free_j) == (0.0, 0.0)
        assert fleet.kinds[0].energy_j == pytest.approx(600.0 * 3600.0)


def test_a_split_gpu_is_held_while_idle_where_one_of_its_instances_is_somebodys():
    fleet = told(lines(instance="1", **IDLE) + lines(job="notebook", instance="2", **IDLE))
    assert fleet.works == ()
    assert fleet.kinds[0].held_j == pytest.approx(80.0 * 3600.0)


def test_a_gpu_is_split_where_only_its_activity_says_so():
    fleet = told(lines(power_w=300.0) + lines(job="a", instance="1", engine=0.5))
    assert [(work.split, work.job) for work in fleet.works] == [(True, "")]


def test_a_clock_is_that_of_the_work_not_of_the_pauses():
    some = lines("GPU-1", job="a", **BUSY) + lines(
        "GPU-1", job="a", first=1.0, **{**BUSY, "engine": 0.1, "sm_mhz": 600.0}
    )
    assert told(some).works[0].sight.sm_mhz == pytest.approx(0.9 * 1800.0 + 0.1 * 600.0)


NOTHING = 9223372036854775794.0
"""What DCGM writes where it cannot read."""


def test_power_that_is_never_a_value_is_as_good_as_none():
    for nothing_w in (NOTHING, 0.0):
        with pytest.raises(NoReading, match="no value in DCGM_FI_DEV_POWER_USAGE"):
            told(lines(job="a", **{**BUSY, "power_w": nothing_w}))


def test_a_gpu_without_a_usable_power_costs_no_other_its_answer_and_is_told():
    good = lines("GPU-1", job="a", **BUSY)
    fleet = told(good + lines("GPU-2", job="b", **{**BUSY, "power_w": 0.0}))
    assert [(work.job, work.energy_j) for work in fleet.works] == [("a", pytest.approx(600.0 * 3600.0))]
    assert fleet.kinds[0].gpus == 1
    assert "1 of 2 GPUs are left out: their power is never a value" in fleet.notes
    assert told(good).notes == ()


def test_metrics_that_are_never_a_value_are_missing():
    odd = {"sm_mhz": 0.0, "memory_mhz": 0.0, "limit_w": 0.0, "dram_active": NOTHING, "util": 0.0}
    fleet = told(lines(job="a", **{**BUSY, **odd}))
    assert {metric.name for metric in fleet.missing} == {
        "sm_mhz",
        "memory_mhz",
        "limit_w",
        "dram_active",
        "sm_active",
        "energy_j",
    }


@pytest.mark.parametrize(
    ("every_s", "step_s", "used_s"), [(120.0, 60.0, 240.0), (60.0, 15.0, 120.0), (30.0, 60.0, 60.0)]
)
def test_energy_does_not_depend_on_how_often_gpus_are_scraped(every_s, step_s, used_s):
    some = []
    for number in range(4):
        of_gpu = lines(f"GPU-{number}", job="a", hours=4.0, every_s=every_s, **BUSY)
        apart_s = number * every_s / 4.0
        some += [replace(line, times_s=[at_s + apart_s for at_s in line.times_s]) for line in of_gpu]
    fleet = read(Kept(some), Span(START_S + step_s, step_s, round(4 * 3600.0 / step_s)))
    assert fleet.step_s == used_s
    assert fleet.kinds[0].energy_j / fleet.covered_s == pytest.approx(4 * 600.0, rel=0.02)
    said = [f"windows of {used_s:g} s, not {step_s:g}: power is scraped every {every_s:g} s"]
    assert list(fleet.notes) == ([] if used_s == step_s else said)


def test_gpus_with_gaps_are_told():
    some = lines("GPU-1", job="a", hours=10.0, **BUSY)
    for first in (0.0, 5.0, 9.0):
        some += lines("GPU-2", job="a", first=first, **BUSY)
    fleet = told(some)
    assert any(note.startswith("1 of 2 GPUs have readings in less than 80 % of the windows") for note in fleet.notes)


def test_what_the_server_warns_of_is_told():
    some = lines(job="a", **BUSY)
    server = Kept(some)
    server.warnings = ("store 3 is unavailable",)
    fleet = read(server, span_of(some))
    assert any("store 3 is unavailable" in note for note in fleet.notes)


def test_a_label_that_no_series_has_is_refused_with_those_that_there_are():
    with pytest.raises(BadSpec, match=r"--by usr: no series has that label; there are Hostname, UUID, hpc_job"):
        told(lines(job="a", **BUSY), by=("hpc_job", "usr"))


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
    """A server without power series; ``some``: other DCGM series, without any label."""

    def __init__(self, some: float) -> None:
        super().__init__([])
        self._some = some

    def now(self, query, time_s):
        return [({}, self._some)] if "__name__" in query and "cluster" not in query and self._some else []


@pytest.mark.parametrize(
    ("some", "match", "words"),
    [
        (0.0, "", "has no DCGM series between 2023-11-14 21:55 and 2023-11-14 22:55 UTC; is dcgm-exporter scraped"),
        (5.0, "", "no value in DCGM_FI_DEV_POWER_USAGE between 2023-11-14 21:55 and"),
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
