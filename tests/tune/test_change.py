"""Change detection: quick on true shifts, silent on noise, drift of a degree and changes of setting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bench.recorded_steps import load
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model.jitter import Jitter
from joulewise.tune.change import ChangeDetector, Shift, matters

JITTER = Jitter(0.01, 0.3, 4.0)


def first(factors: list[float], *, setting: Setting = DEFAULT) -> tuple[int, Shift] | None:
    detector = ChangeDetector()
    for index, factor in enumerate(factors):
        if (found := detector.tell(setting, 0.1 * factor)) is not None:
            return index, found
    return None


def steps(seed: str, count: int, jitter: Jitter = JITTER) -> list[float]:
    return list(itertools.islice(jitter.factors(seed), count))


def shifted(seed: str, size: float, *, at: int = 300, count: int = 400) -> list[float]:
    return [f * (math.exp(size) if i >= at else 1.0) for i, f in enumerate(steps(seed, count))]


# One standard deviation of what is left of a step once its neighbour is known, as a lasting shift.
SIGMA = 0.01 * math.sqrt(1 - 0.3**2) / (1 - 0.3)


@pytest.mark.parametrize(("sigmas", "most"), [(1.0, 25), (2.0, 10), (3.0, 7)])
@pytest.mark.parametrize("sign", [1, -1])
def test_shifts_are_found_soon(sigmas: float, most: int, sign: int) -> None:
    delays = []
    for seed in range(80):
        found = first(shifted(f"soon {seed}", sign * sigmas * SIGMA))
        delays.append(found[0] - 299 if found is not None and found[0] >= 300 else 100)
    assert np.median(delays) <= most


def test_steady_noise_hardly_ever_cries() -> None:
    detector = ChangeDetector()
    assert sum(detector.tell(DEFAULT, factor) is not None for factor in steps("steady", 30_000)) <= 1


def test_a_large_shift_is_called_large_and_a_small_one_small() -> None:
    doubled = first(shifted("large", math.log(2.0)))
    nudged = first(shifted("small", math.log(1.04)))
    assert doubled is not None
    assert nudged is not None
    assert doubled[1].kind == "large"
    assert doubled[1].size == pytest.approx(1.0, abs=0.1)
    assert doubled[1].steps <= 12
    assert "seconds a step changed by" in doubled[1].says
    assert nudged[1].kind == "small"
    assert nudged[1].size == pytest.approx(0.04, abs=0.02)


def test_a_change_of_setting_is_no_change_of_the_job() -> None:
    detector, low = ChangeDetector(), Setting(sm_mhz=1200)
    for index, factor in enumerate(steps("settings", 2000)):
        setting = low if index // 20 % 2 else DEFAULT
        assert detector.tell(setting, factor * (1.3 if setting == low else 1.0)) is None


def test_a_shift_is_found_across_settings() -> None:
    detector, low = ChangeDetector(), Setting(sm_mhz=1200)
    for index, factor in enumerate(steps("across", 600)):
        setting = low if index // 5 % 2 else DEFAULT
        slow = (1.3 if setting == low else 1.0) * (1.1 if index >= 400 else 1.0)
        if detector.tell(setting, factor * slow) is not None:
            assert 400 <= index <= 412
            return
    pytest.fail("the shift was not found")


def test_single_stalls_are_no_change() -> None:
    factors = [f * (2.5 if i % 50 == 49 else 1.0) for i, f in enumerate(steps("stalls", 3000))]
    assert first(factors) is None


def test_a_chip_that_warms_up_is_no_change() -> None:
    even = steps("even", 2000, Jitter(0.0003, 0.0, 4.0))
    assert first([f * (1 + 0.002 * (1 - math.exp(-i / 300.0))) for i, f in enumerate(even)]) is None


@pytest.mark.parametrize("size", [0.005, -0.005, 0.007])
@pytest.mark.parametrize("spread", [0.001, 0.004])
def test_what_does_not_matter_is_no_change_however_sure_it_is(size: float, spread: float) -> None:
    """A simulator on a busy box, a chip that got warm: half a per cent, for good."""
    even = steps(f"matters {size}", 3000, Jitter(spread, 0.0, 4.0))
    assert first([f * (math.exp(size) if i >= 300 else 1.0) for i, f in enumerate(even)]) is None


def test_small_shifts_that_add_up_are_a_change() -> None:
    even = steps("adds up", 3000, Jitter(0.001, 0.0, 4.0))
    found = first([f * math.exp(0.006 * (i // 500)) for i, f in enumerate(even)])
    assert found is not None
    assert 1000 <= found[0] < 1100
    assert found[1].size == pytest.approx(0.012, abs=0.003)


def test_half_the_bound_is_what_matters() -> None:
    assert matters(0.02) == matters(0.01) == matters(math.inf) == 0.01
    assert matters(0.10) == 0.05
    detector = ChangeDetector(matters(0.10))
    assert not any(detector.tell(DEFAULT, factor) for factor in shifted("half", 0.03, count=2000))
    assert any(detector.tell(DEFAULT, factor * math.exp(0.03)) for factor in shifted("then", 0.06, at=0, count=300))


@pytest.mark.parametrize("seed", range(3))
def test_a_steady_job_on_a_busy_box_is_the_same_job(seed: int) -> None:
    """Stamps of a fast simulation: in ticks, late at times, and steps half a per cent longer while the box is busy."""
    rng = np.random.default_rng(seed)
    busy = np.repeat(rng.random(120) < 0.3, 50)
    steps_s = 0.2 * np.where(busy, 1.005, 1.0) * np.exp(0.002 * rng.standard_normal(busy.size))
    late_s = rng.exponential(np.where(busy, 0.002, 0.001))
    stamps_s = np.round((np.cumsum(steps_s) + late_s) / 0.001) * 0.001
    assert first(np.diff(stamps_s).tolist()) is None


def test_joules_and_activity_are_watched_too() -> None:
    for stream in ("energy", "dram"):
        detector, found = ChangeDetector(), None
        for index, factor in enumerate(steps(stream, 400)):
            more = 1.2 if index >= 300 else 1.0
            joules = 40.0 * factor * (more if stream == "energy" else 1.0)
            found = detector.tell(
                DEFAULT, 0.1, joules, {"dram": min(1.0, 0.4 * factor * (more if stream == "dram" else 1))}
            )
            if found is not None:
                break
        assert found is not None
        assert found.stream == stream
        assert 300 <= index <= 310


def test_what_cannot_be_read_is_passed_over() -> None:
    detector = ChangeDetector()
    for factor in steps("holes", 200):
        assert detector.tell(DEFAULT, factor, None, None) is None
    assert detector.tell(DEFAULT, math.nan, 0.0) is None


def test_a_job_that_changes_all_the_time_is_left_in_peace() -> None:
    rng = np.random.default_rng(8)
    levels = np.repeat(np.exp(0.1 * rng.standard_normal(200)), 100)
    detector = ChangeDetector()
    cries = [i for i, level in enumerate(levels) if detector.tell(DEFAULT, level * (1 + 0.01 * rng.standard_normal()))]
    assert 1 <= len(cries) < 30
    assert len([cry for cry in cries if cry > 10_000]) <= 3


def test_after_a_shift_the_new_job_is_the_norm() -> None:
    detector, found = ChangeDetector(), []
    for index, factor in enumerate(shifted("norm", math.log(1.5), count=3000)):
        if detector.tell(DEFAULT, factor) is not None:
            found.append(index)
    assert len(found) == 1


def test_on_recorded_steps_the_true_shift_is_found_and_evaluations_are_not() -> None:
    recordings = {recording.name: recording for recording in load()}
    batch_doubles = first(recordings["vit_shift"].together().tolist())
    assert batch_doubles is not None
    # The batch doubles at step 300, of which the first five are warm-up.
    assert 294 <= batch_doubles[0] <= 305
    assert batch_doubles[1].kind == "large"
    for name in ("resnet50", "unet_ema", "dlrm", "bert_buckets", "moe"):
        assert first(recordings[name].together().tolist()) is None, name
