"""Who controls this machine's GPUs, as far as can be told by looking; test_doctor_site asks real daemons."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cli.control import Control, Daemon, Holder, look
from joulewise.cli.records import Record
from joulewise.device.lease import Owner
from joulewise.device.saved import Entry, Saved

WHO = Owner("lease-1", 1000, 42, "train.py")
LEASE = {
    "lease": "lease-1", "gpus": ["GPU-1", "GPU-2"], "knobs": ["sm_mhz"], "stage": "held", "uid": 1000, "pid": 42,
    "command": "train.py", "settings": {"GPU-1": {"sm_mhz": 1200.0}},
}  # fmt: skip


def entry(owner: Owner = WHO, wrote: tuple[float, ...] = (300.0,)) -> Entry:
    return replace(Entry.new("power_limit_w", 700.0, owner, None), wrote=wrote)


def answering(*leases: dict[str, object], may: dict[str, dict[str, object]] | None = None) -> Control:
    return Control(daemon=Daemon("0", 1000, ("GPU-1", "GPU-2"), leases, may or {}))


def test_a_lease_covers_its_knobs_on_its_gpus_and_no_others() -> None:
    control = answering(LEASE)
    assert control.holder("GPU-1", "sm_mhz") == Holder("uid 1000 pid 42 (train.py)", 1200.0)
    assert control.holder("GPU-2", "sm_mhz") == Holder("uid 1000 pid 42 (train.py)", None)
    assert control.holder("GPU-1", "power_limit_w") is None
    assert control.holder("GPU-3", "sm_mhz") is None


def test_what_is_owed_is_nobody_s_lease() -> None:
    control = answering({**LEASE, "stage": "owed"})
    assert control.holder("GPU-1", "sm_mhz") is None
    assert control.daemon is not None
    assert control.daemon.owed == {"GPU-1", "GPU-2"}


def test_a_lease_without_the_daemon_is_told_by_its_file_while_somebody_keeps_it() -> None:
    local = Record("GPU-1", {"power_limit_w": entry(replace(WHO, pid=os.getpid()))}, keeper=os.getpid())
    holder = Control(kept={"GPU-1": local}).holder("GPU-1", "power_limit_w")
    assert holder is not None
    assert holder.who.startswith(f"pid {os.getpid()} (")
    assert holder.wrote == 300.0
    left = replace(local, keeper=None)
    assert Control(kept={"GPU-1": left}).holder("GPU-1", "power_limit_w") is None


def test_what_one_may_set_comes_with_its_range_and_what_not_with_the_reason_alone() -> None:
    refusal = "uid 7 may not set sm_mhz on GPU-2: nothing of yours runs there; an admin may grant it"
    control = answering(
        may={
            "GPU-1": {"knobs": {"sm_mhz": [345, 1980]}},
            "GPU-2": {"knobs": {}, "why": refusal},
            "GPU-3": {"why": "no"},
        }
    )
    assert control.ranges("GPU-1") == ({"sm_mhz": (345.0, 1980.0)}, None)
    assert control.ranges("GPU-2") == ({}, "nothing of yours runs there")
    assert control.ranges("GPU-3") == ({}, "no")
    assert control.ranges("GPU-4") == ({}, "it does not say why")


def test_only_who_hears_the_daemon_and_sees_the_files_is_sure() -> None:
    assert answering().sure
    assert not replace(answering(), sees_files=False).sure
    assert not Control().sure


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for uuid in ("GPU-1", "GPU-gone"):
        with closing(Saved.open(tmp_path, uuid)) as saved:
            saved.save(entry())
    return tmp_path


def test_without_a_daemon_what_dead_ones_left_is_told_from_what_is_gone_for_good(state: Path) -> None:
    control = look({"JOULEWISE_SOCKET": str(state / "none.sock")}, state, ["GPU-1"])
    daemon, here, gone = control.findings[:3]
    assert (control.daemon, daemon.what, daemon.ok) == (None, "daemon", None)
    assert control.owed == {"GPU-1", "GPU-gone"}
    assert "had set on 1 GPU" in here.says
    assert "'joulewise restore --forget GPU-gone'" in (gone.do or "")
