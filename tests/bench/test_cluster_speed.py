"""The bench of decisions' speed runs, and its parts say what they should."""

from __future__ import annotations

import json

import pytest

from bench import cluster_made, cluster_speed
from bench.cluster_speed_study import drawn, study
from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.round import Round
from joulewise.cluster.simulator import simulate
from joulewise.cluster.state import Budget


def test_the_quick_form_ends_with_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster_speed.main(["--quick", "--json"]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)["figures"]
    assert {"greedy_over_exact", "round_cpu_s_20", "milp_gap", "stated_gap", "rounds_per_s_64"} <= set(figures)
    assert all(value >= 0 for value in figures.values())
    assert figures["milp_gap"] <= figures["stated_gap"] + 1e-3
    assert "power cap" in said.err


def test_the_greedy_is_as_far_from_the_exact_optimum_as_the_study_found() -> None:
    lines: list[str] = []
    assert 1.0 < study(((20, 64, 3),), lines.append) < 1.2
    assert len(lines) == 1
    assert drawn(5, 64, 1) == drawn(5, 64, 1)


def test_ours_shortens_made_up_jobs_against_a_policy_blind_to_sizes() -> None:
    coming = cluster_made.submissions(60, 32, 1.2, seed=4)
    kinds = (cluster_made.kind(32),)
    ours = simulate(coming, kinds, Round(priced()))
    theirs = simulate(coming, kinds, Round(tiresias()))
    assert ours.unfinished == theirs.unfinished == ()
    assert ours.jct_s < 0.8 * theirs.jct_s
    dear = simulate(coming, kinds, Round(priced(), budget=Budget(joule_s=5e-3)))
    assert dear.energy_j.jobs < 0.9 * ours.energy_j.jobs
