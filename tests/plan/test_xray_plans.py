"""Plans of a step keep their deadline, and none beats the limit of all plans."""

import json
from pathlib import Path

import numpy as np
import pytest

from joulewise.model import catalog
from joulewise.plan import flow, trace, trace_steps, xray_dag
from joulewise.plan.trace_kinds import Kind
from joulewise.plan.xray_law import EVEN, Laws, believed
from joulewise.plan.xray_plans import Played, phases_of
from tests.plan.traced_job import Truth, fsdp

H200 = catalog.load("h200")
SLOWDOWNS = (0.0, 0.01, 0.03, 0.2)


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> list[xray_dag.Graph]:
    """One rank, and two."""
    folder: Path = tmp_path_factory.mktemp("traces")
    read = []
    for rank in range(2):
        path = folder / f"{rank}.json"
        truth = Truth(fsdp(2, H200), H200, seed=rank)
        path.write_text(json.dumps(truth.kineto(rank=rank, seed=rank)))
        read.append(trace.read(path))
    steps = [trace_steps.find(one) for one in read]
    return [xray_dag.build(read[:1], steps[:1], 0), xray_dag.build(read, steps, 1)]


@pytest.fixture(scope="module")
def laws() -> Laws:
    return believed(H200, {Kind.COMPUTE: 0.7, Kind.MEMORY: 0.1, Kind.COMMUNICATION: 0.4}, draws=6)


@pytest.mark.parametrize("which", [0, 1])
def test_every_plan_keeps_its_deadline_and_each_freedom_saves_more(graphs, laws, which):
    for draw in range(3):
        played = Played(graphs[which], laws, draw)
        assert played.seen.time_s == pytest.approx(graphs[which].seen_s, rel=0.03)
        limits = played.each_run(SLOWDOWNS, flow.solve)
        before_j = np.inf
        for slowdown, limit in zip(SLOWDOWNS, limits, strict=True):
            one, phased = played.one_clock(slowdown), played.phased(slowdown, 0.002)
            for outcome in (one, phased, limit):
                assert outcome.time_s <= played.seen.time_s * (1 + slowdown) * (1 + 1e-6)
                assert outcome.energy_j <= played.seen.energy_j
            assert phased.energy_j <= one.energy_j * (1 + 1e-9)
            assert limit.energy_j <= phased.energy_j * 1.002
            assert limit.energy_j <= before_j * (1 + 1e-9)
            before_j = limit.energy_j


def test_a_rank_that_waits_for_another_is_given_a_lower_clock(laws):
    """The other rank has twice as much to do: this one has slack."""
    piece = xray_dag.Piece
    fast = piece("run", 0, 0.0, {Kind.COMPUTE: 0.05})
    slow = piece("run", 1, 0.0, {Kind.COMPUTE: 0.10})
    link = piece("link", 0, 0.10, {Kind.COMMUNICATION: 0.01})
    edges = (xray_dag.Edge(0, 2), xray_dag.Edge(1, 2))
    graph = xray_dag.Graph((fast, slow, link), ((0,), (1,), (0, 1)), edges, (0, 1, 2), 2, 0.11, True, 1)
    played = Played(graph, laws, 0)
    plan = played.phased(0.01, 0.1)  # its share of the collective is a little slower at its clock
    assert plan.choice[0] > max(EVEN, plan.choice[1])
    assert plan.time_s <= played.seen.time_s * 1.01 * (1 + 1e-9)
    assert plan.energy_j < played.one_clock(0.01).energy_j


def test_a_phase_is_no_shorter_than_four_changes_of_clock():
    assert phases_of(0.09, 0.025) == 1
    assert phases_of(0.35, 0.025) == 3
    assert phases_of(10.0, 0.025) == 8
