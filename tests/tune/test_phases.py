"""Phases that nobody marked: recognised when they come back, and only then."""

from __future__ import annotations

import itertools
import random

from joulewise.core.measurement import Reading
from joulewise.tune.phases import PhaseFinder

Kind = tuple[float, float]  # utilisation, memory utilisation


def shown(
    finder: PhaseFinder, kinds: list[tuple[Kind, float]], *, noise: float = 0.02, unit_s: float = 0.3
) -> list[str]:
    """What the finder says at the end of each stretch of (kind, seconds)."""
    draw, now_s, said = random.Random(1), 0.0, []
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


def test_a_change_for_good_is_no_phase() -> None:
    assert set(shown(PhaseFinder(), [((0.9, 0.4), 120.0), ((0.5, 0.9), 120.0)])) == {""}


def test_what_alternates_within_a_step_is_no_phase() -> None:
    assert set(shown(PhaseFinder(), [((1.0, 0.2), 0.4), ((0.3, 0.9), 0.4)] * 200, unit_s=0.8)) == {""}


def test_without_utilisation_there_is_one_phase() -> None:
    finder = PhaseFinder()
    assert finder.tell(Reading(1.0, power_w=300.0)) == ""
