"""Files that a verb writes at its end, opened before its start: hours of work shall not end in "permission denied".

An existing file is kept until there is something to put in its place, and only what we wrote ourselves makes way: a
slip of the hand (``run --json train.py python train.py``) shall not cost anybody a script.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from joulewise.core.errors import BadSpec

STDOUT = "-"
_OURS = frozenset({"exit_code", "duration_s", "energy_j"})
"""Keys of every result that ``--json FILE`` writes, of ``run`` and of ``recur run``."""
_RESULT_BYTES = 64 << 20  # more than any result; what is larger is somebody's data, and not read to see that
_HEADER_BYTES = 1 << 20  # of a recording: a line with all that is known about a node's GPUs has some tens of kB


def refuse_unwritable(flag: str, path: Path) -> None:
    """Raise BadSpec unless ``path`` can be written; what it holds stays as it is, and no new file is left."""
    try:
        if path.is_fifo() and not path.is_symlink():
            # Opening it would wait for a reader, and closing it again send that reader home.
            raise OSError("it is a pipe")
        existed = path.exists()
        file = path if existed else Path(os.path.realpath(path))  # what a dangling link points to
        with file.open("a"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise BadSpec(
            f"{flag} {path} cannot be written: {(error.strerror or str(error)).lower()}; "
            "nothing was started, name a file in a directory that is there and writable"
        ) from None


def refuse_no_html(flag: str, path: Path) -> None:
    """Raise BadSpec unless the file's name says that it is a page; a device, such as /dev/null, may have any."""
    if path.suffix.lower() not in (".html", ".htm") and (path.is_file() or not path.exists()):
        raise BadSpec(f"{flag} {path} is to be a page, and would not open as one; name it {path.name}.html")


def is_device(path: Path) -> bool:
    """Whether it is there and no plain file. One that may not be looked at is not: writing to it says why."""
    with suppress(OSError):
        return path.exists() and not path.is_file()
    return False


def refuse_one_for_two(files: Mapping[str, Path | None]) -> None:
    """Raise BadSpec where two flags name one file: what was written first would be lost. Devices may be shared."""
    flag_of: dict[str, str] = {}
    for flag, path in files.items():
        if path is None or is_device(path):
            continue
        # Not Path.resolve, which raises on a link to itself: what reads or writes the file refuses that one by name.
        first = flag_of.setdefault(os.path.realpath(path), flag)
        if first != flag:
            raise BadSpec(f"{first} and {flag} both name {path}; nothing was started, give each a file of its own")


def refuse_words_of(command: Sequence[str], files: Mapping[str, Path | None]) -> None:
    """Raise BadSpec where a file to be written is also a word of ``command``: it would lose its script, or its data, or
    we what it wrote there. Devices may be shared."""
    for flag, path in files.items():
        if path is None or is_device(path):
            continue
        for word in command:
            if _same(path, Path(word)):
                raise BadSpec(
                    f"{flag} {path} is also a word of the command, and would be written over; nothing was started, "
                    f"write '{flag} ANOTHER -- COMMAND'"
                )


def refuse_another_s(flag: str, path: Path, ours: Callable[[Path], bool]) -> None:
    """Raise BadSpec where there is something in ``path`` that is not ``ours``: it would be lost."""
    # Only of a plain file is anything read: a pipe would wait for a writer.
    if path.is_file() and path.stat().st_size > 0 and not ours(path):
        raise BadSpec(
            f"{flag} {path} is there, and is not what {flag} writes; nothing was started, "
            "name another file, or move that one away"
        )


def is_recording(path: Path) -> bool:
    """Whether it begins as what ``--record`` writes does."""
    with suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        header = json.loads(file.readline(_HEADER_BYTES))
        return isinstance(header, dict) and header.get("joulewise") == "recording"
    return False


def _is_result(path: Path) -> bool:
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size > _RESULT_BYTES:
            return False
        held = json.loads(path.read_bytes())
        return isinstance(held, dict) and held.keys() >= _OURS
    return False


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError, RuntimeError):  # no name of a file, or a link to itself
        return one.resolve() == other.resolve() or one.samefile(other)
    return False


class JsonFile:
    """``--json FILE``, or stdout for ``-``. Made before the work, so that a bad name costs nothing.

    BadSpec where it cannot be written, or holds something else than such a result.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = None if name == STDOUT else Path(name)
        if self.path is not None:
            refuse_unwritable("--json", self.path)
            refuse_another_s("--json", self.path, _is_result)
        elif sys.stdout is None:
            raise BadSpec("--json - means stdout, which is closed; nothing was started, name a file")

    def write(self, value: dict[str, Any]) -> None:
        """Write ``value``: to stdout as one line, the last; to a file for people too. OSError as writing goes."""
        if self.path is None:
            # On a line of its own, even if the command left its last one unfinished.
            _put(sys.stdout, "\n" + json.dumps(value, allow_nan=False))
            return
        with self.path.open("w") as file:
            _put(file, json.dumps(value, indent=2, allow_nan=False))


def _put(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
