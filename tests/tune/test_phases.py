"""Phases that nobody marked: recognised when they come back, and only then."""

from __future__ import annotations

import itertools
import random
from bisect import bisect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.measurement import Reading
from joulewise.tune.phases import PhaseFinder
from tests.tiers import examples

Kind = tuple[float, float]  # utilisation, memory utilisation


def shown(
    finder: PhaseFinder,
    kinds: list[tuple[Kind, float]],
    *,
    noise: float = 0.02,
    unit_s: float = 0.3,
    start_s: float = 0.0,
) -> list[str]:
    """What the finder says at the end of each stretch of (kind, seconds)."""
    draw, now_s, said = random.Random(1), start_s, []
    for (busy, memory), duration_s in kinds:
        for _ in range(round(duration_s / 0.1)):
            now_s += 0.1
            jitter = draw.gauss(0.0, noise)
            level = min(1.0, max(0.0, busy + jitter))
            finder.tell(Reading(now_s, utilization=level, memory_utilization=level * memory), unit_s)
        said.append(finder.phase)
    return said


def test_two_kinds_of_work_that_keep_coming_back_are_two_phases() -> None:
    said = shown(PhaseFinder(), [((0.95, 0.9), 20.0), ((0.95, 0.3), 20.0)] * 6)
    late = said[8:]
    assert set(late) == {"a", "b"}
    assert all(one != other for one, other in itertools.pairwise(late))


def test_steady_work_is_one_phase() -> None:
    assert set(shown(PhaseFinder(), [((0.9, 0.4), 30.0)] * 10, noise=0.05)) == {""}


def test_what_comes_and_goes_with_our_own_settings_is_no_phase() -> None:
    finder, now_s, said = PhaseFinder(), 0.0, set()
    for _ in range(8):
        for memory in (0.9, 0.3):
            finder.switched(now_s)
            said |= set(shown(finder, [((0.95, memory), 20.0)], start_s=now_s))
            now_s += 20.0
    assert said == {""}


def test_a_change_for_good_is_no_phase() -> None:
    assert set(shown(PhaseFinder(), [((0.9, 0.4), 120.0), ((0.5, 0.9), 120.0)])) == {""}


def test_what_alternates_within_a_step_is_no_phase() -> None:
    assert set(shown(PhaseFinder(), [((1.0, 0.2), 0.4), ((0.3, 0.9), 0.4)] * 200, unit_s=0.8)) == {""}


def starved(job: list[Kind], parts_s: list[float], *, window_s: float, late_s: float, seed: int) -> set[str]:
    """What is said of a job of steps with these parts, twenty minutes long, by a reader that comes when it may.

    Its sensor shows means over ``window_s``; its readings come 0.1 s to ``late_s`` apart, as on a machine that has no
    processor to spare; now and then the job itself is held up and the GPU waits.
    """
    draw, finder, now_s, busy_until_s, said = random.Random(seed), PhaseFinder(), 0.0, 0.0, set()
    step_s, waits_until_s = sum(parts_s), 0.0
    bounds_s = list(itertools.accumulate(parts_s))
    while now_s < 1200.0:
        now_s += 0.1 if draw.random() < 0.7 else draw.uniform(0.1, late_s)
        if now_s > busy_until_s:
            waits_until_s, busy_until_s = now_s + draw.uniform(0.0, 2.0), now_s + draw.uniform(5.0, 60.0)
        updated_s = now_s - now_s % window_s
        moments_s = [(updated_s - window_s * (i + 0.5) / 20) for i in range(20)]
        kinds = [job[min(bisect(bounds_s, at_s % step_s), len(job) - 1)] for at_s in moments_s]
        waiting = sum(at_s < waits_until_s for at_s in moments_s) / len(moments_s)
        busy = (1.0 - waiting) * sum(kind[0] for kind in kinds) / len(kinds)
        memory = (1.0 - waiting) * sum(kind[0] * kind[1] for kind in kinds) / len(kinds)
        said.add(finder.tell(Reading(now_s, utilization=round(busy, 2), memory_utilization=round(memory, 2)), step_s))
    return said


SHARE = st.floats(0.1, 1.0)


@pytest.mark.sampled
@given(
    parts=st.lists(st.tuples(st.tuples(SHARE, SHARE), st.floats(0.02, 0.6)), min_size=1, max_size=4),
    window_s=st.sampled_from([0.2, 1.0 / 6.0, 1.0]),
    late_s=st.floats(0.15, 3.0),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(20), deadline=None)
def test_a_job_of_even_steps_has_no_phases_however_starved_its_reader_is(
    parts: list[tuple[Kind, float]], window_s: float, late_s: float, seed: int
) -> None:
    kinds, lengths_s = [kind for kind, _ in parts], [length_s for _, length_s in parts]
    assert starved(kinds, lengths_s, window_s=window_s, late_s=late_s, seed=seed) == {""}


def test_waiting_is_no_kind_of_work() -> None:
    assert set(shown(PhaseFinder(), [((0.95, 0.5), 40.0), ((0.0, 0.0), 20.0)] * 8, noise=0.0)) == {""}


def test_kinds_that_grow_alike_are_one() -> None:
    finder = PhaseFinder()
    apart = [((0.9, 0.3), 20.0), ((0.9, 0.6), 20.0)] * 5
    assert set(shown(finder, apart)[6:]) == {"a", "b"}
    meeting = [((0.9, 0.3 + 0.15 * share), 20.0) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    other = [((0.9, 0.6 - 0.15 * share), 20.0) for share in (0.2, 0.4, 0.6, 0.8, 1.0)]
    together = [each for pair in zip(meeting, other, strict=True) for each in pair]
    assert shown(finder, together + [((0.9, 0.45), 20.0)] * 4, start_s=200.0)[-1] == ""


def test_a_fifth_kind_takes_the_place_of_one_that_never_came_back() -> None:
    once = [((0.9, 0.1), 8.0), ((0.9, 0.4), 8.0), ((0.9, 0.7), 8.0), ((0.3, 0.9), 8.0)]
    said = shown(PhaseFinder(), once + [((0.6, 0.9), 20.0), ((0.6, 0.2), 20.0)] * 6)
    assert set(said[-4:]) == {"a", "b"}


def test_without_utilisation_there_is_one_phase() -> None:
    finder = PhaseFinder()
    assert finder.tell(Reading(1.0, power_w=300.0)) == ""
