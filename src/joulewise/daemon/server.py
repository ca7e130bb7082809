"""The daemon's ears: one thread on epoll that brings lines to the service and answers to clients.

Anybody may connect, so everything is bounded: connections, a user's share of them, the length of a line, the time it
may take, requests in flight, answers that nobody reads. One line of each connection is served in a round, and no user
gets more than a share of it, so that a flood of one does not keep another waiting.

Who speaks is the kernel's to say, for every message anew: a line is believed only if its *sender* is the process that
opened the connection. A descriptor that was passed on or inherited gives nothing. When that process dies, or hangs
up, the connection is over, whoever else may still hold its other end.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import stat
import struct
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

from joulewise.core.errors import BadMessage, BadSpec, JoulewiseError, LeaseTaken, NotNow, NotPermitted
from joulewise.daemon.peer import ANCILLARY_BYTES, Peer, peer_of, sender_of
from joulewise.daemon.service import Service
from joulewise.daemon.worker import Workers
from joulewise.device import trusted, wire
from joulewise.device.locks import command_of

MOST_CONNECTIONS: Final = 1024
MOST_OF_ONE_USER: Final = 256
ROOM_FOR_ROOT: Final = 32
"""Connections that only root can have, so that an administrator gets in when users have taken all others."""
MOST_UNFINISHED_S: Final = 5.0
"""A line that has begun must have ended by then."""
MOST_UNREAD_BYTES: Final = 256 << 10
MOST_UNREAD_S: Final = 5.0
"""Answers that could not be sent must have found a reader by then."""
SEND_BUFFER_BYTES: Final = 64 << 10
"""What the kernel keeps of them: its usual 208 KiB would be 200 MiB for all connections."""
MOST_IN_FLIGHT: Final = 32
SHARE_S: Final = 0.002
"""Of the one thread's time for one user in a round, while others may wait: some tens of requests. Deaths, hang-ups and
what comes back from GPUs are served in every round, whoever floods."""
_SWEEP_S: Final = 1.0
_OTHER_DESCRIPTORS: Final = 256
"""Two for each of 64 GPUs' files, and room to spare."""
_MOST_EVENTS: Final = 4 * MOST_CONNECTIONS
"""In a round: more than there are descriptors, so that no death waits for the next."""
_HUNG_UP: Final = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP

# One buffer for all: what is in it is taken out before the next connection is read.
_BUFFER: Final = bytearray(wire.MOST_BYTES)
_VIEW: Final = (memoryview(_BUFFER),)


class Connection:
    """One client: its process, and what has come from it and is to go to it."""

    __slots__ = (
        "__weakref__",
        "changed",
        "closed",
        "ended",
        "fd",
        "interest",
        "peer",
        "pending",
        "queued",
        "received",
        "sock",
        "unfinished_s",
        "unsent",
        "unsent_s",
    )

    def __init__(self, sock: socket.socket, peer: Peer, changed: Callable[[Connection], None]) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.pending = 0
        self.received = bytearray()
        self.unsent = bytearray()
        self.unsent_s: float | None = None
        """Since when nothing of it has found a reader."""
        self.unfinished_s: float | None = None
        """Since when the last line waits for its end."""
        self.closed = False
        self.ended = False
        """To be closed as soon as what is unsent has gone."""
        self.interest = 0
        self.queued = False
        """Whether it waits for its turn to have a line served."""
        self.changed = changed
        """Called when it has unsent bytes, or when an answer may have made room for another request."""

    @property
    def uid(self) -> int:
        """Of the process that connected."""
        return self.peer.uid

    @property
    def pid(self) -> int:
        """Of that process."""
        return self.peer.pid

    @property
    def gid(self) -> int:
        """Its primary group."""
        return self.peer.gid

    @property
    def groups(self) -> frozenset[int]:
        """All its groups."""
        return self.peer.groups

    @property
    def command(self) -> str:
        """Its program."""
        return self.peer.command

    @property
    def started(self) -> int:
        """When it was started."""
        return self.peer.started

    def cgroups(self) -> tuple[str, ...]:
        """Where it is now."""
        return self.peer.cgroups()

    def send(self, line: bytes) -> None:
        """Send it now as far as that goes, the rest as soon as the client reads."""
        if self.closed or self.ended:
            return
        if not self.unsent:
            try:
                sent = self.sock.send(line)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # gone; epoll says so, too
            if sent == len(line):
                if not self.interest & select.EPOLLIN:
                    self.changed(self)
                return
            line = line[sent:]
        self.unsent += line
        self.changed(self)


