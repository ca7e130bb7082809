"""What users hold in their hands, as lists of names: recorded once, compared ever after.

``check(what, names)`` compares names with those of ``recorded/WHAT.json``. What is there is a promise: scripts and
dashboards read it. Who adds a name on purpose records it with ``FREEZE=1 pytest tests/frozen`` and shows it in the
change; who takes one away breaks somebody's script.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

_RECORDED: Final = Path(__file__).parent / "recorded"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
"""What a key of ours looks like. Any other (a uuid, a batch size, a label) names a thing that is told of."""


def keys(value: Any, varied: Collection[str] = (), at: str = "") -> set[str]:
    """Every key in ``value``, as a path: ``gpus[].power_w``. What names things that are told of is ``*``: what does not
    look like a key, and all that lies right below the paths ``varied``."""
    return set(_keys(value, varied, at))


def _keys(value: Any, varied: Collection[str], at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            named = _NAME.fullmatch(key) and at not in varied
            path = f"{at}.{key if named else '*'}".lstrip(".")
            yield path
            yield from _keys(part, varied, path)
    elif isinstance(value, list):
        for part in value:
            yield from _keys(part, varied, f"{at}[]")


def check(what: str, names: Iterable[str], may_lack: tuple[str, ...] = ()) -> None:
    """Whether ``names`` are those that were recorded as ``what``. What lies below the paths ``may_lack`` is not in
    every answer: a claim, say, that a run did not last long enough for."""
    path, found = _RECORDED / f"{what}.json", set(names)
    recorded = set(json.loads(path.read_text("utf-8"))) if path.exists() else set()
    absent = {each for each in recorded - found if each.startswith(may_lack or "\0")}
    if os.environ.get("FREEZE") == "1":
        recorded = found | absent
        path.write_text(json.dumps(sorted(recorded), indent=0) + "\n", encoding="utf-8")
    gone, new = sorted(recorded - found - absent), sorted(found - recorded)
    assert not gone, f"{what}: these names are gone, and somebody reads them: {', '.join(gone)}"
    assert not new, f"{what}: new names; if they are meant, record them (FREEZE=1): {', '.join(new)}"
