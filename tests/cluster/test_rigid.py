"""Rigid jobs that run stay as they are, whatever a policy says, and what is left is never overdrawn."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.rigid import keep_rigid
from joulewise.cluster.state import Allocation, Job, Snapshot
from tests.cluster.toys import TOY, toy_ways

WAYS = {way.gpus: way for way in reversed(toy_ways())}
SLOW = {way.gpus: way for way in toy_ways()}


def job(name: str, gpus: int | None, *, elastic: bool = True) -> Job:
    return Job(name, 0.0, 1000.0, toy_ways(), gpus or 4, None if gpus is None else WAYS[gpus], elastic=elastic)


def snapshot(*jobs: Job) -> Snapshot:
    return Snapshot(0.0, (TOY,), jobs)


def test_an_allocation_without_rigid_jobs_is_left_alone() -> None:
    wanted = Allocation({"a": WAYS[16], "b": WAYS[16]})
    assert keep_rigid(snapshot(job("a", 8), job("b", None)), wanted) is wanted


def test_a_rigid_job_that_was_left_out_stays_and_comes_first_and_those_who_would_start_wait() -> None:
    there = snapshot(job("stiff", 16, elastic=False), job("soft", 8), job("new", None))
    kept = keep_rigid(there, Allocation({"new": WAYS[16], "soft": WAYS[16]}))
    assert list(kept.ways) == ["stiff", "new", "soft"] or list(kept.ways) == ["stiff", "soft"]
    assert kept.ways["stiff"].gpus == 16
    assert kept.gpus() <= 32
    assert "soft" in kept.ways


def test_its_clock_may_change_but_not_its_gpus() -> None:
    there = snapshot(job("stiff", 8, elastic=False))
    assert keep_rigid(there, Allocation({"stiff": SLOW[8]})).ways["stiff"] is SLOW[8]
    assert keep_rigid(there, Allocation({"stiff": WAYS[16]})).ways["stiff"] is WAYS[8]


@given(
    running=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans()), max_size=4),
    waiting=st.integers(0, 4),
    data=st.data(),
)
def test_nothing_is_overdrawn_and_no_rigid_job_is_lost(
    running: list[tuple[int, bool]], waiting: int, data: st.DataObject
) -> None:
    jobs = [job(f"r{at}", gpus, elastic=elastic) for at, (gpus, elastic) in enumerate(running)]
    jobs += [job(f"w{at}", None) for at in range(waiting)]
    left = 32
    wanted = {}
    for each in data.draw(st.permutations(jobs)):
        gpus = data.draw(st.sampled_from([0, 1, 2, 4, 8, 16]))
        if 0 < gpus <= left:
            wanted[each.name] = WAYS[gpus]
            left -= gpus
    kept = keep_rigid(snapshot(*jobs), Allocation(wanted))
    assert kept.gpus() <= 32
    assert kept.ways.keys() <= wanted.keys() | {each.name for each in jobs if not each.elastic}
    for each in jobs:
        if not each.elastic:
            assert each.way is not None
            assert kept.ways[each.name].gpus == each.way.gpus
        elif each.way is not None and each.name in wanted:
            assert each.name in kept.ways


def test_others_of_another_kind_are_not_touched() -> None:
    other = replace(TOY, name="other")
    far = replace(WAYS[16], kind="other")
    there = Snapshot(0.0, (TOY, other), (job("stiff", 16, elastic=False), job("soft", None), job("far", None)))
    kept = keep_rigid(there, Allocation({"far": far, "soft": WAYS[16]}))
    assert kept.ways == {"stiff": WAYS[16], "far": far, "soft": WAYS[16]}
