"""A synchronous job of four ranks, each on its own GPU: one tuner, one lease on all GPUs or on none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from joulewise.store import Database, views
from tests.scenarios.staging import ANYONE, SITE_CAP_W, Stage, staged, until
from tests.scenarios.tuned import PATIENCE_S, tuning

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too"), pytest.mark.slow]

RANKS = 4
BEFORE = [(SITE_CAP_W, None, None)] * RANKS
LOOK_S = 0.005
WRITES = 12
"""To each GPU, until it is enough: probes, and some pairs."""
KNOBS = 3
"""The most writes that one setting takes."""


@pytest.fixture(scope="module")
def four() -> Iterator[Stage]:
    with staged(f"sim:h200*{RANKS}", speed=15.0) as shared:
        yield shared


def test_the_ranks_of_a_job_are_set_together_and_all_are_as_before_afterwards(four: Stage) -> None:
    assert four.cap() == BEFORE
    holders: set[tuple[str, ...]] = set()
    alike = ahead = 0
    with tuning(four, ranks=RANKS) as job:
        begun = four.writes()
        while job.writes() < WRITES * RANKS and job.process.poll() is None:
            now = four.all_hardware()
            alike += len(set(now)) == 1 and now != BEFORE
            done = [now - before for now, before in zip(four.writes(), begun, strict=True)]
            ahead = max(ahead, max(done) - min(done))
            if now != BEFORE and not holders:
                holders = {tuple(sorted(lease["gpus"])) for lease in four.leases()}
            time.sleep(LOOK_S)
        job.ended_well()
        assert job.end() == 0, job.said()
        (run,) = views.runs(Database(job.database))
    assert four.all_hardware() == BEFORE
    assert holders == {tuple(sorted(four.uuids))}
    assert sorted(run.facts["gpus"]) == sorted(four.uuids)
    # Settings are written GPU by GPU, so a look may fall in between, on a busy machine more than one. But none gets its
    # next before all have this one.
    assert ahead <= KNOBS
    assert alike


def test_where_one_gpu_is_somebody_else_s_none_is_set_and_the_job_runs_to_its_end(four: Stage) -> None:
    assert four.cap() == BEFORE
    stranger = four.client()
    stranger("take", gpus=four.uuids[2:3], knobs=["sm_mhz"])
    with tuning(four, ranks=RANKS) as job:
        until(lambda: four.daemon.audited(op="take", uid=ANYONE, pid=job.process.pid), PATIENCE_S)
        job.ended_well()
        assert job.end() == 0, job.said()
        assert job.writes() == 0
        assert "not tuned: " in job.said()
        assert f"pid {stranger.pid}" in job.said()
    stranger("release")
    until(lambda: four.leases() == [], PATIENCE_S)
    assert four.all_hardware() == BEFORE
