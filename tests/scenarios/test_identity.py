"""R5, R6, R8: rights belong to a process and a user, never to a number, a name or a descriptor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.control_stage import cpu_s, memory_mib
from tests.daemon.house import ALICE, BOB, GROUP, House, error, house
from tests.daemon.running import until
from tests.daemon.someone import Someone

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

_NEXT = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture(scope="module")
def inside() -> Iterator[House]:
    with house() as shared:
        yield shared


@pytest.fixture(autouse=True)
def at_home(inside: House) -> Iterator[None]:
    yield
    with contextlib.suppress(ProcessLookupError):
        inside.daemon.signal(signal.SIGCONT)
    for person in inside.people:
        person.close()
    inside.people.clear()


def take_over_pid(person: Someone, pid: int) -> None:
    """Let a child of ``person`` have the number of a dead process. Others fork too, so it may take some attempts."""
    for _ in range(500):
        _NEXT.write_text(str(pid - 1))
        if person("take_pid", pid):
            return
    raise AssertionError(f"pid {pid} could not be had again")


def test_a_pid_that_is_used_again_has_no_rights(inside, scenario):
    shown = scenario("R5", "owner dies, its pid reused by another uid", criterion="no rights; lease ended")
    before = inside.all_hardware()
    alice, bob = inside.someone(ALICE), inside.someone(BOB)
    lease = inside.hold(alice, 0, 500.0)
    inside.pass_on(alice, bob)  # the worst case: the connection itself is in the other's hands
    forged = {"op": "apply", "lease": lease, "setting": {"power_limit_w": 450}}
    inside.daemon.signal(signal.SIGSTOP)  # and the daemon sees nothing until all has happened
    try:
        alice.close()
        take_over_pid(bob, alice.pid)
        bob("tell_twin", forged)
    finally:
        inside.daemon.signal(signal.SIGCONT)
    assert error(bob("hear_twin")) in ("NotPermitted", "hung up")
    ended_s = inside.until_as(before)
    until(lambda: inside.leases() == [])
    # On a connection of its own it is what it is: Bob.
    bob("twin_connects", str(inside.daemon.socket))
    bob("tell_twin", {"op": "hello"})
    hello = bob("hear_twin")["ok"]
    assert (hello["pid"], hello["uid"]) == (alice.pid, BOB)
    for request, expected in (
        (forged, "LeaseLost"),
        ({"op": "beat", "lease": lease}, "LeaseLost"),
        ({"op": "take", "gpus": [inside.uuids[0]], "knobs": ["power_limit_w"], "ttl_s": 30}, "NotPermitted"),
    ):
        bob("tell_twin", request)
        assert error(bob("hear_twin")) == expected
    assert inside.all_hardware() == before
    shown.saw(f"pid {alice.pid} again: refused; lease ended {1e3 * ended_s:.0f} ms after the daemon woke")
    bob.close()


def test_a_child_of_a_login_shell_that_dies_leaves_nothing_behind_while_the_shell_lives(inside, scenario):
    shown = scenario("R6", "child of a login shell dies", criterion="restored; the living shell changes nothing")
    before = inside.all_hardware()
    shell = inside.someone(ALICE)  # it has a connection of its own, too
    took_s = []
    for _ in range(5):
        requests = [
            {"op": "take", "gpus": [inside.uuids[0]], "knobs": ["power_limit_w", "sm_mhz"], "ttl_s": 300},
            {"op": "apply", "lease": "mine", "setting": {"power_limit_w": 500, "sm_mhz": 1200}},
        ]
        child, answers = shell("leave_client", str(inside.daemon.socket), requests)
        assert all("ok" in answer for answer in answers), answers
        assert inside.hardware(0) == (500.0, (345, 1200))
        begun_s = time.monotonic()
        os.kill(child, signal.SIGKILL)  # and the shell does not even wait for it: it stays a zombie
        inside.until_as(before)
        took_s.append(time.monotonic() - begun_s)
        assert "ok" in shell.ask("hello")
        until(lambda: inside.leases() == [])
    shown.saw(f"median {1e3 * statistics.median(took_s):.1f} ms, worst of {len(took_s)} {1e3 * max(took_s):.1f} ms")
    shell.close()


def bad_requests(inside: House, mine: str, others: str) -> list[tuple[str, set[str]]]:
    """What a user may try, as lines, and what each must be refused with."""
    a, b = inside.uuids[0], inside.uuids[1]

    def line(op: str, **fields: Any) -> str:
        return json.dumps({"id": 1, "op": op, **fields})

    def take(gpu: str, knob: str, ttl_s: Any = 30) -> str:
        return line("take", gpus=[gpu], knobs=[knob], ttl_s=ttl_s)

    def put(text: str, knob: str = "power_limit_w") -> str:
        return f'{{"id":1,"op":"apply","lease":"{mine}","setting":{{"{knob}":{text}}}}}'

    no, bad, out = {"NotPermitted"}, {"BadMessage"}, {"OutOfRange"}
    return [
        # somebody else's GPU, lease, or root's business
        (take(a, "power_limit_w"), {"NotPermitted", "LeaseTaken"}),
        (take(inside.uuids[2], "power_limit_w"), no),
        (take(b, "sm_mhz"), no),
        (line("apply", lease=others, setting={"power_limit_w": 450}), no),
        (line("release", lease=others), no),
        (line("beat", lease=others), no),
        (line("end", lease=others), no),
        (line("stand", gpus=[b], setting={"power_limit_w": 300}), no),
        (line("quiet", gpus=[a], for_s=60), no),
        # a GPU or lease that does not exist
        (take("GPU-00000000-0000-0000-0000-000000000000", "sm_mhz"), {"NoGpu"}),
        (line("apply", lease="no-such-lease", setting={"power_limit_w": 450}), {"LeaseLost"}),
        (line("apply", lease=mine, setting={"power_limit_w": 450}, gpus=[a]), {"NoGpu"}),
        # over range, unknown knob, negative, not a number, huge
        (put("701"), out),
        (put("199"), out),
        (put("1e300"), out),
        (put("-300"), out),
        (put("0"), out),
        (put("NaN"), bad),
        (put("Infinity"), bad),
        (put("1e999"), bad),
        (put("9" * 400), bad),
        (put('"400"'), bad),
        (put("true"), bad),
        (put("null"), bad),
        (put("[400]"), bad),
        (put("1200", "sm_mhz"), no),  # not part of the lease
        (put("50", "fan_percent"), {"Unsupported"}),
        (take(b, "fan_percent"), {"Unsupported"}),
        (take(b, "power_limit_w", ttl_s=-1), out),
        (take(b, "power_limit_w", ttl_s="forever"), bad),
        # doubled keys, strange fields, bad shapes
        (f'{{"id":1,"op":"apply","lease":"{mine}","setting":{{"power_limit_w":400,"power_limit_w":401}}}}', bad),
        ('{"id":1,"id":1,"op":"status"}', bad),
        (line("take", gpus=[b], knobs=["power_limit_w"], ttl_s=30, uid=0), bad),
        (line("status", pid=1), bad),
        (line("sudo"), bad),
        ("[" * 60000, bad),
        ("{}", bad),
        ("", bad),
        ("\x00", bad),
    ]


def test_whatever_a_user_may_not_is_refused_by_its_name_and_changes_nothing(inside, scenario):
    shown = scenario("R8", "foreign GPU, over range, NaN, doubled keys …", criterion="100 % typed; RSS, CPU bounded")
    alice, bob = inside.someone(ALICE), inside.someone(BOB, groups=[GROUP])
    before = inside.all_hardware()
    others, mine = inside.hold(alice, 0, 500.0), inside.hold(bob, 1, 600.0)
    held, requests, pid = inside.all_hardware(), bad_requests(inside, mine, others), inside.daemon.pid
    refused = 0

    def one_round() -> None:
        nonlocal refused
        for line, kinds in requests:
            answer = bob("ask_line", line)
            assert error(answer) in kinds, (line[:200], answer)
            assert answer["message"]
            refused += 1
        assert inside.all_hardware() == held

    one_round()
    grown_from_mib, used_from_s, refused = memory_mib(pid), cpu_s(pid), 0
    for _ in range(25):
        one_round()
    grown_mib = memory_mib(pid) - grown_from_mib
    cost_us = 1e6 * (cpu_s(pid) - used_from_s) / refused
    assert grown_mib < 8
    assert cost_us < 5000
    assert "ok" in bob.ask("apply", lease=mine, setting={"power_limit_w": 610})  # and what is right still works
    for person in (alice, bob):
        person.close()
    inside.until_as(before)
    shown.saw(f"{refused} of {refused} refused; {grown_mib:+.1f} MiB, {cost_us:.0f} µs of processor each")
