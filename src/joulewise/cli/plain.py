"""What to write where the terminal's or a pipe's encoding lacks a character: a plain word for it, never a traceback.

Under ``LC_ALL=C``, or with an encoding such as Latin-1, "±" and the blocks of a curve cannot be written. Bytes that
came in undecoded (a file's name in another encoding) go out as they came.
"""

from __future__ import annotations

import codecs
import io
import sys

_PLAIN = {"±": "+/-", "°": "", "·": "-", "–": "-", "−": "-", "×": "x", "…": "...", "→": "->", "✓": "+", "✗": "x"}
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


def speak_plainly() -> None:
    """From now on stdout and stderr take every text, whatever their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="joulewise_plain")
