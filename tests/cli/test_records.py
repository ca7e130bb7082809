"""What the files of the state folder say to those who only look."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cli import records
from joulewise.cli.records import Record
from joulewise.core.errors import BadSpec
from joulewise.device.lease import Owner
from joulewise.device.saved import Entry, Saved

OTHER = Owner("lease-1", 1000, 42, "train.py", reason="night")


def entry(knob: str = "power_limit_w", owner: Owner = OTHER, wrote: tuple[float, ...] = (300.0,)) -> Entry:
    return replace(Entry.new(knob, 700.0, owner, None), wrote=wrote)


@contextmanager
def kept(state: Path, uuid: str, *entries: Entry) -> Iterator[Saved]:
    """A file, in the hands of this process meanwhile."""
    saved = Saved.open(state, uuid)
    try:
        saved.save(*entries)
        yield saved
    finally:
        saved.close()


def test_a_folder_that_is_not_there_keeps_nothing_and_hides_nothing(tmp_path: Path) -> None:
    assert records.can_see(tmp_path / "none")
    assert records.records(tmp_path / "none") == ()


def test_while_a_process_has_a_file_it_is_its_keeper_and_afterwards_what_is_kept_is_owed(tmp_path: Path) -> None:
    with kept(tmp_path, "GPU-1", entry()) as saved:
        saved.stand("sm_mhz", 1410.0)
        (held,) = records.records(tmp_path)
        assert (held.uuid, held.keeper, held.owed) == ("GPU-1", os.getpid(), False)
        assert not held.local  # its lease is somebody else's: so speaks the file of a daemon
    (left,) = records.records(tmp_path)
    assert (left.keeper, left.owed) == (None, True)
    assert left.entries["power_limit_w"] == held.entries["power_limit_w"]
    assert left.standing == {"sm_mhz": 1410.0}


def test_what_was_intended_and_forgotten_since_is_read_as_its_owner_would(tmp_path: Path) -> None:
    with kept(tmp_path, "GPU-1", entry(wrote=()), entry("sm_mhz", wrote=())) as saved:
        saved.intend("power_limit_w", 400.0)
        saved.intend("power_limit_w", 350.0, 400.0)
        saved.forget("sm_mhz")
        (seen,) = records.records(tmp_path)
        assert seen.entries == saved.entries


def test_of_a_damaged_file_what_precedes_the_damage_counts_and_where_that_is_nothing_all_is_unknown(
    tmp_path: Path,
) -> None:
    with kept(tmp_path, "GPU-1", entry()):
        pass
    file = tmp_path / "GPU-1.jsonl"
    whole = file.read_bytes()
    for torn in (whole + b'{"intend": ["power_lim', whole[:-1], whole + b'{"dance": []}\n', whole + b"[1]\n"):
        file.write_bytes(torn)
        (seen,) = records.records(tmp_path)
        assert (seen.damaged, seen.owed, set(seen.entries)) == (False, True, {"power_limit_w"}), torn
        (lease,) = records.as_leases([seen], None)
        assert f"what it saved is damaged ({seen.damage})" in lease["why"]
    deep = b"[" * 100_000 + b"\n"
    for nonsense in (b"", b"\n", b"{}\n", b"\xff\xff\n", deep):
        file.write_bytes(nonsense)
        (seen,) = records.records(tmp_path)
        assert (seen.damaged, seen.owed, dict(seen.entries)) == (True, True, {}), nonsense[:40]
        for listed in (None, [{"lease": "lease-2", "gpus": ["GPU-2"], "stage": "held"}]):
            (lease,) = records.as_leases([seen], listed)
            assert (lease["gpus"], lease["stage"], lease["uid"]) == (["GPU-1"], "owed", None)
            assert "'joulewise restore --forget GPU-1'" in lease["why"]
        assert records.as_leases([seen], [{"lease": "owed-GPU-1", "gpus": ["GPU-1"], "stage": "owed"}]) == []


def test_a_link_is_not_followed_wherever_it_leads(tmp_path: Path) -> None:
    for target in ("/dev/zero", tmp_path / "nothing"):
        (tmp_path / "GPU-1.jsonl").unlink(missing_ok=True)
        (tmp_path / "GPU-1.jsonl").symlink_to(target)
        (seen,) = records.records(tmp_path)
        assert (seen.owed, "it is a link" in seen.unknown) == (True, True)


def test_a_lock_signed_by_a_process_that_has_gone_or_does_not_hold_it_keeps_nothing(tmp_path: Path) -> None:
    with kept(tmp_path, "GPU-1", entry()):
        pass
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for signed in (f"{gone.pid} python\n", f"{os.getpid()} us, who have not opened it\n", "nobody\n", ""):
        (tmp_path / "GPU-1.lock").write_text(signed)
        assert records.records(tmp_path)[0].keeper is None


def test_one_gpu_is_named_by_the_beginning_of_its_uuid() -> None:
    there = [Record("GPU-11"), Record("GPU-12"), Record("GPU-2")]
    assert records.one(there, "GPU-2", Path("/s")).uuid == "GPU-2"
    with pytest.raises(BadSpec, match="may be GPU-11 or GPU-12; write more of it"):
        records.one(there, "GPU-1", Path("/s"))
    with pytest.raises(BadSpec, match="/s keeps nothing of a GPU 'GPU-3'; it keeps GPU-11, GPU-12, GPU-2"):
        records.one(there, "GPU-3", Path("/s"))
    with pytest.raises(BadSpec, match="keeps nothing"):  # nothing written is no choice, even where there is one only
        records.one([Record("GPU-1")], "", Path("/s"))


def test_a_lease_over_several_gpus_is_listed_once_with_all_that_it_set() -> None:
    found = [
        Record("GPU-2", {"sm_mhz": entry("sm_mhz", wrote=(1200.0,))}),
        Record("GPU-1", {"power_limit_w": entry(), "sm_mhz": entry("sm_mhz", wrote=())}),
    ]
    (lease,) = records.as_leases(found, None)
    assert lease["gpus"] == ["GPU-1", "GPU-2"]
    assert lease["knobs"] == ["power_limit_w", "sm_mhz"]
    assert lease["settings"] == {"GPU-2": {"sm_mhz": 1200.0}, "GPU-1": {"power_limit_w": 300.0}}
    assert (lease["stage"], lease["why"]) == ("owed", "its process is gone; as root: 'joulewise restore'")


def test_a_living_process_s_own_lease_is_local_and_owes_nothing() -> None:
    me = replace(OTHER, pid=os.getpid())
    record = Record("GPU-1", {"power_limit_w": entry(owner=me)}, keeper=os.getpid())
    assert record.local
    (lease,) = records.as_leases([record], [])
    assert lease["stage"] == "local"
    assert "why" not in lease


def test_what_the_daemon_lists_or_keeps_is_not_listed_again() -> None:
    record = Record("GPU-1", {"power_limit_w": entry()}, keeper=7)
    assert records.as_leases([record], []) == []  # the daemon's own file: it would list what is to be listed
    (kept_by_nobody_that_answers,) = records.as_leases([record], None)
    assert kept_by_nobody_that_answers["why"].startswith("pid 7 (")
    left = Record("GPU-1", {"power_limit_w": entry()})
    assert len(records.as_leases([left], [])) == 1
    for told in ({"lease": "lease-1", "gpus": ["GPU-1"]}, {"lease": "x", "gpus": ["GPU-1"], "stage": "owed"}):
        assert records.as_leases([left], [told]) == []
