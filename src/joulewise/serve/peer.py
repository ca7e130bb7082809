"""Who is at the other end of a Unix socket, as the kernel says: the credentials of the moment of ``connect()``.

uvicorn accepts connections on such a socket and tells an app nothing about who connected. ``PeerCredentials`` is a part
of its protocol class that asks the kernel once a connection and puts the answer into the ASGI scope of every request.
Nothing that a client sends can get there. This module decides nothing (``tokens.Guard`` does).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

SCOPE: Final = "joulewise.peer"
"""The key in the ASGI scope; not there for a connection over TCP."""
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS: Final = 59  # <asm-generic/socket.h>; Python does not name it
_MOST_GROUPS: Final = 65536  # NGROUPS_MAX


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected. ``groups``: all its groups, the primary one too."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]


def peer_of(connection: Any) -> Peer | None:
    """Whoever opened a connection; None for one that is not over a Unix socket. OSError where the kernel does not
    say."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(said)
    return Peer(pid, uid, gid, _groups(connection) | {gid})


def peer_in(scope: Mapping[str, Any]) -> Peer | None:
    """The peer of a request; None where it came over TCP."""
    found = scope.get(SCOPE)
    return found if isinstance(found, Peer) else None


class PeerCredentials:
    """Mixin before one of uvicorn's HTTP protocols."""

    app: Callable[..., Awaitable[None]]

    def connection_made(self, transport: Any) -> None:
        """The app of this connection knows its peer. One whose peer the kernel does not name is closed."""
        super().connection_made(transport)  # type: ignore[misc]
        try:
            peer = peer_of(transport.get_extra_info("socket"))
        except OSError:
            transport.abort()
            return
        if peer is not None:
            self.app = _knowing(self.app, peer)


def _knowing(app: Callable[..., Awaitable[None]], peer: Peer) -> Callable[..., Awaitable[None]]:
    async def served(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        scope[SCOPE] = peer
        await app(scope, receive, send)

    return served


def _groups(connection: Any) -> frozenset[int]:
    for room in (256, _MOST_GROUPS):
        try:
            data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * room)
        except OSError:  # ERANGE: more of them; an old kernel does not say
            continue
        return frozenset(struct.unpack(f"={len(data) // 4}I", data))
    return frozenset()
