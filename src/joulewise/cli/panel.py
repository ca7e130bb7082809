"""A few lines kept at the bottom of the terminal while somebody else writes above them.

A child owns the terminal and prints when it likes, so a display that moves the cursor up over its own last
output would be torn by the child's. Instead the terminal's scrolling region is shortened: the child's lines
scroll above, ours stay below. Each drawing is one write, with the cursor saved and restored around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

_DOWN = "\x1bD"
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_CLEAR_LINE = "\x1b[2K"
_CLEAR_BELOW = "\x1b[J"
_WHOLE_SCREEN = "\x1b[r"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


def can_show(stream: TextIO) -> bool:
    """Whether a panel makes sense there: a terminal that understands cursor movement."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Panel:
    """``height`` lines at the bottom of the terminal behind ``stream``. Use ``with``; nothing is left behind.

    A terminal with fewer than ``height + 4`` rows shows nothing: the child needs room to speak.
    """

    def __init__(self, stream: TextIO, *, height: int) -> None:
        self._stream = stream
        self.height = height
        self._size: os.terminal_size | None = None

    @property
    def width(self) -> int:
        """Columns of the terminal now."""
        return os.get_terminal_size(self._stream.fileno()).columns

    def __enter__(self) -> Panel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def draw(self, lines: Sequence[str]) -> None:
        """Show ``lines`` (at most ``height``; longer than the width is cut off by the terminal).

        Does nothing while another job has the terminal.
        """
        if os.tcgetpgrp(self._stream.fileno()) != os.getpgrp():
            return
        size = os.get_terminal_size(self._stream.fileno())
        if size.lines < self.height + 4:
            self.close()
            return
        text = "" if size == self._size else self._opening(size)
        text += _SAVE + _NO_WRAP
        first = size.lines - self.height + 1
        for row in range(self.height):
            text += f"\x1b[{first + row};1H{_CLEAR_LINE}{lines[row] if row < len(lines) else ''}"
        self._write(text + _WRAP + _RESTORE)

    def close(self) -> None:
        """Give the lines back to the child, the cursor where it was."""
        if self._size is None:
            return
        first = self._size.lines - self.height + 1
        self._size = None
        self._write(f"{_SAVE}{_WHOLE_SCREEN}\x1b[{first};1H{_CLEAR_BELOW}{_RESTORE}")

    @contextmanager
    def put_away(self) -> Iterator[None]:
        """Closed for a while, for example while Ctrl-Z gives the terminal to the shell."""
        self.close()
        yield

    def _opening(self, size: os.terminal_size) -> str:
        before = self._size
        self._size = size
        # After a change of size the old region is void; what was drawn before moves, so wipe where it was.
        first = size.lines - self.height + 1
        wipe = "" if before is None else f"{_SAVE}{_WHOLE_SCREEN}\x1b[{first};1H{_CLEAR_BELOW}{_RESTORE}"
        # Going down makes room when the cursor is at the bottom; then it goes back up to where it was.
        room = _DOWN * self.height + f"\x1b[{self.height}A"
        return f"{wipe}{room}{_SAVE}\x1b[1;{size.lines - self.height}r{_RESTORE}"

    def _write(self, text: str) -> None:
        # One system call: the terminal does not mix it with what the child writes at the same time.
        with suppress(OSError):  # the terminal has gone, and our lines with it
            os.write(self._stream.fileno(), text.encode())
