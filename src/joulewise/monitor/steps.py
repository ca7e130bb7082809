"""The reader of a job's marks: every process's file in one directory, as one list of marks in the tuner's time.

Files appear while it reads (ranks start, a launcher starts trainers), processes die without a word, and a writer may
lap a reader that was stopped: all of that is counted, none of it harms. The job's files are read with plain reads and
believed only where a record's checksum and place are right. Whatever the files hold, one look takes a bounded number of
records from a bounded number of them: the rest is read at the next look.

For the neighbours: marks of one process come in the order in which the job made them, their times do not decrease, and
they may be some steps late, because a GPU's stamps are known only afterwards. A step with ``clean=False`` must not be
compared. Processes without a rank of their own are numbered from 0 as they come, and a number is free again when its
process has ended: a job of one process has rank 0, whichever process that is at the time.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import shutil
import stat
import tempfile
import time as wall
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from joulewise.core import marks
from joulewise.core.marks import Clock, Mark, MarkKind, Origin
from joulewise.core.timeline import TimeSource

__all__ = ["Clock", "Feed", "Mark", "MarkKind", "MemoryFeed", "Process", "StepFeed", "directory"]

_PREFIX = "joulewise-marks-"
_AT_ONCE = 256  # records a read
_MOST_MARKS = 65_536  # of all files together at one look: sixteen full rings, about 0.2 s of work
_MOST_FILES = 256  # open at a time: more than any node has ranks, and few of the 1024 that a process may open
_MOST_NAMES = 65_536  # looked at in the directory
_TORN_FOR_S = 1.0  # a record that stays half written so long was left so by a death
_QUIET_S = 60.0  # a file whose process cannot be found is kept so long: it may live in another pid namespace

_YOUNG_S = 60.0  # a directory that is being made is not locked yet


class Feed(Protocol):
    """Where marks come from."""

    def read(self) -> list[Mark]:
        """The marks since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job that has left marks."""

    pid: int
    rank: int
    local_rank: int
    world: int
    """Number of ranks; 0 where unknown."""
    ended: bool


class StepFeed:
    """The marks that processes leave in ``directory``, in the seconds of ``time``. For one thread."""

    def __init__(self, directory: Path, time: TimeSource) -> None:
        self.lost = 0
        """Marks that were written over before they were read."""
        self._directory, self._time = directory, time
        self._files: dict[str, _File] = {}
        self._done: set[str] = set()
        self._looked_ns = -1

    def read(self) -> list[Mark]:
        """The marks since the last call, in order of time; of one process, in the order in which it made them."""
        self._look()
        found: list[Mark] = []
        now_s = wall.monotonic()
        most = max(_AT_ONCE, _MOST_MARKS // max(1, len(self._files)))
        for name, file in list(self._files.items()):
            fresh = file.read(now_s, most)
            self.lost += file.lost
            file.lost = 0
            found += self._told(file, fresh)
            if file.ended(now_s):
                file.close()
                del self._files[name]
                try:  # thousands of short processes would fill the memory that files live in
                    (self._directory / name).unlink()
                except OSError:
                    self._done.add(name)
        found.sort(key=lambda mark: mark.time_s)
        return found

    @property
    def processes(self) -> list[Process]:
        """Who is marking, in order of rank."""
        known = [
            Process(file.origin.pid, file.rank or 0, file.origin.local_rank, file.origin.world, file.said_bye)
            for file in self._files.values()
            if file.origin is not None
        ]
        return sorted(known, key=lambda process: (process.rank, process.pid))

    def close(self) -> None:
        """Let go of the files; the directory is its maker's."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _look(self) -> None:
        """Open files that are new. A directory's time changes when something is made in it, so most calls cost 2 µs."""
        try:
            changed_ns = self._directory.stat().st_mtime_ns
            if changed_ns == self._looked_ns:
                return
            with os.scandir(self._directory) as entries:
                looked_at = itertools.islice(entries, _MOST_NAMES)
                names = {entry.name for entry in looked_at if entry.name.endswith(marks.SUFFIX)}
        except OSError:
            return
        # A file made within the clock's tick (some ms) after our look would leave the time as it is: look again then.
        self._looked_ns = changed_ns if wall.time_ns() - changed_ns > 50_000_000 else -1
        for name in sorted(names - self._files.keys() - self._done):
            if len(self._files) >= _MOST_FILES:
                self._looked_ns = -1  # when others have ended there is room for it
                break
            with suppress(OSError):
                self._files[name] = _File(self._directory / name)

    def _told(self, file: _File, fresh: list[Mark]) -> list[Mark]:
        told = []
        for mark in fresh:
            time_s = mark.time_s if mark.clock is Clock.SIMULATED else in_time(self._time, mark.time_s)
            if file.rank is None or (mark.rank >= 0 and file.rank != mark.rank):
                file.rank = mark.rank if mark.rank >= 0 else self._free_rank(file, time_s)
            file.latest_s = time_s = max(file.latest_s, time_s)
            told.append(mark._replace(time_s=time_s, rank=file.rank))
        return told

    def _free_rank(self, own: _File, since_s: float) -> int:
        """The lowest number that nobody has who lived at ``since_s``."""
        others = [file for file in self._files.values() if file is not own]
        used = {file.rank for file in others if file.latest_s >= since_s or not file.over()}
        return next(rank for rank in range(len(self._files) + 1) if rank not in used)


