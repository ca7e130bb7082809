"""The reader of marks: several processes, several clocks, and whatever may lie in the directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulewise.core import marks
from joulewise.core.marks import Clock, Mark, MarkKind, Ring
from joulewise.core.timeline import ScaledTime, VirtualTime, WallTime
from joulewise.monitor import steps
from joulewise.monitor.steps import MemoryFeed, StepFeed


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[StepFeed]:
    feed = StepFeed(tmp_path, WallTime())
    yield feed
    feed.close()


def step(time_s: float, work: float = 1.0, rank: int = 0) -> Mark:
    return Mark(time_s, MarkKind.STEP, rank, work)


def worker(directory: Path, code: str) -> subprocess.Popen[str]:
    """Another process that marks: it does ``code`` with ``write(time_s)``, then waits for its input to end."""
    told = f"""
        import sys
        from joulewise.core.marks import *
        ring = Ring({str(directory)!r})
        def write(time_s, rank=UNKNOWN_RANK, kind=MarkKind.STEP):
            ring.write(Mark(time_s, kind, rank, 1.0))
    """
    whole = textwrap.dedent(told) + textwrap.dedent(code) + "\nprint('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", whole], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.communicate(timeout=60)


def test_marks_are_read_once_in_order(tmp_path: Path, feed: StepFeed) -> None:
    assert feed.read() == []
    ring = Ring(str(tmp_path))
    for number in range(300):
        ring.write(step(float(number)))
    assert [mark.time_s for mark in feed.read()] == [float(number) for number in range(300)]
    assert feed.read() == []
    ring.write(Mark(300.0, MarkKind.PHASE, 0, 0.0, "rollout"))
    assert feed.read() == [Mark(300.0, MarkKind.PHASE, 0, 0.0, "rollout", pid=os.getpid())]
    assert feed.lost == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12))
def test_what_is_not_read_in_time_is_counted(written: list[int]) -> None:
    """However reads and writes interleave: what was read and what was lost make up what was written."""
    with tempfile.TemporaryDirectory() as home:
        ring, feed = Ring(home, capacity=8), StepFeed(Path(home), WallTime())
        total, seen = 0, []
        for count in written:
            for _ in range(count):
                ring.write(step(float(total)))
                total += 1
            fresh = [mark.time_s for mark in feed.read()]
            assert len(fresh) == min(count, 8)
            seen += fresh
        assert seen == sorted(set(seen))
        assert len(seen) + feed.lost == total
        feed.close()


def test_a_record_left_half_written_by_a_death_is_skipped(
    tmp_path: Path, feed: StepFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(str(tmp_path))
    for number in range(3):
        ring.write(step(float(number)))
    path = Path(ring.path)
    whole = path.read_bytes()
    at = marks.HEADER_BYTES + marks.RECORD_BYTES + 20
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"torn")
    assert [mark.time_s for mark in feed.read()] == [0.0]
    assert feed.read() == []  # it may be under way
    with path.open("r+b") as file:
        file.write(whole[:at])
        file.write(whole[at : at + 4])
    assert [mark.time_s for mark in feed.read()] == [1.0, 2.0]

    monkeypatch.setattr(steps, "_TORN_FOR_S", 0.0)
    ring.write(step(3.0))
    ring.write(step(4.0))
    with path.open("r+b") as file:
        file.seek(marks.HEADER_BYTES + 3 * marks.RECORD_BYTES + 20)
        file.write(b"torn")
    assert [mark.time_s for mark in feed.read()] == [4.0]
    assert feed.lost == 1


def test_times_are_told_in_the_time_of_the_tuner(tmp_path: Path) -> None:
    scaled = ScaledTime(20.0, origin_s=1000.0, wall_origin_s=50.0)
    feed, ring = StepFeed(tmp_path, scaled), Ring(str(tmp_path))
    ring.write(step(51.0))
    ring.write(Mark(1100.0, MarkKind.STEP, 0, 1.0, clock=Clock.SIMULATED))
    assert [mark.time_s for mark in feed.read()] == [1020.0, 1100.0]
    feed.close()


def test_a_time_that_only_knows_its_speed_will_do() -> None:
    class Simulated(WallTime):
        speed = 10.0

        def now_s(self) -> float:
            return 10.0 * time.monotonic()

    assert steps.in_time(Simulated(), 5.0) == pytest.approx(50.0, abs=0.1)


def test_times_of_one_process_never_go_back(tmp_path: Path, feed: StepFeed) -> None:
    ring = Ring(str(tmp_path))
    for time_s in (1.0, 3.0, 2.999, 4.0):
        ring.write(step(time_s))
    assert [mark.time_s for mark in feed.read()] == [1.0, 3.0, 3.0, 4.0]


def test_numbers_that_are_none_are_no_marks(tmp_path: Path, feed: StepFeed) -> None:
    ring = Ring(str(tmp_path))
    ring.write(step(float("nan")))
    ring.write(step(1.0, work=float("inf")))
    ring.write(step(2.0))
    assert [mark.time_s for mark in feed.read()] == [2.0]


def test_processes_that_have_no_rank_are_numbered_and_numbers_are_used_again(tmp_path: Path, feed: StepFeed) -> None:
    first = worker(tmp_path, "write(1.0); write(3.0)")
    assert {mark.rank for mark in feed.read()} == {0}
    second = worker(tmp_path, "write(2.0)")
    assert [(mark.rank, mark.pid) for mark in feed.read()] == [(1, second.pid)]
    end(first)
    third = worker(tmp_path, "write(4.0)")
    assert [(mark.rank, mark.pid) for mark in feed.read()] == [(0, third.pid)]
    end(second)
    end(third)


def test_ranks_are_those_that_processes_tell(tmp_path: Path, feed: StepFeed) -> None:
    children = [worker(tmp_path, f"write(1.0 + {rank}, rank={rank})") for rank in (1, 0)]
    assert [mark.rank for mark in feed.read()] == [0, 1]
    assert [process.rank for process in feed.processes] == [0, 1]
    for child in children:
        end(child)


def test_a_process_that_was_killed_has_left_its_marks_and_its_file_goes(
    tmp_path: Path, feed: StepFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = worker(tmp_path, "write(1.0); write(2.0)")
    child.send_signal(signal.SIGKILL)
    end(child)
    assert len(feed.read()) == 2
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(steps, "_QUIET_S", 0.0)
    assert feed.read() == []
    assert list(tmp_path.iterdir()) == []
    assert feed.processes == []


def test_a_process_says_good_bye(tmp_path: Path, feed: StepFeed) -> None:
    child = worker(tmp_path, "write(1.0); write(2.0, kind=MarkKind.BYE)")
    assert [mark.kind for mark in feed.read()] == [MarkKind.STEP, MarkKind.BYE]
    assert [process.ended for process in feed.processes] == [True]
    end(child)


def test_whatever_else_lies_there_does_no_harm(tmp_path: Path, feed: StepFeed) -> None:
    os.mkfifo(tmp_path / "1-1.marks")
    (tmp_path / "2-2.marks").mkdir()
    (tmp_path / "3-3.marks").symlink_to("/etc/passwd")
    (tmp_path / "4-4.marks").write_bytes(b"JWMARKS1 and no more")
    (tmp_path / "other").write_text("something")
    assert feed.read() == []
    Ring(str(tmp_path)).write(step(1.0))
    assert len(feed.read()) == 1


def test_a_file_that_is_cut_short_while_it_is_read_does_no_harm(tmp_path: Path, feed: StepFeed) -> None:
    ring = Ring(str(tmp_path), capacity=16)
    ring.write(step(1.0))
    assert len(feed.read()) == 1
    os.truncate(ring.path, marks.HEADER_BYTES + 30)
    assert feed.read() == []


def crafted(path: Path, numbers: dict[int, int], capacity: int) -> None:
    """A ring by somebody else's hand: whole records with the numbers given, by place."""
    header = marks._HEADER.pack(marks._MAGIC, marks.RECORD_BYTES, capacity, os.getpid(), 0, 0, 0)
    empty = bytes(marks.RECORD_BYTES)
    body = (marks.pack(numbers[place], step(1.0)) if place in numbers else empty for place in range(capacity))
    path.write_bytes(header + b"".join(body))


