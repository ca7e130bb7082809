"""A server on real sockets: clients that stop reading, that come and go, and that write what no browser would."""

import asyncio
import gc
import socket
import struct
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulewise.serve import listen
from joulewise.serve.face_events import EventStream
from joulewise.serve.face_hub import Hub, Message
from tests.serve.face_toys import until
from tests.serve.serving import Serving

ASKING = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
STALLED_S = 3.0
CLIENTS = 200


def descriptors(pid: int | str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def connected(address: Any, asking: bytes = ASKING, *, buffer_bytes: int | None = None) -> socket.socket:
    """A client that has asked."""
    client = socket.socket()
    if buffer_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    client.settimeout(30.0)
    client.connect(address)
    client.sendall(asking)
    return client


def read_until(client: socket.socket, there: bytes) -> bytes:
    got = b""
    while there not in got:
        part = client.recv(65536)
        assert part, got
        got += part
    return got


class Flood:
    """100 kB, a hundred times a second."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> list[Message]:
        self.looks += 1
        return [Message("gpus", {"look": self.looks, "x": "y" * 100_000}, replaces=True)]


class Streaming:
    """Events alone, on a hub that the test can see."""

    def __init__(self, flood: Flood) -> None:
        self.hub = Hub(flood.look, period_s=0.01)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.state = SimpleNamespace(closing=self.hub.close)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await EventStream(self.hub, stalled_s=STALLED_S)(scope, receive, send)

    def tasks(self) -> int:
        return 0 if self.loop is None else len(asyncio.all_tasks(self.loop))


class Reader:
    """Reads all that comes, on a thread."""

    def __init__(self, client: socket.socket) -> None:
        self.bytes = 0
        self._client = client
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._client.shutdown(socket.SHUT_RDWR)
        self._thread.join(30.0)
        self._client.close()

    def _run(self) -> None:
        while part := self._client.recv(1 << 20):
            self.bytes += len(part)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux cuts off who does not read")
def test_clients_that_stop_reading_cost_little_and_are_cut_off_though_they_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flood = Flood()
    app = Streaming(flood)
    with ExitStack() as stack:
        listening = stack.enter_context(listen.bound("127.0.0.1", 0, stalled_s=STALLED_S))
        stack.enter_context(listen.serving(app, listening))
        address = listening.getsockname()
        with connected(address) as first:
            read_until(first, b"retry: ")
        until(lambda: len(app.hub) == 0 and not app.hub.looking)
        before, tasks = descriptors("self"), app.tasks()
        reader = Reader(connected(address))
        gc.collect()
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        stalled = [stack.enter_context(connected(address, buffer_bytes=2048)) for _ in range(20)]
        most: list[int] = []

        def let_go() -> bool:
            most.append(tracemalloc.get_traced_memory()[0])
            return len(app.hub) == 1

        until(lambda: len(app.hub) == 21)
        seen = flood.looks
        until(let_go, timeout_s=60.0)
        assert flood.looks > seen + 20
        # Unbounded, each of them would hold 100 kB of every look. What may wait is what the network's own buffers leave
        # of a message or two.
        assert max(most) < len(stalled) * 500_000
        # All of them are still connected as far as they know. The server has let go of them, and who reads is served.
        until(lambda: descriptors("self") <= before + 2 + len(stalled))
        got = reader.bytes
        until(lambda: reader.bytes > got + 1_000_000)
        reader.leave()
        until(lambda: len(app.hub) == 0 and app.tasks() <= tasks)
    assert "without completing response" not in caplog.text


def test_a_server_that_is_told_to_end_does_not_wait_for_who_takes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_SOON_S", 60)  # it would wait so long, and say so
    others = set(threading.enumerate())
    flood = Flood()
    app = Streaming(flood)
    with ExitStack() as clients, listen.bound("127.0.0.1", 0) as listening:
        with listen.serving(app, listening):
            for _ in range(3):
                clients.enter_context(connected(listening.getsockname(), buffer_bytes=2048))
            until(lambda: len(app.hub) == 3)
            seen = flood.looks
            until(lambda: flood.looks > seen + 20)  # a hundred times what the network's own buffers take
            assert len(app.hub) == 3
        assert len(app.hub) == 0
        assert "http" not in {thread.name for thread in set(threading.enumerate()) - others}
    assert "Cancel" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("sockets")
    made = Serving(str(home / "jobs.db"), home, "--no-gpu")
    yield made
    said = made.end()
    assert "Traceback" not in said
    assert "ERROR" not in said


def at(server: Serving) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def come_and_go(server: Serving) -> None:
    """All at once; a third says good-bye, a third breaks off, and a third leaves while its answer is on its way."""
    clients = [connected(at(server)) for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        if number % 3:
            read_until(client, b"retry: ")
        if number % 3 == 1:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def test_two_hundred_clients_that_come_and_go_leave_nothing_behind(server: Serving) -> None:
    pid = server.process.pid
    come_and_go(server)  # what is loaded and grown once is grown by now
    until(lambda: descriptors(pid) < CLIENTS / 2, timeout_s=60.0)
    before, first_kib, many = descriptors(pid), resident_kib(pid), threads(pid)
    for _ in range(4):
        come_and_go(server)
    until(lambda: descriptors(pid) <= before, timeout_s=60.0)
    assert threads(pid) <= many + 1
    # A listener that were left behind would hold its tasks, its request and what waits for it: some 30 KiB.
    assert resident_kib(pid) - first_kib < 4 * CLIENTS * 10


RAW = [
    b"GET /ui/../app.py HTTP/1.1",
    b"GET /ui/../../../../../../etc/passwd HTTP/1.1",
    b"GET /ui/..%2f..%2f..%2f..%2fetc/passwd HTTP/1.1",
    b"GET /ui/%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
    b"GET /ui/..\\..\\etc\\passwd HTTP/1.1",
    b"GET //etc/passwd HTTP/1.1",
    b"GET ///ui/index.html HTTP/1.1",
    b"GET /ui/\x00 HTTP/1.1",
    b"GET /ui/index.html\x00 HTTP/1.1",
    b"GET /ui/\xff\xfe HTTP/1.1",
    b"GET http://localhost/ui/../app.py HTTP/1.1",
    b"GET http://evil.example/etc/passwd HTTP/1.1",
    b"GET file:///etc/passwd HTTP/1.1",
    b"GET /api/runs/..%2f..%2fetc%2fpasswd HTTP/1.1",
    b"GET /api/runs/../../etc/passwd HTTP/1.1",
    b"GET /api/runs/%00 HTTP/1.1",
    b"GET /api/plans/..%252f..%252fetc%252fpasswd HTTP/1.1",
    b"GET /api/plans/" + b"a" * 5000 + b" HTTP/1.1",
    b"GET /ui/" + b"a" * 200_000 + b" HTTP/1.1",
    b"GET * HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT localhost:22 HTTP/1.1",
    b"TRACE / HTTP/1.1",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM",
]


@pytest.mark.parametrize("line", RAW, ids=lambda line: repr(line[:40]))
def test_no_line_that_can_be_sent_gets_at_a_file(server: Serving, line: bytes) -> None:
    with connected(at(server), line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n") as client:
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:  # what is far too long need not be read to its end
            pass
    status = answer.split(b" ", 2)[1] if answer else b"400"
    assert status in (b"400", b"404", b"405", b"413", b"414", b"422", b"431"), answer[:300]
    assert b"root:" not in answer
    assert b"import " not in answer
    assert server.process.poll() is None
