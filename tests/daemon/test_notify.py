"""What the service manager is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.daemon.notify import Notify
from joulewise.device.node import spawn
from tests.daemon.running import running_daemon


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        path = str(tmp_path / "notify")
        sock.bind(path)
        sock.settimeout(20)
        yield sock, path


def test_without_a_manager_nothing_is_said_and_nothing_fails(tmp_path: Path):
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "nobody")}, {"NOTIFY_SOCKET": "@nobody-here"}):
        notify = Notify(environ)
        notify.ready()
        notify.alive()
        notify.stopping()
        assert notify.watchdog_s is None


def test_the_manager_hears_how_it_goes(manager: tuple[socket.socket, str]):
    sock, path = manager
    notify = Notify({"NOTIFY_SOCKET": path})
    notify.ready()
    assert sock.recv(100) == f"READY=1\nMAINPID={os.getpid()}".encode()


def test_an_abstract_socket_is_found():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"joulewise-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(5)
        Notify({"NOTIFY_SOCKET": f"@{name}"}).alive()
        assert sock.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_it_says_that_it_lives_twice_in_the_managers_patience(environ: dict[str, str], expected: float | None):
    assert Notify({"NOTIFY_SOCKET": "/run/nobody", **environ}).watchdog_s == expected


def test_a_daemon_tells_its_manager_that_it_is_ready_lives_and_stops(
    manager: tuple[socket.socket, str], tmp_path: Path
):
    sock, path = manager
    environ = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
    with spawn("sim:h200") as node, running_daemon(node, tmp_path / "daemon", environ=environ) as daemon:
        assert sock.recv(100) == f"READY=1\nMAINPID={daemon.pid}".encode()
        for _ in range(5):
            assert sock.recv(100) == b"WATCHDOG=1"
        assert daemon.stop() == 0
        said = b""
        while said != b"STOPPING=1":
            said = sock.recv(100)
