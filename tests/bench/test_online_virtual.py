"""The virtual bench's truths: drawn by a seed, never the belief's own law, and scored against an oracle that is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.online_jobs import Job, held, tuned, untuned
from bench.online_truths import Case, Table, TableLaw, cases, rl, table_load
from bench.online_virtual import BOUNDS, GPOEO_BOUND, Outcome, figures, outcome
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model import catalog
from joulewise.model.physics import Chip


@pytest.fixture(scope="module")
def drawn(data: Path) -> list[Case]:
    return cases(data, 0)


def chip() -> Chip:
    return catalog.load("rtx8000").chip


def test_there_are_enough_jobs_on_enough_gpus(drawn: list[Case]) -> None:
    assert len({case.name for case in drawn}) == len(drawn) >= 71
    assert len({case.model.name for case in drawn}) >= 3
    assert {case.kind for case in drawn} == {"library", "measured"}


def test_a_seed_draws_the_same_jobs(drawn: list[Case], data: Path) -> None:
    again, other = cases(data, 0), cases(data, 1)
    assert [case.name for case in again] == [case.name for case in drawn]
    assert [next(case.play()).load for case in again] == [next(case.play()).load for case in drawn]
    assert [case.name for case in other] != [case.name for case in drawn]


def test_a_table_is_told_as_it_was_measured_and_held_by_the_limit() -> None:
    table = Table(
        (800.0, 1200.0, 1600.0), (np.inf,), np.array([[1.5], [1.1], [1.0]]), np.array([[90.0], [140.0], [200.0]])
    )
    law = TableLaw([table])
    load = table_load(0, 0.2)
    at_top = law.operate(chip(), load)
    assert (at_top.step_s, at_top.average_power_w) == (pytest.approx(0.2), pytest.approx(200.0))
    between = law.operate(chip(), load, lock_mhz=1000.0)
    assert (between.step_s, between.average_power_w) == (pytest.approx(0.26), pytest.approx(115.0))
    capped = law.operate(chip(), load, limit_w=170.0)
    assert capped.limited_by == "power"
    assert capped.sm_mhz == pytest.approx(1400.0)
    assert capped.average_power_w == pytest.approx(170.0)
    assert law.operate(chip(), load, limit_w=50.0).limited_by == "floor"


def test_an_oracle_keeps_the_bound_and_nothing_on_the_grid_is_better(drawn: list[Case]) -> None:
    case = next(case for case in drawn if case.name.startswith("sweep"))
    for bound in (0.01, 0.05):
        setting, slowdown, saving = case.oracle(bound)
        assert slowdown <= bound
        assert saving == pytest.approx(case.change(setting)[1], abs=1e-3)
        assert saving >= max(each[2] for each in case.grid if each[1] <= bound) - 1e-9


def test_a_held_job_saves_what_its_steps_save(drawn: list[Case]) -> None:
    case = next(case for case in drawn if case.kind == "library" and case.name.startswith("gan"))
    setting = case.oracle(0.05)[0]
    plain = untuned(Job(case), 200.0)
    slowdown, saving = held(case, setting, plain, job_s=120.0)
    assert saving == pytest.approx(case.change(setting)[1], abs=0.03)
    assert slowdown == pytest.approx(case.change(setting)[0], abs=0.02)


def test_a_short_job_is_tuned_and_scored(drawn: list[Case]) -> None:
    case = next(case for case in drawn if case.name.startswith("grid-a100-babelstream"))
    plain = untuned(Job(case), 300.0)
    found = outcome(case, 0.02, plain, job_s=300.0)
    assert found.slowdown <= 0.02
    assert 0.1 < found.saving < found.oracle_saving
    assert found.chosen != DEFAULT
    assert found.candidates >= 1
    told = figures([_with(found, bound) for bound in (*BOUNDS, GPOEO_BOUND)])
    assert told["workloads"] == 1
    assert told["oracle_share_2pct"] == pytest.approx(found.saving / found.oracle_saving)
    assert told["over_bound_share"] == 0.0


def test_the_rl_job_marks_its_phases() -> None:
    both = rl(0)
    run = tuned(Job(both.training, source=both.play), 0.05, job_s=90.0)
    assert {name for _, name in run.job.entered} == {"generation", "training"}
    assert set(run.summary.chosen) >= {"generation", "training"}


def _with(found: Outcome, bound: float) -> Outcome:
    return replace(found, bound=bound)


def test_settings_of_the_grid_may_be_set(drawn: list[Case]) -> None:
    for case in drawn[::7]:
        for setting in case.settings()[::50]:
            case.model.space.check(setting)
            assert set(setting) <= set(case.knobs)
    assert Setting() in drawn[0].settings()
