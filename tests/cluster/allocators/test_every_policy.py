"""What holds for every policy that others are compared with, whatever the jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.gandiva import gandiva
from joulewise.cluster.allocators.optimus import optimus
from joulewise.cluster.allocators.pollux import pollux
from joulewise.cluster.allocators.srtf import srtf
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.allocators.zeus import zeus
from joulewise.cluster.state import Allocation, Allocator, Budget, Snapshot, cluster_power_w
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from tests.cluster.allocators.snapshots import job, snapshot, snapshots
from tests.tiers import examples

POLICIES: dict[str, Allocator] = {
    "fifo": fifo(),
    "fifo, backfill": fifo(backfill=True),
    "srtf": srtf(),
    "srtf, service": srtf(service=True),
    "tiresias": tiresias(),
    "tiresias, slow": tiresias(clock=0.7),
    "optimus": optimus(),
    "gandiva": gandiva(),
    "pollux": pollux(),
    "pollux + zeus": zeus(pollux(), eta=0.9),
}
MAKERS = (fifo, srtf, tiresias, optimus, gandiva, pollux)
policies = pytest.mark.parametrize("allocate", POLICIES.values(), ids=POLICIES.keys())


@pytest.mark.sampled
@given(seen=snapshots(), cap_w=st.none() | st.floats(0.0, 2e4))
@settings(max_examples=examples(60), deadline=None)
def test_no_more_gpus_or_watts_are_given_than_there_are_and_only_ways_that_jobs_have(
    seen: Snapshot, cap_w: float | None
) -> None:
    for name, allocate in POLICIES.items():
        said = allocate(seen, Budget(power_w=cap_w))
        for kind, there in seen.gpus.items():
            assert said.gpus(kind) <= there, name
        assert all(said.ways[job.name] in job.ways for job in seen.jobs if job.name in said.ways), name
        if cap_w is not None and said.ways:
            assert cluster_power_w(seen, said) <= cap_w + 1e-6, name
        assert said.again_s is None or said.again_s > seen.now_s, name


@pytest.mark.sampled
@given(seen=snapshots())
@settings(max_examples=examples(20), deadline=None)
def test_the_same_snapshot_gives_the_same_allocation_whatever_was_asked_between(seen: Snapshot) -> None:
    for name, allocate in POLICIES.items():
        first = allocate(seen, Budget())
        allocate(Snapshot(seen.now_s, seen.kinds, seen.jobs[::-1]), Budget(power_w=3000.0))
        assert allocate(seen, Budget()) == first, name


@policies
def test_nobody_waits_where_all_fit_at_the_number_they_ask_for(allocate: Allocator) -> None:
    seen = snapshot(job("a", 4), job("b", 2, running=2), job("c", 2), now_s=10.0)
    assert set(allocate(seen, Budget()).ways) == {"a", "b", "c"}


@policies
def test_an_empty_cluster_is_given_to_nobody(allocate: Allocator) -> None:
    assert allocate(snapshot(), Budget()) == Allocation({})


@pytest.mark.parametrize("make", MAKERS)
def test_a_uniform_clock_is_a_share_of_the_top_one(make: Callable[..., Allocator]) -> None:
    seen = snapshot(job("a", 2))
    way = make(clock=0.7)(seen, Budget()).ways["a"]
    assert way.setting == Setting(sm_mhz=1000)  # of 1400, 1000 and 700
    assert make()(seen, Budget()).ways["a"].setting == Setting(sm_mhz=1400)
    for share in (0.0, 1.2, float("nan")):
        with pytest.raises(BadSpec, match="uniform clock"):
            make(clock=share)
