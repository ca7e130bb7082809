"""Files that a user names, read within a limit: a small compressed file may hold gigabytes, a device never ends.

Each limit is in bytes of content, after decompression, and can be raised with ``JOULEWISE_MAX_INPUT_MIB`` by somebody
who has a larger file and the memory for it. Whatever is wrong with a file is BadSpec: its name, why, the limit and the
way out.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from joulewise.core.errors import BadSpec

VARIABLE: Final = "JOULEWISE_MAX_INPUT_MIB"
MIB: Final = 1 << 20
MOST_BYTES: Final = 256 * MIB
"""Of a file that is read whole. The largest plan there is, of 16 stages and 128 microbatches, has some 100 MB."""
_GZIP: Final = b"\x1f\x8b"


def limit(most_bytes: int = MOST_BYTES) -> int:
    """``most_bytes``, or what the environment says instead. BadSpec where that is no number of MiB."""
    said = os.environ.get(VARIABLE)
    if not said:
        return most_bytes
    if not said.isdecimal() or not 1 <= len(said) <= 9 or int(said) == 0:
        raise BadSpec(f"{VARIABLE} is {said[:40]!r}; it takes a number of MiB from 1 to 999999999")
    return int(said) * MIB


def read_bytes(path: Path, most_bytes: int = MOST_BYTES, *, way_out: str = "") -> bytes:
    """The whole content. BadSpec, ending with ``way_out``, where it cannot be read or is too long."""
    with opened(path, most_bytes, packed=False, way_out=way_out) as file:
        return file.read()


def read_text(path: Path, most_bytes: int = MOST_BYTES, *, way_out: str = "") -> str:
    """The whole content of a text in UTF-8, with or without a byte order mark; BadSpec for anything else."""
    data = read_bytes(path, most_bytes, way_out=way_out)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not text in UTF-8", way_out) from None


@contextmanager
def opened(path: Path, most_bytes: int = MOST_BYTES, *, packed: bool = True, way_out: str = "") -> Iterator[BinaryIO]:
    """The content to read from, decompressed if it is gzip's and ``packed``. BadSpec where it cannot be read, is
    damaged, or turns out to be longer than the limit; also while it is read inside of the ``with``."""
    most_bytes = limit(most_bytes)
    try:
        with path.open("rb") as raw:
            if packed and raw.peek(2)[:2] == _GZIP:
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield io.BufferedReader(_Limited(path, cast(BinaryIO, unpacked), most_bytes))
            else:
                yield io.BufferedReader(_Limited(path, cast(BinaryIO, raw), most_bytes))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unreadable(path, f"its gzip data are truncated or damaged ({error})", way_out) from error
    except OSError as error:
        raise _unreadable(path, (error.strerror or str(error)).lower(), way_out) from error


@contextmanager
def opened_text(path: Path, most_bytes: int = MOST_BYTES, *, way_out: str = "") -> Iterator[io.TextIOWrapper]:
    """As ``opened``, for lines of text in UTF-8. BadSpec where it is none."""
    with opened(path, most_bytes, way_out=way_out) as file:
        try:
            with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                yield text
        except UnicodeDecodeError:
            raise _unreadable(path, "it is not text in UTF-8", way_out) from None


def _unreadable(path: Path, why: str, way_out: str) -> BadSpec:
    return BadSpec(f"{path} cannot be read: {why}{'; ' if way_out else ''}{way_out}")


class _Limited(io.RawIOBase):
    """Another stream, until it has given more bytes than it may."""

    def __init__(self, path: Path, stream: BinaryIO, most_bytes: int) -> None:
        self._path, self._stream, self._most, self._left = path, stream, most_bytes, most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        data = self._stream.read(min(len(view), self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise BadSpec(
                f"{self._path} holds more than {self._most // MIB} MiB (decompressed, if it is compressed); "
                f"set {VARIABLE} to a larger number of MiB if that is right"
            )
        view[: len(data)] = data
        return len(data)
