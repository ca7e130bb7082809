"""Who is at the other end of a connection: told apart though all of them come from this machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.serve.peer import Peers, client_name

CONNECT = """
import socket, sys
family, address = (socket.AF_UNIX, sys.argv[1]) if len(sys.argv) == 2 else (None, (sys.argv[1], int(sys.argv[2])))
client = socket.socket(family) if family else socket.create_connection(address)
if family:
    client.connect(address)
print("connected", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def peers() -> Iterator[Peers]:
    made = Peers()
    made.open()
    yield made
    made.close()


def listening(kind: str, tmp_path: Path) -> socket.socket:
    if kind == "unix":
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(tmp_path / "socket"))
        (tmp_path / "socket").chmod(0o666)
        made.listen()
        return made
    family, host = (socket.AF_INET, "127.0.0.1") if kind == "IPv4" else (socket.AF_INET6, "::1")
    try:
        return socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {kind}")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be another user")
@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "unix"])
def test_another_user_of_this_machine_is_known_by_the_kernel_s_word(peers: Peers, tmp_path: Path, kind: str) -> None:
    with listening(kind, tmp_path) as server:
        at = server.getsockname()
        words = [at] if kind == "unix" else [at[0], str(at[1])]
        command = [sys.executable, "-m", "tests.cli.as_someone", "65534", sys.executable, "-c", CONNECT, *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "connected\n"
            accepted, _ = server.accept()
            with accepted:
                assert peers.uid(accepted) == 65534
                assert client_name(accepted, 65534) == "uid 65534"
            client.communicate("\n")


def test_one_that_says_no_more_but_listens_is_known_and_one_that_has_gone_is_nobody(peers: Peers) -> None:
    """The kernel counts a socket that nobody holds any more as root's: that would be an operator's place."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            client.shutdown(socket.SHUT_WR)
            assert peers.uid(accepted) == os.geteuid()
            client.close()
            assert peers.uid(accepted) is None
            assert client_name(accepted, None) == "127.0.0.1"


def test_without_the_kernel_s_word_an_address_must_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            assert Peers().uid(accepted) is None


class At:
    """A connection from there."""

    def __init__(self, address: str) -> None:
        self._address = address

    def getpeername(self) -> tuple[str, int]:
        return self._address, 4242


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)
def test_another_machine_is_its_address_or_its_network_of_addresses(address: str, name: str) -> None:
    assert client_name(At(address), None) == name