class _File:
    """One process's ring, and how far it has been read. Raises OSError where it is no plain file."""

    def __init__(self, path: Path) -> None:
        # Whatever somebody has put there: a link is not followed, a pipe is not waited for.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(f"{path} is no plain file")
        self.origin: Origin | None = None
        self.rank: int | None = None
        self.lost = 0
        self.latest_s = -math.inf
        self.said_bye = False
        self._next = 1  # number of the record to read next
        self._torn_since_s: float | None = None
        self._heard_s = wall.monotonic()

    def read(self, now_s: float, most: int) -> list[Mark]:
        """The marks since the last call, about ``most`` of them; what is left comes with the next call."""
        if self.origin is None:
            self.origin = marks.origin(os.pread(self._descriptor, marks.HEADER_BYTES, 0))
            if self.origin is None:
                return []
        found: list[Mark] = []
        # A file of our own is read in as many parts, twice as many if it laps us; any other may lead us on for ever.
        for _ in range(2 * (most // _AT_ONCE) + 2):
            before = self._next
            found += self._some(self.origin, now_s)
            if self._next == before or len(found) >= most:
                break
        if found:
            self._heard_s = now_s
            self.said_bye = found[-1].kind is MarkKind.BYE
        return found

    def over(self) -> bool:
        """Whether the process has ended, as far as can be seen."""
        return self.said_bye or (self.origin is not None and not _lives(self.origin))

    def ended(self, now_s: float) -> bool:
        """Whether nothing more will come."""
        return now_s > self._heard_s + (1.0 if self.said_bye else _QUIET_S) and self.over()

    def close(self) -> None:
        os.close(self._descriptor)

    def _some(self, origin: Origin, now_s: float) -> list[Mark]:
        slot = (self._next - 1) % origin.capacity
        count = min(_AT_ONCE, origin.capacity - slot)
        at = marks.HEADER_BYTES + slot * marks.RECORD_BYTES
        data = os.pread(self._descriptor, count * marks.RECORD_BYTES, at)
        found = []
        for start in range(0, len(data), marks.RECORD_BYTES):
            record = data[start : start + marks.RECORD_BYTES]
            held = marks.unpack(record, origin.pid)
            # A whole record at a place that is not its number's was put there by nobody we know: broken as well.
            if held is None or (held[0] - 1) % origin.capacity != (self._next - 1) % origin.capacity:
                if any(record) and self._give_up_on_torn(now_s):
                    self._next += 1
                    self.lost += 1
                    continue
                break
            number, mark = held
            self._torn_since_s = None
            if number > self._next:  # the writer has lapped us: its oldest record follows this one
                oldest = number - origin.capacity + 1
                self.lost += oldest - self._next
                self._next = oldest
                break
            if number < self._next:  # from the round before: nothing new
                break
            self._next += 1
            if math.isfinite(mark.time_s) and math.isfinite(mark.work):
                found.append(mark)
        return found

    def _give_up_on_torn(self, now_s: float) -> bool:
        """Whether the record that is half written has been so for too long to be under way."""
        if self._torn_since_s is None:
            self._torn_since_s = now_s
        if now_s < self._torn_since_s + _TORN_FOR_S:
            return False
        self._torn_since_s = None
        return True


class MemoryFeed:
    """Marks made in this process: by ``mark`` on any time, or as the place where hooks write to."""

    def __init__(self, time: TimeSource) -> None:
        self._time = time
        self._marks: deque[Mark] = deque()

    def mark(
        self,
        kind: MarkKind = MarkKind.STEP,
        *,
        work: float = 1.0,
        name: str = "",
        rank: int = 0,
        time_s: float | None = None,
        clean: bool = True,
    ) -> None:
        """Leave a mark, now or at ``time_s`` of this feed's time."""
        at_s = self._time.now_s() if time_s is None else time_s
        self._marks.append(Mark(at_s, kind, rank, work, name, clean, Clock.HOST, os.getpid()))

    def write(self, mark: Mark) -> None:
        """Take a mark of a hook, stamped on the machine's monotonic clock or by a simulator."""
        time_s = mark.time_s if mark.clock is Clock.SIMULATED else in_time(self._time, mark.time_s)
        self._marks.append(mark._replace(time_s=time_s, rank=max(0, mark.rank), pid=os.getpid()))

    def read(self) -> list[Mark]:
        """The marks since the last call."""
        return [self._marks.popleft() for _ in range(len(self._marks))]


def in_time(time: TimeSource, wall_s: float) -> float:
    """What ``time`` showed at a moment of the machine's monotonic clock."""
    at_wall_s = getattr(time, "at_wall_s", None)
    if at_wall_s is not None:
        return float(at_wall_s(wall_s))
    speed = getattr(time, "speed", None)
    if speed is None:  # the wall's own time
        return wall_s
    return time.now_s() - (wall.monotonic() - wall_s) * float(speed)


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for marks, in memory where there is such a place, gone afterwards.

    Takes away what killed processes of this user have left behind.
    """
    shared = Path("/dev/shm")
    home = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(home)
    own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
    lock = _locked(own)  # as long as we live, and no longer
    try:
        yield own
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(own, ignore_errors=True)


def _sweep(home: Path) -> None:
    for left in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = left.stat()
            if found.st_uid != os.geteuid() or wall.time() < found.st_mtime + _YOUNG_S:
                continue
            lock = _locked(left)
            if lock is not None:
                os.close(lock)
                shutil.rmtree(left, ignore_errors=True)


def _locked(path: Path) -> int | None:
    """A lock on a directory, which the kernel gives up when its holder dies; None where somebody else has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _lives(origin: Origin) -> bool:
    return marks.start_of(origin.pid) == origin.started_ticks
