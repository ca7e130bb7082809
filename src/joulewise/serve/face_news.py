"""What is new, for those who listen: the GPUs' readings, and what was written to the store since the last look.

Several servers may share a store, and runs write to it from anywhere, so news come from asking the store: one query a
second, while somebody listens.
"""

from __future__ import annotations

import logging
import threading
import time as clock
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress

from joulewise.core.errors import NotKept
from joulewise.core.event import Aimed, Began, Decided, Event, Finished, Led, Limited, Ordered, Proven, Turned
from joulewise.core.plain import plain
from joulewise.report import cluster_news
from joulewise.report.claim import STANDARD_ERRORS, percent
from joulewise.report.cluster_log import PREFIX
from joulewise.report.words import named, plainly
from joulewise.serve.face import Face
from joulewise.serve.face_hub import Message
from joulewise.serve.face_messages import Gpus
from joulewise.store import news, views

_RUNS = {Began: "began", Decided: "decided", Proven: "proven", Finished: "finished"}
_CLUSTERS = (Led, Ordered, Aimed, Turned, Limited)
_KINDS = tuple(kind.__name__ for kind in (*_RUNS, *_CLUSTERS))
_MEASURED = views.measured_stream("")
_BACK_S = 20.0
"""Writers' clocks may differ by so much from ours, and so long an event may wait for its disk."""
_REMEMBERED = 2000
_LONGEST = 300
_log = logging.getLogger("joulewise.serve")


class News:
    """For one ``Hub``: ``begin`` when somebody begins to listen, then ``look``. ``now``: seconds since 1970."""

    def __init__(self, face: Face, *, now: Callable[[], float] = clock.time) -> None:
        self._face = face
        self._now = now
        self._lock = threading.Lock()  # a look that nobody waits for any more may still be under way
        self._seen: OrderedDict[tuple[str, int, float], None] = OrderedDict()
        self._begun = self._away = False

    def begin(self) -> None:
        """Whatever is there by now is no news; while the store is away, whatever is there when it is back."""
        with self._lock:
            self._begun = self._away = False
            with suppress(NotKept):  # the next look says so
                self._start(self._items())

    def look(self) -> list[Message]:
        """The GPUs as they are, and what has been written since. They are told while the store is away, too; once it is
        back, that something may have been missed."""
        live = self._face.live
        gpus = Message("gpus", plain(Gpus(self._now(), live.gpus(), live.why)), replaces=True)
        with self._lock:
            try:
                return [gpus, *self._written()]
            except NotKept as error:
                if not self._away:
                    _log.warning("no news can be had: %s", error)
                self._begun, self._away = False, True
                return [gpus]

    def _written(self) -> Iterator[Message]:
        items = self._items()
        if not self._begun:
            if self._away:
                yield Message("missed", {"events": None})
            self._start(items)
            return
        clusters: dict[str, Message] = {}
        for item in items:
            key = (item.stream, item.number, item.at_s)
            if key in self._seen:
                continue
            self._seen[key] = None
            if type(item.event) in _RUNS and item.stream.startswith(_MEASURED):
                # What the whole command used: its last word, after that of its tuner.
                yield Message("run", {"name": item.stream.removeprefix(_MEASURED), "what": "measured", "words": ""})
            elif type(item.event) in _RUNS:
                what = _RUNS[type(item.event)]
                yield Message("run", {"name": item.stream, "what": what, "words": _words(item.event)[:_LONGEST]})
            elif item.stream.startswith(PREFIX):
                # One a look: a scheduler may decide on a hundred jobs at once.
                name = item.stream.removeprefix(PREFIX)
                words = (cluster_news.says(item.event) or "")[:_LONGEST]
                clusters[name] = Message("cluster", {"name": name, "words": words})
        yield from clusters.values()
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _start(self, items: list[news.Item]) -> None:
        self._seen = OrderedDict(((item.stream, item.number, item.at_s), None) for item in items)
        self._begun, self._away = True, False

    def _items(self) -> list[news.Item]:
        return news.since(self._face.store.tables, self._now() - _BACK_S, _KINDS)


def _words(event: Event) -> str:
    match event:
        case Began():
            command = event.facts.get("command_line") or " ".join(map(str, event.facts.get("command") or ()))
            return f"began: {command}"
        case Decided():
            words = named(event.decision.setting)
            return f"{words}: {plainly(event.decision.reason).removeprefix(f'{words}: ')}"
        case Proven():
            energy = percent(event.energy_change, STANDARD_ERRORS * event.energy_change_error, sign=True)
            time = percent(event.time_change, STANDARD_ERRORS * event.time_change_error, sign=True)
            return f"{energy} energy, {time} time"
        case Finished():
            return f"ended: {event.why}"
        case _:
            return ""
