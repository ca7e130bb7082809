"""Work that blocks do not show: unmarked, paused, of a slow kind, or stalled. The bound holds for it too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joulewise.core.block import Role, Rung
from joulewise.core.event import Event, Finished
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Load
from joulewise.model.workloads import Phase, stretched
from joulewise.store.journal import MemoryJournal
from joulewise.tune.online import Online
from tests.tiers import sample
from tests.tune.jobs import COMPUTE, STREAM, Played, Silent
from tests.tune.runs import tune

HOST = Load(0.02, sm_share=0.5, dynamic_w=200.0, dram_share=0.1, host_s=0.08)
"""Waits for the host: any clock will do."""
COARSE = Setting(sm_mhz=1000)
"""Nothing that was set."""


def mixed(long_s: float, every: int, load: Load = COMPUTE) -> Played:
    """Steps that wait for the host, and one in ``every`` that computes for ``long_s``."""
    long = stretched(load, long_s, 0.0)

    def phases() -> Iterator[Phase]:
        for number, factor in enumerate(Jitter(spread=0.005, correlation=0.3, tail=4.0).factors("mix")):
            yield Phase("work", stretched(long if number % every == every - 1 else HOST, factor, factor), True)

    return Played(phases, (HOST, long))


def slowdown(job: Played, plain: Played) -> float:
    """Of the whole job by the truth, against the same work untuned."""

    def lasts() -> Iterator[float]:
        yield job.time.now_s()

    plain.time.run(lasts())  # type: ignore[arg-type]
    plain.gpu.read()
    last = min(len(job.ends_s), len(plain.ends_s)) - 1
    return job.ends_s[last] / plain.ends_s[last] - 1.0


def in_force(at_s: dict[float, Setting]) -> object:
    def looks(online: Online) -> Iterator[float]:
        now_s = 0.0
        for time_s in sorted(at_s):
            yield time_s - now_s
            now_s = time_s
            at_s[time_s] = online.subject.setting

    return looks


def test_when_hooks_fall_silent_the_default_comes_back_within_seconds_and_the_rest_is_unjudged() -> None:
    job = Silent.steady(step_s=0.1, jitter=0.003, load=STREAM)
    assert isinstance(job, Silent)
    job.model, job.until_s = "a100-sxm", 90.0  # without counters nothing tells the pace of the rest
    job.__post_init__()
    seen = {103.0: COARSE, 190.0: COARSE}
    run = tune(job, duration_s=200.0, meanwhile=in_force(seen))  # type: ignore[arg-type]
    assert seen == {103.0: DEFAULT, 190.0: DEFAULT}
    assert run.summary.rung is not Rung.STEPS
    assert run.summary.chosen[""] != DEFAULT  # what the job is known by is what steps told
    assert run.summary.proof is not None
    (left_out,) = [says for says in run.summary.proof.unjudged if "start-up" in says]
    assert float(left_out.split()[0]) > 100.0
    (unmarked,) = run.shifts("unmarked")  # it was not at the default
    assert 98.0 < unmarked.time_s < 103.0


def test_an_evaluation_runs_at_the_default_and_the_setting_comes_back() -> None:
    job = Silent.steady(step_s=0.1, jitter=0.003, load=STREAM)
    assert isinstance(job, Silent)
    job.pause, job.until_s, job.again_s = "evaluation", 90.0, 130.0
    seen = {95.0: COARSE, 128.0: COARSE}
    run = tune(job, duration_s=150.0, meanwhile=in_force(seen))  # type: ignore[arg-type]
    assert seen == {95.0: DEFAULT, 128.0: DEFAULT}
    assert run.shifts("ruler") == []
    held = [each.block for each in run.seen(Role.HOLD, Role.CANDIDATE) if each.block.start_s > 131.0]
    assert any(block.setting != DEFAULT for block in held)


def test_hooks_that_come_back_find_what_was_best_under_them() -> None:
    job = Silent.steady(step_s=0.1, jitter=0.003, load=STREAM)
    assert isinstance(job, Silent)
    job.until_s, job.again_s = 90.0, 140.0
    run = tune(job, duration_s=160.0)
    assert [event.says for event in run.shifts("ruler")][-1].endswith("told by hooks")
    before = [
        each
        for each in run.seen(Role.HOLD, Role.CANDIDATE)
        if each.block.end_s < 90.0 and each.block.setting != DEFAULT
    ]
    after = [each for each in run.seen(Role.CANDIDATE, Role.PROBE) if each.block.start_s > 140.0]
    assert {each.role for each in after} == {Role.CANDIDATE}
    assert after[0].block.setting == before[-1].block.setting


@pytest.mark.sampled
@pytest.mark.parametrize(("long_s", "every"), sample([(0.145, 4), (0.2, 10)], 1, of="slow kinds of step"))
def test_a_slow_kind_of_step_counts_in_the_bound(long_s: float, every: int) -> None:
    run = tune(mixed(long_s, every), duration_s=300.0, bound=0.02)
    assert slowdown(run.job, mixed(long_s, every)) <= 0.021


def test_a_setting_that_loses_in_stalls_is_refused() -> None:
    run = tune(mixed(3.0, 60), duration_s=500.0, bound=0.02)
    refused = run.shifts("refused")
    assert refused
    assert "with its stalls" in refused[0].says
    held = next(each for each in reversed(run.seen(Role.HOLD, Role.CANDIDATE)) if each.time_s < refused[0].time_s)
    assert held.block.setting not in {each.block.setting for each in run.seen(Role.HOLD) if each.time_s > 110.0}
    # What it cost to find out is in the account, which makes up for it.
    assert slowdown(run.job, mixed(3.0, 60)) <= 0.021


def test_joules_that_double_at_the_same_pace_are_a_change() -> None:
    light, heavy = Load(0.1, 0.5, 100.0, host_s=0.1), Load(0.1, 0.5, 600.0, host_s=0.1)
    job = Played.changing((light, 1.0, 500), (heavy, 1.0, 0), jitter=0.003)
    run = tune(job, duration_s=160.0)
    shift = run.shifts("large")[0]
    assert job.ends_s[499] < shift.time_s < job.ends_s[499] + 40.0


def test_what_happens_within_long_steps_is_no_phase() -> None:
    def phases() -> Iterator[Phase]:
        while True:
            yield Phase("work", stretched(COMPUTE, 9.0, 0.0), False)
            yield Phase("work", stretched(STREAM, 9.0, 0.0), True)

    run = tune(Played(phases, ()), duration_s=500.0)
    assert {each.block.phase for each in run.seen(*Role)} == {""}


def test_a_dry_run_goes_on_when_hooks_come_late() -> None:
    job = Silent.two_parts(step_s=1.3)
    assert isinstance(job, Silent)
    job.feed.read()  # nobody has said hello
    job.until_s, job.again_s = 0.0, 60.0
    run = tune(job, duration_s=150.0, dry_run=True)
    assert {each.block.rung for each in run.seen(Role.BASELINE)} == {Rung.PERIOD, Rung.STEPS}


def test_the_end_is_written_whatever_fails_on_the_way_to_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "joulewise")

    def breaks(online: Online) -> Iterator[float]:
        yield 55.0
        online.record.prove = None  # type: ignore[assignment, method-assign]
        online.lines.finest = None  # type: ignore[assignment, method-assign]

    run = tune(Played.steady(step_s=0.2), duration_s=60.0, meanwhile=breaks)
    assert isinstance(run.events[-1], Finished)
    assert run.summary.why == "stopped"
    assert any(note.startswith("the proof is lost") for note in run.summary.notes)


def test_a_journal_that_cannot_be_read_costs_the_journal_and_not_the_tuning() -> None:
    class Damaged(MemoryJournal):
        def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
            raise OSError("file is not a database")

    run = tune(Played.steady(step_s=0.2), duration_s=60.0, journal=Damaged())
    assert run.online.subject.switches > 0
    assert any("kept in memory only" in note for note in run.summary.notes)
