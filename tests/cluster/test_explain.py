"""A job is told why it runs as it does: in words, at the decision's own prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.explain import explain
from joulewise.cluster.state import Budget
from joulewise.core.errors import BadSpec
from tests.cluster.allocators.snapshots import job, snapshot
from tests.cluster.toys import toy_ways

CROWD = snapshot(*(job(f"job-{n}", work=3000.0 * (n + 1)) for n in range(20)), nodes=1)
ROOM = replace(CROWD, kinds=(replace(CROWD.kinds[0], nodes=8),))


def test_one_that_runs_is_told_its_way_its_neighbours_and_the_prices() -> None:
    budget = Budget(joule_s=1e-4)
    said = priced()(ROOM, budget)
    text = explain(ROOM, budget, said, "job-0")
    way = said.ways["job-0"]
    assert text.startswith(f"job-0 runs on {way.gpus} GPUs at ")
    assert f"{way.gpus} → {2 * way.gpus} GPUs for" in text
    assert "but cost the others" in text
    assert "In a job's time an hour of a GPU is worth" in text
    assert "a kWh is worth 6 min" in text  # 3.6 MJ at 1e-4 s


def test_one_that_waits_is_told_what_it_would_save_and_cost() -> None:
    said = priced()(CROWD, Budget())
    text = explain(CROWD, Budget(), said, "job-19")
    assert text.startswith("job-19 waits. 1 GPU at 1,400 MHz for an hour would save it ")
    assert "19 of 20 jobs are shorter" in text
    assert "energy has no price" in text


def test_budgets_deadlines_and_reasons_are_told() -> None:
    jobs = (replace(CROWD.jobs[0], deadline_s=1e5), replace(CROWD.jobs[1], deadline_s=10.0), *CROWD.jobs[2:])
    seen = replace(CROWD, jobs=jobs)
    budget = Budget(power_w=2500.0, energy_j=5e8)
    said = replace(priced()(seen, budget), reasons={"job-0": "It was asked for."})
    text = explain(seen, budget, said, "job-0")
    assert "is met so." in text
    assert "the power cap makes a kWh" in text
    assert "The budget is 139 kWh for the jobs that are here and 2.5 kW for the cluster. It was asked for." in text
    assert "cannot be met by any way it has" in explain(seen, budget, said, "job-1")
    late = replace(seen, now_s=50.0)
    assert "Its deadline has passed." in explain(late, budget, said, "job-1")


def test_a_policy_without_prices_is_said_to_have_none() -> None:
    text = explain(CROWD, Budget(), fifo()(CROWD, Budget()), "job-0")
    assert "1 → 2 GPUs would save it" in text
    assert text.endswith("This policy sets no prices.")


def test_a_job_that_cannot_run_at_all_is_told_so_and_one_that_is_not_there_is_named() -> None:
    seen = snapshot(job("huge", ways=toy_ways((64,))), replace(job("none"), weight=0.0))
    said = priced()(seen, Budget())
    assert "it needs 64 GPUs, and no kind here that it can use has more than 8" in explain(seen, Budget(), said, "huge")
    assert "its weight is 0" in explain(seen, Budget(), said, "none")
    with pytest.raises(BadSpec, match="no job here is called 'ghost'; those there are: huge, none"):
        explain(seen, Budget(), said, "ghost")
