"""The format of marks: exact both ways, and whatever is broken is seen to be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core import marks
from joulewise.core.marks import Clock, Mark, MarkKind, Ring

MARKS = st.builds(
    Mark,
    time_s=st.floats(allow_nan=False),
    kind=st.sampled_from(MarkKind),
    rank=st.integers(-1, 2**31 - 1),
    work=st.floats(0.0, 1e300),
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=7),
    clean=st.booleans(),
    clock=st.sampled_from(Clock),
    pid=st.just(17),
)


@given(st.integers(1, 2**63), MARKS)
def test_a_mark_comes_back_as_it_was(number: int, mark: Mark) -> None:
    assert marks.unpack(marks.pack(number, mark), pid=17) == (number, mark)


@given(MARKS, st.integers(0, marks.RECORD_BYTES - 1), st.integers(1, 255))
def test_a_record_with_one_wrong_byte_is_no_mark(mark: Mark, place: int, change: int) -> None:
    record = bytearray(marks.pack(1, mark))
    record[place] ^= change
    assert marks.unpack(bytes(record)) is None


@given(MARKS, MARKS, st.integers(1, marks.RECORD_BYTES - 1))
def test_half_of_one_record_and_half_of_another_are_no_mark(old: Mark, new: Mark, cut: int) -> None:
    before, after = marks.pack(1, old), marks.pack(2, new)
    mixed = after[:cut] + before[cut:]
    assert mixed in (before, after) or marks.unpack(mixed) is None


def test_a_long_name_loses_its_end_and_no_character_is_cut() -> None:
    _, mark = marks.unpack(marks.pack(1, Mark(0.0, MarkKind.PHASE, name="é" * 40))) or (0, None)
    assert mark is not None
    assert mark.name == "é" * 15


def test_space_that_was_never_written_is_no_mark() -> None:
    assert marks.unpack(bytes(marks.RECORD_BYTES)) is None
    assert marks.unpack(b"") is None


def test_a_file_says_whose_it_is(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path), local_rank=3, world=8, capacity=16)
    path = Path(ring.path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= 16 * marks.RECORD_BYTES  # taken now, so that it is there later
    found = marks.origin(path.read_bytes())
    assert found == (os.getpid(), marks.start_of(os.getpid()), 3, 8, 16)


def test_what_is_no_file_of_marks_has_no_origin(tmp_path: Path) -> None:
    assert marks.origin(b"") is None
    assert marks.origin(b"x" * 64) is None


def test_a_second_file_of_one_process_has_a_name_of_its_own(tmp_path: Path) -> None:
    paths = {Ring(str(tmp_path), capacity=4).path for _ in range(3)}
    assert len(paths) == 3


def test_without_room_there_is_no_file_and_nothing_worse(tmp_path: Path) -> None:
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
from joulewise.core.marks import Ring
try:
    Ring({str(tmp_path)!r})
except OSError:
    print("no room")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "no room\n")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_not_there_has_no_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert marks.start_of(child.pid) is None


@pytest.mark.parametrize("module", ["core/marks.py", "core/leader.py", "frameworks", "device/work.py"])
def test_what_runs_in_the_job_is_plain_enough_for_python_3_9(module: str) -> None:
    import ast

    import joulewise

    where = Path(joulewise.__file__).parent / module
    files = sorted(where.rglob("*.py")) if where.is_dir() else [where]
    assert files
    for file in files:
        ast.parse(file.read_text("utf-8"), filename=str(file), feature_version=(3, 9))
