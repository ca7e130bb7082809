"""The checkpoint files of an elastic script: written so that whatever happens, the last good one can be found.

A checkpoint is one file, ``step-000000001200-1a2b3c4d.pt`` (or ``.pickle``): its steps and the CRC-32 of its bytes are
its name, so a torn or damaged one is known by it, and the bytes are what ``torch.save`` or ``pickle`` wrote, readable
without us. It gets its name when all of it is on disk. The one before is kept as well.

What it is not: a format for models of a size that one process cannot write; frameworks have those.

Plain Python from 3.9 on, standard library only; torch where the script has loaded it.
"""

# ruff: noqa: PTH105, PTH108, PTH118, PTH123, PTH208 (pathlib is slow to load)

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any

from joulewise.core.errors import BadSpec

_NAME = re.compile(r"step-(\d{12,})-([0-9a-f]{8})\.(pt|pickle)")
_PART = ".joulewise-part"
_PIECE = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT = 2


class Checkpoints:
    """The checkpoints in ``folder``. One process writes; any may read.

    ``trusted``: torch may load whatever Python objects a file holds, not only tensors and plain values.
    """

    def __init__(self, folder: str, *, trusted: bool = False) -> None:
        self.folder = folder
        self._trusted = trusted
        self._bad: set[str] = set()  # paths that were found damaged

    def newest(self) -> tuple[int, Any, list[str]]:
        """Steps done and the state of the newest good one; 0 and None where there is none.

        The list says, a line each, which ones were damaged and passed over. BadSpec for one that is whole but cannot be
        loaded here: going back to an older one, or to the start, would hide that.
        """
        damaged: list[str] = []
        for step, crc, path in self._found():
            try:
                whole = _crc(path) == crc
            except OSError as fault:
                self._bad.add(path)
                damaged.append(f"checkpoint {path} cannot be read ({fault.strerror})")
                continue
            if whole:
                return step, self._load(path), damaged
            self._bad.add(path)
            damaged.append(f"checkpoint {path} is damaged: its bytes are not those that its name promises")
        return 0, None, damaged

    def write(self, step: int, state: Any) -> None:
        """Keep ``state`` as of ``step``, on disk when this returns. OSError where that fails; the others still stand.

        On a full disk the older of two good ones makes room. Those that were found damaged go as well.
        """
        try:
            self._write(step, state)
        except OSError as fault:
            spare = self._beyond(1)
            if fault.errno not in _FULL or not spare:
                raise
            for path in spare:
                os.unlink(path)
            self._write(step, state)
        with contextlib.suppress(OSError):  # what cannot be removed now will be after the next
            for path in self._beyond(_KEPT):
                os.unlink(path)

    def tidy(self) -> None:
        """Remove what a writer that was killed has left half-done. For the one who writes, before it writes."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name.endswith(_PART):
                    os.unlink(os.path.join(self.folder, name))

    def _beyond(self, kept: int) -> list[str]:
        """What may go where so many of the newest good ones stay: older ones, and all that were found damaged."""
        paths = [path for _, _, path in self._found()]
        good = [path for path in paths if path not in self._bad]
        return [path for path in paths if path not in good[:kept]]

    def _write(self, step: int, state: Any) -> None:
        torch = sys.modules.get("torch")
        part = os.path.join(self.folder, f".{os.getpid()}{_PART}")
        try:
            with open(part, "wb") as file:
                counted = _Counted(file)
                try:
                    if torch is not None:
                        torch.save(state, counted)
                    else:
                        pickle.dump(state, counted, protocol=4)
                except Exception:
                    if counted.fault is not None:  # torch hides what its file said
                        raise counted.fault from None
                    raise
                file.flush()
                os.fsync(file.fileno())
            kind = "pt" if torch is not None else "pickle"
            path = os.path.join(self.folder, f"step-{step:012d}-{counted.crc:08x}.{kind}")
            os.replace(part, path)
            self._bad.discard(path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        _sync(self.folder)

    def _load(self, path: str) -> Any:
        if path.endswith(".pickle"):
            with open(path, "rb") as file:
                return pickle.load(file)
        torch = sys.modules.get("torch")
        if torch is None:
            raise BadSpec(f"checkpoint {path} was saved with torch; import torch before joulewise.elastic is called")
        try:
            # On the processor: the GPUs that it was saved from may not be here. Loading into a model moves it there.
            return torch.load(path, map_location="cpu", weights_only=not self._trusted)
        except pickle.UnpicklingError as fault:
            why = str(fault).partition("\n")[0][:200]
            raise BadSpec(
                f"checkpoint {path} holds more than tensors and plain values ({why}); "
                "save only those, or pass trusted=True if you trust the folder"
            ) from None

    def _found(self) -> Iterator[tuple[int, int, str]]:
        """Steps, CRC and path of all there are, newest first."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return
        matches = [match for match in map(_NAME.fullmatch, names) if match is not None]
        for match in sorted(matches, key=lambda each: int(each.group(1)), reverse=True):
            yield int(match.group(1)), int(match.group(2), 16), os.path.join(self.folder, match.group())


class _Counted:
    """A file to write to, with the CRC of what went through, and what went wrong with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.crc = 0
        self.fault: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as fault:
            self.fault = fault
            raise
        self.crc = zlib.crc32(data, self.crc)
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._file.flush()


def _crc(path: str) -> int:
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            crc = zlib.crc32(piece, crc)
    return crc


def _sync(folder: str) -> None:
    """The name shall outlive a power cut as well; not every file system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
