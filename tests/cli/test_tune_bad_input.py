"""What stands in the way of tuning, beyond what ``test_tune`` has: each is a clear line, and never a worse job.

A user without root's rights types ``joulewise run --tune``; GPUs, daemon and command are processes of their own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from joulewise.store import Database, views
from tests.scenarios.staging import ANYONE, SITE_CAP_W, Stage, staged, until
from tests.scenarios.tuned import PATIENCE_S, Tuned, tuning

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")

BEFORE = [(SITE_CAP_W, None, None)]
LEAST_MHZ = 1500.0
ONE_KNOB = f"""
[[rule]]
users = [{ANYONE}]
needs = "process"
knobs = {{ sm_mhz = [{LEAST_MHZ:g}, 1980], memory_mhz = "none", power_limit_w = "none" }}
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged("sim:h200", speed=15.0) as shared:
        yield shared


@pytest.fixture(autouse=True)
def untouched(stage: Stage) -> Iterator[None]:
    """Each test finds the GPU as the site has set it, and leaves nobody behind."""
    until(lambda: stage.leases() == [], PATIENCE_S)
    assert stage.cap() == BEFORE
    yield
    stage.breaker.clear(0)


def ended(job: Tuned) -> str:
    """What joulewise has said of a job that went well to its end; nobody holds anything afterwards."""
    job.ended_well()
    assert job.end() == 0, job.said()
    assert "Traceback" not in job.said()
    until(lambda: job.stage.leases() == [], PATIENCE_S)
    return job.said()


def test_a_gpu_without_an_energy_counter_is_tuned_by_its_power(stage: Stage) -> None:
    stage.breaker.fault(0, "unsupported", groups=["energy_counter"])
    with tuning(stage) as job:
        job.await_writes(6)
        said = ended(job)
    assert "not tuned" not in said
    assert "summed power samples" in said
    assert stage.all_hardware() == BEFORE


def test_a_gpu_that_shows_no_power_at_all_is_left_alone(stage: Stage) -> None:
    stage.breaker.fault(0, "unsupported", groups=["energy_counter", "power"])
    with tuning(stage) as job:
        # A simulated minute is some seconds here: long enough for a tuner that does not know better.
        until(lambda: job.stage.breaker.truth(0).power_w > 200, PATIENCE_S)
        said = ended(job)
    assert "saved" not in said
    assert stage.all_hardware() == BEFORE


def test_the_site_s_rules_are_kept_to_and_not_run_into() -> None:
    with staged("sim:h200", speed=15.0, site=ONE_KNOB) as strict:
        assert strict.cap() == BEFORE
        locks: set[float] = set()
        with tuning(strict) as job:
            while job.writes() < 8 and job.process.poll() is None:
                limit_w, sm_mhz, memory_mhz = strict.hardware(0)
                assert (limit_w, memory_mhz) == (SITE_CAP_W, None)
                locks |= {sm_mhz[1]} if sm_mhz is not None else set()
                time.sleep(0.002)
            said = ended(job)
        assert "tuned" not in said, said
        assert locks
        assert min(locks) >= LEAST_MHZ
        assert not [line for line in strict.audit() if line["op"] == "apply" and line["result"] != "ok"]
        assert strict.all_hardware() == BEFORE


@pytest.mark.exhaustive  # test_tune has another, who is root
def test_a_second_tuner_says_who_has_the_gpu_and_keeps_its_hands_off(stage: Stage) -> None:
    with tuning(stage) as first:
        first.await_writes(1)
        with tuning(stage) as second:
            until(lambda: stage.daemon.audited(op="take", uid=ANYONE, pid=second.process.pid), PATIENCE_S)
            second.ended_well()
            assert second.end() == 0
            said = second.said()
        assert [lease["pid"] for lease in stage.leases()] == [first.process.pid]
        assert "not tuned: " in said
        assert "not tuned: nothing" not in said
        assert f"pid {first.process.pid}" in said
        ended(first)
    assert stage.all_hardware() == BEFORE


def test_what_an_admin_sets_meanwhile_stays_and_the_tuner_steps_back(stage: Stage) -> None:
    with tuning(stage) as job:
        job.await_writes(3)
        stage.cap_one(0, 500.0)
        until(lambda: "nothing is tuned any more" in job.said(), PATIENCE_S)
        said = ended(job)
        (run,) = views.runs(Database(job.database))
    assert said.count("\njoulewise: nothing is tuned any more") + said.startswith("joulewise: nothing is") == 1
    assert stage.hardware(0) == (500.0, None, None)
    assert run.finished is not None


def test_a_gpu_that_is_lost_costs_the_tuning_and_not_the_command(stage: Stage) -> None:
    with tuning(stage) as job:
        job.await_writes(3)
        stage.breaker.fault(0, "lost")
        until(lambda: "nothing is tuned any more" in job.said(), PATIENCE_S)
        job.ended_well()
        assert job.end() == 0
        assert "Traceback" not in job.said()
    stage.breaker.clear(0)
    until(lambda: stage.all_hardware() == BEFORE, PATIENCE_S)
