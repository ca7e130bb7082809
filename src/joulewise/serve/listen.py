"""A socket to serve on, and the process that serves: uvicorn with our habits.

The socket is bound before anything is said, so that whoever reads our address can connect to it, and an address that
is taken is one clear line.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import importlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.serve.connection_limits import ACCEPTED_AT_ONCE, STALLED_S, Limited, LogSeldom, Places, most_connections
from joulewise.serve.local_paths import folder_of, listens
from joulewise.serve.peer import PeerCredentials

_GRACE_S = 10
"""What is being answered when we are told to end may be answered for this long; an ask takes milliseconds."""
_SOON_S = 2
"""The same for ``serving``: an agent that waits for news gets none any more."""
_PATIENCE_S = 0.5
"""The same for one that takes nothing while we end."""
_QUEUE = 2048
"""Connections that the kernel holds until we accept them; they cost us no descriptor."""
_LATE = ("anyio._backends._asyncio", "concurrent.futures.thread", "pydantic._internal._dataclasses")
"""What the packages below us would otherwise import with the first request, when there may be no descriptor for it."""
_SELDOM = LogSeldom()


def bound(host: str, port: int, *, stalled_s: float = STALLED_S) -> socket.socket:
    """A socket that listens there (port 0: any that is free). BadSpec, with the way out, if that cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )[0]
        made = socket.create_server(address[:2], family=family, backlog=_QUEUE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; those that are accepted inherit it
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * stalled_s))
        return made
    except socket.gaierror as error:
        raise BadSpec(f"--host {host!r} is no address of this machine: {error.strerror}") from error
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise BadSpec(
            f"{host}:{port}: {why}; {'choose another --port' if taken else 'see --host and --port'}"
        ) from error


@contextmanager
def bound_at(path: Path, mode: int, *, makes_folder: bool = False) -> Iterator[socket.socket]:
    """A Unix socket that listens at ``path`` while the context lasts, with these permissions.

    ``makes_folder``: if it is not there. BadSpec where another process listens there, or where it cannot be made: one
    that a dead process left is replaced, a living one never. The lock beside it is the kernel's to release, so of two
    that start at once one is refused.
    """
    try:
        if makes_folder:
            # Root's is for everybody to enter, as the daemon's unit makes it; anybody else's is theirs.
            path.parent.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BadSpec(_no_socket(path, error)) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadSpec(_taken(path)) from error
        made = _made_at(path, mode)
        ours = os.lstat(path).st_ino
        try:
            with made:
                yield made
        finally:
            with suppress(OSError):
                if os.lstat(path).st_ino == ours:
                    path.unlink()
    finally:
        os.close(lock)


def _made_at(path: Path, mode: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise BadSpec(f"--socket {path} is there already and no socket; name another")
            if listens(path):
                raise BadSpec(_taken(path))
            path.unlink()
        os.fchmod(made.fileno(), 0o600)  # from the first moment on, whatever the umask
        with folder_of(path) as there:
            made.bind(there)
        path.chmod(mode)
        made.listen(512)
    except OSError as error:
        made.close()
        raise BadSpec(_no_socket(path, error)) from error
    except BaseException:
        made.close()
        raise
    return made


def _taken(path: Path) -> str:
    return f"{path}: another process listens there; stop it, or name another --socket"


def _no_socket(path: Path, error: OSError) -> str:
    return f"--socket {path}: {(error.strerror or str(error)).lower()}; name one in a folder of yours"


def url_of(listening: socket.socket) -> str:
    """The address to connect to, as a URL; of a socket over TCP."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: Any, *listening: socket.socket) -> None:
    """Serve ``app`` until SIGTERM, which ends in SystemExit, so that contexts around it end; or SIGINT."""
    # uvicorn catches it, ends in order, and raises it again: by then it must not kill us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _server(app, _GRACE_S).run(sockets=list(listening))


@contextmanager
def serving(app: Any, *listening: socket.socket) -> Iterator[None]:
    """Serve ``app`` in a thread while the context lasts; signals stay its user's."""
    server = _server(app, _SOON_S)
    thread = threading.Thread(target=server.run, kwargs={"sockets": list(listening)}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_SOON_S + 1.0)


def _server(app: Any, grace_s: int) -> Any:
    try:
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError as error:
        raise missing(error) from error
    for name in _LATE:
        with suppress(ImportError):  # another version has it elsewhere
            importlib.import_module(name)
    held = Places(most_connections())

    class Protocol(Limited, PeerCredentials, H11Protocol):
        places = held

    class Server(uvicorn.Server):
        """Streams that would never end are ended first, and those who take nothing are cut off: either would hold us
        up until the grace is over."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            held.open()
            asyncio.get_running_loop().set_exception_handler(held.loop_failed)
            await super().startup(sockets)
            for listening in sockets or []:
                listening.listen(_QUEUE)  # asyncio has made the queue as short as what it accepts at once

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            end_streams = getattr(getattr(app, "state", None), "closing", None)
            if end_streams is not None:
                end_streams()
            cutting = asyncio.create_task(_cut_off_stalled(self.server_state.connections))
            try:
                await super().shutdown(sockets)
            finally:
                cutting.cancel()
                held.close()

    config = uvicorn.Config(
        app,
        # Named, not what happens to be installed: other protocols and loops keep their connections otherwise.
        http=Protocol,
        ws="none",
        loop="asyncio",
        backlog=ACCEPTED_AT_ONCE,
        log_level="warning",
        access_log=False,
        # uvicorn believes X-Forwarded-For from this machine: any user here could call themselves by any address.
        proxy_headers=False,
        lifespan="auto",
        timeout_graceful_shutdown=grace_s,
    )
    for name in ("uvicorn.error", "joulewise.serve"):
        logging.getLogger(name).addFilter(_SELDOM)
    return Server(config)


async def _cut_off_stalled(connections: Iterable[Any]) -> None:
    """Until it is ended: break off each of uvicorn's connections whose client does not take what waits for it."""
    waiting: dict[asyncio.Transport, int] = {}
    while True:
        now = {each.transport: each.transport.get_write_buffer_size() for each in list(connections)}
        for transport, size in now.items():
            if 0 < size == waiting.get(transport):
                transport.abort()
        waiting = now
        await asyncio.sleep(_PATIENCE_S)


def missing(error: ImportError, command: str = "joulewise serve") -> MissingPart:
    """What to say when the server's packages are not installed."""
    return MissingPart(f"'{command}' needs {error.name}; pip install 'joulewise[server]'")
