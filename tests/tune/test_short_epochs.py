"""Epochs shorter than what a tuner measures: its blocks go on over the end of one (Zeus, D6: its windows do not)."""

from __future__ import annotations

import pytest

from joulewise.core.knob import DEFAULT
from tests.tiers import sample
from tests.tune.jobs import Played
from tests.tune.runs import tune


@pytest.mark.sampled
@pytest.mark.parametrize("steps", sample([1, 7, 40, 50, 51], 2, of="lengths of epochs"))
def test_epochs_of_any_number_of_steps_end_with_a_setting(steps: int) -> None:
    """Zeus cancels a window when an epoch ends, and never comes to one at 50 steps or fewer."""
    run = tune(Played.with_gaps(0.2, steps, 0.1), duration_s=150.0)
    assert len(run.summary.frontiers[""]) >= 2
    assert run.summary.chosen[""] != DEFAULT
