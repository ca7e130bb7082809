"""Which scheduler may act on a Slurm cluster, kept where every other one of it looks: a file.

The file lies in Slurm's own state folder unless another is named, and holds the highest epoch that was ever taken. Acts
are done while a lock on it is held, so that no act of an old scheduler can come after a new one has taken over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from joulewise.cluster.engines.slurm_commands import OUT_OF_RESOURCES
from joulewise.core.errors import BadSpec, EngineLost, Fenced

NAME = "joulewise.epoch"


class Fence:
    """The file, and the epoch that is ours (0: none was taken, and nothing is fenced)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.epoch = 0

    def take(self, epoch: int) -> None:
        """From now on only ``epoch``. Fenced where a higher one was taken before."""
        with self._locked() as file:
            highest = self._read(file)
            if epoch < highest:
                raise Fenced(_in_words(epoch, highest))
            text = f"{epoch}\n".encode()
            os.pwrite(file, text.rjust(20), 0)  # one write of one length: never half a number
            os.fsync(file)
            self.epoch = epoch

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """While this lasts nobody else takes over. Fenced where somebody has."""
        with self._locked() as file:
            highest = self._read(file)
            if highest > self.epoch:
                raise Fenced(_in_words(self.epoch, highest))
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            if fault.errno in OUT_OF_RESOURCES:
                raise EngineLost(
                    f"{self._path} cannot be opened now: {(fault.strerror or str(fault)).lower()}"
                ) from fault
            raise BadSpec(
                f"{self._path}, which says which scheduler may act, cannot be written ({fault.strerror}); "
                "name a folder that all schedulers of this cluster share"
            ) from fault
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _read(self, file: int) -> int:
        text = os.pread(file, 64, 0).strip()
        if text and not text.isdigit():
            raise EngineLost(f"{self._path} holds {text[:20]!r} instead of a number; write the highest epoch into it")
        return int(text or 0)


def _in_words(ours: int, highest: int) -> str:
    return f"another scheduler has taken over this cluster (epoch {highest}, ours is {ours}); this one stops"
