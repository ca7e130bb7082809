"""A real second user gets exactly what the policy says, and nothing by pretending. Every person is a process."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.daemon import grants
from joulewise.daemon.grants import Grant
from tests.daemon.house import ALICE, BOB, GROUP, LEAST_W, MOST_W, House, error, house, left_as_found
from tests.daemon.running import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(scope="module")
def inside() -> Iterator[House]:
    with house() as shared:
        yield shared


@pytest.fixture(autouse=True)
def untouched(inside: House) -> Iterator[None]:
    with left_as_found(inside):
        yield
    for grant in grants.read(inside.daemon.grants)[0]:
        grants.remove(inside.daemon.grants, name=grant.name)


def granted(inside: House, uid: int, index: int, **fields: object) -> Grant:
    usual: dict[str, object] = {"name": "given", "expires_unix_s": time.time() + 60}
    made = Grant.of({"uid": uid, "gpus": [inside.uuids[index]], **usual, **fields}, "test")
    grants.add(inside.daemon.grants, made)
    return made


# ---- exactly what the policy says ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(4))
def test_root_may_set_every_gpu_as_far_as_the_hardware_goes(inside, index):
    root = inside.someone(0)
    lease = inside.hold(root, index, LEAST_W)
    assert "ok" in root.ask("apply", lease=lease, setting={"power_limit_w": MOST_W})
    assert error(root.ask("apply", lease=lease, setting={"power_limit_w": MOST_W + 1})) == "OutOfRange"
    assert inside.hardware(index)[0] == MOST_W


@pytest.mark.parametrize(
    ("uid", "groups", "index", "knobs", "expected"),
    [
        (ALICE, (), 0, ("power_limit_w",), None),
        (ALICE, (), 0, ("power_limit_w", "sm_mhz"), None),
        (ALICE, (), 0, ("memory_mhz",), "NotPermitted"),
        (ALICE, (), 0, ("power_limit_w", "memory_mhz"), "NotPermitted"),
        (BOB, (), 0, ("power_limit_w",), "NotPermitted"),
        (BOB, (GROUP,), 1, ("power_limit_w",), None),
        (BOB, (GROUP,), 1, ("sm_mhz",), "NotPermitted"),
        (BOB, (), 1, ("power_limit_w",), "NotPermitted"),
        (ALICE, (), 2, ("power_limit_w",), "NotPermitted"),
        (ALICE, (GROUP,), 3, ("power_limit_w",), "NotPermitted"),
        (65534, (GROUP,), 0, ("power_limit_w",), "NotPermitted"),
    ],
)
def test_rules_give_what_they_name_to_whom_they_name(inside, uid, groups, index, knobs, expected):
    person = inside.someone(uid, groups=groups)
    answer = inside.take(person, index, knobs=knobs)
    assert expected is None or error(answer) == expected
    assert ("ok" in answer) == (expected is None)


@pytest.mark.parametrize(("value", "allowed"), [(400, True), (600, True), (399, False), (601, False), (650, False)])
def test_a_value_outside_of_the_rule_is_refused_though_the_hardware_could(inside, value, allowed):
    alice = inside.someone(ALICE)
    lease = inside.take(alice, 0)["ok"]["lease"]
    answer = alice.ask("apply", lease=lease, setting={"power_limit_w": value})
    assert ("ok" in answer) == allowed
    assert allowed or error(answer) == "OutOfRange"
    assert inside.hardware(0)[0] == (value if allowed else 650.0)


def test_a_lease_over_a_gpu_that_is_ours_and_one_that_is_not_gives_neither(inside):
    alice = inside.someone(ALICE)
    assert error(inside.take(alice, 0, 3)) == "NotPermitted"
    assert inside.leases() == []


def test_whoever_alone_runs_on_a_gpu_may_set_it_from_half_of_its_default_on(inside):
    alice = inside.someone(ALICE)
    assert "no process of yours" in inside.take(alice, 2)["message"]
    inside.work(alice, 2)
    lease = inside.hold(alice, 2, MOST_W / 2)
    assert error(alice.ask("apply", lease=lease, setting={"power_limit_w": MOST_W / 2 - 1})) == "OutOfRange"


def test_another_users_process_gives_nothing_and_a_shared_gpu_is_for_reading_only(inside):
    alice, bob = inside.someone(ALICE), inside.someone(BOB)
    inside.work(bob, 2)
    assert "shared with uid 23456" in inside.take(alice, 2)["message"]
    inside.work(alice, 2)
    for person in (alice, bob):
        assert error(inside.take(person, 2)) == "NotPermitted"
        assert "power_w" in person.ask("read", gpu=inside.uuids[2])["ok"]


def test_a_grant_is_for_its_user_only_and_within_its_range(inside):
    granted(inside, ALICE, 3, knobs={"power_limit_w": [300, 500]})
    alice, bob = inside.someone(ALICE), inside.someone(BOB)
    assert error(inside.take(bob, 3)) == "NotPermitted"
    assert error(inside.take(alice, 3, knobs=("sm_mhz",))) == "NotPermitted"
    lease = inside.hold(alice, 3, 300.0)
    for value in (299, 501):
        assert error(alice.ask("apply", lease=lease, setting={"power_limit_w": value})) == "OutOfRange"
    assert error(inside.take(inside.someone(ALICE), 3)) == "LeaseTaken"


@pytest.mark.parametrize("how", ["removed", "expired"])
def test_a_lease_ends_with_the_grant_that_it_rests_on(inside, how):
    given = granted(inside, ALICE, 3, expires_unix_s=time.time() + (60 if how == "removed" else 1.0))
    before = inside.all_hardware()
    alice = inside.someone(ALICE)
    lease = inside.hold(alice, 3, 400.0)
    if how == "removed":
        grants.remove(inside.daemon.grants, name=given.name)
    inside.until_as(before)
    assert time.time() >= given.expires_unix_s or how == "removed"
    assert error(alice.ask("apply", lease=lease, setting={"power_limit_w": 500})) == "LeaseLost"
    until(lambda: inside.leases() == [])
    assert error(inside.take(alice, 3)) == "NotPermitted"


def test_a_grant_for_a_job_is_not_for_another_login_of_its_user(inside):
    own = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    assert "/slurm/uid_12345/job_1" not in own
    granted(inside, ALICE, 3, cgroup="/slurm/uid_12345/job_1")
    assert error(inside.take(inside.someone(ALICE), 3)) == "NotPermitted"
    folder = _new_cgroup("joulewise-test-job")
    if folder is None:
        return  # the kernel lets nobody make control groups here; the rule itself is tested in test_rights
    try:
        granted(inside, ALICE, 3, cgroup="/joulewise-test-job")
        alice = inside.someone(ALICE)
        assert error(inside.take(alice, 3)) == "NotPermitted"
        (folder / "cgroup.procs").write_text(str(alice.pid))
        own = Path(f"/proc/{alice.pid}/cgroup").read_text()
        if ":/joulewise-test-job\n" in own:
            assert "ok" in inside.take(alice, 3)
        alice.close()
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def _new_cgroup(name: str) -> Path | None:
    """A control group of our own in whatever hierarchy allows it."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        try:
            (parent / name).mkdir()
        except OSError:
            continue
        if (parent / name / "cgroup.procs").exists():
            return parent / name
        (parent / name).rmdir()
    return None


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("end", {"lease": "x"}),
        ("status", {}),
        ("stand", {"setting": {"sm_mhz": 1200}}),
    ],
)
def test_what_is_roots_is_not_for_users(inside, op, fields):
    if op == "stand":
        fields = {**fields, "gpus": [inside.uuids[0]]}
    for uid in (ALICE, BOB):
        assert error(inside.someone(uid).ask(op, **fields)) == "NotPermitted"


