"""A trial is asked, told and killed, in this order: real processes."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from joulewise.cli.recur_stop import Stop, _family, _lives
from joulewise.core import metric
from joulewise.core.marks import start_of
from joulewise.monitor.metrics import MetricFeed

GRACE_S = 0.15
LONG_S = 3600.0
"""A grace that no test lives to see the end of."""
IGNORES = "trap 'if test -e \"$0/stop\"; then echo asked, then told; else echo told; fi' TERM"
WAITS = "echo ready; while :; do sleep 0.02; done"


class Told:
    """A shell that says on its stdout what it is told, and the way to stop it."""

    def __init__(self, script: str, where: Path, grace_s: float) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", script, str(where)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.line() == "ready"
        self.stop = Stop(self.process.pid, MetricFeed(where), grace_s)

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def keep_up_until(self, is_so: Callable[[], bool], *, deadline_s: float = 20.0) -> None:
        until_s = time.monotonic() + deadline_s
        while not is_so():
            assert time.monotonic() < until_s, "it never came so far"
            self.stop.keep_up()
            time.sleep(0.005)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def shell(tmp_path) -> Iterator[Callable[..., Told]]:
    started: list[Told] = []

    def start(script: str, grace_s: float = GRACE_S) -> Told:
        started.append(Told(script, tmp_path, grace_s))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_one_that_listens_to_nobody_is_told_at_once_and_killed_after_its_grace(shell):
    stubborn = shell(f"{IGNORES}; {WAITS}")
    stubborn.stop.ask("enough")
    assert stubborn.line() == "asked, then told"
    assert not stubborn.stop.killed
    stubborn.keep_up_until(lambda: stubborn.ended)
    assert (stubborn.process.returncode, stubborn.stop.killed) == (-signal.SIGKILL, True)


def test_one_that_asks_is_asked_first_told_then_and_killed_at_last(shell, tmp_path):
    stubborn = shell(f"{IGNORES}; {WAITS}")
    (tmp_path / f"it{metric.ASKS}").touch()
    begun_s = time.monotonic()
    stubborn.stop.ask("enough")
    assert (tmp_path / metric.STOP).exists()
    stubborn.keep_up_until(lambda: bool(select.select([stubborn.process.stdout], [], [], 0)[0]))
    assert stubborn.line() == "asked, then told"
    assert time.monotonic() - begun_s >= GRACE_S  # it had its time to end by itself
    stubborn.keep_up_until(lambda: stubborn.ended)
    assert (stubborn.process.returncode, stubborn.stop.killed) == (-signal.SIGKILL, True)
    assert time.monotonic() - begun_s >= 2 * GRACE_S  # and then its time for a checkpoint


def test_one_that_ends_when_asked_is_sent_nothing(shell, tmp_path):
    polite = shell(f"{IGNORES}; echo ready; until test -e $0/stop; do sleep 0.02; done; echo saved", LONG_S)
    (tmp_path / f"it{metric.ASKS}").touch()
    polite.stop.ask("enough")
    assert polite.line() == "saved"
    polite.keep_up_until(lambda: polite.ended)
    polite.stop.tidy()
    assert (polite.process.returncode, polite.stop.killed) == (0, False)


def test_until_it_is_asked_nothing_is_done_and_a_second_reason_changes_nothing(shell):
    told = shell(f"{IGNORES}; {WAITS}", LONG_S)
    told.stop.keep_up()
    told.stop.tidy()
    assert (told.stop.why, told.ended) == (None, False)
    told.stop.ask("first")
    told.stop.ask("second")
    assert told.stop.why == "first"
    assert told.line() == "asked, then told"
    told.process.kill()
    assert told.process.stdout.read() == ""  # told once


def test_the_kill_takes_all_that_it_has_started(shell):
    parent = shell(f"{IGNORES}; (trap '' TERM; {WAITS}) & wait; {WAITS}")
    family = _family(parent.process.pid)
    assert family
    parent.stop.ask("enough")
    parent.keep_up_until(lambda: parent.ended and not any(_lives(*each) for each in family))
    assert parent.stop.killed


@pytest.mark.parametrize(("trap", "grace_s", "killed"), [("exit", 30.0, False), ("", GRACE_S, True)])
def test_what_a_shell_leaves_behind_has_its_time_too_and_no_more(shell, trap, grace_s, killed):
    child = f"(trap '{trap}' TERM; {WAITS})"
    leaves = shell(f"{child} & wait", grace_s)  # gets SIGTERM, and leaves its child to nobody
    left = _family(leaves.process.pid)
    assert left
    leaves.stop.ask("enough")
    leaves.keep_up_until(lambda: leaves.ended)
    leaves.stop.tidy()
    assert not any(_lives(*each) for each in left)
    assert leaves.stop.killed == killed


def test_a_process_is_known_by_when_it_started_since_numbers_come_again():
    mine = os.getpid()
    started = start_of(mine)
    assert _lives(mine, started)
    assert not _lives(mine, started + 1)


def test_one_that_has_ended_and_was_not_waited_for_does_not_live():
    with subprocess.Popen(["true"]) as process:
        started = start_of(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not _lives(process.pid, started)
