"""Clients in containers: user, pid and mount namespaces of their own, the socket bind-mounted into them.

What counts is who they are outside: root inside is nobody special, a pid inside means nothing, and their death is seen.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.house import ALICE, BOB, House, error, house, left_as_found
from tests.daemon.someone import Someone

SUBORDINATE = 200_000
"""The first of the users that a rootless container of Alice's has besides herself (/etc/subuid)."""
ONLY_ALICE = [(0, ALICE, 1)]
ROOTLESS = [(0, ALICE, 1), (1, SUBORDINATE, 65536)]


@pytest.fixture(scope="module")
def inside() -> Iterator[House]:
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    try:
        Someone(ALICE, uid_map=ROOTLESS, pid_namespace=True).close()
    except AssertionError:
        pytest.skip("the kernel allows no user namespaces here")
    with house() as shared:
        yield shared


@pytest.fixture
def mounted(inside: House) -> Path:
    """Where a container sees the daemon's socket, and the host sees an empty folder."""
    target = inside.daemon.folder / "mounted"
    target.mkdir(mode=0o755, exist_ok=True)
    return target


@pytest.fixture(autouse=True)
def untouched(inside: House) -> Iterator[None]:
    with left_as_found(inside):
        yield


def contained(
    inside: House, mounted: Path, uid: int = ALICE, uid_map=ONLY_ALICE, *, pid_namespace: bool = True
) -> Someone:
    """Somebody in a container, connected through the mount."""
    person = inside.someone(
        uid,
        uid_map=uid_map,
        pid_namespace=pid_namespace,
        bind=(inside.daemon.socket.parent, mounted),
        at=mounted / inside.daemon.socket.name,
    )
    assert list(mounted.iterdir()) == []
    return person


@pytest.mark.parametrize("uid_map", [ONLY_ALICE, ROOTLESS], ids=["one user", "rootless"])
def test_root_inside_is_who_they_are_outside(inside, mounted, uid_map):
    alice = contained(inside, mounted, uid_map=uid_map)
    assert alice("who") == [2, 0]
    hello = alice.ask("hello")["ok"]
    assert (hello["uid"], hello["pid"]) == (ALICE, alice.pid)
    assert error(inside.take(alice, 3)) == "NotPermitted"
    for op, fields in (("status", {}), ("stand", {"gpus": [inside.uuids[0]], "setting": {"sm_mhz": 1200}})):
        assert error(alice.ask(op, **fields)) == "NotPermitted"
    lease = inside.hold(alice, 0, 500.0)  # a rule gives her this one, wherever she is
    assert error(alice.ask("apply", lease=lease, setting={"power_limit_w": 300})) == "OutOfRange"


def test_another_user_of_the_container_is_another_user(inside, mounted):
    person = contained(inside, mounted, uid_map=ROOTLESS)
    person("become", 1)
    assert person("who") == [2, 1]
    person("connect", str(mounted / inside.daemon.socket.name))
    assert person.ask("hello")["ok"]["uid"] == SUBORDINATE
    assert error(inside.take(person, 0)) == "NotPermitted"


def test_root_inside_bobs_container_has_nothing_of_alices(inside, mounted):
    alice = inside.someone(ALICE)
    lease = inside.hold(alice, 0, 500.0)
    bob = contained(inside, mounted, BOB, [(0, BOB, 1)])
    assert error(bob.ask("apply", lease=lease, setting={"power_limit_w": 450})) == "NotPermitted"
    assert error(bob.ask("end", lease=lease)) == "NotPermitted"
    assert error(inside.take(bob, 1)) == "NotPermitted"
    assert inside.hardware(0)[0] == 500.0


def test_root_inside_cannot_forge_who_sends_a_message(inside, mounted):
    alice_outside = inside.someone(ALICE)
    person = contained(inside, mounted, uid_map=ROOTLESS)
    # Over its own pids and users the kernel lets it, and the daemon sees that it is not who connected.
    assert error(person("ask_as", {"op": "hello"}, 1, 0)) in ("NotPermitted", "hung up")
    person = contained(inside, mounted, uid_map=ROOTLESS)
    assert error(person("ask_as", {"op": "hello"}, 2, 1)) in ("NotPermitted", "hung up")
    # Of all others it does not even know the numbers.
    person = contained(inside, mounted, uid_map=ONLY_ALICE)
    for pid, uid in ((2, BOB), (alice_outside.pid, 0)):
        refusal = person("ask_as", {"op": "hello"}, pid, uid)
        assert refusal.get("refused_by_kernel") in (errno.EPERM, errno.EINVAL, errno.ESRCH), refusal


def test_a_process_on_the_gpu_is_recognised_though_its_pid_is_another_inside(inside, mounted):
    alice = contained(inside, mounted)
    assert "no process of yours" in inside.take(alice, 2)["message"]
    inside.work(alice, 2)
    assert alice("who")[0] != alice.pid
    inside.hold(alice, 2, 400.0)


def test_a_process_of_another_container_makes_a_gpu_shared(inside, mounted):
    alice, bob = contained(inside, mounted), contained(inside, mounted, BOB, [(0, BOB, 1)])
    inside.work(alice, 2)
    inside.work(bob, 2)
    for person in (alice, bob):
        assert "shared with" in inside.take(person, 2)["message"]


@pytest.mark.parametrize("pid_namespace", [True, False], ids=["own pids", "the host's pids"])
def test_the_death_of_a_client_in_a_container_is_seen(inside, mounted, pid_namespace):
    before = inside.all_hardware()
    alice = contained(inside, mounted, pid_namespace=pid_namespace)
    inside.hold(alice, 0, 500.0)
    alice.kill()
    inside.until_as(before)
    if alice.init_pid is not None:
        os.kill(alice.init_pid, 0)  # the container lives on


def test_the_end_of_a_whole_container_is_seen(inside, mounted):
    before = inside.all_hardware()
    alice = contained(inside, mounted, uid_map=ROOTLESS)
    inside.hold(alice, 0, 500.0)
    assert alice.init_pid is not None
    os.kill(alice.init_pid, signal.SIGKILL)
    inside.until_as(before)
    assert not Path(f"/proc/{alice.pid}").exists() or "Z" in Path(f"/proc/{alice.pid}/stat").read_text().split()[2]


def test_a_client_that_leaves_its_connection_to_the_container_loses_its_lease_when_it_dies(inside, mounted):
    before = inside.all_hardware()
    alice = contained(inside, mounted)
    inside.hold(alice, 0, 500.0)
    assert alice("leave_child") == 3
    alice.kill()
    inside.until_as(before)
