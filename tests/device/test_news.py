"""What is heard late must end as if it had been heard at once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.device.board import Board
from joulewise.device.operating import Demand
from joulewise.device.state import Job
from joulewise.model import catalog, workloads
from joulewise.model.physics import Load

H200 = catalog.load("h200")
LOAD = Load(gpu_s=0.03, sm_share=0.8, dynamic_w=700.0)


def test_work_that_came_back_late_begins_where_it_should_have() -> None:
    board = Board(H200, rewind_s=1.0)
    first, second = Job((LOAD,)), Job((LOAD,))
    board.submit(first, 0.0)
    board.advance(0.35)
    assert first.finished_s == pytest.approx(0.03)
    board.submit(second, first.finished_s or 0.0)
    assert second.started_s == first.finished_s
    assert second.finished_s == pytest.approx(0.06)
    assert board.time_s == 0.35


def test_a_limit_written_a_moment_ago_counts_from_when_it_was_written() -> None:
    late, at_once = (Board(H200, seed=1, rewind_s=1.0) for _ in range(2))
    for board in (late, at_once):
        board.play(workloads.get("transformer", gpu=H200).phases(), 0.0)
    demand = Demand(sm_mhz=(990.0, 990.0), limit_w=300.0)
    at_once.ask(demand, 5.0)
    at_once.advance(5.4)
    late.advance(5.4)
    assert late.trace.energy_j(5.4) != pytest.approx(at_once.trace.energy_j(5.4), rel=1e-3)
    late.ask(demand, 5.0)
    assert late.trace.energy_j(5.4) == pytest.approx(at_once.trace.energy_j(5.4), rel=1e-9)


def test_news_older_than_can_be_taken_back_happens_as_early_as_possible() -> None:
    board = Board(H200, rewind_s=0.5)
    board.advance(100.0)
    job = Job((LOAD,))
    board.submit(job, 10.0)
    assert job.started_s is not None
    assert 98.0 <= job.started_s <= 99.5


def test_without_a_rewind_late_news_happens_now() -> None:
    board = Board(H200)
    board.advance(1.0)
    job = Job((LOAD,))
    board.submit(job, 0.2)
    board.advance(2.0)
    assert job.started_s == 1.0


def test_what_was_taken_back_with_its_process_does_not_return() -> None:
    board = Board(H200, rewind_s=1.0)
    job = Job((LOAD,), pid=9)
    board.submit(job, 0.0)
    board.advance(0.2)
    board.detach(9, 0.01)
    board.advance(0.5)
    assert job.finished_s is None
    assert 9 not in board.state.residents


def test_work_handed_in_behind_other_work_makes_nothing_be_lived_again() -> None:
    board = Board(H200, rewind_s=1.0)
    jobs = [Job((LOAD,) * 10) for _ in range(4)]
    board.submit(jobs[0], 0.0)
    board.advance(0.25)
    begun = board.now
    for job in jobs[1:]:
        board.submit(job, 0.1)
    assert board.now is begun
    board.advance(2.0)
    assert [job.started_s for job in jobs[1:]] == [job.finished_s for job in jobs[:-1]]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), gpu_s=st.sampled_from([0.03, 0.1, 0.3]))
def test_whatever_comes_late_ends_as_if_it_had_come_at_once(seed: int, gpu_s: float) -> None:
    draw, load = random.Random(seed), replace(LOAD, gpu_s=gpu_s)  # from a queue that is mostly empty to a long one
    happenings: list[tuple[float, float, int]] = []
    at_s = 0.0
    for number in range(40):
        at_s += draw.expovariate(10.0)
        happenings.append((at_s, at_s + draw.expovariate(10.0), number))
    end_s = max(heard_s for _, heard_s, _ in happenings) + 1.0

    def lived(order: list[tuple[float, float, int]], *, late: bool) -> tuple[Board, list[Job]]:
        board = Board(H200, seed=seed, rewind_s=3.0)
        board.play(workloads.get("cnn", gpu=H200, seed=seed).phases(), 0.0)
        jobs = {number: Job((load,), pid=number % 3 + 1) for number in range(40) if number % 5 != 4}
        for happened_s, heard_s, number in order:
            if late:
                board.advance(heard_s)
            if number in jobs:
                board.submit(jobs[number], happened_s)
            else:
                board.ask(Demand(limit_w=200.0 + 10.0 * number), happened_s)
        board.advance(end_s)
        return board, list(jobs.values())

    exact, exact_jobs = lived(sorted(happenings), late=False)
    heard, heard_jobs = lived(sorted(happenings, key=lambda happening: happening[1]), late=True)
    assert heard.trace.energy_j(end_s) == pytest.approx(exact.trace.energy_j(end_s), rel=1e-9)
    assert heard.state.temperature_c == pytest.approx(exact.state.temperature_c, rel=1e-9)
    assert heard.state.steps == exact.state.steps
    for one, other in zip(exact_jobs, heard_jobs, strict=True):
        # Work that has not come to its turn by the end is None in both.
        assert other.finished_s == (one.finished_s and pytest.approx(one.finished_s, rel=1e-9))
