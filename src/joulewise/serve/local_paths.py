"""Where a server and its clients on one machine meet without being told: Unix sockets.

Files of one user lie in a folder that only they can change: ``$JOULEWISE_HOME``, else ``$XDG_RUNTIME_DIR/joulewise``,
else beside the default database. Root's cluster, which all users may ask, is in ``/run/joulewise``, where the daemon's
socket is. On the standard library alone, since clients read this too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from joulewise.core.errors import JoulewiseError
from joulewise.store.database import HOME_VARIABLE, default_path

SYSTEM: Final = Path("/run/joulewise")
"""Root's, as the daemon's unit makes it: everybody may enter, nobody else may write."""
_SOCKET: Final = "cluster.sock"


def own_folder() -> Path:
    """This user's folder for what meets here. NotKept for a user without a home."""
    if os.environ.get(HOME_VARIABLE):
        return default_path().parent
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):
        # One that sudo has left to us is somebody else's.
        if runtime.startswith("/") and Path(runtime).stat().st_uid == os.geteuid():
            return Path(runtime) / "joulewise"
    return default_path().parent


def cluster_socket() -> Path:
    """Where ``cluster up`` listens unless it is told otherwise."""
    system = os.geteuid() == 0 and not os.environ.get(HOME_VARIABLE)
    return (SYSTEM if system else own_folder()) / _SOCKET


def reached_cluster_socket() -> Path:
    """Where the clients of ``cluster up`` look: this user's own scheduler if one listens, else the machine's."""
    own = cluster_socket()
    system = SYSTEM / _SOCKET
    return own if own == system or listens(own) or not system.exists() else system


def listens(path: Path) -> bool:
    """Whether somebody accepts connections on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            connect(probe, path)
        except OSError:
            return False
        return True


def connect(connection: socket.socket, path: Path) -> None:
    """Connect to a Unix socket, however long its path is. OSError as ``connect``."""
    with folder_of(path) as there:
        connection.connect(there)


@contextmanager
def folder_of(path: Path) -> Iterator[str]:
    """A name for ``path`` that fits into the 108 bytes of an address, while the context lasts. OSError where its folder
    cannot be opened."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def own_server(port: int) -> Path:
    """Where this user's own server at ``port`` of this machine listens for its user's own clients: there the kernel
    says who they are, so that no secret lies in a file, or is sent to whoever listens on that port elsewhere. NotKept
    for a user without a home."""
    return own_folder() / f"serve-{port}.sock"


def reached_own_server(port: int) -> Path | None:
    """That socket, where this user's own server listens there; None where none does."""
    with suppress(OSError, JoulewiseError):
        path = own_server(port)
        if path.lstat().st_uid == os.geteuid() and listens(path):
            return path
    return None
