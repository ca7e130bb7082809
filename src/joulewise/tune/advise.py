"""Advice without rights: from the baseline alone, what would be set, and how much that is expected to save.

A belief that has seen nothing but the default knows little, so the error is wide, and said. Nothing can be verified
here, so only what is expected within the bound is advised, and more likely within it than not.
"""

from __future__ import annotations

import math

from joulewise.core.block import Block
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT
from joulewise.core.objective import Objective, slowdown_bound
from joulewise.model.dvfs import Belief
from joulewise.tune.choice import weigh
from joulewise.tune.status import Advice

LIKELY = 0.5
"""Least believed chance that what is advised is within the bound."""


def advise(belief: Belief, objective: Objective, baseline: Block) -> Advice:
    """The best setting by what is believed after the baseline; the default where nothing is expected to help."""
    settings = belief.settings(slowdown_bound(objective))
    nothing = Advice(
        DEFAULT, "no setting is expected to save anything worth having", 0.0, 0.0, 0.0, 0.0, baseline.phase
    )
    if not settings:
        return nothing
    said = belief.predict(settings)
    point = Point(baseline.unit_s, baseline.unit_j, None)
    worth = weigh(settings, said.time_draws, said.energy_draws, objective, point)
    bound = slowdown_bound(objective)
    slower = [setting for setting, slow in zip(settings, worth.slowdown, strict=True) if slow > bound]
    best = worth.best(least_chance=LIKELY, without=slower)
    if best is None:
        return nothing
    setting, chance = worth.settings[best], float(worth.chance[best])
    within = f", within the bound of {bound:+.1%} with {chance:.0%}" if math.isfinite(bound) else ""
    time, energy = float(said.time[best]) - 1.0, float(said.energy[best]) - 1.0
    time_error, energy_error = float(said.time_error[best]), float(said.energy_error[best])
    named = ", ".join(f"{name}={value:g}" for name, value in setting.items())
    says = (
        f"{named}: {energy:+.1%} ± {energy_error:.1%} energy "
        f"at {time:+.1%} ± {time_error:.1%} time expected{within}; nothing was set"
    )
    return Advice(setting, says, time, time_error, energy, energy_error, baseline.phase)
