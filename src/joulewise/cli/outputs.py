"""Files that a verb writes at its end, opened before its start: hours of work shall not end in "permission denied".

An existing file is kept until there is something to put in its place.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from joulewise.core.errors import BadSpec

STDOUT = "-"


def refuse_unwritable(flag: str, path: Path) -> None:
    """Raise BadSpec unless ``path`` can be written; what it holds stays as it is, and no new file is left."""
    try:
        if path.is_fifo() and not path.is_symlink():
            # Opening it would wait for a reader, and closing it again send that reader home.
            raise OSError("it is a pipe")
        existed = path.exists()
        file = path if existed else path.resolve()  # what a dangling link points to
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


def refuse_one_for_two(files: Mapping[str, Path | None]) -> None:
    """Raise BadSpec where two flags name one file: what was written first would be lost. Devices may be shared."""
    flag_of: dict[Path, str] = {}
    for flag, path in files.items():
        if path is None or (path.exists() and not path.is_file()):
            continue
        first = flag_of.setdefault(path.resolve(), flag)
        if first != flag:
            raise BadSpec(f"{first} and {flag} both name {path}; nothing was started, give each a file of its own")


class JsonFile:
    """``--json FILE``, or stdout for ``-``. Made before the work, so that a bad name costs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = None if name == STDOUT else Path(name)
        if self.path is not None:
            refuse_unwritable("--json", self.path)
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
