"""What is to be done later."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.daemon.timers import Timers


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_is_done_before_its_time_and_all_of_it_then():
    clock = Clock()
    timers = Timers(clock)
    done: list[str] = []
    assert timers.due_in_s() is None
    timers.after(2.0, lambda: done.append("later"))
    timers.after(1.0, lambda: done.append("soon"))
    assert timers.due_in_s() == 1.0
    timers.run()
    assert done == []
    clock.now_s = 1.0
    timers.run()
    assert done == ["soon"]
    clock.now_s = 5.0
    assert timers.due_in_s() == 0.0
    timers.run()
    assert done == ["soon", "later"]
    assert timers.due_in_s() is None


def test_what_an_act_adds_waits_for_the_next_time():
    timers = Timers(Clock())
    done: list[int] = []

    def again() -> None:
        done.append(1)
        timers.after(0.0, again)

    again()
    for count in range(2, 6):
        timers.run()
        assert len(done) == count


@given(st.lists(st.floats(0, 100), max_size=30))
def test_acts_come_in_the_order_of_their_times_and_then_of_their_asking(delays_s: list[float]):
    clock = Clock()
    timers = Timers(clock)
    done: list[tuple[float, int]] = []
    for number, delay_s in enumerate(delays_s):
        timers.after(delay_s, lambda each=(delay_s, number): done.append(each))  # type: ignore[misc]
    clock.now_s = 100.0
    timers.run()
    assert done == sorted((delay_s, number) for number, delay_s in enumerate(delays_s))


def test_what_is_cancelled_is_not_done_and_nothing_of_it_is_kept():
    clock = Clock()
    timers = Timers(clock)
    done: list[int] = []

    class Heavy:
        def act(self) -> None:
            done.append(-1)

    heavy = Heavy()
    kept = weakref.ref(heavy)
    timer = timers.after(1000.0, heavy.act)
    timers.cancel(timer)
    timers.cancel(timer)
    del heavy
    assert kept() is None
    for number in range(1000):
        timers.cancel(timers.after(500.0, lambda: done.append(-1)))
        if number % 100 == 0:
            timers.after(10.0, lambda number=number: done.append(number))  # type: ignore[misc]
    assert len(timers) < 200
    clock.now_s = 2000.0
    timers.run()
    assert done == list(range(0, 1000, 100))
    assert timers.due_in_s() is None


def test_where_one_raises_the_rest_is_done_the_next_time():
    clock = Clock()
    timers = Timers(clock)
    done: list[str] = []

    def fault() -> None:
        raise RuntimeError("a fault")

    timers.after(1.0, fault)
    timers.after(1.0, lambda: done.append("the rest"))
    clock.now_s = 1.0
    with pytest.raises(RuntimeError):
        timers.run()
    assert timers.due_in_s() == 0.0
    timers.run()
    assert done == ["the rest"]