def test_nobody_can_keep_others_from_a_gpu_that_they_may_not_set(inside):
    bob = inside.someone(BOB)
    assert error(bob.ask("quiet", gpus=[inside.uuids[0]], for_s=60)) == "NotPermitted"
    inside.hold(inside.someone(ALICE), 0, 500.0)


def test_new_rules_end_the_leases_that_they_no_longer_allow(inside):
    before = inside.all_hardware()
    assert inside.daemon.site is not None
    rules = inside.daemon.site.read_text()
    alice = inside.someone(ALICE)
    lease = inside.hold(alice, 0, 500.0)
    try:
        inside.daemon.write_site("rule = []\npoll_s = 0.1")
        inside.daemon.hang_up()
        inside.until_as(before)
        assert error(alice.ask("beat", lease=lease)) == "LeaseLost"
        until(lambda: inside.leases() == [])
        inside.daemon.site.chmod(0o666)  # now anybody could have written it: the rules of before stay
        inside.daemon.hang_up()
        until(lambda: "chmod go-w" in inside.daemon.stderr())
        assert error(inside.take(alice, 0)) == "NotPermitted"
    finally:
        inside.daemon.write_site(rules)
        inside.daemon.hang_up()
    until(lambda: "ok" in inside.take(alice, 0))


# ---- nothing by pretending -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["uid", "pid", "gid", "user", "owner", "root"])
def test_a_message_that_says_who_it_is_from_is_refused(inside, field):
    bob = inside.someone(BOB)
    forged = {"gpus": [inside.uuids[0]], "knobs": ["power_limit_w"], "ttl_s": 30, field: ALICE}
    assert error(bob.ask("take", **forged)) == "BadMessage"
    assert bob.ask("hello")["ok"]["uid"] == BOB