@settings(max_examples=60, deadline=timedelta(seconds=2))
@given(st.dictionaries(st.integers(0, 3), st.one_of(st.integers(0, 30), st.integers(2**63, 2**64 - 1))))
@example({0: 10, 2: 8})
def test_a_crafted_file_never_leads_the_reader_on(numbers: dict[int, int]) -> None:
    with tempfile.TemporaryDirectory() as home:
        crafted(Path(home) / "1-1.marks", numbers, 4)
        feed = StepFeed(Path(home), WallTime())
        assert len(feed.read()) <= 4
        assert feed.read() == []
        assert feed.lost >= 0
        feed.close()


def test_a_crafted_file_gives_a_bounded_number_of_marks_at_a_look_and_the_rest_later(tmp_path: Path) -> None:
    capacity = 2**17
    crafted(tmp_path / "1-1.marks", {place: place + 1 for place in range(capacity)}, capacity)
    feed = StepFeed(tmp_path, WallTime())
    looks = [len(feed.read()) for _ in range(3)]
    feed.close()
    assert looks == [2**16, 2**16, 0]


def test_any_number_of_files_costs_a_bounded_number_of_descriptors(tmp_path: Path, feed: StepFeed) -> None:
    for number in range(400):
        (tmp_path / f"{number}-1.marks").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    feed.read()
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 256


def test_a_directory_that_is_gone_is_one_without_marks(tmp_path: Path) -> None:
    assert StepFeed(tmp_path / "none", WallTime()).read() == []


def test_the_directory_is_ours_alone_and_gone_afterwards() -> None:
    with steps.directory() as home:
        assert home.stat().st_mode & 0o777 == 0o700
        with steps.directory() as other:
            assert other != home
    assert not home.exists()


def test_what_a_killed_owner_left_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """if True:
        import os, signal
        from joulewise.monitor.steps import directory
        with directory() as home:
            print(home, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()
    assert Path(left).is_dir()
    monkeypatch.setattr(steps, "_YOUNG_S", -1.0)
    with steps.directory() as mine:
        assert not Path(left).exists()
        with steps.directory():
            assert mine.exists()  # its owner lives


def test_marks_within_one_process_on_virtual_time() -> None:
    time = VirtualTime()
    feed = MemoryFeed(time)
    time.sleep(2.5)
    feed.mark(work=3.0, name="train")
    feed.mark(MarkKind.PAUSE, name="evaluation", time_s=2.75)
    assert [(mark.time_s, mark.kind, mark.work) for mark in feed.read()] == [
        (2.5, MarkKind.STEP, 3.0),
        (2.75, MarkKind.PAUSE, 1.0),
    ]
    assert feed.read() == []
