"""The online tuner on virtual GPUs: the whole loop, in virtual time, and everything that may go wrong beside it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.core.block import Block, Role, Rung
from joulewise.core.errors import LeaseTaken, NotPermitted
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.objective import Edp
from joulewise.device.hold import hold
from joulewise.device.lease import Lease
from joulewise.model.learnt import LoadPrior
from joulewise.store.database import Database
from joulewise.store.journal import MemoryJournal
from joulewise.store.memory import Memory
from joulewise.tune import lines
from joulewise.tune.online import Online
from joulewise.tune.record import COUNTERS
from joulewise.tune.verify import verify
from tests.tune.jobs import COMPUTE, STREAM, Played
from tests.tune.runs import Run, tune


@functools.cache
def steady() -> Run:
    """A steady job, tuned for 400 seconds. Look at it only."""
    return tune(Played.steady(step_s=0.2, jitter=0.01), duration_s=400.0)


@functools.cache
def verified() -> Run:
    """A job so steady that two minutes were enough."""
    return tune(Played.steady(step_s=0.2, jitter=0.002), duration_s=120.0)


def test_a_steady_job_is_tuned_within_its_bound_and_the_saving_is_proven() -> None:
    run = steady()
    job, setting = run.job, run.summary.chosen[""]
    (base_s, base_j), (time_s, energy_j) = job.truth(), job.truth(setting)
    assert time_s / base_s - 1.0 <= 0.055
    assert 1.0 - energy_j / base_j > 0.03  # of 5.4 % that an oracle would have
    assert job.ends_s[-1] / (len(job.ends_s) * base_s) - 1.0 <= 0.05  # the whole job, probes and all
    assert run.summary.rung is Rung.STEPS
    proof = run.summary.proof
    assert proof is not None
    assert proof.energy is not None
    assert proof.energy.low < energy_j / base_j - 1.0 + 0.01
    assert proof.energy.high < 0.0
    status = run.online.status()
    assert status.setting in (setting, DEFAULT)  # a window at default may be under way
    assert status.unit_s == pytest.approx(time_s, rel=0.05)
    assert status.why


def test_the_journal_bears_out_the_proof() -> None:
    run = steady()
    kinds = [type(event) for event in run.events]
    assert kinds[0] is Began
    assert kinds[-1] is Finished
    assert Proven in kinds
    assert verify(run.events).problems == ()
    decided = -1
    for event in run.events:  # every setting was decided on before it was seen
        if isinstance(event, Decided):
            decided = hash(event.decision.setting)
        elif isinstance(event, Seen):
            assert hash(event.block.setting) == decided


@pytest.mark.parametrize("duration_s", [6.0, 11.0, 12.0])
def test_a_run_that_ends_before_what_its_tuner_thought_of_was_tried_says_nothing_of_it(duration_s: float) -> None:
    run = tune(Played.steady(step_s=0.2, jitter=0.01), duration_s=duration_s)
    decided = {event.decision.setting for event in run.events if isinstance(event, Decided)}
    assert set(run.summary.chosen.values()) <= {*decided, DEFAULT}
    assert verify(run.events).problems == ()


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = (tune(Played.steady(step_s=0.2, jitter=0.02), duration_s=60.0, seed=4) for _ in range(2))
    assert one.events == other.events


def test_the_default_comes_back_when_it_is_stopped_and_the_lease_released() -> None:
    run = tune(Played.steady(), duration_s=120.0)
    run.job.time.sleep(1.0)
    assert run.job.gpu.read().sm_mhz == 1980.0
    assert run.summary.why == "stopped"


def test_a_job_that_cannot_be_helped_is_left_alone() -> None:
    # Nearly idle, and what it does follows the clock: nothing to gain within 0.1 %.
    job = Played.steady(step_s=0.3, jitter=0.01)
    run = tune(job, duration_s=200.0, bound=0.001)
    assert run.summary.chosen[""] == DEFAULT
    assert run.summary.slowdown < 0.01
    held = run.seen(Role.HOLD)
    assert held
    assert all(each.block.setting == DEFAULT for each in held[-3:])


def test_an_objective_without_a_bound_is_served_too() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01, load=STREAM)
    run = tune(job, duration_s=200.0, objective=Edp())
    (base_s, base_j), (time_s, energy_j) = job.truth(), job.truth(run.summary.chosen[""])
    assert time_s * energy_j < 0.9 * base_s * base_j


def test_a_dry_run_sets_nothing_and_says_what_it_would_set() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01, load=STREAM)
    run = tune(job, duration_s=60.0, dry_run=True)
    assert run.online.subject.switches == 0
    assert all(event.block.setting == DEFAULT for event in run.seen(*Role))
    (advice,) = run.summary.advice
    assert advice.energy_change < 0.0 < advice.energy_error
    true = job.truth(advice.setting)[1] / job.truth()[1] - 1.0
    assert abs(true - advice.energy_change) < 4.0 * advice.energy_error
    assert "nothing was set" in advice.says


def test_without_a_ruler_nothing_is_touched_and_it_is_said_why() -> None:
    job = Played.aperiodic()
    job.model = "a100"
    job.__post_init__()
    run = tune(job, duration_s=200.0, hooks=False)
    assert run.online.subject.switches == 0
    assert run.summary.rung is Rung.UNKNOWN
    assert "unknown" in run.summary.ruler


@pytest.mark.slow
def test_without_hooks_a_job_is_tuned_by_the_period_of_its_power() -> None:
    job = Played.two_parts(step_s=1.3)
    run = tune(job, duration_s=450.0, hooks=False)
    assert run.summary.rung is Rung.PERIOD
    base_s, base_j = job.truth()
    assert job.ends_s[-1] / (len(job.ends_s) * base_s) - 1.0 <= 0.05
    assert job.ends_j[-1] / (len(job.ends_j) * base_j) < 0.98


def test_phases_have_their_own_settings_and_do_not_thrash() -> None:
    job = Played.alternating(("rollout", STREAM, 0.2, 150), ("train", COMPUTE, 0.2, 150))
    run = tune(job, duration_s=500.0)
    chosen = run.summary.chosen
    assert {"rollout", "train"} <= set(chosen)
    assert chosen["rollout"] != chosen["train"]
    for name, load in (("rollout", STREAM), ("train", COMPUTE)):
        (base_s, base_j), (time_s, energy_j) = job.truth(order=[load]), job.truth(chosen[name], [load])
        assert time_s / base_s - 1.0 <= 0.055
        assert energy_j < base_j
    late = [each for each in run.seen(Role.BASELINE, Role.PROBE) if each.block.start_s > 300.0]
    assert late == []  # what was learnt of a phase is kept while another runs


@pytest.mark.slow
def test_a_phase_without_steps_is_measured_by_counters() -> None:
    job = Played.alternating(("rollout", STREAM, 0.2, 300), ("train", COMPUTE, 0.2, 150), silent="rollout")
    run = tune(job, duration_s=600.0)
    rungs = {(each.block.phase, each.block.rung) for each in run.seen(*Role)}
    assert rungs >= {("rollout", Rung.ACTIVITY), ("train", Rung.STEPS)}
    (base_s, base_j), (time_s, energy_j) = (
        job.truth(order=[STREAM]),
        job.truth(run.summary.chosen["rollout"], [STREAM]),
    )
    assert time_s / base_s - 1.0 <= 0.055
    assert energy_j < 0.95 * base_j


@pytest.mark.slow
def test_phases_that_nobody_marked_are_recognised() -> None:
    job = Played.alternating(("rollout", STREAM, 0.2, 150), ("train", COMPUTE, 0.2, 150), marked=False)
    run = tune(job, duration_s=600.0)
    chosen = run.summary.chosen
    assert {"a", "b"} <= set(chosen)
    assert chosen["a"] != chosen["b"]


def test_a_large_shift_is_noticed_and_tuned_for() -> None:
    job = Played.changing((STREAM, 0.2, 900), (COMPUTE, 0.3, 0), jitter=0.005)
    run = tune(job, duration_s=420.0)
    (shift, *_) = run.shifts("large")
    changed_s = job.ends_s[899]
    assert changed_s < shift.time_s < changed_s + 10.0
    (base_s, _), (time_s, _) = job.truth(order=[COMPUTE]), job.truth(run.summary.chosen[""], [COMPUTE])
    assert time_s / base_s - 1.0 <= 0.055


def test_a_steady_job_is_not_called_changed() -> None:
    run = tune(Played.steady(step_s=0.1, jitter=0.02), duration_s=400.0)
    assert run.shifts("large") == []
    assert len(run.shifts("small")) <= 1


def test_a_foreign_write_ends_the_tuning_and_not_the_measuring() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01)

    def somebody(online: Online) -> Iterator[float]:
        yield 150.0
        job.gpu.apply(Setting(power_limit_w=300.0))
        yield 30.0
        assert online.status().note.startswith("nothing is tuned any more")

    lease = hold([job.gpu], ["power_limit_w"])
    run = tune(job, duration_s=300.0, lease=lease, meanwhile=somebody)
    assert len(run.shifts("lost")) == 1
    assert not lease.alive
    assert run.seen(Role.HOLD)[-1].block.start_s > 200.0
    assert any(note.startswith("nothing is tuned any more") for note in run.summary.notes)


def test_a_lease_that_ends_is_survived() -> None:
    job = Played.steady(step_s=0.2)
    lease = hold([job.gpu])

    def releases(_: Online) -> Iterator[float]:
        yield 60.0
        lease.release()

    run = tune(job, duration_s=150.0, lease=lease, meanwhile=releases)
    assert len(run.shifts("lost")) == 1
    assert run.summary.why == "stopped"


def test_a_gpu_that_is_lost_ends_the_tuning_quietly() -> None:
    job = Played.steady(step_s=0.2)

    def falls(_: Online) -> Iterator[float]:
        yield 60.0
        job.gpu.fault(lost=True)

    run = tune(job, duration_s=120.0, meanwhile=falls)
    assert len(run.shifts("lost")) == 1
    assert run.summary.why == "stopped"


def test_a_quiet_time_is_waited_for() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01)
    lease = hold([job.gpu])

    def captures(_: Online) -> Iterator[float]:
        yield 10.0
        lease.quiet(20.0, "graph capture")

    run = tune(job, duration_s=300.0, lease=lease, meanwhile=captures)
    assert run.shifts("lost") == []
    assert run.summary.chosen[""] != DEFAULT


def test_a_lease_is_asked_for_until_the_job_is_on_its_gpu() -> None:
    job = Played.steady(step_s=0.2)
    asked: list[float] = []

    def take() -> Lease:
        asked.append(job.time.now_s())
        if len(asked) < 5:
            raise LeaseTaken("somebody else has it for a moment")
        return hold([job.gpu])

    run = tune(job, duration_s=200.0, lease=take)
    assert len(asked) == 5
    assert run.online.subject.switches > 0


def test_a_lease_that_is_never_given_leaves_the_job_measured() -> None:
    job = Played.steady(step_s=0.2)

    def take() -> Lease:
        raise NotPermitted("setting GPUs takes root, or the daemon")

    run = tune(job, duration_s=200.0, lease=take)
    assert run.online.subject.switches == 0
    assert any(note.startswith("nothing is tuned: setting GPUs") for note in run.summary.notes)
    assert run.seen(Role.HOLD)


def test_a_tuner_that_fails_gives_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "joulewise")  # a trace is for whoever asks for it; the summary is for all
    job = Played.steady(step_s=0.2)
    lease = hold([job.gpu])

    def breaks(online: Online) -> Iterator[float]:
        yield 30.0
        online.subject.block = None  # type: ignore[assignment, method-assign]

    run = tune(job, duration_s=100.0, lease=lease, meanwhile=breaks)
    assert run.summary.why.startswith("the tuner failed: TypeError")
    assert not lease.alive
    assert "the job goes on untuned" in caplog.text


def test_a_full_disk_costs_the_journal_and_not_the_job() -> None:
    class Full(MemoryJournal):
        def append(self, event: Event, after: int | None = None) -> int:
            raise OSError("no space left on device")

    run = tune(Played.steady(step_s=0.2, jitter=0.01), duration_s=60.0, journal=Full())
    assert run.summary.why == "stopped"
    assert any("no space left" in note for note in run.summary.notes)
    assert run.online.subject.switches > 0


def test_a_restart_goes_on_from_the_journal() -> None:
    journal = MemoryJournal()
    first = tune(Played.steady(step_s=0.2, jitter=0.01), duration_s=200.0, journal=journal, seed=3)
    before = len(first.events)
    again = tune(Played.steady(step_s=0.2, jitter=0.01, seed=1), duration_s=60.0, journal=journal, seed=99)
    later = again.events[before:]
    assert isinstance(later[0], Began)
    assert later[0].facts["seed"] == 3
    assert [event.role for event in later if isinstance(event, Seen)].count(Role.BASELINE) == 0
    assert again.summary.chosen == first.summary.chosen


@pytest.mark.parametrize("told", [True, False])
def test_a_killed_run_is_gone_on_with_although_its_counters_say_something_else_now(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = verified()
    assert first.summary.verified[""]
    journal = MemoryJournal()
    for event in first.events:
        ends = isinstance(event, Proven | Finished)
        if not ends and (told or not (isinstance(event, Shifted) and event.what == COUNTERS)):
            journal.append(event)
    before = len(list(journal.read()))
    monkeypatch.setattr(lines, "_prior", lambda ruler: LoadPrior({"sm_share": 0.1}, {"sm_share": 0.1}))
    again = tune(Played.steady(step_s=0.2, jitter=0.002, seed=1), duration_s=30.0, journal=journal)
    seen = [event for event in again.events[before:] if isinstance(event, Seen)]
    assert not {event.role for event in seen} & {Role.BASELINE, Role.PROBE}
    assert again.summary.chosen == first.summary.chosen


def test_a_clock_above_its_ceiling_is_somebody_elses_only_block_after_block() -> None:
    run = tune(Played.steady(step_s=0.2), duration_s=20.0)
    line, ceiling = run.online.lines.of(""), Setting(sm_mhz=1500.0)
    over, fine = (Block(ceiling, 0.0, 2.0, 10.0, 2.0, 900.0, 1.0, 0.01, sm_mhz=mhz) for mhz in (1570.0, 1500.0))
    for block in (over, over, over, fine, over, over, over):
        run.online._watcher._check_clock(line, block)
    assert run.shifts("lost") == []
    run.online._watcher._check_clock(line, over)
    assert len(run.shifts("lost")) == 1


def test_the_next_run_starts_at_the_answer(tmp_path: Path) -> None:
    memory = Memory(Database(tmp_path / "joulewise.db"))
    first = tune(Played.steady(step_s=0.2, jitter=0.002), duration_s=250.0, memory=memory)
    assert first.summary.verified[""]
    again = tune(Played.steady(step_s=0.2, jitter=0.002, seed=5), duration_s=60.0, memory=memory)
    tried = [each.block.setting for each in again.seen(Role.CANDIDATE, Role.HOLD) if each.block.setting != DEFAULT]
    assert tried[0] == first.summary.chosen[""]
    assert again.seen(Role.PROBE) == []
