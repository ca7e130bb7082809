"""R15: where the daemon cannot write down what was there, it writes nothing to the hardware."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenarios.staging import Stage, staged, until

BOTH = ["power_limit_w", "sm_mhz"]
CRITERION = "writes refused, bad file set aside, start succeeds"


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """For what the daemon saves, a file system of its own that holds 64 KiB."""
    path = folder / "state"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass


def test_on_a_full_disk_nothing_is_written_and_what_was_written_before_still_comes_back(scenario):
    shown = scenario("R15", "disk full, before and during a lease", criterion=CRITERION)
    with staged("sim:h200*2", prepare=_small_disk) as stage:
        before, disk = stage.cap(), stage.daemon.state
        client = stage.client()
        client("take", gpus=stage.uuids[:1], knobs=BOTH)
        client("apply", power_limit_w=400, sm_mhz=1200)
        _fill(disk)
        writes = stage.writes()
        newcomer = stage.client()
        assert newcomer.refused("take", gpus=stage.uuids[1:], knobs=BOTH).kind == "NotSaved"
        assert stage.writes() == writes  # not even for a moment
        # The last block of the journal has room for some more lines: then it is full, and from then on nothing is set.
        limit_w, outcome = 400, "ok"
        while outcome == "ok":
            assert stage.hardware(0) == (float(limit_w), (345, 1200), None)
            limit_w, writes = limit_w - 1, stage.writes()
            client.begin("apply", power_limit_w=limit_w, sm_mhz=1200)
            outcome = client.outcome()
        assert outcome == "NotSaved"
        assert stage.hardware(0) == (float(limit_w + 1), (345, 1200), None)
        # A start on the full disk: what a dead daemon left is undone all the same.
        stage.daemon.kill()
        stage.daemon.restart()
        until(lambda: stage.all_hardware() == before)
        (disk / "ballast").unlink()
        last = stage.client()
        last("take", gpus=stage.uuids, knobs=BOTH)
        last("apply", power_limit_w=400)
        last("release")
        assert stage.all_hardware() == before
        shown.saw("take and apply: NotSaved, nothing set; restored at a start on the full disk; serves again after")


def test_on_a_read_only_disk_nothing_is_written_and_the_daemon_starts(scenario):
    shown = scenario("R15", "read-only state directory", criterion=CRITERION)
    with staged("sim:h200", prepare=_small_disk) as stage:
        before, disk = stage.cap(), stage.daemon.state
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=BOTH)
        client("apply", power_limit_w=400, sm_mhz=1200)
        stage.daemon.kill()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        try:
            stage.daemon.restart()
            until(lambda: stage.all_hardware() == before)
            writes = stage.writes()
            refusal = stage.client().refused("take", gpus=stage.uuids, knobs=BOTH)
            assert refusal.kind == "NotSaved"
            assert stage.writes() == writes
        finally:
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        shown.saw(f"started and restored; {refusal.kind}, no write")


@pytest.mark.parametrize(
    "damage", [b"", b"\x00" * 512, b"no journal\n", b'{"version": 999}\n'], ids=["empty", "zeros", "text", "newer"]
)
def test_a_corrupt_journal_is_set_aside_and_the_daemon_starts(damage: bytes, scenario):
    shown = scenario("R15", "corrupted journal: " + (repr(damage[:16]) if damage else "empty"), criterion=CRITERION)
    with staged("sim:h200*2") as stage:
        before = stage.cap()
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=BOTH)
        client("apply", power_limit_w=400, sm_mhz=1200)
        stage.daemon.kill()
        (journal,) = Path(stage.daemon.state).glob(f"{stage.uuids[0]}*.jsonl")
        journal.write_bytes(damage)
        stage.daemon.restart()
        # The other GPU's own file tells; this one's limit is not known any more and stays, its clocks are unlocked.
        until(lambda: stage.all_hardware() == [(400.0, None, None), before[1]])
        aside = list(Path(stage.daemon.state).glob("*.corrupt-*"))
        assert [path.read_bytes() for path in aside] == [damage]
        assert _told_of(stage)
        fresh = stage.client()
        refusal = fresh.refused("take", gpus=stage.uuids[:1], knobs=BOTH)
        assert refusal.kind == "NotSaved"
        assert "restore --forget" in refusal.message
        fresh("take", gpus=stage.uuids[1:], knobs=BOTH)
        fresh("apply", power_limit_w=300)
        fresh("release")
        assert stage.hardware(0) == (400.0, None, None)
        shown.saw("set aside and reported; clocks unlocked, limit owed; serves the other GPU")


def _told_of(stage: Stage) -> bool:
    """Whether the admin is told what happened to this GPU: in the audit log or in the GPU's notes."""
    notes = " ".join(note for gpu in stage.ask("gpus")["gpus"] for note in gpu["notes"])
    return "corrupt" in notes or any("corrupt" in str(line) for line in stage.audit())
