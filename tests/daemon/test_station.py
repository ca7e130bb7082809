"""One GPU at the daemon: whose processes run on it, as the driver lists them and the kernel knows them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.daemon.rights import Seen
from joulewise.daemon.station import Station
from joulewise.daemon.worker import Inline
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog


class Listing(VirtualControls):
    """A GPU whose driver lists processes as it is told to, look by look; the last goes on."""

    def __init__(self, *looks: tuple[int, ...] | None) -> None:
        super().__init__(VirtualGpu(catalog.load("h200"), time=VirtualTime()))
        self._looks = list(looks)

    def processes(self) -> tuple[int, ...] | None:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def seen(*looks: tuple[int, ...] | None, **more: Any) -> Seen:
    controls = Listing(*looks)

    def never(_: object) -> Any:
        raise AssertionError("a look saves nothing")

    return Station(controls, never, Inline(), VirtualTime().now_s, **more).look_who(controls)


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_processes_are_their_users():
    assert seen((os.getpid(),)) == Seen(((os.getpid(), os.getuid()),), False)


def test_a_driver_that_lists_none_for_want_of_a_list_is_not_one_that_lists_nobody():
    assert seen(None) == Seen(None, False)
    assert seen(()) == Seen((), False)


def test_who_has_gone_since_the_driver_listed_them_is_nobody(gone):
    assert seen((os.getpid(), gone), (os.getpid(),)) == Seen(((os.getpid(), os.getuid()),), False)


@pytest.mark.parametrize("again", [(1,), None])
def test_who_is_listed_still_and_cannot_be_seen_is_somebody_that_nobody_knows(gone, again):
    """In another namespace, say: such a one is never taken for whoever asks."""
    still = again if again is None else (*again, gone)
    assert seen((gone,), still) == Seen(((gone, -1),), False)


def test_a_gpu_in_slices_is_said_to_be_one():
    assert seen((), mig=lambda: True) == Seen((), True)
