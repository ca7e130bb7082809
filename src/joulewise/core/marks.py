"""Marks: what a job tells of its progress, and the file in which one process leaves them for another to read.

A mark says that a step ended, a phase began, or work paused, and when. The job writes marks into a ring of fixed
records, one file a process, mapped into memory: a mark costs about two microseconds, needs no reader, and outlives the
process. The reader (``monitor/steps``) reads the same file with plain reads, so that nothing the job does to it can
harm the reader. A record carries its number and a checksum: one that is half written, or has been written over, is
seen as such. The disk space is taken when the file is made, so that a full disk costs the marks and never the job.

For the neighbours: besides time, kind, rank, work and name a ``Mark`` says ``clean`` (False on a step that may not be
compared, whatever else is known), ``clock`` (what it was stamped by) and ``pid``. The name of a step is the phase that
it belongs to. Marks of one process come in the order in which the job made them, and their times do not decrease.

The job's side runs in whatever Python (3.9 or later) the user has, so this module is plain and needs nothing but the
standard library.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from binascii import crc32
from enum import IntEnum
from typing import NamedTuple

ENVIRONMENT = "JOULEWISE_MARKS"
"""Names the directory of the marks' files; a process without it marks nothing."""
SUFFIX = ".marks"
CAPACITY = 4096
"""Records in a ring: minutes of the fastest steps there are, for a reader that looks every second."""
UNKNOWN_RANK = -1

_MAGIC = b"JWMARKS1"
_HEADER = struct.Struct("<8sIIiqii28x")  # magic, record bytes, capacity, pid, process start, local rank, world size
_BODY = struct.Struct("<QddiBB30s")  # number from 1, time, work, rank, kind, flags, name
_SUM = struct.Struct("<I")
RECORD_BYTES = _BODY.size + _SUM.size
HEADER_BYTES = _HEADER.size
_NAME_BYTES = 30
_UNCLEAN = 0x80  # flag beside the clock's number
_MOST_FILES = 10  # of one process: a program that replaces itself (exec) keeps pid and start


class MarkKind(IntEnum):
    """What a mark tells."""

    STEP = 1
    """A step of work has ended; ``work`` is how much it was, ``name`` the phase it belongs to."""
    PHASE = 2
    """A phase begins; ``name`` is its name, empty for none."""
    PAUSE = 3
    """From here on the job does something else than steps; ``name`` says what: evaluation, checkpoint, compile …"""
    RESUME = 4
    """It is back at its steps."""
    HELLO = 5
    """Somebody begins to mark; ``name`` says who, ``work`` is the number of ranks (0: unknown)."""
    BYE = 6
    """The process ends in order."""


class Clock(IntEnum):
    """What a mark was stamped by."""

    HOST = 0
    """The machine's monotonic clock, at the call: a GPU may still be at work on the step."""
    GPU = 1
    """The GPU, when it had done the step; told on the machine's monotonic clock."""
    SIMULATED = 2
    """A simulator's own time, when its virtual GPU had done the step."""


class Mark(NamedTuple):
    """One mark of one process."""

    time_s: float
    kind: MarkKind
    rank: int = 0
    work: float = 0.0
    name: str = ""
    clean: bool = True
    """False on a step whose time says nothing: it contains a pause, or its end was not seen."""
    clock: Clock = Clock.HOST
    pid: int = 0


class Origin(NamedTuple):
    """Which process a file of marks is of."""

    pid: int
    started_ticks: int
    """When the process started, in clock ticks since boot: with the pid, no other process has both."""
    local_rank: int
    world: int
    """Number of ranks; 0 where unknown."""
    capacity: int


def pack(number: int, mark: Mark) -> bytes:
    """The record that holds ``mark`` as the process's ``number``-th, from 1. The pid is the file's."""
    flags = mark.clock if mark.clean else mark.clock | _UNCLEAN
    name = mark.name.encode("utf-8", "replace")[:_NAME_BYTES]
    body = _BODY.pack(number, mark.time_s, mark.work, mark.rank, mark.kind, flags, name)
    return body + _SUM.pack(crc32(body))


def unpack(record: bytes, pid: int = 0) -> tuple[int, Mark] | None:
    """Number and mark of a record, or None where it holds none: never written, or half."""
    body, total = record[: _BODY.size], record[_BODY.size :]
    if len(total) != _SUM.size or crc32(body) != _SUM.unpack(total)[0]:
        return None
    number, time_s, work, rank, kind, flags, name = _BODY.unpack(body)
    try:
        known, clock = MarkKind(kind), Clock(flags & ~_UNCLEAN)
    except ValueError:
        return None
    words = name.rstrip(b"\0").decode("utf-8", "ignore")
    return number, Mark(time_s, known, rank, work, words, not flags & _UNCLEAN, clock, pid)


def origin(header: bytes) -> Origin | None:
    """Whose a file is, by its first ``HEADER_BYTES``; None where it is no file of marks (yet)."""
    if len(header) < HEADER_BYTES:
        return None
    magic, record_bytes, capacity, pid, started_ticks, local_rank, world = _HEADER.unpack(header[:HEADER_BYTES])
    if magic != _MAGIC or record_bytes != RECORD_BYTES or not 0 < capacity <= 2**20:
        return None
    return Origin(pid, started_ticks, local_rank, world, capacity)


class Ring:
    """The file of this process's marks in ``directory``. Raises OSError where it cannot be made.

    ``write`` may be called by several threads; not over a fork, where the child makes its own.
    """

    def __init__(self, directory: str, *, local_rank: int = 0, world: int = 0, capacity: int = CAPACITY) -> None:
        pid, started_ticks = os.getpid(), start_of(os.getpid()) or 0
        bytes_in_all = HEADER_BYTES + capacity * RECORD_BYTES
        self.path, descriptor = _create(os.path.join(directory, f"{pid}-{started_ticks}"))  # noqa: PTH118 - as above
        try:
            os.posix_fallocate(descriptor, 0, bytes_in_all)  # a hole would end the job when the disk is full
            self._memory = mmap.mmap(descriptor, bytes_in_all)
        except (OSError, ValueError):
            os.unlink(self.path)  # noqa: PTH108 - pathlib is slow to load
            raise
        finally:
            os.close(descriptor)
        self._capacity = capacity
        self._numbers = itertools.count(1)
        header = _HEADER.pack(_MAGIC, RECORD_BYTES, capacity, pid, started_ticks, local_rank, world)
        self._memory[:HEADER_BYTES] = header

    def write(self, mark: Mark) -> None:
        """Leave one mark, over the oldest one if the ring is full."""
        number = next(self._numbers)
        at = HEADER_BYTES + (number - 1) % self._capacity * RECORD_BYTES
        self._memory[at : at + RECORD_BYTES] = pack(number, mark)


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The second field is the program's name, which may hold anything; the start is field 22.
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _create(stem: str) -> tuple[str, int]:
    for turn in range(_MOST_FILES):
        path = (f"{stem}-{turn}" if turn else stem) + SUFFIX
        try:
            return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"{stem}{SUFFIX} and its followers exist")
