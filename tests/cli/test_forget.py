"""Dropping what is kept of a GPU that will not come back; test_restore does it from the command line."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cli.forget import forget
from joulewise.core.errors import BadSpec, LeaseTaken
from joulewise.device.lease import Owner
from joulewise.device.saved import Entry, Saved

WHO = Owner("lease-1", 1000, 42, "train.py")
GONE = "GPU-0a1b"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder that keeps a limit that was set, a clock that was not yet, and a lock that stands."""
    with closing(Saved.open(tmp_path, GONE)) as saved:
        limit = replace(Entry.new("power_limit_w", 700.0, WHO, None), wrote=(500.0, 300.0))
        saved.save(limit, Entry.new("sm_mhz", None, WHO, None))
        saved.stand("memory_mhz", 2619.0)
    return tmp_path


def test_what_is_dropped_is_said_knob_by_knob_and_nothing_is_owed_any_more(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(state, "nvml:GPU-0a", as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        f"{GONE}: dropped power limit (set to 300 W, 700 W before) of uid 1000 pid 42 (train.py)",
        f"{GONE}: dropped SM clock (not set) of uid 1000 pid 42 (train.py)",
        f"{GONE}: dropped the standing memory clock at most 2619 MHz",
    ]
    assert Saved.known(state) == ()
    with pytest.raises(BadSpec, match="keeps nothing"):
        forget(state, GONE, as_json=False)


def test_programs_get_the_same_as_one_object(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget(state, GONE, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (said["gpu"], said["damaged"], said["standing"]) == (GONE, False, {"memory_mhz": 2619.0})
    assert [(each["knob"], each["wrote"]) for each in said["dropped"]] == [
        ("power_limit_w", [500.0, 300.0]),
        ("sm_mhz", []),
    ]


def test_while_somebody_keeps_it_nothing_is_dropped(state: Path) -> None:
    with closing(Saved.open(state, GONE)) as saved:
        with pytest.raises(LeaseTaken, match="so nothing was dropped; stop that first"):
            forget(state, GONE, as_json=False)
        assert set(saved.entries) == {"power_limit_w", "sm_mhz"}
    assert Saved.known(state) == (GONE,)


def test_a_file_that_cannot_be_read_is_put_aside_for_people(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state / f"{GONE}.jsonl").write_bytes(b"nonsense\n")
    forget(state, GONE, as_json=False)
    assert "could not be read" in capsys.readouterr().out
    assert Saved.known(state) == ()
    (aside,) = state.glob("*.corrupt-*")
    assert aside.read_bytes() == b"nonsense\n"
