"""Becomes joulewise in a mount namespace whose /var/lib is empty: ``python -m tests.cli.with_own_state WORDS``.

What root sets without a daemon is kept there; so the machine's own is left alone. Root and Linux only.
"""

from __future__ import annotations

import ctypes
import os
import runpy

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _done(libc.unshare(CLONE_NEWNS))
    _done(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))  # what is mounted here stays here
    _done(libc.mount(b"tmpfs", b"/var/lib", b"tmpfs", 0, None))
    runpy.run_module("joulewise", run_name="__main__", alter_sys=True)


def _done(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
