"""Locks of which one process at a time has each: a GPU, a folder of saved settings, the daemon's socket.

A lock is a file with ``flock``, which the kernel drops when its holder dies, however it dies. In the file the holder
says who it is, for people and for whoever comes next; it stays there after the holder's end. Where the lock of a GPU
lies depends on the GPU alone, not on where settings are saved or a daemon listens, so that two processes that were
told different places cannot both write one GPU.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import BadSpec, LeaseTaken
from joulewise.device import trusted
from joulewise.device.vnvml_layout import ENVIRONMENT

FOLDER: Final = Path("/run/joulewise/locks")
"""Of the locks of real GPUs: root's, and empty after a boot, as the GPUs' settings are."""
_MOST_BYTES: Final = 4096


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the locks of this machine's GPUs are; those of virtual GPUs are beside their simulator's files."""
    simulator = environ.get(ENVIRONMENT)
    return Path(simulator).absolute() if simulator else FOLDER


class Lock:
    """A lock that this process has; made by ``take``. A forked child has none of them."""

    def __init__(self, path: Path, fd: int, before: Mapping[str, Any]) -> None:
        """Not to be called: ``take`` gets the lock first."""
        self.path = path
        self.before = before
        """What the last holder said of itself, beside its pid and command."""
        self._fd = fd
        _held.add(self)

    @classmethod
    def take(cls, path: Path, what: str, way_out: str = "end that first") -> Lock:
        """The lock at ``path``, whose folder is made if it is not there; not signed yet.

        LeaseTaken, "``what`` is in the hands of pid … since …; ``way_out``", while another process has it. OSError if
        the file cannot be opened.
        """
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, fd, _said(fd)[2])
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise LeaseTaken(f"{what} is in the hands of {holder}; {way_out}") from None
        except BaseException:
            os.close(fd)
            raise

    def sign(self, **facts: str) -> None:
        """Say who we are, for people, and what the next holder should know; a full disk may leave it unsaid."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        text = f"{os.getpid()} {command_of(os.getpid())}\n{json.dumps({'since': since, **facts})}\n".encode()
        before = b""
        with suppress(OSError):
            before = os.pread(self._fd, _MOST_BYTES, 0)
        with suppress(OSError):
            # In one write, so that whoever dies meanwhile leaves either what was said before or this.
            os.pwrite(self._fd, text.ljust(len(before)), 0)
            os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        """Let others have it. Idempotent."""
        if self._fd >= 0:
            # Said aloud: a child that was forked this moment may still hold the descriptor.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.drop()

    def drop(self) -> None:
        """In a forked child: the lock is the parent's, so let go without unlocking."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _held.discard(self)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_held):
        lock.drop()


os.register_at_fork(after_in_child=_after_fork)


def check_folder(path: Path) -> None:
    """Make the folder of locks ``path`` if it is not there. OSError if others could swap a lock in it, or it cannot be
    made. The folder of a simulator is its user's to open to others, and virtual GPUs need no such care."""
    if path != FOLDER:
        return
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o755)  # the daemon's socket is there, too: whatever the umask
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(trusted.open_folder(path))
    except BadSpec as error:
        raise PermissionError(1, str(error)) from None


def command_of(pid: int) -> str:
    """The name of a process's program, for people; never its arguments, which may be private. Empty if unknown."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in name)


def _open(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | flags, mode=0o600)
    except OSError:
        # A disk that has become read only can still tell what is owed, and its lock file still be locked.
        fd = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, f"{path} is no plain file")
    return fd


def _said(fd: int) -> tuple[str, str, dict[str, Any]]:
    """Pid, command and facts that a holder has written; empty where it has written none."""
    try:
        first, _, rest = os.pread(fd, _MOST_BYTES, 0).decode("utf-8", "replace").partition("\n")
        pid, _, command = first.partition(" ")
        facts = json.loads(rest) if rest else {}
    except (OSError, ValueError, RecursionError):
        return "", "", {}
    return pid, command, facts if isinstance(facts, dict) else {}


def _holder(fd: int) -> str:
    """Who has the lock, in words."""
    pid, command, facts = _said(fd)
    who = (f"pid {pid}" if pid.isdigit() else "another process") + (f" ({command})" if command else "")
    since = f" since {facts['since']}" if "since" in facts else ""
    socket = f", the daemon on {facts['socket']}" if "socket" in facts else ""
    return f"{who}{since}{socket}"
