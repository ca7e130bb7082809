"""The terminal as rich draws on it: styles are ours, text is anybody's.

Names of jobs and hosts, commands and messages come from files and other machines. So text is never markup here, and
its control characters are written out before rich cuts it to the width of a column. What rich itself sends to colour
text or to move the cursor goes through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.segment import Segment

from joulewise.cli.plain import obeyed
from joulewise.core.visible import visible


class Console(rich.console.Console):
    """A console for any text: no markup, no emoji codes, no highlighting, no control characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **settings})

    @property
    def file(self) -> IO[str]:
        """Where it draws: past the stream that would write its own colours out, also while ``Live`` has taken that."""
        return obeyed(super().file)

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich does, with control characters written out."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
