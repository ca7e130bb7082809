"""Who is at the other end, as the kernel says, across processes and users."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.core.errors import NotPermitted
from joulewise.daemon.peer import ANCILLARY_BYTES, Peer, peer_of, real_uid, sender_of

CLIENT = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.send(b"hello")
sys.stdout.write("connected\\n"); sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    path = str(tmp_path / "sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        yield sock, path


@pytest.fixture
def client(listener: tuple[socket.socket, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, listener[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "connected\n"
    yield process
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def accepted(listener: tuple[socket.socket, str]) -> tuple[socket.socket, Peer]:
    sock, _ = listener[0].accept()
    return sock, peer_of(sock)


def test_a_peer_is_the_process_that_connected(listener: tuple[socket.socket, str], client: subprocess.Popen[str]):
    sock, peer = accepted(listener)
    assert (peer.pid, peer.uid, peer.gid) == (client.pid, os.getuid(), os.getgid())
    assert peer.groups == {os.getgid(), *os.getgroups()}
    assert peer.command.startswith("python")
    assert peer.started > 0
    assert peer.alive()
    assert all(path.startswith("/") for path in peer.cgroups())
    assert peer.cgroups() != ()
    sock.close()
    peer.close()


def test_its_death_makes_the_pidfd_readable_though_the_connection_lives_on(
    listener: tuple[socket.socket, str], client: subprocess.Popen[str]
):
    sock, peer = accepted(listener)
    client.kill()
    client.wait(20)
    assert select.select([peer.pidfd], [], [], 10)[0]
    assert not peer.alive()
    assert peer.cgroups() == ()
    sock.close()
    peer.close()


def test_who_is_dead_before_they_are_looked_at_is_nobody(
    listener: tuple[socket.socket, str], client: subprocess.Popen[str]
):
    client.kill()
    client.wait(20)
    sock, _ = listener[0].accept()
    with pytest.raises(NotPermitted, match=str(client.pid)):
        peer_of(sock)
    sock.close()


def test_what_was_sent_before_accept_carries_its_sender_too(
    listener: tuple[socket.socket, str], client: subprocess.Popen[str]
):
    sock, peer = accepted(listener)
    data, ancillary, _, _ = sock.recvmsg(100, ANCILLARY_BYTES)
    assert data == b"hello"
    assert sender_of(ancillary) == (client.pid, os.getuid())
    sock.close()
    peer.close()


def test_a_message_of_a_child_on_an_inherited_connection_carries_the_child(listener: tuple[socket.socket, str]):
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(listener[1])
    sock, peer = accepted(listener)
    assert peer.pid == os.getpid()
    child = os.fork()
    if child == 0:
        ours.send(b"child")
        os._exit(0)
    os.waitpid(child, 0)
    assert sender_of(sock.recvmsg(100, ANCILLARY_BYTES)[1]) == (child, os.getuid())
    ours.send(b"parent")
    assert sender_of(sock.recvmsg(100, ANCILLARY_BYTES)[1]) == (os.getpid(), os.getuid())
    for each in (ours, sock):
        each.close()
    peer.close()


def test_descriptors_that_are_sent_along_do_not_arrive(listener: tuple[socket.socket, str]):
    ours = socket.socket(socket.AF_UNIX)
    ours.connect(listener[1])
    sock, peer = accepted(listener)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        socket.send_fds(ours, [b"take these"], [0, 1, 2])
        data, ancillary, flags, _ = sock.recvmsg(100, ANCILLARY_BYTES)
        assert data == b"take these"
        assert sender_of(ancillary) == (os.getpid(), os.getuid())
        assert flags & socket.MSG_CTRUNC
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    for each in (ours, sock):
        each.close()
    peer.close()


def test_without_credentials_nobody_has_sent_it():
    assert sender_of([]) is None
    assert sender_of([(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 1, 2, 3))]) is None
    assert sender_of([(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, b"short")]) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_process_belongs_to_its_real_user():
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=12345)
    assert process.stdin is not None
    assert real_uid(process.pid) == 12345
    process.stdin.close()
    process.wait(20)
    assert real_uid(process.pid) is None
