"""Advice from the baseline alone: honest about the bound, and silent where nothing is likely to help."""

from __future__ import annotations

import pytest

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT
from joulewise.core.objective import MinEnergy
from joulewise.model import catalog, physics
from joulewise.model.dvfs import Belief
from joulewise.model.physics import Load
from joulewise.tune.advise import LIKELY, advise

H200 = catalog.load("h200")
LOADS = {
    "compute": Load(gpu_s=0.2, sm_share=0.92, dynamic_w=420.0, host_s=0.02, dram_share=0.05),
    "launch-bound": Load(gpu_s=0.002, sm_share=0.6, dynamic_w=120.0, host_s=0.01),
    "capped": Load(gpu_s=0.2, sm_share=0.95, dynamic_w=1100.0),
}


def baseline(load: Load) -> Block:
    seen = physics.operate(H200.chip, load, limit_w=H200.default_limit_w)
    energy_j = 100.0 * seen.energy_j
    capped = seen.limited_by == "power"
    return Block(
        DEFAULT, 0.0, 100.0 * seen.step_s, 100.0, 100.0 * seen.step_s, energy_j, 0.002 * energy_j, 0.002,
        sm_mhz=seen.sm_mhz, power_capped=capped,
    )  # fmt: skip


@pytest.mark.parametrize("load", LOADS.values(), ids=list(LOADS))
@pytest.mark.parametrize("bound", [0.01, 0.02, 0.05])
def test_what_is_advised_is_expected_within_the_bound_and_likely_so(load: Load, bound: float) -> None:
    belief = Belief(H200.space, model=H200, default_limit_w=H200.default_limit_w)
    block = baseline(load)
    belief.tell(block)
    advice = advise(belief, MinEnergy(bound), block)
    if advice.setting:
        assert advice.time_change <= bound + 0.002  # the mean of all draws against that of those that were weighed
        assert belief.predict([advice.setting]).chance_within(bound)[0] >= LIKELY - 0.1
        assert advice.energy_change < 0.0
    else:
        assert advice.time_change == 0.0
