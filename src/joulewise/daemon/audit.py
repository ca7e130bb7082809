"""The audit log: who did what to which GPU, what was there before and after, why, and how it ended. JSON lines.

One line an act, appended by one write, so that lines of a killed daemon are whole. A log that cannot be written makes
``ok`` False; the service then refuses to take or apply anything, while restores go on. Old files are kept as
``audit.jsonl.1`` (the newest) to ``.4``; a file that logrotate moved away is noticed and a new one begun.

What was done is always written. What was refused is written, too, but of one user only so often: otherwise anybody
could push everybody's acts out of the log by asking in a loop. How much was left out is said with the next line.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from joulewise.core.errors import BadSpec, NotNow
from joulewise.daemon.pace import Pace
from joulewise.device import trusted

AUDIT = Path("/var/log/joulewise/audit.jsonl")

KEPT = 4
"""Old files. With the current one at most 80 MiB, some 250,000 acts: weeks of honest use."""
_MOST_BYTES = 400
"""Of one text, as it is written. Reasons and commands come from users, who shall not push others' acts out of the log
(a character may take twelve)."""
_REFUSALS_PER_S, _REFUSALS_AT_ONCE = 1.0, 100.0
"""Lines about refusals of one user: at most 86,400 a day, some 30 MiB."""

_SURELY_SHORT = _MOST_BYTES // 12 - 2
_encode = json.JSONEncoder(allow_nan=False, default=str).encode
"""Made once: to make one takes longer than to use it."""


class Audit:
    """The log at ``path``, begun anew after ``most_bytes``. Single-threaded. Nothing that it does raises."""

    def __init__(
        self, path: Path = AUDIT, *, most_bytes: int = 16 << 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self.problem: str | None = None
        """Why the last line could not be written; None if it was."""
        self.lost = 0
        """Lines that could not be written since the log was last whole."""
        self._path = str(path)
        self._file: int | None = None
        self._is = (0, 0)
        """Which file that is."""
        self._clock = clock
        self._refusals = Pace(_REFUSALS_PER_S, _REFUSALS_AT_ONCE)
        self._left_out: dict[object, int] = {}
        self._reopen()

    @property
    def ok(self) -> bool:
        """Whether acts can be written down. After a failure this tries again, with a line that counts what was lost."""
        return self.problem is None or self._tell_lost()

    def write(self, **fields: object) -> bool:
        """Append one act with the time of now (UTC); False if it could not be written, and ``problem`` says why."""
        if self.lost and not self._tell_lost():
            self.lost += 1
            return False
        if not self._append(fields):
            self.lost += 1
            return False
        return True

    def refuse(self, **fields: object) -> bool:
        """As ``write``, for what ``uid`` asked in vain; True also if that is one too many of theirs to be written."""
        return not self._worth_a_line(fields) or self.write(**fields)

    def close(self) -> None:
        """Close the file. Idempotent; a later write opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _worth_a_line(self, fields: dict[str, object]) -> bool:
        """Whether this refusal shall be written; it then says how many were not."""
        uid = fields.get("uid")
        try:
            self._refusals.spend("", uid if isinstance(uid, int) else -1, self._clock())
        except NotNow:
            self._left_out[uid] = self._left_out.get(uid, 0) + 1
            return False
        if left_out := self._left_out.pop(uid, 0):
            fields["left_out"] = left_out
        return True

    def _tell_lost(self) -> bool:
        lost = self.lost
        if not self._append({"op": "audit", "result": "resumed", "why": f"{lost} lines could not be written"}):
            return False
        self.lost = 0
        return True

    def _append(self, fields: dict[str, object]) -> bool:
        try:
            line = _line(fields)
            size = self._size()
            if size is None:
                self._open()
                size = 0 if (found := self._size()) is None else found
            if size and size + len(line) > self.most_bytes:
                self._rotate()
                self._open()
                size = 0
            assert self._file is not None
            written = os.write(self._file, line)
            if written != len(line):
                os.ftruncate(self._file, size)  # half a line would spoil the next one too
                raise OSError(0, f"{written} of {len(line)} bytes fitted")
        except (OSError, BadSpec) as error:
            self.problem = f"the audit log {self.path} cannot be written: {error}"
            return False
        self.problem = None
        return True

    def _reopen(self) -> None:
        try:
            self._open()
        except (OSError, BadSpec) as error:
            self.problem = f"the audit log {self.path} cannot be written: {error}"

    def _open(self) -> None:
        """Open or begin the file. OSError or BadSpec."""
        self.close()
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        folder = trusted.open_folder(self.path.parent)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(self.path.name, flags, 0o640, dir_fd=folder)
        finally:
            os.close(folder)
        seen = os.fstat(file)
        reason = "it is no plain file" if not stat.S_ISREG(seen.st_mode) else trusted.why_not(seen)
        if reason:
            os.close(file)
            raise BadSpec(reason)
        self._file = file
        self._is = (seen.st_dev, seen.st_ino)

    def _size(self) -> int | None:
        """Bytes in the open file; None if there is none, or the path no longer leads to it."""
        if self._file is None:
            return None
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            return None
        return there.st_size if (there.st_dev, there.st_ino) == self._is else None

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT, 0, -1):
            older = f"{self.path}.{number - 1}" if number > 1 else str(self.path)
            with suppress(FileNotFoundError):
                os.replace(older, f"{self.path}.{number}")  # noqa: PTH105 - names, not paths


def _line(fields: dict[str, object]) -> bytes:
    """The act as one line of ASCII: whatever a user wrote into a text stays inside its quotes."""
    kept = {"time": _now()}
    for name, value in fields.items():
        kept[name] = _short(value) if isinstance(value, str) and len(value) > _SURELY_SHORT else value  # type: ignore[assignment]
    try:
        text = _encode(kept)
    except ValueError:  # NaN or infinity: written as words, since JSON has none
        text = _encode({name: value if isinstance(value, (str, int)) else str(value) for name, value in kept.items()})
    return text.encode("ascii") + b"\n"


def _now() -> str:
    """UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _short(text: str) -> str:
    if len(_encode(text)) <= _MOST_BYTES:
        return text
    cut = text[:_MOST_BYTES]
    while len(_encode(cut)) > _MOST_BYTES - 6:  # what "…" takes
        cut = cut[: len(cut) * 15 // 16]
    return cut + "…"
