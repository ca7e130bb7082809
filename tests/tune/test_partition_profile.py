"""Candidates measured on a virtual GPU that warms up, in virtual time, against what its law says they cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.measurement import Reading
from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, physics
from joulewise.model.physics import Load
from joulewise.monitor import Monitor, Sampler
from joulewise.tune.pareto import Column, ParetoSearch
from joulewise.tune.partition_profile import PartitionProfiler, Profiled, Run, explore

A40 = catalog.load("a40")
STATIC_W = A40.chip.idle_w
COLUMNS = (Column("sm_mhz", "linear"), Column("sms", "log"), Column("slot", "category"))
CANDIDATES = [
    (mhz, sms, slot) for mhz in (1740.0, 1305.0, 900.0) for sms in (3.0, 6.0, 12.0) for slot in ("norm", "gemm")
]


def load(sms: float, slot: str) -> Load:
    """One execution at maximum clock: few SMs expose communication, many starve the rest; beside the norm is worse."""
    seconds = 0.004 + 0.004 / sms + 0.0001 * sms + (0.0004 if slot == "norm" else 0.0)
    return Load(seconds, 0.7, 150.0 + 2.0 * sms, dram_share=0.2)


class Bench:
    """A cold A40, a monitor on it, and how candidates run there."""

    def __init__(self, *, seed: int = 0, thermometer: bool = True, jitter: float = 0.0) -> None:
        self.time = VirtualTime()
        self.gpu = (VirtualGpu if thermometer else Blind)(A40, time=self.time, seed=seed, gain=1.0)
        self.monitor = Monitor(sampler=Sampler([self.gpu], seed=seed))
        self.time.sleep(3.0)
        self._jitter, self._random = jitter, random.Random(seed)

    def prepare(self, candidate: Sequence[float | str]) -> Run:
        mhz, sms, slot = candidate
        self.gpu.apply(Setting(sm_mhz=float(mhz)))
        one = load(float(sms), str(slot))

        def run(count: int) -> None:
            seconds = one.gpu_s * count * self._random.gauss(1.0, self._jitter)
            self.time.run(self.gpu.finish(self.gpu.submit(replace(one, gpu_s=seconds))))

        return run


class Blind(VirtualGpu):
    """A GPU that does not say how warm it is."""

    def read(self) -> Reading:
        return replace(super().read(), temperature_c=None)


def truth(candidate: Sequence[float | str], temperature_c: float) -> tuple[float, float]:
    """Seconds and joules of one execution at a temperature, by the law."""
    mhz, sms, slot = candidate
    found = physics.operate(
        A40.chip,
        load(float(sms), str(slot)),
        lock_mhz=float(mhz),
        limit_w=A40.default_limit_w,
        temperature_c=temperature_c,
    )
    return found.step_s, found.energy_j


def check(seen: Profiled, candidate: Sequence[float | str], temperature_c: float) -> None:
    time_s, energy_j = truth(candidate, temperature_c)
    assert abs(seen.time_s - time_s) <= 3.5 * seen.time_error_s + 1e-6 * time_s
    assert abs(seen.energy_j - energy_j) <= 3.5 * seen.energy_error_j
    assert seen.energy_error_j < 0.015 * seen.energy_j


def test_a_cold_start_does_not_make_the_first_candidate_look_thrifty() -> None:
    cold = Bench()
    run = cold.prepare(CANDIDATES[0])
    with cold.monitor.window() as window:
        run(500)
    naive_j = window.report.energy_j / 500
    bench = Bench()
    profiler = PartitionProfiler(bench.monitor, static_w=STATIC_W)
    first = profiler.measure(bench.prepare(CANDIDATES[0]))
    again = profiler.measure(bench.prepare(CANDIDATES[0]))
    assert naive_j < 0.97 * first.energy_j
    assert first.reached
    assert again.reached
    apart_j = abs(first.energy_j - again.energy_j)
    assert apart_j <= 3.5 * (first.energy_error_j**2 + again.energy_error_j**2) ** 0.5
    assert profiler.reference_c is not None
    assert profiler.reference_c > 50.0
    check(first, CANDIDATES[0], profiler.reference_c)


def test_every_candidate_is_told_as_at_one_temperature_within_its_error() -> None:
    for seed in (1, 2):
        bench = Bench(seed=seed, jitter=0.002)
        profiler = PartitionProfiler(bench.monitor, static_w=STATIC_W)
        order = list(CANDIDATES)
        random.Random(seed).shuffle(order)
        warmths = set()
        for candidate in order[:8]:
            seen = profiler.measure(bench.prepare(candidate))
            assert profiler.reference_c is not None
            check(seen, candidate, profiler.reference_c)
            warmths.add(seen.temperature_c)
        assert len(warmths) > 3  # they did not happen to be as warm


def test_only_the_first_candidate_waits_for_warmth() -> None:
    bench = Bench()
    profiler = PartitionProfiler(bench.monitor, static_w=STATIC_W)
    profiler.measure(bench.prepare(CANDIDATES[0]))
    first_s = bench.time.now_s()
    profiler.measure(bench.prepare(CANDIDATES[5]))
    assert first_s > 60.0
    assert bench.time.now_s() - first_s < 15.0


def test_energy_falls_into_waiting_and_the_rest_and_becomes_an_option() -> None:
    bench = Bench()
    seen = PartitionProfiler(bench.monitor, static_w=STATIC_W).measure(bench.prepare(CANDIDATES[3]))
    assert seen.static_j == pytest.approx(STATIC_W * seen.time_s)
    assert seen.static_j + seen.dynamic_j == pytest.approx(seen.energy_j)
    assert 0.0 < seen.dynamic_j < seen.energy_j
    point = seen.point("gemm×6")
    assert (point.setting, point.time_s, point.energy_error_j) == ("gemm×6", seen.time_s, seen.energy_error_j)


def test_more_noise_takes_longer_and_what_stays_unsure_is_said() -> None:
    quiet, loud = Bench(jitter=0.001), Bench(jitter=0.2)
    calm, wild = (PartitionProfiler(one.monitor, static_w=STATIC_W, limit_s=20.0) for one in (quiet, loud))
    seen, unsure = calm.measure(quiet.prepare(CANDIDATES[0])), wild.measure(loud.prepare(CANDIDATES[0]))
    assert seen.reached
    assert not unsure.reached
    assert unsure.stretches > seen.stretches
    assert unsure.time_error_s > 0.01 * unsure.time_s


def test_a_gpu_without_a_thermometer_is_warmed_by_the_clock() -> None:
    bench = Bench(thermometer=False)
    profiler = PartitionProfiler(bench.monitor, static_w=STATIC_W)
    seen = profiler.measure(bench.prepare(CANDIDATES[0]))
    assert (seen.temperature_c, profiler.reference_c) == (None, None)
    check(seen, CANDIDATES[0], bench.gpu.truth().temperature_c)


def test_a_search_is_fed_until_it_has_enough_and_what_cannot_run_is_barred() -> None:
    bench = Bench()
    barred, asked = {("gemm", 1305.0), ("norm", 1305.0)}, list[object]()

    def prepare(candidate: Sequence[float | str]) -> Run:
        asked.append(tuple(candidate))
        if candidate[1] == 12.0:
            raise Unsupported("so many SMs cannot be set aside")
        if (candidate[2], candidate[0]) in barred:
            return _fails(OutOfMemoryError)
        return bench.prepare(candidate)

    search = ParetoSearch(COLUMNS, CANDIDATES, seed=4)
    frontier = explore(search, PartitionProfiler(bench.monitor, static_w=STATIC_W), prepare)
    found = {point.setting for point in frontier}
    true = {one: truth(one, 60.0) for one in CANDIDATES if one[1] != 12.0 and (one[2], one[0]) not in barred}
    best = {
        one for one, (t, e) in true.items() if not any(a <= t and b <= e and (a, b) != (t, e) for a, b in true.values())
    }
    assert found == best
    assert len(asked) <= len(CANDIDATES)
    assert all(point.energy_error_j > 0 for point in frontier)


class OutOfMemoryError(RuntimeError):
    """As a framework has one."""


def _fails(error: type[Exception]) -> Callable[[int], None]:
    def run(count: int) -> None:
        raise error(f"{count} were too many")

    return run


def test_another_error_ends_the_search() -> None:
    bench = Bench()
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=4)
    profiler = PartitionProfiler(bench.monitor, static_w=STATIC_W)
    with pytest.raises(RuntimeError, match="too many"):
        explore(search, profiler, lambda _: _fails(RuntimeError))


@pytest.mark.parametrize(
    "wrong", [{"static_w": -1.0}, {"relative_error": 0.0}, {"stretch_s": 0.0}, {"limit_s": -2.0}, {"warm_s": -1.0}]
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadSpec, match="0 or more"):
        PartitionProfiler(Bench().monitor, **{"static_w": 80.0} | wrong)