class Server:
    """Serves ``listener`` until the service has stopped and nothing is left to be given back."""

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        workers: Workers,
        wall: Callable[[], float],
    ) -> None:
        """``listener`` is bound and listens. ``wall`` is the clock of patience, in seconds."""
        self._listener = listener
        self._listener_fd = listener.fileno()
        self._service = service
        self._workers = workers
        self._wall = wall
        # Two descriptors each, and as many more as everything else could need.
        room = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_DESCRIPTORS) // 2
        self._most = max(ROOM_FOR_ROOT, min(MOST_CONNECTIONS, room))
        self._epoll = select.epoll()
        self._by_socket: dict[int, Connection] = {}
        self._by_pidfd: dict[int, Connection] = {}
        self._of_user: dict[int, int] = {}
        self._spent_s: dict[int, float] = {}
        """What each user has had of this round."""
        self._ready: deque[Connection] = deque()
        """Connections with a whole line that has not been served yet."""
        self._sweep_s = 0.0
        self._extra: dict[int, Callable[[], None]] = {}
        service.connections = lambda: len(self._by_socket)
        listener.setblocking(False)
        _name_senders(listener)
        self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(workers.fd, select.EPOLLIN)

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        """Call ``act`` whenever ``fd`` can be read (signals arrive so)."""
        self._extra[fd] = act
        self._epoll.register(fd, select.EPOLLIN)

    def turn(self, most_s: float) -> None:
        """One round: wait for at most ``most_s``, then serve everybody who is there once."""
        due_s = self._service.due_in_s()
        wait_s = 0.0 if self._ready else most_s if due_s is None else min(most_s, due_s)
        # epoll counts in milliseconds and rounds down: without the half, it would spin until something is due.
        somebody_knocks = False
        self._spent_s.clear()
        for fd, events in self._epoll.poll(wait_s + 0.0005 if wait_s > 0 else 0.0, _MOST_EVENTS):
            connection = self._by_socket.get(fd)
            if connection is not None:
                self._serve(connection, events)
            elif fd in self._by_pidfd:
                died = self._by_pidfd[fd]
                self._close(died, f"its owner (pid {died.pid}) has died")
            elif fd == self._workers.fd:
                self._workers.deliver()
            elif fd == self._listener_fd:
                somebody_knocks = True
            elif fd in self._extra:
                _safely(self._extra[fd])
        if somebody_knocks:  # last, since a new one may get the number of a descriptor that was closed just now
            self._accept()
        for _ in range(len(self._ready)):
            connection = self._ready.popleft()
            if self._had_their_share(connection):
                self._ready.append(connection)
            else:
                self._serve_line(connection)
        _safely(self._service.tick)
        now_s = self._wall()
        if now_s >= self._sweep_s:
            self._sweep_s = now_s + _SWEEP_S
            self._sweep(now_s)

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in list(self._by_socket.values()):
            self._close(connection, "the daemon stops")
        self._epoll.close()

    # -- coming

    def _accept(self) -> None:
        for _ in range(64):  # then others have their turn
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors, or they have gone again: those who are here matter more
                return
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            try:
                peer = peer_of(sock)
            except NotPermitted as error:
                _refuse(sock, error)
                continue
            try:
                self._check_room(peer.uid)
            except NotNow as error:
                peer.close()
                _refuse(sock, error)
                continue
            connection = Connection(sock, peer, self._changed)
            self._by_socket[connection.fd] = connection
            self._by_pidfd[peer.pidfd] = connection
            self._of_user[peer.uid] = self._of_user.get(peer.uid, 0) + 1
            connection.interest = select.EPOLLIN | select.EPOLLRDHUP
            self._epoll.register(connection.fd, connection.interest)
            self._epoll.register(peer.pidfd, select.EPOLLIN)

    def _check_room(self, uid: int) -> None:
        most = self._most if uid == 0 else self._most - ROOM_FOR_ROOT
        if len(self._by_socket) >= most:
            raise NotNow(f"the daemon has its {most} connections; try again later", retry_s=1.0)
        if uid != 0 and self._of_user.get(uid, 0) >= MOST_OF_ONE_USER:
            raise NotNow(f"uid {uid} has its {MOST_OF_ONE_USER} connections; close some first", retry_s=1.0)

    # -- speaking

    def _serve(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(connection)
        if connection.closed:
            return
        if events & select.EPOLLIN:
            if not self._had_their_share(connection):  # else the kernel keeps it for the next round
                self._receive(connection)
        elif events & _HUNG_UP:
            self._close(connection, f"its owner (pid {connection.pid}) hung up")

    def _receive(self, connection: Connection) -> None:
        try:
            count, ancillary, _, _ = connection.sock.recvmsg_into(_VIEW, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(connection, f"its connection broke ({error.strerror})")
            return
        if count == 0:
            self._close(connection, f"its owner (pid {connection.pid}) hung up")
            return
        sender = sender_of(ancillary)
        if sender != (connection.pid, connection.uid):
            who = "somebody" if sender is None else f"pid {sender[0]} uid {sender[1]}"
            why = f"{who} wrote on the connection of pid {connection.pid} uid {connection.uid}"
            self._service.refused(connection, why)
            self._end(connection, NotPermitted(f"{why}; connect yourself"))
            return
        received = connection.received
        if not received and _BUFFER.find(b"\n", 0, count) == count - 1:
            # The usual case: exactly one line, so nothing is copied but the line itself.
            self._request(connection, bytes(_VIEW[0][:count]))
        else:
            received += _VIEW[0][:count]
            self._after_receiving(connection)
        if connection.pending >= MOST_IN_FLIGHT:
            self._update(connection)

    def _after_receiving(self, connection: Connection) -> None:
        received = connection.received
        if b"\n" in received:
            connection.unfinished_s = None
            self._queue(connection)
        elif len(received) >= wire.MOST_BYTES:
            self._end(connection, BadMessage(f"a line is longer than {wire.MOST_BYTES} bytes; send less at a time"))
        elif received and connection.unfinished_s is None:
            connection.unfinished_s = self._wall()
        self._update(connection)

    def _serve_line(self, connection: Connection) -> None:
        """Serve the next whole line of a connection, if it may be served now."""
        connection.queued = False
        if connection.closed or connection.ended or connection.pending >= MOST_IN_FLIGHT:
            return  # the next answer brings it back
        received = connection.received
        end = received.find(b"\n") + 1
        if not end:
            return
        line = bytes(received[:end])
        del received[:end]
        self._request(connection, line)
        self._after_receiving(connection)

    def _request(self, connection: Connection, line: bytes) -> None:
        begun_s = perf_counter()
        self._service.request(connection, line)
        uid = connection.peer.uid
        self._spent_s[uid] = self._spent_s.get(uid, 0.0) + perf_counter() - begun_s

    def _had_their_share(self, connection: Connection) -> bool:
        return self._spent_s.get(connection.peer.uid, 0.0) > SHARE_S

    def _update(self, connection: Connection) -> None:
        """Listen to a connection only while it may say more; write to it while something waits."""
        if connection.closed:
            return
        full = connection.pending >= MOST_IN_FLIGHT or b"\n" in connection.received or connection.ended
        interest = select.EPOLLRDHUP | (0 if full else select.EPOLLIN) | (select.EPOLLOUT if connection.unsent else 0)
        if interest != connection.interest:
            connection.interest = interest
            self._epoll.modify(connection.fd, interest)

    def _queue(self, connection: Connection) -> None:
        if not connection.queued:
            connection.queued = True
            self._ready.append(connection)

    def _changed(self, connection: Connection) -> None:
        """Something could not be sent at once, or was answered."""
        if connection.pending < MOST_IN_FLIGHT and b"\n" in connection.received:
            self._queue(connection)
        if connection.unsent and connection.unsent_s is None:
            connection.unsent_s = self._wall()
        if len(connection.unsent) > MOST_UNREAD_BYTES:
            # Not now: whoever is sending may be in the midst of something that concerns this client's lease.
            connection.ended = True
            connection.unsent.clear()
        self._update(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection, f"its owner (pid {connection.pid}) hung up")
            return
        del connection.unsent[:sent]
        connection.unsent_s = self._wall() if connection.unsent else None
        self._update(connection)

    # -- going

    def _end(self, connection: Connection, error: JoulewiseError) -> None:
        """Say why, and hang up."""
        connection.send(wire.error_line(None, error))
        self._close(connection, f"its connection was closed: {error}")

    def _close(self, connection: Connection, why: str) -> None:
        if connection.closed:
            return
        connection.closed = True
        with suppress(OSError):
            self._epoll.unregister(connection.fd)
        with suppress(OSError):
            self._epoll.unregister(connection.peer.pidfd)
        del self._by_socket[connection.fd]
        del self._by_pidfd[connection.peer.pidfd]
        self._of_user[connection.uid] -= 1
        if not self._of_user[connection.uid]:
            del self._of_user[connection.uid]
        connection.sock.close()
        connection.received.clear()
        connection.unsent.clear()
        _safely(lambda: self._service.gone(connection, why))
        connection.peer.close()

    def _sweep(self, now_s: float) -> None:
        """Hang up on those who take too long."""
        for connection in list(self._by_socket.values()):
            begun_s, unread_s = connection.unfinished_s, connection.unsent_s
            if connection.ended or (unread_s is not None and now_s - unread_s > MOST_UNREAD_S):
                self._close(connection, f"its owner (pid {connection.pid}) does not read its answers")
            elif begun_s is not None and now_s - begun_s > MOST_UNFINISHED_S:
                self._end(connection, BadMessage(f"a line was begun and not ended for {MOST_UNFINISHED_S:g} s"))


def _safely(act: Callable[[], None]) -> None:
    """A fault of ours in one thing shall not take the leases of all with it."""
    try:
        act()
    except Exception:
        traceback.print_exc()


def _refuse(sock: socket.socket, error: JoulewiseError) -> None:
    with suppress(OSError):
        sock.send(wire.error_line(None, error))
    sock.close()


def _name_senders(listener: socket.socket) -> None:
    """Let every message of its connections carry its sender. Before it listens: connections inherit this, on Linux 6.16
    and newer at connect(), which may be long before accept(); what comes before accept() then has it, too."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def check_dead(path: Path) -> None:
    """LeaseTaken, naming who listens, if somebody does at ``path``: a daemon from before there was a lock, say."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as knock:
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                knock.connect(f"/proc/self/fd/{folder}/{path.name}")  # a path may have no more than 107 bytes
            finally:
                os.close(folder)
            pid = struct.unpack("3i", knock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            who = f"pid {pid} ({command_of(pid)})"
        except BlockingIOError:  # its queue is full: it lives
            who = "another process"
        except OSError:
            return
    raise LeaseTaken(f"the socket {path} is in the hands of {who}; stop that first")


def listen(path: Path, mode: int) -> socket.socket:
    """A socket that listens at ``path`` with the permissions ``mode``; whatever socket was there is replaced.

    The caller has made sure that it is not that of a live daemon. OSError if that cannot be done, BadSpec if there is
    something else than a socket, or somebody else could put another socket in its place.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    _name_senders(listener)
    old = os.umask(0o777 & ~mode)
    try:
        folder = trusted.open_folder(path.parent)
        try:
            with suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(path.name, dir_fd=folder).st_mode):
                    raise BadSpec(f"{path} is there and is no socket; remove it, or name another place with --socket")
                os.unlink(path.name, dir_fd=folder)
            # Through /proc, because a socket's own path may have no more than 107 bytes.
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        listener.listen(MOST_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener
