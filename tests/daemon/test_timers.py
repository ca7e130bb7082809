"""What is to be done later."""

from __future__ import annotations

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
