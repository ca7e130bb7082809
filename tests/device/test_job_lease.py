"""A job's lease: taken on one thread, given back on another, never waited for beyond its time, never left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from joulewise.core.errors import GpuStalled, LeaseLost, NoDaemon
from joulewise.core.timeline import VirtualTime
from joulewise.device import job_lease
from joulewise.device.job_lease import JobLease, release_in_time
from joulewise.device.local import LocalLease
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog

LIMIT_W = 500.0


class Driver(VirtualControls):
    """A driver that hangs in the middle of a write while ``answers`` is not set."""

    def __init__(self, gpu: VirtualGpu) -> None:
        super().__init__(gpu)
        self.answers, self.writes = threading.Event(), threading.Event()
        self.answers.set()

    def write(self, knob: str, value: float) -> None:
        self.writes.set()
        assert self.answers.wait(60)
        super().write(knob, value)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver(VirtualGpu(catalog.load("h200"), time=VirtualTime()))
    yield made
    made.answers.set()


def taken(driver: Driver) -> LocalLease:
    return LocalLease.take([driver], ["power_limit_w"], state=None)


def test_it_is_given_back_once_and_nothing_is_taken_afterwards(driver: Driver) -> None:
    lease = JobLease(lambda: taken(driver))
    held = lease.take()
    held.apply({"power_limit_w": LIMIT_W})
    ended = lease.give_back()
    assert ended is not None
    assert [each.after for each in ended.restored] == [700.0]
    assert (lease.give_back(), held.alive) == (None, False)
    with pytest.raises(LeaseLost, match="the job has ended"):
        lease.take()


def test_a_take_that_hangs_is_not_waited_for_and_what_it_gets_is_released(driver: Driver) -> None:
    asked, answers, got = threading.Event(), threading.Event(), []

    def acquire() -> LocalLease:
        asked.set()
        assert answers.wait(60)
        got.append(taken(driver))
        return got[0]

    lease, refused = JobLease(acquire), []

    def take() -> None:
        try:
            lease.take()
        except LeaseLost as error:
            refused.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    assert asked.wait(60)
    assert lease.give_back() is None  # although nobody has answered yet
    answers.set()
    thread.join(60)
    assert not got[0].alive
    assert refused == ["the job ended while its GPUs were being taken; they were given back"]


def test_a_driver_that_hangs_is_left_after_a_while_and_what_was_set_comes_back_when_it_answers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lease, "GIVE_BACK_S", 0.05)
    lease = JobLease(lambda: taken(driver))
    held = lease.take()
    driver.answers.clear()
    thread = threading.Thread(target=lambda: held.apply({"power_limit_w": LIMIT_W}))
    thread.start()
    assert driver.writes.wait(60)
    with pytest.raises(GpuStalled, match=r"has not been given back for 0.05 s: a driver that hangs\?"):
        lease.give_back()
    assert thread.is_alive()
    driver.answers.set()
    thread.join(60)
    held.release()  # waits for the one that is under way
    assert driver.value("power_limit_w") == 700.0


def test_what_releasing_raises_is_raised() -> None:
    class Lost:
        name = "l"

        def release(self) -> None:
            raise NoDaemon("gone")

    with pytest.raises(NoDaemon, match="gone"):
        release_in_time(Lost())  # type: ignore[arg-type]
