"""Giving back with the daemon dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.knob import Setting
from joulewise.device.node import RunningNode, spawn
from joulewise.device.remote import RemoteLease
from tests.daemon.running import RunningDaemon, Words, running_daemon

# NVML is loaded once for a process, and a daemon's repairer is another process in life too.
REPAIR = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from joulewise.daemon.policy import Policy
from joulewise.daemon.repair import repair
from joulewise.core.knob import Setting
order = json.loads(sys.argv[1])
held = []
policy = Policy(baselines={"*": Setting(**order["baseline"])})
given = repair(Path(order["state"]), gpus=order["gpus"], policy=policy, on_held=lambda *each: held.append(each))
print(json.dumps({"given": [asdict(each) for each in given], "held": held}))
"""


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with spawn("sim:h200*2") as node:
        yield node


@pytest.fixture
def daemon(node: RunningNode, tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_daemon(node, tmp_path / "daemon") as daemon:
        yield daemon


@pytest.fixture
def words(node: RunningNode) -> Iterator[Words]:
    words = Words(node)
    yield words
    words.close()


def repair(
    daemon: RunningDaemon, *, gpus: list[str] | None = None, environ: dict[str, str] | None = None, **baseline: float
) -> dict[str, Any]:
    order = {"state": str(daemon.state), "gpus": gpus, "baseline": baseline}
    ran = subprocess.run(
        [sys.executable, "-c", REPAIR, json.dumps(order)],
        env=daemon.node.environment() if environ is None else environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def modify_and_kill(daemon: RunningDaemon) -> tuple[str, ...]:
    with daemon.node.client() as client:
        uuids = client.uuids
    lease = RemoteLease.take(uuids, socket=daemon.socket)
    lease.apply(Setting(power_limit_w=444, sm_mhz=1200))
    daemon.kill()
    lease.release()
    return uuids


def test_with_the_daemon_dead_everything_is_given_back_once(daemon: RunningDaemon, words: Words):
    modify_and_kill(daemon)
    assert words.limit_w(0) == 444
    first = repair(daemon)
    assert {(each["knob"], each["ending"]) for each in first["given"]} == {
        ("power_limit_w", "restored"),
        ("sm_mhz", "reset"),
        ("memory_mhz", "unchanged"),
    }
    assert len(first["given"]) == 6
    assert (words.limit_w(0), words.limit_w(1), words.sm_lock(0)) == (700, 700, None)
    assert repair(daemon) == {"given": [], "held": []}


def test_only_the_named_gpus_are_given_back_and_clocks_go_to_the_baseline(daemon: RunningDaemon, words: Words):
    uuids = modify_and_kill(daemon)
    given = repair(daemon, gpus=[uuids[1]], sm_mhz=1500)["given"]
    assert {each["gpu"] for each in given} == {uuids[1]}
    assert (words.limit_w(0), words.limit_w(1)) == (444, 700)
    lock = words.sm_lock(1)
    assert lock is not None
    assert lock[1] == 1500
    repair(daemon)


def test_without_the_sites_rules_clocks_go_to_the_baseline_that_the_daemon_knew(
    node: RunningNode, words: Words, tmp_path: Path
):
    with running_daemon(node, tmp_path / "site", site='[baseline."*"]\nsm_mhz = 1500\n') as daemon:
        modify_and_kill(daemon)
        given = repair(daemon)["given"]
        assert {each["ending"] for each in given if each["knob"] == "sm_mhz"} == {"baseline"}
        lock = words.sm_lock(0)
    assert lock is not None
    assert lock[1] == 1500


def test_what_a_damaged_file_had_said_stays_owed_and_its_clocks_are_freed_when_the_gpu_is_back(
    daemon: RunningDaemon, words: Words
):
    uuids = modify_and_kill(daemon)
    path = daemon.state / f"{uuids[0]}.jsonl"
    raw = bytearray(path.read_bytes())
    raw[30] ^= 1
    path.write_bytes(raw)
    with daemon.node.client() as client:
        client.fault(0, "lost")
        for environ in (None, dict(os.environ)):  # a GPU that is lost, and none to be had at all
            given = repair(daemon, gpus=[uuids[0]], environ=environ)["given"]
            assert "failed" in {each["ending"] for each in given}
            assert all("its first line is damaged" in each["why"] for each in given)
        client.clear(0)
    given = repair(daemon)["given"]
    assert [(each["knob"], each["ending"]) for each in given if each["gpu"] == uuids[0]] == [
        ("sm_mhz", "reset"),
        ("memory_mhz", "reset"),
        ("power_limit_w", "failed"),
    ]
    assert words.sm_lock(0) is None
    assert path.with_name(f"{path.name}.corrupt-1").read_bytes() == raw
    (again,) = repair(daemon)["given"]
    assert (again["knob"], again["ending"], again["after"]) == ("power_limit_w", "failed", 444.0)
    with daemon.node.client() as client:
        client.fault(0, "foreign", power_limit_w=700.0)  # as an admin would, who then says so
    path.unlink()
    assert repair(daemon) == {"given": [], "held": []}


def test_a_live_daemons_gpus_are_left_to_it(daemon: RunningDaemon, words: Words):
    with daemon.node.client() as client:
        uuids = client.uuids
    with RemoteLease.take(uuids, socket=daemon.socket) as lease:
        lease.apply(Setting(power_limit_w=444))
        said = repair(daemon)
        assert said["given"] == []
        assert {gpu for gpu, _ in said["held"]} == set(uuids)
        assert f"pid {daemon.pid}" in said["held"][0][1]
        assert words.limit_w(0) == 444


def test_without_a_driver_what_is_owed_is_told_and_stays_owed(daemon: RunningDaemon, words: Words):
    modify_and_kill(daemon)
    said = repair(daemon, environ=dict(os.environ))
    assert {each["ending"] for each in said["given"]} == {"failed"}
    assert {each["wrote"] for each in said["given"] if each["knob"] == "power_limit_w"} == {444.0}
    assert len(repair(daemon)["given"]) == 6
    assert words.limit_w(0) == 700


def test_a_folder_that_is_not_there_owes_nothing(daemon: RunningDaemon, tmp_path: Path):
    daemon.state = tmp_path / "none"
    assert repair(daemon) == {"given": [], "held": []}
