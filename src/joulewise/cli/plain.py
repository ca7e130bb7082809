"""What goes to the terminal or a pipe: no control characters of others, and nothing that its encoding lacks.

All text that a verb prints passes through ``VisibleStream``, which writes control characters out (``core/visible``);
what rich draws, with colours of its own, through ``cli/console`` instead. Under ``LC_ALL=C``, or with an encoding such
as Latin-1, "±" and the blocks of a curve cannot be written: a plain word stands for them, never a traceback. Bytes that
came in undecoded (a file's name in another encoding) go out as they came.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterable
from typing import IO, Any, TextIO

from joulewise.core.visible import visible

_PLAIN = {
    "±": "+/-",
    "°": "",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "…": "...",
    "→": "->",
    "✓": "+",
    "✗": "x",
}
_PLAIN |= {"µ": "u", "²": "2", "η": "eta", "σ": "sigma", "≤": "<=", "≥": ">=", "‘": "'", "’": "'", "“": '"', "”": '"'}
_PLAIN |= dict(zip("▁▂▃▄▅▆▇█", "__..--==", strict=True)) | dict.fromkeys("▏▎▍▌▋▊▉", "-") | dict.fromkeys("─━", "-")
_PLAIN |= {"■": "#", "▫": "o", "░": "."}
_UNDECODED = range(0xDC80, 0xDD00)  # what surrogateescape makes of bytes


def _plain(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    written = b""
    for character in error.object[error.start : error.end]:
        code = ord(character)
        written += bytes([code - 0xDC00]) if code in _UNDECODED else _PLAIN.get(character, "?").encode("ascii")
    return written, error.end


codecs.register_error("joulewise_plain", _plain)


class VisibleStream:
    """A text stream that writes control characters out. Everything but writing is the stream's that it is made of."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream itself. By this name rich finds it: its colours and cursor movements are meant to be obeyed."""

    def write(self, text: str) -> int:
        """Write ``text`` as ``visible`` has it."""
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # or the command-line library's echo would write to it where the encoding is ASCII
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


def obeyed(stream: IO[str]) -> IO[str]:
    """The stream on which control characters go out as they are: only for those that we have made."""
    while (within := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = within
    return stream


def speak_plainly() -> None:
    """From now on stdout and stderr take every text, whatever their encoding, and show its control characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="joulewise_plain")
        if stream is not None and not isinstance(stream, VisibleStream):
            setattr(sys, name, VisibleStream(stream))
