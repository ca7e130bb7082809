"""The files by which the virtual NVML's simulator shows that it lives (``lock``) and hears of setters (``wake``).

The lock is an open-file-description lock: the kernel lets go of it when its holder dies, however it dies, which no
pid file or heartbeat can promise.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from joulewise.core.errors import BadSpec

# struct flock of 64-bit Linux: type, whence, start, length (0: all), pid (0 for open-file-description locks).
_FLOCK = "hhqqi4x"
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def is_locked(fd: int) -> bool:
    """Whether someone else holds the lock of this open ``lock`` file."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def take_lock(directory: Path) -> int:
    """A locked descriptor of a fresh ``lock`` file; a new inode, so that old clients never take us for their own."""
    path = directory / "lock"
    old = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(old, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        for name in ("state", "wake", "lock"):
            (directory / name).unlink(missing_ok=True)
        new = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(new, 0o644)
        fcntl.fcntl(new, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, FileExistsError) as error:
        raise BadSpec(f"a simulator already runs in {directory}; stop it or choose another directory") from error
    finally:
        os.close(old)
    return new


def bind_wake(directory: Path, everyone_may_write: bool) -> socket.socket:
    """The socket that the library pokes after each setter; reading from it never blocks."""
    wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Through /proc, because a socket's own path may have no more than 107 bytes.
        wake.bind(f"/proc/self/fd/{directory_fd}/wake")
    finally:
        os.close(directory_fd)
    (directory / "wake").chmod(0o666 if everyone_may_write else 0o644)
    return wake


def user_namespace() -> int:
    """The inode of this process's user namespace; 0 if it cannot be told."""
    try:
        return Path("/proc/self/ns/user").stat().st_ino
    except OSError:
        return 0
