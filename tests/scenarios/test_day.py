"""R18: the daemon after hours with 64 GPUs is as small and as idle as it was at the start."""

from __future__ import annotations

import pytest

from bench.control_day import cpu_share, day

WALL_S = 20.0


@pytest.mark.slow
def test_memory_and_descriptors_stay_as_they_are_over_hours_of_64_gpus(scenario):
    shown = scenario("R18", "64 GPUs, accelerated, leases come and go", criterion="RSS slope ~0, descriptors constant")
    seen = day(WALL_S)
    assert seen.leases > 100
    # Arenas and caches fill ever more slowly for a minute or two (bench.control lives the whole day); a leak does not.
    assert seen.growth_mib < 2.0
    assert seen.descriptors[0] == seen.descriptors[1]
    shown.saw(
        f"{seen.hours:.1f} h, {seen.leases} leases: {seen.growth_mib:+.2f} MiB at {seen.memory_mib:.0f} MiB, "
        f"{seen.descriptors[1]} descriptors throughout"
    )


@pytest.mark.slow
def test_looking_after_64_leased_gpus_once_a_second_costs_next_to_nothing(scenario):
    shown = scenario("R18", "64 leased GPUs looked at once a second", criterion="CPU < 1 % of a core")
    share = cpu_share(10.0)
    assert share < 0.01
    shown.saw(f"{100 * share:.2f} % of a core")
