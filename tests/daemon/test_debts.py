"""What a process before the daemon owed: on a virtual GPU, with a driver that hangs when it is told to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.core.errors import LeaseTaken
from joulewise.core.timeline import VirtualTime
from joulewise.daemon.audit import Audit
from joulewise.daemon.book import Book
from joulewise.daemon.debts import Debts, Given
from joulewise.daemon.station import LATE_S, Station
from joulewise.daemon.tenure import RETRY_FIRST_S, RETRY_MOST_S
from joulewise.daemon.worker import Job
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Owner
from joulewise.device.saved import Entry, Memory
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog

WHO = Owner("lease-1", 1000, 42, "train.py")
OWED = replace(Entry.new("power_limit_w", 700.0, WHO, None), wrote=(300.0,))


class Driver:
    """Makes calls when told to, and answers them when told to."""

    def __init__(self) -> None:
        self._asked: list[Job] = []
        self._made: list[Job] = []

    def submit(self, job: Job) -> None:
        self._asked.append(job)

    def make(self) -> None:
        while self._asked:
            job = self._asked.pop(0)
            job.run()
            self._made.append(job)

    def answer(self) -> None:
        self.make()
        while self._made:
            job = self._made.pop(0)
            job.done(job)


class Owing:
    """One GPU that a dead process has left at 300 W instead of 700 W, and those who give it back."""

    def __init__(self, folder: Path) -> None:
        self.time = VirtualTime(100.0)
        self.gpu = VirtualGpu(catalog.load("h200"), time=self.time)
        self.time.sleep(10.0)
        self.controls = VirtualControls(self.gpu)
        self.controls.write("power_limit_w", 300.0)
        self.saved = Memory()
        self.saved.save(OWED)
        self.driver, self.book = Driver(), Book()
        self.audit = Audit(folder / "audit.jsonl")
        self.retries: list[tuple[float, Callable[[], None]]] = []
        self.uuid = self.controls.uuid
        self.taken = ""
        self.station = Station(self.controls, self._open, self.driver, self.time.now_s)
        self.debts = Debts(
            {self.uuid: self.station}, self.book, self.audit, lambda *when: self.retries.append(when)
        )  # fmt: skip

    def _open(self, controls: Controls) -> Keeper:
        if self.taken:
            raise LeaseTaken(self.taken)
        return Keeper(controls, self.saved)

    def written(self) -> list[str]:
        return [json.loads(line)["result"] for line in self.audit.path.read_text().splitlines()]

    def hang(self) -> None:
        """The driver makes its calls and answers nothing for longer than anybody waits."""
        self.driver.make()
        self.time.sleep(LATE_S + 1.0)
        self.station.tick()


@pytest.fixture
def owing(tmp_path: Path) -> Owing:
    return Owing(tmp_path)


def test_what_is_owed_is_given_back_and_no_longer_listed(owing: Owing) -> None:
    owing.debts.owe(owing.uuid, [OWED], "its process is gone")
    owing.debts.settle(owing.uuid)
    owing.driver.answer()
    assert owing.controls.value("power_limit_w") == 700.0
    assert (owing.book.owed, owing.retries, owing.written()) == ({}, [], ["restored"])


def test_what_fails_is_listed_and_tried_again_ever_more_rarely_until_it_works(owing: Owing) -> None:
    owing.gpu.fault(lost=True)
    owing.debts.settle(owing.uuid)
    waits_s = []
    for _ in range(12):
        owing.driver.answer()
        assert "fell off the bus" in owing.book.owed[owing.uuid].why
        ((wait_s, again),) = owing.retries
        owing.retries.clear()
        waits_s.append(wait_s)
        again()
    assert waits_s[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert waits_s[-1] == RETRY_MOST_S
    assert owing.written() == ["failed"]  # the same failure again is no news
    owing.gpu.clear()
    owing.driver.answer()
    assert (owing.book.owed, owing.retries, owing.written()) == ({}, [], ["failed", "restored"])


def test_a_gpu_in_the_hands_of_a_living_process_owes_nothing_but_is_looked_at_again(owing: Owing) -> None:
    owing.debts.owe(owing.uuid, [OWED], "its process is gone")
    owing.taken = "pid 7 has it"
    owing.debts.settle(owing.uuid)
    owing.driver.answer()
    assert owing.book.owed == {}
    assert len(owing.retries) == 1
    assert owing.controls.value("power_limit_w") == 300.0


def test_one_lease_of_before_is_asked_for_by_its_name_and_another_name_means_nothing(owing: Owing) -> None:
    told: list[Given] = []
    owing.debts.owe(owing.uuid, [OWED], "its process is gone")
    owing.debts.try_lease("lease-2", told.append)
    assert told == [()]
    owing.debts.try_lease("lease-1", told.append)
    owing.driver.answer()
    assert [(each.knob, each.ending, each.after) for each in told[1]] == [("power_limit_w", Ending.RESTORED, 700.0)]


def test_who_asked_hears_once_even_if_the_driver_answers_after_all(owing: Owing) -> None:
    told: list[Given] = []
    owing.debts.owe(owing.uuid, [OWED], "its process is gone")
    owing.debts.try_lease("lease-1", told.append)
    owing.hang()
    assert [(each.ending, each.before, each.wrote) for each in told[0]] == [(Ending.FAILED, 700.0, 300.0)]
    owing.driver.answer()
    assert len(told) == 1
    assert owing.controls.value("power_limit_w") == 700.0
    assert (owing.book.owed, owing.written()) == ({}, ["restored"])


def test_a_driver_that_answers_late_that_it_failed_is_asked_again_by_one_and_not_by_two(owing: Owing) -> None:
    owing.gpu.fault(lost=True)
    owing.debts.settle(owing.uuid)
    owing.hang()
    owing.driver.answer()
    assert owing.book.owed[owing.uuid].entries == (OWED,)
    assert len(owing.retries) == 1


def test_a_gpu_that_hangs_or_is_not_there_is_not_waited_for(owing: Owing) -> None:
    told: list[Given] = []
    owing.debts.try_all()  # nothing is listed, so nobody is asked
    assert owing.station.idle
    owing.debts.owe(owing.uuid, [OWED], "its process is gone")
    owing.debts.try_all()
    owing.hang()
    assert owing.station.health == "stalled"
    owing.debts.try_lease("lease-1", told.append)
    assert [each.why for each in told[0]] == ["its process is gone"]
    owing.debts.settle("GPU-gone")
    assert [wait_s for wait_s, _ in owing.retries] == [RETRY_FIRST_S]
