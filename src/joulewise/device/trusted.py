"""Opening files that decide who may do what: only such as nobody but root could have written or put there.

The daemon believes its site file and its grants. A file that another user could write, a symlink, a device or a
folder on the way that another user could swap is therefore refused, with the reason and the way out. Trusted owners are
root and the user that this process runs as (a daemon in a test, or one of a user who has virtual GPUs only).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from joulewise.core.errors import BadSpec

MOST_BYTES = 1 << 20
"""Longer than any site file or grant; a bound on what is read into a privileged process."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_not(seen: os.stat_result) -> str | None:
    """Why a file or folder that looks like ``seen`` cannot be trusted, with the way out; None if it can."""
    if seen.st_uid not in (0, os.geteuid()):
        return f"it belongs to uid {seen.st_uid}, not to root: 'chown root' it"
    own_group = os.geteuid() != 0 and seen.st_gid == os.getegid()  # many systems give each user a group of their own
    if seen.st_mode & (stat.S_IWOTH if own_group else _OTHERS_WRITE):
        return f"its mode {stat.S_IMODE(seen.st_mode):04o} lets others write: 'chmod go-w' it"
    return None


def open_folder(path: Path) -> int:
    """A descriptor of the folder ``path``, which nobody untrusted can write or swap. The caller closes it.

    FileNotFoundError or PermissionError as the system says; BadSpec if it, or a folder above it, cannot be trusted. A
    folder above may be written by others where its sticky bit keeps them from moving what is not theirs (``/tmp``).
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the links that we refuse
    for above in reversed(path.parents):
        seen = above.stat()
        reason = why_not(seen)
        if reason and not (seen.st_mode & stat.S_ISVTX and seen.st_uid in (0, os.geteuid())):
            raise BadSpec(f"{path} is not trusted, because of {above}: {reason}")
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise BadSpec(f"{path} is no folder that can be read: {_said(error)}; a symlink is not followed") from error
    reason = why_not(os.fstat(folder))
    if reason:
        os.close(folder)
        raise BadSpec(f"{path} is not trusted: {reason}")
    return folder


def read_in(folder: int, name: str, *, shown: str) -> bytes:
    """What the file ``name`` in an open folder holds. FileNotFoundError, or BadSpec that calls it ``shown``."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadSpec(f"{shown} cannot be read: {_said(error)}; a symlink is not followed") from error
    try:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode):
            raise BadSpec(f"{shown} is no plain file")
        if reason := why_not(seen):
            raise BadSpec(f"{shown} is not trusted: {reason}")
        if seen.st_size > MOST_BYTES:
            raise BadSpec(f"{shown} has {seen.st_size} bytes; at most {MOST_BYTES} are read")
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError as error:
        raise BadSpec(f"{shown} cannot be read: {_said(error)}") from error
    finally:
        os.close(file)


def read(path: Path) -> bytes:
    """What the trusted file ``path`` holds. FileNotFoundError if there is none, BadSpec if it cannot be trusted."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - as above
    folder = open_folder(path.parent)
    try:
        return read_in(folder, path.name, shown=str(path))
    finally:
        os.close(folder)


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
