"""The file by which a script says how far it is."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster import progress
from joulewise.cluster.progress import FILE, Progress, read, write

SOME = Progress(120, 1000, 100, 1.7e9, 4, False, 2)
counts = st.integers(0, 10**12)


@given(
    st.builds(
        Progress,
        step=counts,
        steps=st.none() | counts,
        saved_step=counts,
        time_s=st.floats(0, 1e11),
        world=st.integers(1, 10**6),
        paused=st.booleans(),
        starts=st.integers(1, 10**6),
    )
)
def test_what_is_written_is_read(tmp_path_factory, said):
    folder = tmp_path_factory.mktemp("progress")
    write(folder, said)
    assert read(folder) == said
    assert [each.name for each in folder.iterdir()] == [FILE]


def test_where_nothing_was_written_there_is_nothing(tmp_path):
    assert read(tmp_path) is None
    assert read(tmp_path / "absent") is None


def test_a_half_written_file_is_no_progress(tmp_path):
    write(tmp_path, SOME)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        assert read(tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"step": True},
        {"step": 1.5},
        {"step": "7"},
        {"saved_step": None},
        {"steps": -3},
        {"steps": 10**16},
        {"time_s": "now"},
        {"time_s": None},
        {"world": 0},
        {"starts": 0},
        {"paused": 1},
    ],
)
def test_what_makes_no_sense_is_no_progress(tmp_path, change):
    (tmp_path / FILE).write_text(json.dumps({**asdict(SOME), **change}))
    assert read(tmp_path) is None


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", "[" * 3000, "\xff"])
def test_other_things_in_its_place_are_no_progress(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert read(tmp_path) is None


def test_what_an_older_or_newer_writer_says_is_understood(tmp_path):
    (tmp_path / FILE).write_text('{"step": 5, "saved_step": 3, "time_s": 17, "mood": "good"}')
    assert read(tmp_path) == Progress(5, None, 3, 17.0)


def test_ending_a_script_is_safe_only_when_it_stands_still_and_has_saved_all():
    assert Progress(5, None, 5, 0.0, paused=True).safe
    assert not Progress(5, None, 5, 0.0).safe
    assert not Progress(5, None, 4, 0.0, paused=True).safe


def test_a_write_that_fails_leaves_the_old_one_and_nothing_else(tmp_path, monkeypatch):
    write(tmp_path, SOME)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, Progress(121, 1000, 100, 1.7e9))
    assert read(tmp_path) == SOME
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_whatever_lies_in_its_place_nobody_waits_for_it(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(elsewhere, SOME)
    os.mkfifo(tmp_path / FILE)
    assert read(tmp_path) is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(elsewhere / FILE)
    assert read(tmp_path) is None
    assert read(f"{tmp_path}\0") is None
