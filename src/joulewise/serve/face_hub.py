"""Who listens to a server's events, and what waits for each: bounded, whoever is slow, and asleep when nobody listens.

One look a second serves all listeners (``look``, in a thread: it asks the store); what it finds is written out once and
shared. For each listener there wait the latest of what replaces itself (the GPUs' readings) and a few news; whoever
falls behind loses the oldest and is told so (``missed``), so that it can ask anew. Not a queue that delivers: news are
a hint to look.

Places are bounded, in all and for one client. Where all are taken, whoever has fewer gets one of the client that has
most: its oldest stream ends, and may ask again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from joulewise.core.errors import JoulewiseError, NotKept

MOST_LISTENERS = 500
"""Each holds a connection; a dashboard needs one a window."""
MOST_OF_ONE_CLIENT = 250
"""A client is a token, or a user of this machine, or an address; a team may share a token."""
MOST_NEWS = 100
"""That wait for one listener."""
_log = logging.getLogger("joulewise.serve")


@dataclass(frozen=True, slots=True)
class Message:
    """One event. ``replaces``: a later one of its kind makes it worthless."""

    kind: str
    data: Any
    replaces: bool = False

    def written(self) -> bytes:
        """As server-sent events are: JSON has no line breaks, so it is one line."""
        text = json.dumps(self.data, separators=(",", ":"), allow_nan=False)
        return f"event: {self.kind}\ndata: {text}\n\n".encode("ascii")


class Listener:
    """What waits for one of them. Of one event loop, as all here."""

    def __init__(self, client: str = "") -> None:
        self.client = client
        self._latest: dict[str, bytes] = {}
        self._news: deque[bytes] = deque()
        self._missed = 0
        self._there = asyncio.Event()
        self.closed = False

    def put(self, kind: str, written: bytes, *, replaces: bool) -> None:
        """Let it wait; the oldest news go if there are too many."""
        if replaces:
            self._latest[kind] = written
        else:
            self._news.append(written)
            if len(self._news) > MOST_NEWS:
                self._news.popleft()
                self._missed += 1
        self._there.set()

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._there.set()

    async def next(self, most_s: float) -> list[bytes]:
        """All that waits, as soon as anything does; nothing after ``most_s``, or when it is closed. Not joined: each is
        shared with all other listeners, also while a slow network has it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):  # wait_for may miss that it is told to end
                await self._there.wait()
        self._there.clear()
        parts = [*self._news, *self._latest.values()]
        if self._missed:
            parts.insert(0, Message("missed", {"events": self._missed}).written())
        self._news.clear()
        self._latest.clear()
        self._missed = 0
        if self.closed:
            self._there.set()
        return parts


class Hub:
    """``look`` gives what is new since the last call; it is called every ``period_s`` while somebody listens, and
    ``begin`` once before. What they raise is logged, and tried again."""

    def __init__(
        self,
        look: Callable[[], Iterable[Message]],
        *,
        begin: Callable[[], None] = lambda: None,
        period_s: float = 1.0,
        most: int = MOST_LISTENERS,
        most_of_one: int = MOST_OF_ONE_CLIENT,
    ) -> None:
        self._look = look
        self._begin = begin
        self._period_s = period_s
        self._most = most
        self._most_of_one = most_of_one
        self._listeners: dict[Listener, None] = {}
        """The oldest first."""
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def looking(self) -> bool:
        """Whether anybody is asked for news at present."""
        return self._looking is not None and not self._looking.done()

    def close(self) -> None:
        """End all streams, since the server ends. To be called in the loop that serves them."""
        self._closed = True
        for listener in self._listeners:
            listener.close()

    @asynccontextmanager
    async def listening(self, client: str = "") -> AsyncIterator[Listener]:
        """One listener more for ``client``, while the context lasts. NotKept where there are too many."""
        self._make_room(client)
        listener = Listener(client)
        if self._closed:
            listener.close()
        self._listeners[listener] = None
        if not self.looking:
            self._looking = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield listener
        finally:
            self._listeners.pop(listener, None)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _make_room(self, client: str) -> None:
        """A place for one more of ``client``, if need be that of the client who has most. NotKept if that is itself."""
        places = Counter(listener.client for listener in self._listeners)
        if places[client] >= self._most_of_one:
            raise NotKept(
                f"you listen to this server's events {places[client]} times, the most for one client; close some of "
                "these streams, or ask without them"
            )
        if len(self._listeners) < self._most:
            return
        greedy, most = places.most_common(1)[0]
        if most <= places[client] + 1:
            raise NotKept(f"{self._most} others listen to this server's events; try again later, or ask without them")
        oldest = next(listener for listener in self._listeners if listener.client == greedy)
        oldest.close()
        del self._listeners[oldest]

    async def _watch(self) -> None:
        begun, told = False, False
        clock = asyncio.get_running_loop().time
        while self._listeners and not self._closed:
            due_s = clock() + self._period_s
            try:
                if not begun:
                    await asyncio.to_thread(self._begin)
                    begun = True
                found = await asyncio.to_thread(lambda: [(each, each.written()) for each in self._look()])
                told = False
            except Exception as error:  # a store that is away, or a fault of ours: streams stay, and it is tried again
                if not told:
                    _log.warning("no news can be had: %s", error, exc_info=not isinstance(error, JoulewiseError))
                found, told = [], True
            for message, written in found:
                for listener in tuple(self._listeners):
                    listener.put(message.kind, written, replaces=message.replaces)
            await asyncio.sleep(max(0.0, due_s - clock()))
