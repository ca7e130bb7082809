"""Files that a verb writes at its end, opened before its start: hours of work shall not end in "permission denied".

An existing file is kept until there is something to put in its place.
"""

from __future__ import annotations

import json
import sys
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


class JsonFile:
    """``--json FILE``, or stdout for ``-``. Made before the work, so that a bad name costs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name != STDOUT:
            refuse_unwritable("--json", Path(name))

    def write(self, value: dict[str, Any]) -> None:
        """Write ``value``: to stdout as one line, the last; to a file for people too. OSError as writing goes."""
        if self.name == STDOUT:
            _put(sys.stdout, json.dumps(value, allow_nan=False))
            return
        with Path(self.name).open("w") as file:
            _put(file, json.dumps(value, indent=2, allow_nan=False))


def _put(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
