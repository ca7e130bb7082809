"""Becomes another user and then the command: ``python -m tests.cli.as_someone UID COMMAND…``. Root and Linux only.

Unlike ``tests.daemon.someone`` the command is a program of its own, so it must be able to read the interpreter's files,
which may lie in root's home. It keeps the right to read anything (CAP_DAC_READ_SEARCH) and no other: for the kernel,
the driver and the daemon it is that user.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 47, 2
CAP_DAC_READ_SEARCH = 2
_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def main() -> None:
    uid, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    bit = 1 << CAP_DAC_READ_SEARCH
    sets = (_Set * 2)(_Set(bit, bit, bit), _Set(0, 0, 0))
    _done(libc.capset(ctypes.byref(_Header(_VERSION_3, 0)), sets))
    _done(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0))
    os.execvp(command[0], command)


def _done(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
