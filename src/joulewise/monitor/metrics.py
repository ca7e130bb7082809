"""The reader of a job's metrics: every process's file in one directory, in order of time, and the answer left there.

What the files hold is believed only where a line is whole and right, and one look takes a bounded number of bytes: the
rest is read at the next. For one thread.

    feed = MetricFeed(directory, gpu.time)
    for metric in feed.read(): ...
    feed.stop()                                 # to those who ask
    feed.answer()                               # what was read has been thought about
"""

from __future__ import annotations

import itertools
import os
import stat
from contextlib import suppress
from pathlib import Path

from joulewise.core import metric as lines
from joulewise.core.marks import Clock
from joulewise.core.metric import Metric
from joulewise.core.timeline import TimeSource
from joulewise.monitor.steps import in_time

__all__ = ["Metric", "MetricFeed"]

_AT_ONCE = 1 << 20  # bytes of one file at one look: thousands of metrics
_MOST_FILES = 256  # as many processes as any node has ranks, and more


class MetricFeed:
    """The metrics that processes tell in ``directory``, in the seconds of ``time`` (None: as they were stamped)."""

    def __init__(self, directory: Path, time: TimeSource | None = None) -> None:
        self._directory, self._time = directory, time
        self._read: dict[str, int] = {}
        self._answered: dict[str, int] = {}

    def read(self) -> list[Metric]:
        """What was told since the last call."""
        found: list[Metric] = []
        for name in self._names(lines.SUFFIX):
            found += self._fresh(name)
        return sorted(found, key=lambda metric: metric.time_s)

    def answer(self) -> None:
        """Tell whoever waits that what was read is thought about, and ``stop`` called if that is the answer."""
        for name, place in self._read.items():
            if self._answered.get(name) == place:
                continue
            self._answered[name] = place
            path = self._directory / (name.removesuffix(lines.SUFFIX) + lines.ANSWERED)
            with suppress(OSError):
                temporary = path.with_suffix(".new")
                temporary.write_text(str(place))
                temporary.replace(path)

    def stop(self) -> None:
        """Answer from now on: stop."""
        with suppress(OSError):
            (self._directory / lines.STOP).touch()

    @property
    def asked(self) -> bool:
        """Whether the job asks if it should stop, and so would stop by itself."""
        return bool(self._names(lines.ASKS))

    def _names(self, suffix: str) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                return sorted(
                    itertools.islice((each.name for each in entries if each.name.endswith(suffix)), _MOST_FILES)
                )
        except OSError:
            return []

    def _fresh(self, name: str) -> list[Metric]:
        place = self._read.get(name, 0)
        data = _bytes_of(self._directory / name, place)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) >= lines.LONGEST_LINE:
            whole = len(data)  # nobody's line: passed over
        self._read[name] = place + whole
        found = [metric for text in data[:whole].splitlines() if (metric := lines.parsed(text)) is not None]
        if self._time is None:
            return found
        return [
            metric if metric.clock is Clock.SIMULATED else metric._replace(time_s=in_time(self._time, metric.time_s))
            for metric in found
        ]


def _bytes_of(path: Path, place: int) -> bytes:
    """What a plain file holds from ``place`` on; nothing where it is none: no link is followed, no pipe waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, _AT_ONCE, place) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
