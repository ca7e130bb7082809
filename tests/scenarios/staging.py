"""The stage of a scenario: virtual GPUs in one process, the daemon in another, every client in its own."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.control_stage import Talk
from joulewise.core.units import watts_from_milliwatts
from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.vnvml_layout import VnvmlState
from tests.daemon.running import RunningDaemon, running_daemon
from tests.scenarios.client import Client

SITE_CAP_W = 650.0
"""What the site has set before we come: not the vendor's default (700 W), so that a reset is no restore."""
ANYONE = 12345
"""A user that has no rights but those the site gives."""
SITE = f"""
[pace]
writes_per_s = 10000
burst = 10000
[[rule]]
users = [{ANYONE}]
needs = "nothing"
knobs = {{ power_limit_w = "any", sm_mhz = "any", memory_mhz = "any" }}
"""
"""Clients may write as fast as they can, so that what is measured is the daemon and not its patience."""

Hardware = tuple[float, tuple[int, int] | None, tuple[int, int] | None]
"""A GPU's power limit in watts and its two clock locks, as the driver holds them."""


SOON_S = 20.0
"""For what happens at once, on a machine that may be busy; no lease of a test ends by itself so soon."""


def until(condition: Callable[[], object], deadline_s: float = SOON_S, *, every_s: float = 0.001) -> float:
    """Wait until ``condition`` holds; seconds that it took. AssertionError past the deadline."""
    begun_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun_s
        assert waited_s < deadline_s, f"not so within {deadline_s:g} s"
        time.sleep(every_s)
    return time.monotonic() - begun_s


class Stage:
    """One node, its daemon, and whoever comes."""

    def __init__(self, node: RunningNode, daemon: RunningDaemon, breaker: NodeClient, ending: ExitStack) -> None:
        self.node, self.daemon, self.breaker = node, daemon, breaker
        self.uuids = breaker.uuids
        self._ending = ending
        self._words = ending.enter_context(VnvmlState.open(node.directory))

    def hardware(self, index: int) -> Hardware:
        """What the driver holds, also what NVML does not show."""
        control = self._words.read_control(index)
        return watts_from_milliwatts(control.power_limit_mw), control.sm_lock_mhz, control.memory_lock_mhz

    def all_hardware(self) -> list[Hardware]:
        """Of all GPUs, in order."""
        return [self.hardware(index) for index in range(len(self.uuids))]

    def cap(self, limit_w: float = SITE_CAP_W) -> list[Hardware]:
        """The site caps all its GPUs, as it would before we come; what they hold then."""
        for index in range(len(self.uuids)):
            self.cap_one(index, limit_w)
        before = self.all_hardware()
        assert before == [(limit_w, None, None)] * len(self.uuids)
        return before

    def cap_one(self, index: int, limit_w: float = SITE_CAP_W) -> None:
        """The site caps one of its GPUs, whose faults are gone."""
        self.breaker.clear(index)
        self.breaker.fault(index, "foreign", power_limit_w=limit_w)

    def persistence(self, index: int) -> bool:
        """Whether the driver stays loaded without clients."""
        return self._words.read_control(index).persistence

    def writes(self) -> list[int]:
        """How often each GPU has been written to, by anybody."""
        return [self._words.read_control(index).sequence for index in range(len(self.uuids))]

    def environment(self) -> dict[str, str]:
        """For processes that shall find these GPUs and this daemon."""
        return {**self.node.environment(), "JOULEWISE_SOCKET": str(self.daemon.socket)}

    def client(self, uid: int | None = ANYONE) -> Client:
        """Someone comes, who sees the socket alone; gone with the stage, if not before."""
        environment = {**os.environ, "JOULEWISE_SOCKET": str(self.daemon.socket)}
        return self._ending.enter_context(Client(environment, uid=uid))

    def leases(self) -> list[dict[str, Any]]:
        """Who holds what, as the daemon says."""
        return list(self.ask("leases")["leases"])

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request to the daemon, as root, on a connection of its own. Raises Refused."""
        with self.talk() as talk:
            return talk(op, **fields)

    def talk(self) -> Talk:
        """A bare connection, as root."""
        return Talk(self.daemon.socket)

    def audit(self) -> list[dict[str, Any]]:
        """The audit log."""
        return [json.loads(line) for line in Path(self.daemon.audit).read_text().splitlines()]


@contextmanager
def staged(
    spec: str = "sim:h200*8",
    *,
    site: str = SITE,
    prepare: Callable[[Path], AbstractContextManager[object]] | None = None,
    **node: Any,
) -> Iterator[Stage]:
    """Set a stage: GPUs (``node`` as ``spawn`` takes it), and a daemon that serves them.

    ``prepare`` may do something to the folder in which the daemon will have its files, before it starts.
    """
    with ExitStack() as ending:
        folder = Path(tempfile.mkdtemp(prefix="joulewise-"))
        ending.callback(shutil.rmtree, folder)
        if prepare is not None:
            ending.enter_context(prepare(folder))
        running = ending.enter_context(spawn(spec, **node))
        breaker = ending.enter_context(running.client())
        daemon = ending.enter_context(running_daemon(running, folder, site=site))
        yield Stage(running, daemon, breaker, ending)
