"""Text of others, made safe to print: control characters are written out, so that no terminal obeys them.

A host name, an error message of a server, a comment in a journal may hold an escape sequence that retitles a terminal,
hides text, or types an answer for the operator. ``visible`` writes each such character as JSON does (``\\u001b``).
Since JSON has control characters only inside of its strings, where that notation means the same, JSON that goes
through ``visible`` is still the same value.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f"  # C0 but tab and newline, and DEL: ESC begins sequences, CR writes over a line
    r"\x80-\x9f"  # C1: U+009B begins sequences, too
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional overrides, isolates and marks: they reorder text
    r"\u2028\u2029"  # separators that some programs take for the end of a line
    r"\udc80-\udc9f"  # bytes of C1 that came in undecoded and would go out as they came
    "]"
)


def visible(text: str) -> str:
    """``text`` with every control character but tab and newline written out, such as ``\\u001b`` for ESC."""
    return _CONTROLS.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
