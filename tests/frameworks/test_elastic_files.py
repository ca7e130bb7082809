"""Checkpoint files: whatever happens, the last good one is found."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.frameworks import elastic_files
from joulewise.frameworks.elastic_files import Checkpoints

SOURCES = Path(elastic_files.__file__).parents[2]


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def all_of(folder) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def kept(folder) -> list[str]:
    return [name for name in all_of(folder) if name.startswith("step-")]


@pytest.fixture
def files(tmp_path) -> Checkpoints:
    return Checkpoints(str(tmp_path))


def test_the_newest_is_found_and_the_one_before_is_kept(files, tmp_path):
    for step in (1, 20, 300, 4000):
        files.write(step, {"at": step})
    assert files.newest() == (4000, {"at": 4000}, [])
    assert [name.split("-")[1] for name in kept(tmp_path)] == ["000000000300", "000000004000"]


def test_where_there_is_none_it_begins_at_the_start(files, tmp_path):
    assert files.newest() == (0, None, [])
    assert Checkpoints(str(tmp_path / "absent")).newest() == (0, None, [])


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_last_one_falls_back_to_the_one_before_and_says_so(tmp_path_factory, at, bit, cut):
    folder = tmp_path_factory.mktemp("damaged")
    files = Checkpoints(str(folder))
    files.write(1, "first")
    files.write(2, "second")
    last = folder / kept(folder)[-1]
    data = bytearray(last.read_bytes())
    place = int(at * len(data))
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    last.write_bytes(data)
    step, state, damaged = files.newest()
    assert (step, state) == (1, "first")
    assert len(damaged) == 1
    assert str(last) in damaged[0]


def test_one_that_was_found_damaged_never_takes_the_place_of_a_good_one(tmp_path, monkeypatch):
    first = Checkpoints(str(tmp_path))
    for step in (4, 8):
        first.write(step, step)
    last = tmp_path / kept(tmp_path)[-1]
    last.write_bytes(b"torn")
    files = Checkpoints(str(tmp_path))
    assert files.newest()[0] == 4
    with monkeypatch.context() as patch:
        fills_up(patch, 9)
        with pytest.raises(OSError, match="No space"):
            files.write(5, 5)
    assert [name.split("-")[1] for name in kept(tmp_path)] == ["000000000004"]
    for step in (5, 6):
        files.write(step, step)
    assert [name.split("-")[1] for name in kept(tmp_path)] == ["000000000005", "000000000006"]


def test_the_file_is_what_pickle_wrote(files, tmp_path):
    files.write(7, [1, 2])
    assert pickle.loads((tmp_path / kept(tmp_path)[0]).read_bytes()) == [1, 2]


def fills_up(monkeypatch, times: int) -> list[int]:
    """The disk is full the first so many times that something is written through to it."""
    calls: list[int] = []
    real = os.fsync

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) <= times:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(elastic_files.os, "fsync", full)
    return calls


def test_on_a_full_disk_the_older_of_two_makes_room(files, tmp_path, monkeypatch):
    files.write(1, "first")
    files.write(2, "second")
    fills_up(monkeypatch, 1)
    files.write(3, "third")
    assert files.newest() == (3, "third", [])
    assert len(kept(tmp_path)) == 2


def test_a_disk_that_stays_full_leaves_the_last_good_one(files, tmp_path, monkeypatch):
    files.write(1, "first")
    files.write(2, "second")
    fills_up(monkeypatch, 9)
    with pytest.raises(OSError, match="No space"):
        files.write(3, "third")
    assert files.newest() == (2, "second", [])
    assert all_of(tmp_path) == kept(tmp_path)  # nothing half-done is left


def test_what_a_killed_writer_left_is_tidied_up(files, tmp_path):
    (tmp_path / ".77.joulewise-part").write_bytes(b"half")
    (tmp_path / "mine.txt").write_text("not yours")
    files.tidy()
    assert all_of(tmp_path) == ["mine.txt"]


def test_a_whole_checkpoint_that_needs_torch_is_refused_rather_than_passed_over(tmp_path, files):
    files.write(1, "first")
    (name,) = kept(tmp_path)
    (tmp_path / name).rename(tmp_path / name.replace(".pickle", ".pt"))
    with pytest.raises(BadSpec, match="import torch before"):
        files.newest()


def test_loading_it_needs_nothing_but_the_standard_library():
    probe = (
        "import sys; import joulewise; joulewise.elastic; "
        "print(*{n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names))"
    )
    bare = {"PYTHONPATH": str(SOURCES)}
    out = subprocess.run([sys.executable, "-S", "-c", probe], capture_output=True, text=True, env=bare)
    assert set(out.stdout.split()) == {"joulewise", "__main__"}, out.stderr
