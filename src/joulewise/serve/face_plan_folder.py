"""A folder of plans, as ``joulewise plan solve --out`` writes them: listed, read, a few of them remembered.

A plan is named by its file, without ``.json``. What is asked for is compared with the names that are there, so that no
path can be made of it. A file that is no plan is listed with what is wrong with it, and hides no other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

from joulewise.core.errors import BadSpec
from joulewise.plan import plan_files
from joulewise.plan.plan import Plan
from joulewise.report import plan_words
from joulewise.serve.face_messages import PlanSummary

_SUFFIX = ".json"
_MOST_FILES = 500
_MOST_BYTES = 64 * 1024 * 1024
"""Of a file that is read for a page; the largest plans that were made have some ten."""
_REMEMBERED = 4

T = TypeVar("T")
_Stamp = tuple[int, int, int]
"""Whether a file is still the same: its node, size and time of change."""


class PlanFolder:
    """The plans in ``folder``; None, or a folder that is not there, has none. Safe with several threads."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[str, _Stamp], Plan] = OrderedDict()
        self._summaries: OrderedDict[tuple[str, _Stamp], PlanSummary] = OrderedDict()

    def listed(self) -> list[PlanSummary]:
        """A line on each, by name."""
        return [
            self._remembered(self._summaries, (name, stamp), 2 * _MOST_FILES, partial(_line, path, name))
            for name, (path, stamp) in sorted(self._files().items())
        ]

    def names(self) -> list[str]:
        """Which there are."""
        return sorted(self._files())

    def plan(self, name: str) -> Plan | None:
        """The plan of that name; None: there is none. BadSpec where its file is no plan."""
        found = self._files().get(name)
        if found is None:
            return None
        path, stamp = found
        return self._remembered(self._plans, (name, stamp), _REMEMBERED, lambda: _read(path))

    def _files(self) -> dict[str, tuple[Path, _Stamp]]:
        found: dict[str, tuple[Path, _Stamp]] = {}
        try:
            paths = sorted(self._folder.iterdir()) if self._folder is not None else []
        except OSError:
            return {}
        for path in paths:
            try:
                status = path.stat()
                path.name.encode()
            except (OSError, UnicodeEncodeError):
                continue
            if path.suffix == _SUFFIX and not path.name.startswith(".") and S_ISREG(status.st_mode):
                found[path.stem] = (path, (status.st_ino, status.st_size, status.st_mtime_ns))
                if len(found) >= _MOST_FILES:
                    break
        return found

    def _remembered(
        self, kept: OrderedDict[tuple[str, _Stamp], T], key: tuple[str, _Stamp], most: int, make: Callable[[], T]
    ) -> T:
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        made = make()
        with self._lock:
            kept[key] = made
            while len(kept) > most:
                kept.popitem(last=False)
        return made


def _read(path: Path) -> Plan:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadSpec(f"{path.name} has more than {_MOST_BYTES >> 20} MiB; 'joulewise plan show' reads it")
        return plan_files.read(path)
    except OSError as error:
        raise BadSpec(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _line(path: Path, name: str) -> PlanSummary:
    try:
        plan = _read(path)
    except BadSpec as fault:
        return PlanSummary(name, "", trouble=str(fault).replace(str(path), path.name))
    return PlanSummary(
        name,
        plan_words.headline(plan),
        plan.schedule.stages,
        plan.schedule.microbatches,
        plan.schedule.name,
        plan.schedule.ranks * plan.costs.gpus_per_rank,
        len(plan.points),
    )
