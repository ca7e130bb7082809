"""A house for the tests of who may do what: virtual GPUs, a daemon with rules of its own, and people who come."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.control_stage import Talk
from joulewise.device.node import RunningNode, spawn
from tests.daemon.running import RunningDaemon, Words, running_daemon, until
from tests.daemon.someone import Someone

ALICE, BOB, GROUP = 12345, 23456, 34567
"""Users and a group that the machine does not know; the kernel does not mind."""
LEAST_W, MOST_W = 200.0, 700.0
"""What the hardware of a virtual H200 takes; its default is the most."""

RULES = """
poll_s = 0.1
[pace]
writes_per_s = 1000
burst = 1000
[[rule]]
users = [{alice}]
gpus = ["{gpus[0]}"]
needs = "nothing"
knobs = {{ power_limit_w = [400, 600], sm_mhz = "any", memory_mhz = "none" }}
[[rule]]
groups = [{group}]
gpus = ["{gpus[1]}"]
needs = "nothing"
knobs = {{ power_limit_w = "any" }}
[[rule]]
users = "*"
gpus = ["{gpus[2]}"]
"""
"""GPU 0 is Alice's, GPU 1 a group's, GPU 2 whoever's process runs there alone, GPU 3 nobody's without a grant."""

Hardware = tuple[float, tuple[int, int] | None]


class House:
    """The GPUs, their daemon, and whoever is inside; all gone at the end."""

    def __init__(self, node: RunningNode, daemon: RunningDaemon, uuids: tuple[str, ...], ending: ExitStack) -> None:
        self.node, self.daemon, self.uuids = node, daemon, uuids
        self.people: list[Someone] = []
        self._ending = ending
        self._words = Words(node)
        ending.callback(self._words.close)

    def someone(self, uid: int, *, at: Path | None = None, **how: Any) -> Someone:
        """Somebody comes and connects; they leave at the end, if not before."""
        person = self._ending.enter_context(Someone(uid, **how))
        self.people.append(person)
        person("connect", str(at or self.daemon.socket))
        return person

    def hardware(self, index: int) -> Hardware:
        """A GPU's power limit and the lock of its SM clock, as the driver holds them."""
        return self._words.limit_w(index), self._words.sm_lock(index)

    def all_hardware(self) -> list[Hardware]:
        """Of all GPUs."""
        return [self.hardware(index) for index in range(len(self.uuids))]

    def leases(self) -> list[dict[str, Any]]:
        """Who holds what, as the daemon says."""
        with Talk(self.daemon.socket) as root:
            return list(root("leases")["leases"])

    def take(self, person: Someone, *indices: int, knobs: tuple[str, ...] = ("power_limit_w",)) -> dict[str, Any]:
        """The daemon's answer to somebody who wants a lease."""
        return person.ask("take", gpus=[self.uuids[index] for index in indices], knobs=list(knobs), ttl_s=30)

    def hold(self, person: Someone, index: int, power_limit_w: float) -> str:
        """Somebody who may takes a lease and sets a limit; the lease's name."""
        taken = self.take(person, index)
        assert "ok" in taken, taken
        name = str(taken["ok"]["lease"])
        applied = person.ask("apply", lease=name, setting={"power_limit_w": power_limit_w})
        assert "ok" in applied, applied
        assert self.hardware(index)[0] == power_limit_w
        return name

    def work(self, person: Someone, index: int) -> None:
        """Somebody's process runs on a GPU from now on."""
        person("work", str(self.node.directory), index)

    def pass_on(self, giver: Someone, taker: Someone) -> None:
        """Somebody's connection goes to somebody else, who uses it as if it were their own; both have it then."""
        folder = Path(self._ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-desk-")))
        folder.chmod(0o777)
        taker.begin("receive", str(folder / "desk"))
        giver("give", str(folder / "desk"))
        taker.end()

    def until_as(self, before: list[Hardware], most_s: float = 20.0) -> float:
        """Wait until all GPUs hold what they held; seconds that it took."""
        return until(lambda: self.all_hardware() == before, most_s)


@contextmanager
def left_as_found(inside: House) -> Iterator[None]:
    """Whatever happens meanwhile, at its end all have left, the GPUs are as before, and nobody holds anything."""
    before = inside.all_hardware()
    yield
    for person in inside.people:
        person.close()
    inside.people.clear()
    inside.until_as(before)
    until(lambda: inside.leases() == [])


@contextmanager
def house() -> Iterator[House]:
    """Four virtual GPUs and a daemon with the rules above.

    Not in pytest's folders: whoever starts another pytest closes those to other users, and people here are such.
    """
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-house-")))
        folder.chmod(0o755)
        node = ending.enter_context(spawn("sim:h200*4"))
        with node.client() as client:
            uuids = client.uuids
            for index in range(4):  # not the vendor's default, so that a reset is no restore
                client.fault(index, "foreign", power_limit_w=650.0)
        rules = RULES.format(alice=ALICE, group=GROUP, gpus=uuids)
        daemon = ending.enter_context(running_daemon(node, folder, site=rules))
        yield House(node, daemon, uuids, ending)


def error(answer: dict[str, Any]) -> str:
    """What an answer was refused with; a connection that was closed instead counts as its own kind."""
    assert "ok" not in answer, answer
    return "hung up" if answer.get("hung_up") else str(answer["error"])
