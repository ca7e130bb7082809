"""How many connections a server holds, of whom, and for how long one may keep it waiting for a request.

A connection costs its client nothing and the server a descriptor, so three things are bounded. **Time**: a request's
header, then its body, must be whole within a deadline that no trickle of bytes prolongs. **Half-open connections of
one client**, those on which no whole request waits for its answer. **All connections**, below the limit of
descriptors, with places that only the operator (root, and whoever runs the server) may take. Where all places are
taken, the newcomer gets one of the client that holds most: so none can shut others out, while agents that wait for
news, streams of events and a thousand agents behind one address are left alone as long as there is room.

A client is a user of this machine, or the address of another one (``peer``). ``Limited`` goes in front of uvicorn's
protocol class; it reads ``cycle`` of it, the request in progress. This module knows nothing of tokens or routes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from joulewise.serve.peer import Peers, client_name, is_operator

HEADER_S: Final = 20.0
"""From the connection, or the answer before, until a request's header is whole. Clients send it at once."""
BODY_S: Final = 20.0
"""From then until its body is. At most 64 KiB (``problems``): 3 kB/s suffice."""
SPREAD: Final = 1.5
"""Each deadline is up to so many times as long, by chance: a crowd that came at once shall not come back at once. What
is opened again costs more than what is held, so neither deadlines nor shares are as short as they could be."""
HALF_OPEN_SHARE: Final = 0.25
"""Of all places, the most that one client may hold half open: each may have up to 64 KiB of a body in memory."""
YOUNG_S: Final = 1.0
"""A half-open connection is not closed for its client's others before that age: a crowd of agents that all come back
at once, from behind one address, shall lose none."""
MOST_CONNECTIONS: Final = 8192
"""In all: what a thousand nodes' agents need, several times."""
OTHER_DESCRIPTORS: Final = 256
"""For everything that is no connection: files, the store, drivers, pipes of commands; and the connections that have
been accepted or closed in this turn of the loop."""
OPERATOR_PLACES: Final = 32
"""Of all places, those that only the operator may take."""
ACCEPTED_AT_ONCE: Final = 64
"""In one turn of the loop; they are counted in the next one. asyncio takes as many as the queue's length otherwise."""
_LOG_EVERY_S: Final = 60.0
_MOST_MESSAGES: Final = 1000
"""That are remembered, so as not to be written again so soon."""
STALLED_S: Final = 60.0
"""Whoever takes nothing of what was sent for so long is cut off. A server that merely closes such a connection waits
for ever to hand over what is on its way, and keeps its descriptor until then."""
_NO_ACCEPT: Final = "socket.accept() out of system resource"  # as asyncio's event loop calls it
_TOO_LATE: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_log = logging.getLogger("joulewise.serve")


def most_connections() -> int:
    """How many connections there may be, once the soft limit of descriptors is as high as they need, or may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(soft - OTHER_DESCRIPTORS, soft // 2))


@dataclass(slots=True, eq=False)
class Client:
    """The connections of one client, each kind in the order in which they became so."""

    name: str
    operator: bool
    half_open: dict[Limited, float] = field(default_factory=dict)
    """Those on which no whole request waits for its answer, since when."""
    answering: dict[Limited, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.half_open) + len(self.answering)

    def oldest(self) -> Limited:
        """The connection whose end harms least: one that is only waited for, if there is any."""
        return next(iter(self.half_open or self.answering))


class Places:
    """Who holds the connections of one server. Of its event loop. ``most``: so many in all; ``now`` is monotonic."""

    def __init__(self, most: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_half_open = max(1, round(HALF_OPEN_SHARE * most))
        self._most_of_others = max(1, most - min(OPERATOR_PLACES, most // 4))
        self._now = now
        self._clients: dict[str, Client] = {}
        self._held = 0
        self._others = 0
        self._peers = Peers()
        self._told_s = -math.inf
        self._failed = 0

    def open(self) -> None:
        """Connections may come."""
        self._peers.open()

    def close(self) -> None:
        """No more come."""
        self._peers.close()

    def client(self, sock: Any) -> Client:
        """Who opened this connection; ``enter`` it at once."""
        uid = self._peers.uid(sock)
        name = client_name(sock, uid)
        return self._clients.setdefault(name, Client(name, is_operator(uid)))

    def enter(self, connection: Limited, client: Client) -> None:
        """One more; where it is too many, another is cut off, or this one."""
        client.half_open[connection] = self._now()
        self._held += 1
        self._others += not client.operator
        self._trim(client)
        if not client.operator and self._others > self._most_of_others:
            self._cut_one([each for each in self._clients.values() if not each.operator])
        elif self._held > self._most:
            self._cut_one(self._clients.values())

    def leave(self, connection: Limited, client: Client) -> None:
        """It is closed, or as good as that. Twice counts once."""
        if connection in client.half_open:
            del client.half_open[connection]
        elif connection in client.answering:
            del client.answering[connection]
        else:
            return
        self._held -= 1
        self._others -= not client.operator
        if not len(client):
            del self._clients[client.name]

    def moved(self, connection: Limited, client: Client, *, half_open: bool) -> None:
        """Its request has become whole, or was answered."""
        if half_open and connection in client.answering:
            del client.answering[connection]
            client.half_open[connection] = self._now()
        elif not half_open and connection in client.half_open:
            del client.half_open[connection]
            client.answering[connection] = None

    def loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An event loop's exception handler. Where no connection can be taken, for want of descriptors or memory, make
        room, and say so once a minute: asyncio would say it, with its stack, for each that it tries."""
        if context.get("message") != _NO_ACCEPT:
            loop.default_exception_handler(context)
            return
        self._failed += 1
        self._cut_one([each for each in self._clients.values() if not each.operator] or self._clients.values())
        if self._now() - self._told_s >= _LOG_EVERY_S:
            self._told_s = self._now()
            error = context.get("exception")
            _log.error("no connection can be accepted (%s; %d times by now); see 'ulimit -n'", error, self._failed)

    def _trim(self, client: Client) -> None:
        """Cut off what a client holds half open beyond its share, the oldest first."""
        while len(client.half_open) > self._most_half_open:
            oldest, since_s = next(iter(client.half_open.items()))
            if self._now() - since_s < YOUNG_S:
                break
            oldest.cut_off()

    def _cut_one(self, clients: Iterable[Client]) -> None:
        """Cut off one connection of whoever of these holds most."""
        most = max(clients, key=len, default=None)
        if most is not None:
            most.oldest().cut_off()


