"""The events of a profiler's trace file, one after another: ``.json`` or ``.json.gz``, of any size.

A trace of a large job has millions of events; as one Python object it would take many times the memory of its file.
So the file is read in pieces, and each event is handed out as soon as it is whole. What it is not: a reader of what
the events mean; that is ``plan/trace``.

A file that ends too early, is no trace, or is damaged raises BadSpec, which says so and what to do.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from joulewise.core.errors import BadSpec
from joulewise.core.input_files import MIB, opened
from joulewise.core.parsing import json_value, json_value_at

Event = dict[str, Any]

MOST_BYTES = 1024 * MIB
"""Of a trace, decompressed: some three million events."""
_CHUNK = 1 << 20  # characters read at once: larger than any ordinary event, small against memory
_LONGEST_EVENT = 1 << 23  # characters; an event with a long stack has some thousand
_LONGEST_HEAD = 1 << 24  # of what comes before or behind the events: device properties, process groups
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_ADVICE = "record it again, and wait until the profiler has written it"


class TraceFile:
    """One file. ``events()`` walks it once; ``head`` then holds what the file says besides its events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}

    def events(self) -> Iterator[Event]:
        """Every event, in the file's order. Raises BadSpec where the file cannot be read to its end."""
        with (
            opened(self.path, MOST_BYTES) as file,
            io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text,
        ):
            yield from self._walk(text)

    def _walk(self, text: IO[str]) -> Iterator[Event]:
        buffer = self._open(text)
        at, count = 0, 0
        while True:
            at = _past(buffer, at)
            if at >= len(buffer):
                buffer, at = self._more(text, buffer[at:], count), 0
                continue
            if buffer[at] == "]":
                self._close(buffer[at + 1 :], text)
                return
            try:
                event, at = json_value_at(buffer, at)
            except ValueError as error:
                if len(buffer) - at > _LONGEST_EVENT:
                    raise BadSpec(f"{self.path} is damaged: event {count + 1} is no JSON ({error})") from error
                buffer, at = self._more(text, buffer[at:], count), 0
                continue
            count += 1
            if isinstance(event, dict):
                yield event

    def _open(self, text: IO[str]) -> str:
        """Read up to the first event; the rest of what was read. A bare list of events is a trace too."""
        buffer = text.read(_CHUNK)
        begin = buffer.lstrip()[:1]
        if begin == "[":
            return buffer[buffer.index("[") + 1 :]
        if begin != "{":
            raise BadSpec(f"{self.path} is no profiler trace: it {'is empty' if not begin else 'is no JSON'}")
        while not (found := _LIST.search(buffer)):
            more = text.read(_CHUNK)
            if not more or len(buffer) > _LONGEST_HEAD:
                raise BadSpec(
                    f'{self.path} is no profiler trace: it has no "traceEvents"; '
                    "torch.profiler writes one with export_chrome_trace(FILE)"
                )
            buffer += more
        self._learn(buffer[: found.start()].rstrip().rstrip(",") + "}")
        return buffer[found.end() :]

    def _close(self, rest: str, text: IO[str]) -> None:
        while len(rest) <= _LONGEST_HEAD and (more := text.read(_CHUNK)):
            rest += more
        if len(rest) > _LONGEST_HEAD:
            raise BadSpec(f"{self.path} has more than {_LONGEST_HEAD >> 20} MiB behind its events; {_ADVICE}")
        rest = rest.strip().lstrip(",")
        if rest and rest != "}":
            self._learn("{" + rest)

    def _learn(self, text: str) -> None:
        """What the file says besides its events; a part that cannot be understood is done without."""
        try:
            said = json_value(text)
        except ValueError:
            return
        if isinstance(said, dict):
            self.head.update(said)

    def _more(self, text: IO[str], rest: str, count: int) -> str:
        more = text.read(_CHUNK)
        if not more:
            raise BadSpec(f"{self.path} is truncated: it ends after {count} events, before its list does; {_ADVICE}")
        return rest + more


def _past(buffer: str, at: int) -> int:
    found = _BETWEEN.match(buffer, at)
    return found.end() if found else at
