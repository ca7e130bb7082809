"""Who is at the other end of a connection, as the kernel says: a user of this machine, or another machine's address.

Of a Unix socket the kernel knows the process that connected, at the moment of ``connect()``; uvicorn tells an app
nothing of it, so ``PeerCredentials``, a part of its protocol class, puts the answer into the ASGI scope of every
request, where nothing that a client sends can get. Rights rest on this (``tokens.Guard``).

Of a TCP connection from this machine the kernel knows the owner of the socket at the other end; ``sock_diag(7)``
tells it by one question for that one socket, in microseconds and without any right, where ``/proc/net/tcp`` would
have to be read whole for each. So ``Peers`` tells the users of one machine apart although all of them come from
127.0.0.1. Shares of connections rest on this (``connection_limits``), rights do not. This module decides nothing.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

SCOPE: Final = "joulewise.peer"
"""The key in the ASGI scope; not there for a connection over TCP."""
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS: Final = 59  # <asm-generic/socket.h>; Python does not name it
_MOST_GROUPS: Final = 65536  # NGROUPS_MAX
# <linux/netlink.h>, <linux/sock_diag.h>, <linux/inet_diag.h>; Python names none of them.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, port
_REQUEST: Final = struct.Struct("=BBBxI")  # struct inet_diag_req_v2: family, protocol, extensions, states
_SOCKET: Final = struct.Struct("!HH16s16s")  # struct inet_diag_sockid: ports and addresses, then interface and cookie
_ANY_INTERFACE_AND_COOKIE: Final = struct.pack("=I8s", 0, b"\xff" * 8)
_ANSWER: Final = struct.Struct("=BBBB48sIIIII")  # struct inet_diag_msg; the last two are uid and inode
_LISTENING: Final = 10  # TCP_LISTEN
_HOMES_BITS: Final = 64
"""Of an IPv6 address: who has one address has all of its network."""


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


class Peers:
    """Tells who opened a connection, between ``open`` and ``close``. Of one thread."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None

    def open(self) -> None:
        """Before the first question, while there are descriptors."""
        # Another system, or a sandbox without netlink: addresses must do.
        with suppress(OSError, AttributeError):
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
            self._netlink.setblocking(False)  # the kernel answers within the question's own system call

    def close(self) -> None:
        """After the last one."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def uid(self, connection: Any) -> int | None:
        """The user at the other end of an accepted socket; None on another machine, or where that cannot be told."""
        try:
            local = peer_of(connection)
            if local is not None:
                return local.uid
            here, there = connection.getsockname(), connection.getpeername()
            if here[0] != there[0] and not ipaddress.ip_address(there[0]).is_loopback:
                return None
            return self._owner(connection.family, there, here)
        except (OSError, ValueError, AttributeError, struct.error):  # it has gone again
            return None

    def _owner(self, family: int, local: tuple[Any, ...], remote: tuple[Any, ...]) -> int | None:
        """Whose is this machine's TCP socket from ``local`` to ``remote``."""
        if self._netlink is None:
            return None
        ends = _SOCKET.pack(local[1], remote[1], *(socket.inet_pton(family, each[0]) for each in (local, remote)))
        asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ends + _ANY_INTERFACE_AND_COOKIE
        self._netlink.send(_HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + asked)
        told = self._netlink.recv(4096)
        if _HEADER.unpack_from(told)[1] != _SOCK_DIAG_BY_FAMILY:  # an error: there is no such socket any more
            return None
        _, state, _, _, found, *_, uid, inode = _ANSWER.unpack_from(told, _HEADER.size)
        # A socket that nobody holds any more counts as root's, and where a connection is gone a listener on its port
        # is told instead: neither says who it was.
        if inode == 0 or state == _LISTENING or found[: _SOCKET.size] != ends:
            return None
        return int(uid)


def client_name(connection: Any, uid: int | None) -> str:
    """What limits are counted by: the user on this machine, else the address (IPv6: its network of 64 bits)."""
    if uid is not None:
        return f"uid {uid}"
    try:
        address = ipaddress.ip_address(str(connection.getpeername()[0]).partition("%")[0])
    except (OSError, ValueError, IndexError):
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _HOMES_BITS), strict=False))
    return str(address)


def is_operator(uid: int | None) -> bool:
    """Whether that is root, or whoever runs this server."""
    return uid in (0, os.geteuid())
