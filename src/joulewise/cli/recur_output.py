"""What a command prints, on its way to where it always went: passed on unchanged and at once, and looked at meanwhile.

Where our stream is a terminal the command gets one too (a pseudo-terminal), so that it goes on to print a line when it
has one; else it gets a pipe. Its input stays ours. Used for metrics in the output, and for the last lines of a command
that failed.
"""

from __future__ import annotations

import fcntl
import math
import os
import pty
import select
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

_STREAMS: Final = (1, 2)
_AT_ONCE: Final = 65_536
_LONGEST_LINE: Final = 65_536  # bytes; what is longer is looked at in parts
_LAST_LINES: Final = 60
"""That are kept of a command's end: a traceback of PyTorch has some forty."""
_QUIET_S: Final = 0.2
_STRAGGLERS_S: Final = 2.0
"""After the command's end its output is passed on until nothing comes for a moment, and no longer than this: something
that it started may hold the stream for ever."""


class Output:
    """The streams of one command. Use ``with``; give ``files`` to the command, then ``begin``, and ``end`` after it.

    ``see`` is called with each line, without its end, on a thread of its own.
    """

    def __init__(self, see: Callable[[str], None]) -> None:
        self._see = see
        self._to: dict[int, int] = {}
        """What we read from → the stream of ours that it goes to."""
        self.files: dict[int, int] = {}
        self._unfinished: dict[int, bytes] = {}
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._size = b""
        self._terminals: list[int] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        ours = [stream for stream in _STREAMS if _is_open(stream)]  # before a pipe takes the number of a closed one
        self._wake = os.pipe2(os.O_CLOEXEC)
        terminal: tuple[int, int] | None = None
        for stream in ours:
            if os.isatty(stream):
                if terminal is None or not os.path.sameopenfile(*ours):
                    terminal = self._terminal(stream)
                    self._to[terminal[0]] = stream
                self.files[stream] = terminal[1]
            else:
                read, write = os.pipe2(os.O_CLOEXEC)
                self._to[read] = stream
                self.files[stream] = write

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        for descriptor in (*self._wake, *self._to, *set(self.files.values())):
            with suppress(OSError):
                os.close(descriptor)

    @property
    def last_lines(self) -> list[str]:
        """The end of what was printed, on both streams."""
        return list(self._last)

    def begin(self) -> None:
        """The command has started: its ends of the streams are its own now."""
        for descriptor in set(self.files.values()):
            os.close(descriptor)
        self.files = {}
        self._thread = threading.Thread(target=self._pass_on, name="joulewise output", daemon=True)
        self._thread.start()

    def keep_up(self) -> None:
        """Now and then: the command's terminal is as large as ours."""
        for terminal in self._terminals:
            self._resize(terminal)

    def end(self) -> None:
        """The command has ended: pass on what is left. Idempotent."""
        if self._thread is None or self._over.is_set():
            return
        self._over.set()
        os.write(self._wake[1], b"\0")
        self._thread.join()
        for rest in self._unfinished.values():
            self._look_at(rest)
        self._unfinished.clear()

    def _terminal(self, stream: int) -> tuple[int, int]:
        outer, inner = pty.openpty()
        with suppress(termios.error):
            mode = termios.tcgetattr(stream)
            mode[1] &= ~termios.OPOST  # ours does it: a line's end must not be made twice
            termios.tcsetattr(inner, termios.TCSANOW, mode)
        self._terminals.append(outer)
        self._resize(outer)
        return outer, inner

    def _resize(self, terminal: int) -> None:
        with suppress(OSError):
            size = fcntl.ioctl(self._to.get(terminal, 1), termios.TIOCGWINSZ, bytes(8))
            if size != self._size:
                self._size = size
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)

    def _pass_on(self) -> None:
        reading = set(self._to)
        wake = self._wake[0]
        until_s = math.inf
        while reading and time.monotonic() < until_s:
            over = self._over.is_set()
            if over and math.isinf(until_s):
                until_s = time.monotonic() + _STRAGGLERS_S
            ready, _, _ = select.select([*reading, *([] if over else [wake])], [], [], _QUIET_S if over else None)
            if not ready:
                return
            for descriptor in ready:
                if descriptor != wake and not self._some(descriptor):
                    reading.discard(descriptor)
            if wake in ready:
                os.read(wake, 1)

    def _some(self, descriptor: int) -> bool:
        """Pass on what is there; False at the end."""
        try:
            data = os.read(descriptor, _AT_ONCE)
        except OSError:  # Linux says EIO once the last user of a terminal has gone
            return False
        if not data:
            return False
        try:
            _write(self._to[descriptor], data)
        except OSError:
            # Whoever read us has gone: the command shall notice as it would have without us.
            os.close(descriptor)
            del self._to[descriptor]
            return False
        lines = (self._unfinished.get(descriptor, b"") + data).replace(b"\r", b"\n").split(b"\n")
        self._unfinished[descriptor] = lines.pop()[-_LONGEST_LINE:]
        for line in lines:
            self._look_at(line[:_LONGEST_LINE])
        return True

    def _look_at(self, line: bytes) -> None:
        if line:
            text = line.decode(errors="replace")
            self._last.append(text)
            self._see(text)


def _write(stream: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(stream, left) :]


def _is_open(stream: int) -> bool:
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True
