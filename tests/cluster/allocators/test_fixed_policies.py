"""FIFO, SRTF and Tiresias: the same walk in another order, at the number of GPUs that was asked for."""

from __future__ import annotations

import pytest

from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.srtf import srtf
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.state import Allocator, Budget, Snapshot, cluster_power_w
from joulewise.core.errors import BadSpec
from tests.cluster.allocators.snapshots import job, snapshot
from tests.cluster.toys import toy_ways


def run(allocate: Allocator, seen: Snapshot, **budget: float) -> dict[str, int]:
    """Who runs, with how many GPUs."""
    return {name: way.gpus for name, way in allocate(seen, Budget(**budget)).ways.items()}


def test_fifo_stops_nobody_and_lets_nobody_pass() -> None:
    seen = snapshot(job("large", 8), job("runs", 4, running=4), job("small", 1))
    assert run(fifo(), seen) == {"runs": 4}
    assert run(fifo(backfill=True), seen) == {"runs": 4, "small": 1}


def test_one_that_can_never_fit_does_not_hold_up_the_queue() -> None:
    seen = snapshot(job("huge", 64, ways=toy_ways((64,))), job("small", 1))
    assert run(fifo(), seen) == {"small": 1}


def test_what_would_pass_the_cap_waits() -> None:
    seen = snapshot(job("a", 4), job("b", 4), job("c", 1), nodes=1)
    # One node: 800 W, 300 W for a GPU in use, 50 W for an idle one.
    assert run(fifo(backfill=True), seen, power_w=800 + 5 * 300 + 3 * 50) == {"a": 4, "c": 1}
    assert run(fifo(), seen, power_w=800 + 5 * 300 + 3 * 50) == {"a": 4}
    given = fifo()(seen, Budget(power_w=3200.0))
    assert cluster_power_w(seen, given) == 3200.0
    assert len(given.ways) == 2


def test_srtf_preempts_a_long_job_for_a_short_one() -> None:
    seen = snapshot(job("long", 8, work=9000.0, running=8), job("short", 4, work=100.0), job("next", 8, work=500.0))
    assert run(srtf(), seen) == {"short": 4}


def test_srtf_by_service_puts_a_narrow_job_before_a_wide_one_of_the_same_length() -> None:
    wide, narrow = job("wide", 8, work=8**0.8 * 90), job("narrow", 1, work=100.0)
    assert run(srtf(), snapshot(narrow, wide)) == {"wide": 8}
    assert run(srtf(service=True), snapshot(wide, narrow)) == {"narrow": 1}


def test_tiresias_puts_who_has_had_little_first() -> None:
    old = job("old", 8, running=8, attained_gpu_s=57_600.0)
    assert run(tiresias(), snapshot(old, job("new", 2))) == {"new": 2}
    assert run(tiresias(limits_gpu_s=(60_000.0,)), snapshot(old, job("new", 2))) == {"old": 8}


def test_tiresias_asks_to_be_called_when_the_next_job_falls_while_others_wait() -> None:
    seen = snapshot(job("runs", 8, running=8, attained_gpu_s=56_000.0), job("waits", 1), now_s=100.0)
    assert tiresias()(seen, Budget()).again_s == 100.0 + 1600.0 / 8
    alone = snapshot(seen.jobs[0], now_s=100.0)
    assert tiresias()(alone, Budget()).again_s is None


def test_inside_a_queue_of_tiresias_those_that_run_may_stay_or_all_go_by_submission() -> None:
    seen = snapshot(job("first", 8), job("second", 4, running=4))
    assert run(tiresias(), seen) == {"second": 4}
    assert run(tiresias(keep_running=False), seen) == {"first": 8}


def test_limits_that_do_not_rise_are_refused() -> None:
    with pytest.raises(BadSpec, match="must rise"):
        tiresias(limits_gpu_s=(7200.0, 3250.0))
