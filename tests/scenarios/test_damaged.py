"""R29: a damaged file of saved settings leaves no GPU as a lease had set it without saying so, whoever looks."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.siege.saved_settings import DAMAGES, Files, as_version_1
from joulewise.device.saved import Saved
from tests import preloaded
from tests.scenarios.staging import Stage, staged, until

BOTH = ["power_limit_w", "sm_mhz"]
SET = [{"power_limit_w": 400, "sm_mhz": 1200}, {"power_limit_w": 300, "sm_mhz": 900}]
WHAT = "damaged files of saved settings, in processes of their own"
CRITERION = "restored, or owed: named by leases, doctor and daemon, exit 1"


def _without_lines(*numbers: int) -> Any:
    def damage(raw: bytes) -> bytes:
        return b"".join(line for number, line in enumerate(raw.splitlines(keepends=True)) if number not in numbers)

    return damage


def _with_a_flip(number: int) -> Any:
    def damage(raw: bytes) -> bytes:
        lines = raw.splitlines(keepends=True)
        lines[number] = lines[number][:20] + bytes([lines[number][20] ^ 1]) + lines[number][21:]
        return b"".join(lines)

    return damage


def _swapped(raw: bytes) -> bytes:
    lines = raw.splitlines(keepends=True)
    lines[1], lines[-2] = lines[-2], lines[1]
    return b"".join(lines)


RESTORED: Mapping[str, Any] = {
    "a line in the middle": _with_a_flip(2),
    "the last line": _with_a_flip(-2),
    "all lines but the first gone": lambda raw: raw.splitlines(keepends=True)[0],
    "a line left out": _without_lines(3),
    "lines swapped": _swapped,
    "cut within a line": lambda raw: raw[:-25],
    "zeros after a power cut": lambda raw: raw[: raw.index(b"\n") + 20] + bytes(4096),
    "version 1": as_version_1,
}
"""By file: what can be known is there still, and all of it comes back."""
OWED: Mapping[str, Any] = {
    "the first line": _with_a_flip(0),
    "empty": lambda _: b"",
    "zeros": lambda raw: bytes(len(raw)),
    "no first line": _without_lines(0),
    "a newer version": lambda raw: raw.replace(b'"joulewise": ', b'"joulewise": 9'),  # and so another checksum
}
OWED_KINDS = ("a link", "a link to nothing", "another version", "a folder", "open to all")
"""Those of the bench that are not about bytes."""
GPUS = len(RESTORED) + len(OWED) + len(OWED_KINDS) + 1  # the last is whole


def killed(stage: Stage) -> dict[str, str]:
    """Leases of all GPUs, whose daemon is killed; then a damage each. GPU → what was done to its file."""
    stage.cap()
    for uuid in stage.uuids:
        client = stage.client(uid=None)
        client("take", gpus=[uuid], knobs=BOTH)
        for setting in SET:
            client("apply", **setting)
    stage.daemon.kill()
    names = [*RESTORED, *OWED, *OWED_KINDS, "whole"]
    done = dict(zip(stage.uuids, names, strict=True))
    whole = stage.daemon.state / f"{stage.uuids[-1]}.jsonl"
    for uuid, name in done.items():
        path = stage.daemon.state / f"{uuid}.jsonl"
        raw = path.read_bytes()
        if name in OWED_KINDS:
            DAMAGES[name](random.Random(1), Files(path, raw, whole, whole.read_bytes()))
        elif name != "whole":
            damaged = {**RESTORED, **OWED}[name](raw)
            assert damaged != raw
            path.write_bytes(damaged)
    return done


def joulewise(stage: Stage, verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
    paths = ["--state", str(stage.daemon.state), "--socket", str(stage.daemon.socket)]
    return preloaded.run(verb, *([] if verb == "doctor" else paths), *flags, env=stage.environment())


def limits_w(stage: Stage) -> dict[str, float]:
    return {uuid: stage.hardware(index)[0] for index, uuid in enumerate(stage.uuids)}


def owed_in(done: Mapping[str, str]) -> set[str]:
    return {uuid for uuid, name in done.items() if name not in RESTORED and name != "whole"}


def listed_as_owed(stage: Stage) -> dict[str, str]:
    listed = json.loads(joulewise(stage, "leases", "--json").stdout)["leases"]
    return {gpu: each["why"] for each in listed if each["stage"] == "owed" for gpu in each["gpus"]}


def test_with_the_daemon_dead_restore_gives_back_what_is_known_and_fails_for_the_rest(scenario):
    shown = scenario("R29", WHAT + ", daemon dead", criterion=CRITERION)
    with staged(f"sim:h200*{GPUS}") as stage:
        done = killed(stage)
        owed = owed_in(done)
        for turn in range(2):
            ran = joulewise(stage, "restore", *(["--json"] if turn else []))
            assert ran.returncode == 1
            said = limits_w(stage)
            assert {done[uuid]: said[uuid] for uuid in done} == {
                name: 300.0 if uuid in owed else 650.0 for uuid, name in done.items()
            }
            assert "nothing to restore" not in ran.stdout
            if not turn:
                assert "someone else" not in ran.stderr  # our own cap is nobody else's
                for uuid in owed:
                    assert f"joulewise restore --forget {uuid}" in ran.stderr, done[uuid]
        failed = {each["gpu"] for each in json.loads(ran.stdout)["restored"] if each["ending"] == "failed"}
        assert failed == owed
        assert set(listed_as_owed(stage)) == owed
        assert all("--forget" in why for why in listed_as_owed(stage).values())
        for number, uuid in enumerate(sorted(owed)):
            ran = joulewise(stage, "restore", "--forget", uuid)
            assert (ran.returncode, ran.stderr) == (0, ""), done[uuid]
            assert len(list(stage.daemon.state.glob(f"{uuid}.jsonl.corrupt-*"))) == 1
            assert len(Saved.known(stage.daemon.state)) == len(owed) - number - 1
        ran = joulewise(stage, "restore")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "nothing to restore\n", "")
        shown.saw(f"{len(done) - len(owed)} restored, {len(owed)} owed and named until --forget, 0 silent")


def test_a_daemon_that_starts_says_what_it_owes_first_and_sets_nothing_there(scenario):
    shown = scenario("R29", WHAT + ", a daemon starts", criterion=CRITERION)
    with staged(f"sim:h200*{GPUS}") as stage:
        done = killed(stage)
        owed = owed_in(done)
        stage.daemon.start()
        after = {uuid: 300.0 if uuid in owed else 650.0 for uuid in done}
        until(lambda: limits_w(stage) == after)
        _, first, _ = stage.daemon.stderr().split("joulewise daemon: ready on")  # what this one said before it served
        assert all(uuid in first for uuid in owed)
        assert set(listed_as_owed(stage)) == owed
        health = {gpu["uuid"]: gpu["health"] for gpu in stage.ask("gpus")["gpus"]}
        assert {uuid for uuid in done if health[uuid] == "unsafe"} == owed
        ran = joulewise(stage, "restore")
        assert ran.returncode == 1
        assert all(uuid in ran.stderr for uuid in owed)
        client = stage.client(uid=None)
        for uuid in owed:
            refusal = client.refused("take", gpus=[uuid], knobs=["sm_mhz"])
            assert (refusal.kind, "--forget" in refusal.message) == ("NotSaved", True), done[uuid]
        for uuid in sorted(owed):  # the daemon lives, and keeps none of it from being seen to
            ran = joulewise(stage, "restore", "--forget", uuid)
            assert (ran.returncode, ran.stderr) == (0, ""), done[uuid]
        until(lambda: joulewise(stage, "restore").returncode == 0, 40.0)
        client("take", gpus=stage.uuids, knobs=BOTH)
        client("apply", power_limit_w=350, sm_mhz=1200)
        client("release")
        assert limits_w(stage) == after
        shown.saw(f"{len(done) - len(owed)} restored, {len(owed)} unsafe and named, served again after --forget")


@pytest.mark.parametrize("daemon", [False, True], ids=["no daemon", "a daemon"])
def test_the_doctor_names_a_gpu_of_which_nobody_knows_how_it_was(daemon: bool):
    with staged("sim:h200*2") as stage:
        stage.cap()
        client = stage.client(uid=None)
        client("take", gpus=stage.uuids, knobs=BOTH)
        client("apply", **SET[0])
        stage.daemon.kill()
        (stage.daemon.state / f"{stage.uuids[0]}.jsonl").write_bytes(b"\n")
        look = (
            "import os, sys, json; from pathlib import Path; from joulewise.cli import control\n"
            "found = control.look(os.environ, Path(sys.argv[1]), sys.argv[2:])\n"
            "print(json.dumps([[each.what, each.ok, each.says, each.do] for each in found.findings]))"
        )
        if daemon:
            stage.daemon.start()
        else:
            assert joulewise(stage, "restore").returncode == 1
        command = [sys.executable, "-c", look, str(stage.daemon.state), *stage.uuids]
        ran = subprocess.run(command, env=stage.environment(), capture_output=True, text=True, timeout=60)
        (unsafe,) = [each for each in json.loads(ran.stdout) if each[0] == "unsafe"]
        assert unsafe[1] is False
        assert stage.uuids[0] in unsafe[2]
        assert f"joulewise restore --forget {stage.uuids[0]}" in unsafe[3]
        assert not any(each[0] == "left behind" for each in json.loads(ran.stdout))


def test_somebody_elses_limit_is_left_where_the_file_is_whole(stage: Stage):
    stage.cap()
    client = stage.client()
    client("take", gpus=stage.uuids[:1], knobs=BOTH)
    client("apply", **SET[0])
    stage.daemon.kill()
    stage.breaker.fault(0, "foreign", power_limit_w=275.0)
    ran = joulewise(stage, "restore")
    assert (ran.returncode, "someone else" in ran.stderr) == (0, True)
    assert stage.hardware(0)[0] == 275.0
    stage.daemon.start()
    stage.cap()


def test_a_folder_of_files_is_read_whatever_is_in_it(tmp_path: Path):
    for name in ("GPU-1", "GPU-2"):
        (tmp_path / f"{name}.jsonl").mkdir()
    assert Saved.known(tmp_path) == ("GPU-1", "GPU-2")
