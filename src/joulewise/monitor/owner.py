"""Who on a node polls a GPU: the process that holds its lock file, so that eight ranks do not poll it eight times.

``flock`` on a file named after the GPU, in a directory of the user's own. The kernel drops the lock when its
holder dies, however it dies, and another process takes over. It coordinates processes of one user; it protects
nothing (reading needs no protection), so where no lock file can be made, everybody polls for himself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def lock_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's lock files are: one place for all processes of a node."""
    home = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(home) / f"joulewise-{os.getuid()}"


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """This process's number among those of its job on this node; 0 if it is alone."""
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 0


class Ownership:
    """The right of one process per node to poll one GPU."""

    def __init__(self, uuid: str, *, directory: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        # Simulators may give the same UUID to different GPUs; their directory tells them apart.
        simulator = environ.get("JOULEWISE_VNVML", "")
        place = f"-{hashlib.sha256(simulator.encode()).hexdigest()[:12]}" if simulator else ""
        self.path = (directory or lock_directory(environ)) / f"{uuid.replace('/', '_')}{place}.lock"
        self._file: int | None = None
        self._lawless = False  # there is no place for a lock file

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._file is not None or self._lawless

    def take(self) -> bool:
        """Try to get it, without waiting; True if this process has it now."""
        if self._file is not None:
            return True
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            self._lawless = True  # better polled twice than not at all
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def leave(self) -> None:
        """Give it back. A forked child calls ``abandon`` instead."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Close the file without unlocking: in a forked child it is the parent's lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
