"""R18: the daemon after hours with 64 GPUs is as small as it was at the start."""

from __future__ import annotations

import pytest

from bench.control_day import day
from tests.tiers import examples

WALL_S = 20


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.usefixtures("may_set")
def test_memory_and_descriptors_stay_as_they_are_over_hours_of_64_gpus(scenario):
    shown = scenario("R18", "64 GPUs, accelerated, leases come and go", criterion="RSS slope ~0, descriptors constant")
    wall_s = examples(WALL_S)
    seen = day(wall_s)
    assert seen.leases > 5 * wall_s
    # Arenas and caches fill ever more slowly for a minute or two (bench.control lives the whole day); a leak does not.
    assert seen.growth_mib < 2.0
    assert seen.descriptors[0] == seen.descriptors[1]
    shown.saw(
        f"{seen.hours:.1f} h, {seen.leases} leases: {seen.growth_mib:+.2f} MiB at {seen.memory_mib:.0f} MiB, "
        f"{seen.descriptors[1]} descriptors throughout"
    )
