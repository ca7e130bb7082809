"""Hardware calls in threads of their own: in order on each GPU, none waiting for another, results in one thread."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from joulewise.daemon.worker import Inline, Job, Workers
from tests.daemon.running import until


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


def job(gpu: str, call: Callable[[], Any], done: list[Job], *, must: bool = False) -> Job:
    return Job(gpu, call, done.append, 0.0, must=must)


def deliver(workers: Workers, count: int) -> None:
    """As the server does: wait for the descriptor, then deliver."""
    while count:
        assert select.select([workers.fd], [], [], 10)[0]
        count -= workers.deliver()


def test_results_come_back_in_the_thread_that_delivers(workers: Workers):
    seen: list[tuple[int, int]] = []
    here = threading.get_ident()
    workers.submit(Job("a", threading.get_ident, lambda job: seen.append((job.result, threading.get_ident())), 0.0))
    deliver(workers, 1)
    ((there, back),) = seen
    assert there != here
    assert back == here


def test_calls_on_one_gpu_run_in_order_and_one_at_a_time(workers: Workers):
    done: list[Job] = []
    running: list[int] = []
    order: list[int] = []

    def call(number: int) -> None:
        running.append(number)
        assert running == [number]
        order.append(number)
        running.remove(number)

    for number in range(200):
        workers.submit(job("a", lambda number=number: call(number), done))  # type: ignore[misc]
    deliver(workers, 200)
    assert order == list(range(200))
    assert [each.error for each in done] == [None] * 200


def test_a_call_that_hangs_stops_no_other_gpu(workers: Workers):
    done: list[Job] = []
    released = threading.Event()
    workers.submit(job("hung", released.wait, done))
    workers.submit(job("hung", lambda: "behind", done))
    for number in range(20):
        workers.submit(job(f"gpu {number}", lambda: "fine", done))
    deliver(workers, 20)
    assert {each.result for each in done} == {"fine"}
    released.set()
    deliver(workers, 2)
    assert [each.result for each in done[20:]] == [True, "behind"]


def test_what_a_call_raises_is_its_result(workers: Workers):
    done: list[Job] = []
    error = ValueError("the driver says no")

    def fail() -> None:
        raise error

    workers.submit(job("a", fail, done))
    workers.submit(job("a", lambda: 5, done))
    deliver(workers, 2)
    assert (done[0].error, done[1].result) == (error, 5)


def test_a_fault_about_one_result_leaves_the_others(workers: Workers, capsys: pytest.CaptureFixture[str]):
    done: list[str] = []

    def fault(job: Job) -> None:
        raise RuntimeError("a fault of ours")

    workers.submit(Job("a", lambda: None, fault, 0.0))
    workers.submit(Job("a", lambda: None, lambda job: done.append("the other"), 0.0))
    deliver(workers, 2)
    assert done == ["the other"]
    assert "a fault of ours" in capsys.readouterr().err


def test_a_call_that_was_cancelled_before_it_began_is_not_made_but_comes_back(workers: Workers):
    done: list[Job] = []
    go_on = threading.Event()
    made: list[int] = []
    workers.submit(job("a", go_on.wait, done))
    late = job("a", lambda: made.append(1), done)
    workers.submit(late)
    late.cancelled = True
    go_on.set()
    deliver(workers, 2)
    assert made == []
    assert not late.ran
    assert done[1] is late


def test_a_gpu_has_one_thread_however_much_it_does(workers: Workers):
    done: list[Job] = []
    before = threading.active_count()
    for _ in range(50):
        for gpu in "abc":
            workers.submit(job(gpu, lambda: None, done))
    deliver(workers, 150)
    assert threading.active_count() == before + 3


def test_no_result_is_forgotten_however_they_fall_together(workers: Workers):
    done: list[Job] = []
    for _ in range(300):
        for gpu in range(8):
            workers.submit(job(f"gpu {gpu}", lambda: None, done))
        deliver(workers, 8)
    assert len(done) == 2400


def test_closing_ends_the_threads():
    before = threading.active_count()
    workers = Workers()
    done: list[Job] = []
    workers.submit(job("a", lambda: None, done))
    deliver(workers, 1)
    workers.close()
    until(lambda: threading.active_count() == before)


def test_inline_does_the_same_without_threads():
    inline = Inline()
    done: list[Job] = []
    inline.submit(job("a", lambda: inline.submit(job("b", lambda: 2, done)), done))
    inline.submit(job("a", lambda: 3, done))
    assert inline.deliver() == 3
    assert [each.result for each in done] == [None, 3, 2]
    inline.hold("a")
    inline.submit(job("a", lambda: 4, done))
    inline.submit(job("b", lambda: 5, done))
    assert inline.deliver() == 1
    inline.let_go("a")
    assert inline.deliver() == 1
    assert [each.result for each in done[3:]] == [5, 4]