def test_somebody_elses_lease_cannot_be_used_by_its_name(inside):
    alice, bob, root = inside.someone(ALICE), inside.someone(BOB), inside.someone(0)
    lease = inside.hold(alice, 0, 500.0)
    other_alice = inside.someone(ALICE)
    for person in (bob, other_alice, root):
        assert error(person.ask("apply", lease=lease, setting={"power_limit_w": 450})) == "NotPermitted"
        assert error(person.ask("beat", lease=lease)) == "NotPermitted"
        assert error(person.ask("release", lease=lease)) == "NotPermitted"
    assert inside.hardware(0)[0] == 500.0
    assert "ok" in alice.ask("beat", lease=lease)
    assert "ok" in root.ask("end", lease=lease, reason="an administrator may")


def test_a_connection_that_was_passed_on_gives_its_receiver_nothing(inside):
    before = inside.all_hardware()
    alice, bob = inside.someone(ALICE), inside.someone(BOB)
    lease = inside.hold(alice, 0, 500.0)
    inside.pass_on(alice, bob)
    answer = bob.ask("apply", lease=lease, setting={"power_limit_w": 450})
    assert error(answer) in ("NotPermitted", "hung up")
    assert inside.hardware(0)[0] != 450.0
    inside.until_as(before)  # a connection that is misused is closed, and what it held given back
    until(lambda: inside.daemon.audited(op="connection", result="refused", uid=ALICE))
    assert f"pid {bob.pid} uid {BOB}" in inside.daemon.audited(op="connection", uid=ALICE)[-1]["why"]


def test_root_who_is_handed_a_users_connection_does_not_lend_it_roots_rights(inside):
    alice, root = inside.someone(ALICE), inside.someone(0)
    inside.pass_on(alice, root)
    stand = {"gpus": [inside.uuids[3]], "setting": {"sm_mhz": 1200}}
    assert error(root.ask("stand", **stand)) in ("NotPermitted", "hung up")
    assert inside.hardware(3) == (650.0, None)


def test_a_user_who_is_handed_roots_connection_gets_nothing(inside):
    root, bob = inside.someone(0), inside.someone(BOB)
    inside.pass_on(root, bob)
    assert error(bob.ask("status")) in ("NotPermitted", "hung up")


def test_a_child_that_inherited_the_connection_cannot_speak_on_it(inside):
    before = inside.all_hardware()
    alice = inside.someone(ALICE)
    lease = inside.hold(alice, 0, 500.0)
    answer = alice("ask_by_child", {"op": "apply", "lease": lease, "setting": {"power_limit_w": 450}})
    assert error(answer) in ("NotPermitted", "hung up")
    inside.until_as(before)


def test_a_child_that_holds_the_connection_does_not_keep_a_dead_owners_lease(inside):
    before = inside.all_hardware()
    alice = inside.someone(ALICE)
    inside.hold(alice, 0, 500.0)
    child = alice("leave_child")
    try:
        alice.kill()
        inside.until_as(before)
        os.kill(child, 0)  # it lives, and has the connection open still
    finally:
        os.kill(child, signal.SIGKILL)


def test_root_that_became_somebody_else_keeps_no_rights_on_its_connection(inside):
    before = inside.all_hardware()
    person = inside.someone(0)
    lease = inside.hold(person, 3, 500.0)
    person("become", BOB)
    assert error(person.ask("apply", lease=lease, setting={"power_limit_w": 300})) in ("NotPermitted", "hung up")
    person("connect", str(inside.daemon.socket))
    assert person.ask("hello")["ok"]["uid"] == BOB
    inside.until_as(before)
    until(lambda: inside.leases() == [])
    assert error(inside.take(person, 3)) == "NotPermitted"


def test_credentials_that_travel_with_a_message_cannot_be_forged(inside):
    alice, bob = inside.someone(ALICE), inside.someone(BOB)
    for pid, uid in ((alice.pid, ALICE), (bob.pid, ALICE), (alice.pid, BOB), (bob.pid, 0), (1, 0)):
        assert bob("ask_as", {"op": "status"}, pid, uid) == {"refused_by_kernel": errno.EPERM}
    assert error(bob("ask_as", {"op": "status"}, bob.pid, BOB)) == "NotPermitted"


def test_root_that_claims_to_be_a_user_is_refused_on_its_own_connection(inside):
    # Root may forge what travels with a message; on a connection of its own that is somebody else's message.
    root, alice = inside.someone(0), inside.someone(ALICE)
    assert error(root("ask_as", {"op": "hello"}, alice.pid, ALICE)) in ("NotPermitted", "hung up")


def test_descriptors_that_are_sent_to_the_daemon_do_not_stay_there(inside):
    alice = inside.someone(ALICE)
    alice("ask", {"op": "hello"})
    folder = Path(f"/proc/{inside.daemon.pid}/fd")
    opened = len(list(folder.iterdir()))
    for _ in range(50):
        assert "ok" in alice("ask_with_descriptor", {"op": "hello"})
    # The daemon opens one for a moment whenever it looks at its grants.
    until(lambda: len(list(folder.iterdir())) <= opened)
