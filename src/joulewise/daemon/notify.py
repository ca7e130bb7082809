"""Telling systemd how we are: ready, alive, stopping. Does nothing where nobody listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notify:
    """The service manager's end of things, from ``NOTIFY_SOCKET`` and ``WATCHDOG_USEC``."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for Linux's abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 1e6 / 2 if usec.isdigit() and int(usec) and mine and address else None
        """How often to say ``alive``: twice in the manager's patience. None if it does not ask for it."""

    def ready(self) -> None:
        """Leases can be taken."""
        self._say(f"READY=1\nMAINPID={os.getpid()}")

    def alive(self) -> None:
        """The loop goes round."""
        self._say("WATCHDOG=1")

    def stopping(self) -> None:
        """We are about to end."""
        self._say("STOPPING=1")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        # A manager that does not listen is no reason to stop working; sent from a socket that lives only now, so
        # that a manager that was restarted hears us again.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.sendto(text.encode(), self._address)
