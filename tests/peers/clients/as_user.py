"""Runs a command as another user, for real: its own uid, no groups, no capabilities.

    as_user.py UID COMMAND…

Starts as root. An interpreter below a closed folder (pyenv under ``/root``) is out of that user's reach; then, in a
mount namespace of this process's own, the closed folder is covered by one through which only the interpreter is seen.
Nobody else sees anything of that. The command is executed, not loaded before, so it is that user's process throughout.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x20000, 4096, 16384, 1 << 18, 2


def main(uid: str, *command: str) -> None:
    """Become user ``uid`` and run ``command``; never returns."""
    opened(Path(sys.base_prefix).resolve())
    number = int(uid)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    os.execvp(command[0], command)


def opened(folder: Path) -> None:
    """Make ``folder`` reachable for everybody, as far as this process and what it starts can see."""
    closed = next((each for each in reversed(folder.parents) if not each.stat().st_mode & stat.S_IXOTH), None)
    if closed is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _must(libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(libc, None, Path("/"), None, _MS_REC | _MS_PRIVATE)
    with tempfile.TemporaryDirectory(prefix="joulewise-aside-") as name:
        aside = Path(name)
        _mount(libc, folder, aside, None, _MS_BIND | _MS_REC)
        _mount(libc, Path("tmpfs"), closed, "tmpfs", 0)
        closed.chmod(0o755)
        folder.mkdir(parents=True)
        _mount(libc, aside, folder, None, _MS_BIND | _MS_REC)
        _must(libc.umount2(os.fsencode(aside), _MNT_DETACH), "umount")


def _mount(libc: ctypes.CDLL, source: Path | None, target: Path, kind: str | None, flags: int) -> None:
    what = None if source is None else os.fsencode(source)
    name = None if kind is None else kind.encode()
    _must(libc.mount(what, os.fsencode(target), name, ctypes.c_ulong(flags), None), f"mount on {target}")


def _must(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
