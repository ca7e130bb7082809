"""The error that is claimed for the mean of some steps, against the error that it has."""

from __future__ import annotations

import math
import random

from joulewise.monitor.scatter import Scatter


def test_the_error_of_a_mean_is_honest_for_steps_that_hang_together() -> None:
    draw = random.Random(5)
    level, means, claimed = 0.0, [], []
    scatter = Scatter()
    for _ in range(400):
        values = []
        for _ in range(12):
            level = 0.6 * level + 0.8 * draw.gauss(0.0, 0.02)
            values.append(math.exp(level))
        scatter.add(values)
        means.append(sum(values) / len(values))
        claimed.append(scatter.error(len(values)))
    middle = sum(means) / len(means)
    true = math.sqrt(sum((mean - middle) ** 2 for mean in means) / len(means))
    assert true / 1.4 < claimed[-1] < 1.4 * true


def shrinking(scatter: Scatter, shrink: float) -> float:
    """The error claimed for the last of fifty stretches of a job whose steps shrink, and begin anew."""
    size, claimed = 1.0, 0.0
    for number in range(50):
        values = []
        for _ in range(5):
            size = size * shrink if size * shrink > 0.1 else 1.0
            values.append(size)
        scatter.add(values)
        mean = sum(values) / len(values)
        claimed = scatter.beside("default", 5.0 * number, 5.0 * number + 5.0, mean, scatter.error(len(values)))
    return claimed


def test_steps_that_shrink_from_stretch_to_stretch_are_known_to_be_no_measure() -> None:
    assert shrinking(Scatter(), 0.95) > 0.1
    assert shrinking(Scatter(), 1.0) < 0.02


def test_stretches_far_apart_may_differ_without_being_called_uneven() -> None:
    scatter = Scatter()
    for number in range(20):
        unit_s = 1.0 if number % 2 else 1.5
        error = scatter.beside("default", 100.0 * number, 100.0 * number + 5.0, unit_s, 0.01)
        assert error == 0.01


def test_settings_are_not_compared_with_each_other() -> None:
    scatter = Scatter()
    for number in range(20):
        setting, unit_s = ("slow", 1.5) if number % 2 else ("default", 1.0)
        assert scatter.beside(setting, 5.0 * number, 5.0 * number + 5.0, unit_s, 0.01) == 0.01