if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
else:
    _Protocol = object


class Limited(_Protocol):
    """Goes in front of uvicorn's protocol class: deadlines, and a place among others. Set ``places`` in a subclass.

    Requests find their client's name in ``scope["state"]["client"]``."""

    places: Places
    _client: Client | None = None
    _stage: tuple[str, Any] | None = None
    """What is waited for, and the request before it, or None while an answer is made."""
    _deadline: asyncio.TimerHandle | None = None
    _untaken: tuple[int, asyncio.TimerHandle] | None = None
    """How much of the answers the client had not taken at the last look, and the next look."""

    def connection_made(self, transport: Any) -> None:
        """Take a place."""
        super().connection_made(transport)
        self._client = self.places.client(transport.get_extra_info("socket"))
        self.app_state = {**self.app_state, "client": self._client.name}
        self.places.enter(self, self._client)
        self._look_whether_taken()
        self._follow()

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """An answer is made; another request may follow."""
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._left()
        if self._untaken is not None:
            self._untaken[1].cancel()
        super().connection_lost(exc)

    def cut_off(self) -> None:
        """Close it now; what was not sent yet is lost. It counts no more."""
        self._left()
        self.transport.abort()

    def _look_whether_taken(self) -> None:
        """Cut off a client that has taken nothing since the last look. TCP has a limit of its own for this, Unix
        sockets have none."""
        size = self.transport.get_write_buffer_size()
        if self._untaken is not None and 0 < size == self._untaken[0]:
            self.cut_off()
        else:
            self._untaken = size, self.loop.call_later(STALLED_S, self._look_whether_taken)

    def _left(self) -> None:
        self._wait(None)
        if self._client is not None:
            self.places.leave(self, self._client)

    def _follow(self) -> None:
        """See what is waited for now, and until when."""
        if self._client is None or self.transport.is_closing():
            return
        request = self.cycle
        if request is None or request.response_complete:
            stage = ("header", request)
        elif request.more_body:
            stage = ("body", request)
        else:
            stage = None
        if stage == self._stage:
            return  # some bytes more of the same prolong nothing
        self._stage = stage
        self._wait(None if stage is None else HEADER_S if stage[0] == "header" else BODY_S)
        self.places.moved(self, self._client, half_open=stage is not None)

    def _wait(self, most_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if most_s is not None:
            self._deadline = self.loop.call_later(most_s * random.uniform(1.0, SPREAD), self._overdue)

    def _overdue(self) -> None:
        self._deadline = None
        if self._stage is not None and self._stage[0] == "body":
            self.transport.write(_TOO_LATE)
        self.transport.close()  # what waits of an answer before goes out first, as far as its client takes it


class LogSeldom(logging.Filter):
    """Lets each message of a logger pass once a minute: anybody can make uvicorn write that a request was invalid."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is shown. Faults of ours, which come with their stack, always are."""
        if record.exc_info:
            return True
        now_s, text = time.monotonic(), record.getMessage()
        if now_s - self._last_s.get(text, -math.inf) < _LOG_EVERY_S:
            return False
        if len(self._last_s) >= _MOST_MESSAGES:
            self._last_s.clear()
        self._last_s[text] = now_s
        return True
