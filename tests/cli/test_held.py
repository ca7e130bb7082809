"""A setting held while a command runs, on a virtual GPU of this process; test_run_set has daemons and kills."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from joulewise.cli import tuning
from joulewise.cli.gpus import OpenGpus
from joulewise.cli.held import Held
from joulewise.cli.objectives import Wanted
from joulewise.core.errors import LeaseLost, LeaseTaken, NoGpu, OutOfRange
from joulewise.core.knob import Setting
from joulewise.device import job_lease
from joulewise.device.hold import hold
from joulewise.device.lease import Ended, Ending
from joulewise.device.virtual import VirtualGpu

WANTED = Setting(power_limit_w=500.0)


@pytest.fixture
def found(idle_gpu: VirtualGpu) -> OpenGpus:
    return OpenGpus([idle_gpu], {}, "a test's")


def test_it_is_in_force_meanwhile_and_back_afterwards(found: OpenGpus, idle_gpu: VirtualGpu) -> None:
    with Held(found, WANTED, reason="a test") as held:
        assert idle_gpu.asked_limit_w == 500.0
        held.begin()
        idle_gpu.time.sleep(60.0)
        held.finish()
        result = held.end(60.0)
        assert idle_gpu.asked_limit_w == 700.0
    assert (result.requested, dict(result.effective)) == (WANTED, {idle_gpu.info.uuid: WANTED})
    assert (result.held_s, result.ended_early) == (60.0, None)
    assert [(each.knob, each.ending) for each in result.restored] == [("power_limit_w", Ending.RESTORED)]
    assert held.news() == []


def test_what_somebody_else_sets_is_told_once_and_ends_the_time_for_which_it_held(
    found: OpenGpus, idle_gpu: VirtualGpu
) -> None:
    with Held(found, WANTED, reason="a test") as held:
        held.begin()
        idle_gpu.time.sleep(20.0)
        held._look()
        idle_gpu.apply(Setting(power_limit_w=300.0))
        idle_gpu.time.sleep(20.0)
        held.finish()
        (line,) = held.news()
        assert line.startswith("power_limit_w=500 is no longer in force: ")
        assert held.news() == []
        result = held.end(40.0)
    assert result.held_s == 20.0
    assert result.ended_early is not None
    assert result.ended_early in line
    assert idle_gpu.asked_limit_w == 300.0  # theirs stays


def test_a_lease_that_ends_before_the_command_says_why(found: OpenGpus, idle_gpu: VirtualGpu) -> None:
    with Held(found, WANTED, reason="a test") as held:
        held.begin()
        assert held._lease is not None
        held._lease.release()
        idle_gpu.time.sleep(5.0)
        held.finish()
        result = held.end(5.0)
    assert result.ended_early
    assert result.held_s == 0.0


def test_a_command_that_fails_to_start_leaves_nothing_set(found: OpenGpus, idle_gpu: VirtualGpu) -> None:
    with pytest.raises(FileNotFoundError), Held(found, WANTED, reason="a test"):
        raise FileNotFoundError
    assert idle_gpu.asked_limit_w == 700.0


def test_what_cannot_be_set_is_refused_and_nothing_is_left_behind(found: OpenGpus, idle_gpu: VirtualGpu) -> None:
    with pytest.raises(OutOfRange), Held(found, Setting(power_limit_w=5000.0), reason="a test"):
        raise AssertionError("not entered")
    with hold([idle_gpu], ["power_limit_w"]):  # so nobody holds it
        with pytest.raises(LeaseTaken), Held(found, WANTED, reason="a test"):
            raise AssertionError("not entered")
        assert idle_gpu.asked_limit_w == 700.0


class Hung:
    """A lease that is not given back before the driver answers."""

    name, notes, alive = "hung", (), True

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.in_time: list[bool] = []

    def notices(self) -> tuple[()]:
        return ()

    def release(self) -> Ended:
        self.in_time.append(self.answers.wait(30))
        return Ended("released")


def test_a_driver_that_hangs_as_it_is_given_back_costs_some_seconds_and_a_line(
    found: OpenGpus, idle_gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_lease, "GIVE_BACK_S", 0.05)
    hung = Hung()
    with Held(found, WANTED, reason="a test") as held:
        assert held._lease is not None
        held._lease.release()
        held._lease = hung  # type: ignore[assignment]
        result = held.end(60.0)
    hung.answers.set()
    assert any("may not have been given back: lease hung" in note for note in result.notes)
    assert hung.in_time in ([], [True])


@pytest.mark.parametrize("hangs", ["taking", "giving back"])
def test_with_tune_too(hangs: str, found: OpenGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_lease, "GIVE_BACK_S", 0.05)
    monkeypatch.setattr(tuning, "_PATIENCE_S", 0.05)
    hung, asked, taken = Hung(), threading.Event(), threading.Event()

    def take(*_: object) -> Hung:
        asked.set()
        assert hangs == "giving back" or hung.answers.wait(30)
        return hung

    monkeypatch.setattr("joulewise.cli.held.take", take)
    made = tuning.Tuning(found, Wanted(), ["true"])

    def tune() -> None:
        with suppress(LeaseLost):
            made._lease.take()
        taken.set()

    made._thread = threading.Thread(target=tune)
    made._thread.start()
    assert asked.wait(30)
    if hangs == "giving back":
        assert taken.wait(30)
    made.finish()
    assert hung.in_time == []  # nobody has waited for the driver
    notes = made.end().notes
    hung.answers.set()
    made._thread.join(60)
    assert any("lease hung has not been given back" in note for note in notes) == (hangs == "giving back")
    assert hangs == "giving back" or hung.in_time == [True]


def test_without_a_gpu_there_is_nothing_to_set() -> None:
    with pytest.raises(NoGpu, match=r"--set needs a GPU to set: none here; name one with --gpu"):
        Held(OpenGpus.none("none here"), WANTED, reason="a test")
