"""A small file that lies in a user's folder, read by whoever schedules, who may be root.

What it is: one careful read. A pipe would hold the reader up for ever, a link lead it to what its user may not see, a
folder or a device is no file, and a vast one would fill its memory.
What it is not: a judge of what stands in it.

Plain Python from 3.9 on, standard library only: a job's own Python loads it too (``progress``).
"""

from __future__ import annotations

import os
import stat


def read(path: str | os.PathLike[str], longest: int, *, uid: int | None = None) -> bytes | None:
    """All of a plain file of at most ``longest`` bytes that belongs to ``uid`` (None: to anybody), else None.

    It never waits, and follows no link in the path's last part.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a NUL or half of a surrogate pair in the path
        return None
    try:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > longest or (uid is not None and seen.st_uid != uid):
            return None
        parts = []
        left = longest
        while left and (part := os.read(file, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(file)
