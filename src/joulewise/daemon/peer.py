"""Who is at the other end of a connection, as the kernel says: never as they say.

The credentials are those of the moment of connect(). A pidfd holds on to that very process, so that a pid that is
used again later means nothing to us. What ``/proc`` tells of a pid is believed only if the pidfd shows afterwards
that the process still lives: then the pid was its own all the while. This module decides nothing.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from joulewise.core.errors import NotPermitted

# <asm-generic/socket.h>; Python names none of them.
_SO_PEERGROUPS: Final = 59
_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_MOST_GROUPS: Final = 65536  # NGROUPS_MAX

ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for one sender's credentials and nothing else: descriptors that somebody sends along do not fit, and the
kernel then drops them."""


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """The process that opened a connection. ``close`` it when the connection goes."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]
    """All its groups at connect(), the primary one too."""
    pidfd: int
    """Readable once the process is dead."""
    command: str
    started: int
    """Clock ticks since boot."""

    def alive(self) -> bool:
        """Whether the process still runs."""
        poll = select.poll()  # and not select(), which knows no descriptor beyond 1023
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def cgroups(self) -> tuple[str, ...]:
        """The cgroups in which it is now; none if it is dead."""
        lines = _text(self.pid, "cgroup").splitlines()
        found = tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if line.count(":") >= 2))
        return found if self.alive() else ()

    def close(self) -> None:
        """Let go of the process."""
        with suppress(OSError):
            os.close(self.pidfd)


def peer_of(connection: socket.socket) -> Peer:
    """Whoever opened ``connection``. NotPermitted if that cannot be told for sure, or they are dead already."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid <= 0:
        raise NotPermitted("your process is not visible from the daemon's pid namespace; run the daemon on the host")
    pidfd = _pidfd(connection, pid, uid)
    peer = Peer(pid, uid, gid, _groups(connection) | {gid}, pidfd, _command(pid), _started(pid))
    if not peer.alive():
        peer.close()
        raise NotPermitted(f"process {pid} that connected is dead; connect from one that lives")
    return peer


def sender_of(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int] | None:
    """(pid, uid) of who sent what was just received; None if the kernel did not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(data)
            return pid, uid
    return None


def real_uid(pid: int) -> int | None:
    """The real uid of a process; None if it is gone."""
    for line in _text(pid, "status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return None


def _pidfd(connection: socket.socket, pid: int, uid: int) -> int:
    """A descriptor of the process that connected."""
    try:
        # Linux 6.5 and newer: the kernel kept hold of the process at connect(), so nothing can have come between.
        return struct.unpack("=i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4))[0]  # type: ignore[no-any-return]
    except OSError:
        pass  # ENOPROTOOPT: an older kernel; EINVAL or ESRCH: dead, which opening it by number will find, too
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        raise NotPermitted(f"process {pid} that connected is dead; connect from one that lives") from None
    # Its pid may have passed to another process since. One of the same user gains nothing by that.
    if real_uid(pid) != uid:
        os.close(pidfd)
        raise NotPermitted(f"process {pid} no longer belongs to uid {uid}; connect without changing users")
    return pidfd


def _groups(connection: socket.socket) -> frozenset[int]:
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * 256)
    except OSError:
        try:
            data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
        except OSError:
            return frozenset()
    return frozenset(struct.unpack(f"={len(data) // 4}I", data))


def _command(pid: int) -> str:
    """Its name for people to read: without what a terminal would act on."""
    return "".join(letter for letter in _text(pid, "comm").strip() if letter.isprintable())[:64]


def _started(pid: int) -> int:
    # Field 22 of stat; the second is the command in parentheses, which may hold anything.
    fields = _text(pid, "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
