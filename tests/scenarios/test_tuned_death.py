"""``joulewise run --tune`` of a user without root's rights, and somebody dies: whatever was set comes back.

The user's ``joulewise run``, the command that it tunes, or the daemon is killed (SIGKILL) at moments drawn beforehand:
before anything is held, after the first settings were tried, in the middle of the comparison, later, and at the very
end. A killed parent leaves its command running to its end; a killed command is told as the shell tells it; nothing
hangs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from joulewise.store import Database, views
from tests.scenarios.staging import SITE_CAP_W, Stage, staged, until
from tests.scenarios.tuned import PATIENCE_S, Tuned, tuning
from tests.tiers import sample

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too"), pytest.mark.slow]

SPEED = 15.0
BEFORE = [(SITE_CAP_W, None, None)]
WRITES = {"before the lease": (0, 0), "first probes": (1, 3), "comparison": (4, 7)}
"""Moment → how many writes to the GPU have been seen by then, at least and at most; the number is drawn."""
HELD_S = 0.4
"""A setting that stays for so long (6 simulated seconds) is held: pairs are shorter."""
MOMENTS = (*WRITES, "hold")


@pytest.fixture(scope="module")
def small() -> Iterator[Stage]:
    with staged("sim:h200", speed=SPEED) as shared:
        yield shared


@pytest.fixture
def tuned(small: Stage) -> Iterator[Tuned]:
    until(lambda: small.leases() == [])
    assert small.cap() == BEFORE
    with tuning(small) as job:
        yield job


def reach(tuned: Tuned, moment: str, victim: str) -> None:
    """Wait for the moment at which ``victim`` dies."""
    draw = random.Random(f"{moment} {victim}")
    if moment == "hold":
        tuned.await_held(HELD_S)
    else:
        tuned.await_writes(draw.randint(*WRITES[moment]))
    time.sleep(draw.uniform(0.0, 0.1))


def as_before(tuned: Tuned) -> None:
    """The GPU comes back to what the site had set, and nobody holds it."""
    until(lambda: tuned.stage.all_hardware() == BEFORE)
    until(lambda: tuned.stage.leases() == [])


@pytest.mark.sampled
@pytest.mark.parametrize("moment", sample(MOMENTS, 2, of="death of the parent"))
def test_a_killed_parent_leaves_the_gpu_as_before_and_the_command_to_its_end(tuned: Tuned, moment: str) -> None:
    reach(tuned, moment, "parent")
    tuned.process.kill()
    tuned.end()
    as_before(tuned)
    tuned.ended_well()
    assert tuned.stage.all_hardware() == BEFORE


@pytest.mark.sampled
@pytest.mark.parametrize("moment", sample(MOMENTS, 2, of="death of the command"))
def test_a_killed_command_is_told_as_a_shell_tells_it_and_the_gpu_is_as_before(tuned: Tuned, moment: str) -> None:
    reach(tuned, moment, "command")
    os.kill(tuned.job, signal.SIGKILL)
    assert tuned.end() == 128 + signal.SIGKILL
    as_before(tuned)
    assert tuned.said().startswith("joulewise: ")
    assert "Traceback" not in tuned.said()


@pytest.mark.sampled
@pytest.mark.parametrize("moment", sample(["first probes", "comparison"], 1, of="death of the daemon"))
def test_when_the_daemon_is_killed_the_command_goes_on_and_the_next_daemon_restores(tuned: Tuned, moment: str) -> None:
    reach(tuned, moment, "daemon")
    tuned.stage.daemon.restart()
    until(lambda: tuned.stage.all_hardware() == BEFORE)
    until(lambda: "nothing is tuned any more: " in tuned.said(), PATIENCE_S)
    tuned.ended_well()
    assert tuned.end() == 0, tuned.said()
    as_before(tuned)
    (run,) = views.runs(Database(tuned.database))
    assert run.finished is not None


def test_a_parent_killed_while_it_gives_everything_back_is_no_harm(tuned: Tuned) -> None:
    tuned.ended_well()
    tuned.process.kill()
    tuned.end()
    as_before(tuned)
