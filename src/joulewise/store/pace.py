"""The pace of a tuned run: when each step of the job ended, kept beside its readings.

The tuner's journal says how much work each block held. This record says when every step ended, so that the work of a
block can be counted again (``tune/audit``). It stands in a stream of its own, ``pace/RUN``: a tuned run's journal is
sealed and nothing may be added to it. One event holds some seconds of steps as base64 of deflated JSON, 2 to 3 bytes a
step; steps shorter than ``TOGETHER_S`` are written together.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from joulewise.core.errors import BadSpec
from joulewise.core.event import Event, Turned

TOGETHER_S: Final = 0.1
"""At most ten records a second, however short the steps are."""
_UNIT_S: Final = 1e-4  # of times: finer than any hook's stamp on a loaded machine
_MOST_BYTES: Final = 16 * 1024 * 1024  # of one event, unpacked: a damaged one may claim to be more
_WHAT: Final = "measured"

Step = tuple[float, float, str, float]
"""When a step began and ended on the GPUs' clock, its phase, and the work of all steps up to its end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The steps of one phase, in order: ``work[i]`` units were done from ``start_s[i]`` to ``end_s[i]``."""

    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)


def pace_stream(run: str) -> str:
    """The stream of a run's pace."""
    return f"pace/{run}"


class PaceRecord:
    """Turns steps into events. One for each process that measures a run."""

    def __init__(self) -> None:
        self._done = 0.0
        self._open: tuple[str, list[float]] | None = None  # phase; start, end and work: it may still grow

    def event(self, steps: Sequence[Step], run: str, *, last: bool = False) -> Event | None:
        """What to append for ``steps``; None where no record is complete yet. ``last``: no more will come."""
        rows: dict[str, list[list[float]]] = {}
        for start_s, end_s, phase, done in steps:
            work, self._done = done - self._done, done
            if self._open is not None:
                before, record = self._open
                if before == phase and record[1] == start_s and end_s - record[0] < TOGETHER_S:
                    record[1], record[2] = end_s, record[2] + work
                    continue
                rows.setdefault(before, []).append(record)
            self._open = phase, [start_s, end_s, work]
        if last and self._open is not None:
            rows.setdefault(self._open[0], []).append(self._open[1])
            self._open = None
        if not rows:
            return None
        latest_s = max(some[-1][1] for some in rows.values())
        return Turned(latest_s, run, _WHAT, {"pace": _packed(rows)})


def read(events: Iterable[Event]) -> dict[str, Pace]:
    """The pace of each phase from the events of its stream. BadSpec if one of them is damaged."""
    found: dict[str, Pace] = {}
    for event in events:
        if not isinstance(event, Turned) or "pace" not in event.facts:
            continue
        for phase, rows in _unpacked(event.facts["pace"]).items():
            pace = found.setdefault(phase, Pace())
            for start_s, end_s, work in rows:
                pace.start_s.append(start_s)
                pace.end_s.append(end_s)
                pace.work.append(work)
    return found


def _packed(rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Three columns a phase: the pause since the step before, how long the step took (whole units), and its work."""
    columns = {}
    for phase, some in rows.items():
        pauses, lasts, works, latest = [], [], [], 0
        for start_s, end_s, work in some:
            start, end = round(start_s / _UNIT_S), round(end_s / _UNIT_S)
            pauses.append(start - latest)
            lasts.append(end - start)
            works.append(int(work) if work == int(work) else work)
            latest = end
        columns[phase] = [pauses, lasts, works]
    text = json.dumps(columns, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(text, 6)).decode()


def _unpacked(text: Any) -> dict[str, list[tuple[float, float, float]]]:
    try:
        stream = zlib.decompressobj()
        columns = json.loads(stream.decompress(base64.b64decode(text, validate=True), _MOST_BYTES))
        found = {}
        for phase, (pauses, lasts, works) in columns.items():
            rows, latest = [], 0
            for pause, took, work in zip(pauses, lasts, works, strict=True):
                start, latest = latest + pause, latest + pause + took
                rows.append((float(start) * _UNIT_S, float(latest) * _UNIT_S, float(work)))
            found[str(phase)] = rows
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error, binascii.Error) as error:
        raise BadSpec(f"the kept pace of this run is damaged: {error}") from error
    return found
