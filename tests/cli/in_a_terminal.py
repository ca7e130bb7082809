"""Takes the terminal on its stdin as its own, as a shell's child has one, and becomes joulewise: ``python -m
tests.cli.in_a_terminal WORDS``, in a session of its own."""

from __future__ import annotations

import fcntl
import runpy
import termios


def main() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    runpy.run_module("joulewise", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
