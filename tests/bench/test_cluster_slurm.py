"""A real Slurm does what the simulator says: a short form of ``bench.cluster slurm``, and its arithmetic."""

from __future__ import annotations

import os

import pytest

from bench import cluster
from bench.cluster_slurm import Asked, Known, drawn_jobs, predicted, run, scored
from joulewise.cluster.brought import plain
from joulewise.cluster.state import Costs
from joulewise.core.errors import MissingPart
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting

STEP_S = {1: 1.0, 2: 0.52, 4: 0.27, 8: 0.15}
BROUGHT = plain({gpus: [Point(step_s, 400.0, Setting())] for gpus, step_s in STEP_S.items()}, gpu="a100-sxm")
KNOWN = Known(0.5, Costs(2.0, 0.0, 1.0))


def test_a_job_that_is_alone_takes_its_start_and_its_steps_on_all_the_gpus_it_may_have():
    said = predicted([Asked("only", 0.0, 4, 100)], BROUGHT, KNOWN)
    assert said["only"] == pytest.approx(0.5 + 2.0 + 100 * STEP_S[8], abs=0.3)


def test_jobs_are_drawn_by_their_seed_and_are_not_all_alike():
    assert (
        drawn_jobs(1, STEP_S, quick=False) == drawn_jobs(1, STEP_S, quick=False) != drawn_jobs(2, STEP_S, quick=False)
    )
    jobs = drawn_jobs(1, STEP_S, quick=False)
    assert len({job.steps for job in jobs}) == len(jobs) == 10
    assert all(20.0 <= job.steps * STEP_S[job.gpus] <= 61.0 and 0.0 <= job.at_s <= 60.0 for job in jobs)


def test_errors_are_relative_to_what_was_real():
    jobs = [Asked("a", 0.0, 1, 10), Asked("b", 1.0, 1, 10)]
    real = {
        "jct_s": {"a": 10.0, "b": 30.0},
        "true_j": 1000.0,
        "told_j": 990.0,
        "starts": 3,
        "load": 0.5,
        "aims": {"a": [], "b": []},
        "came_s": {"a": 0.1, "b": 1.1},
    }
    figures = scored(jobs, {"a": 12.0, "b": 30.0}, real, KNOWN)["figures"]
    assert figures["slurm_jct_error"] == pytest.approx(0.05)
    assert figures["slurm_jct_error_each"] == pytest.approx(0.05)
    assert figures["energy_sum_error"] == pytest.approx(0.01)
    assert figures["restarts"] == 1


def test_it_is_one_of_the_questions():
    assert "slurm" in cluster.QUESTIONS


@pytest.mark.slow
@pytest.mark.stack
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_five_jobs_take_as_long_on_slurm_as_the_simulator_says_and_their_joules_add_up(capsys):
    said: list[str] = []

    def once() -> dict[str, float]:
        try:
            result = run(1, said.append, quick=True)
        except MissingPart as missing:
            pytest.skip(str(missing))
        with capsys.disabled():
            print(f"\n{result['figures']}, load {result['load']:.1f}")
        figures: dict[str, float] = result["figures"]
        figures["load"] = result["load"]
        return figures

    figures = once()
    if figures["slurm_jct_error"] > 0.05 and figures["load"] > 1.25 * (os.cpu_count() or 1):
        figures = once()  # others had the processors
    assert figures["slurm_jct_error"] <= 0.05, said
    assert figures["energy_sum_error"] <= 0.01, said
