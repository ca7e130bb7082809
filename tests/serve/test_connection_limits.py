"""Limits of connections: how long one may be half open, and who loses a place to whom."""

import asyncio
import errno
import logging
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.serve import connection_limits, listen
from joulewise.serve.connection_limits import (
    HALF_OPEN_SHARE,
    OPERATOR_PLACES,
    OTHER_DESCRIPTORS,
    YOUNG_S,
    Client,
    LogSeldom,
    Places,
    most_connections,
)

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


class Connection:
    """What a place is given to."""

    def __init__(self, places: Places, client: Client) -> None:
        self.places, self.client, self.there = places, client, True

    def cut_off(self) -> None:
        self.there = False
        self.places.leave(self, self.client)  # type: ignore[arg-type]


class Crowd:
    """Connections of several users to one server whose clock stands still."""

    def __init__(self, most: int) -> None:
        self.now_s = 0.0
        self.places = Places(most, now=lambda: self.now_s)
        self._clients: dict[str, Client] = {}

    def comes(self, name: str, count: int = 1, *, asks: bool = False) -> list[Connection]:
        """So many connections of a user; ``asks``: each with a whole request."""
        made = []
        for _ in range(count):
            client = self.places._clients.setdefault(name, Client(name, name == "operator"))
            made.append(Connection(self.places, client))
            self.places.enter(made[-1], client)  # type: ignore[arg-type]
            if asks:
                self.places.moved(made[-1], client, half_open=False)  # type: ignore[arg-type]
        return made


def there(connections: list[Connection]) -> int:
    return sum(each.there for each in connections)


def test_what_one_client_holds_half_open_beyond_its_share_goes_the_oldest_first():
    crowd = Crowd(4096)
    share = round(HALF_OPEN_SHARE * 4096)
    first = crowd.comes("mallory", 2 * share)
    others = crowd.comes("alice", 10)
    assert there(first) == len(first)  # a crowd that comes back at once has them for a moment
    crowd.now_s = YOUNG_S
    more = crowd.comes("mallory", 5)
    assert (there(first), there(more)) == (share - 5, 5)
    assert not any(each.there for each in first[: share + 5])
    assert there(others) == 10


def test_a_thousand_agents_behind_one_address_that_wait_for_an_answer_are_left_alone():
    crowd = Crowd(4096)
    agents = []
    for _ in range(1000):
        agents += crowd.comes("10.0.0.7", asks=True)
        crowd.now_s += YOUNG_S
    assert there(agents) == 1000
    half = crowd.comes("10.0.0.7", round(HALF_OPEN_SHARE * 4096))
    assert there(agents + half) == 1000 + len(half)


def test_where_all_places_are_taken_a_newcomer_gets_one_of_whoever_holds_most():
    crowd = Crowd(400)
    asking = crowd.comes("mallory", 250, asks=True)
    half = crowd.comes("mallory", 400 - OPERATOR_PLACES - 250 - 20)
    bob = crowd.comes("bob", 20, asks=True)
    alice = crowd.comes("alice", 30)
    assert (there(alice), there(bob), there(asking), there(half)) == (30, 20, 250, len(half) - 30)
    assert not any(each.there for each in half[:30])
    alice += crowd.comes("alice", len(half) - 30)
    assert (there(asking), there(half)) == (250, 0)
    # Of one that has none half open any more, what is being answered goes.
    carol = crowd.comes("carol", 10, asks=True)
    assert (there(carol), there(asking), there(alice), there(bob)) == (10, 240, len(alice), 20)


def test_the_operator_has_places_that_others_cannot_take_and_loses_none_to_them():
    crowd = Crowd(400)
    others = crowd.comes("mallory", 400)
    assert there(others) == 400 - OPERATOR_PLACES
    operator = crowd.comes("operator", OPERATOR_PLACES)
    assert there(others) == 400 - OPERATOR_PLACES
    operator += crowd.comes("operator", 50)
    assert there(operator) == OPERATOR_PLACES + 50
    assert there(others) == 400 - OPERATOR_PLACES - 50
    others += crowd.comes("mallory", 400)
    assert there(operator) == OPERATOR_PLACES + 50
    # Nor may whatever it has forgotten to close shut the others out for good.
    crowd.comes("operator", 400)
    assert there(others) > 0


def test_places_that_were_left_are_free_again():
    crowd = Crowd(100)
    for _ in range(10):
        for each in crowd.comes("alice", 30) + crowd.comes("bob", 30, asks=True):
            assert each.there
            each.cut_off()
            each.cut_off()
    assert there(crowd.comes("alice", 70)) == 70


def test_where_none_can_be_accepted_room_is_made_and_it_is_said_once(caplog):
    crowd = Crowd(400)
    others, operator = crowd.comes("mallory", 300), crowd.comes("operator", 20)
    loop = asyncio.new_event_loop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            crowd.places.loop_failed(loop, context)
        assert (there(others), there(operator)) == (200, 20)
        assert len(caplog.records) == 1
        crowd.now_s += 60.0
        crowd.places.loop_failed(loop, context)
        assert len(caplog.records) == 2
        crowd.places.loop_failed(loop, {"message": "something else"})
    loop.close()
    assert "something else" in caplog.text


def test_what_anybody_can_make_a_logger_write_is_written_once_a_minute_and_faults_always():
    seldom = LogSeldom()
    record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, "Invalid HTTP request received.", (), None)
    assert [seldom.filter(record) for _ in range(100)] == [True] + 99 * [False]
    record.exc_info = (ValueError, ValueError("x"), None)
    assert seldom.filter(record)


LIMITED = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from joulewise.serve.connection_limits import most_connections
print(most_connections(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [
        (1024, 20_000, 8192),
        (1024, 1024, 1024 - OTHER_DESCRIPTORS),
        (1024, 4096, 4096 - OTHER_DESCRIPTORS),
        (64, 64, 32),
    ],
)
def test_descriptors_are_raised_as_far_as_they_may_be_and_connections_leave_some(soft, hard, most):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this machine allows fewer")
    told = subprocess.run(
        [sys.executable, "-c", LIMITED, str(soft), str(hard)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [str(most), str(min(hard, 8192 + OTHER_DESCRIPTORS)), str(hard)]
    assert most_connections() <= resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# On real sockets.


class App:
    """Answers once it is let, with the client's name."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
        self.asked += 1
        while not self.may_answer.is_set():
            await asyncio.sleep(0.1)
        body = scope["state"]["client"].encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def served(app: App) -> Iterator[tuple[str, int]]:
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield listening.getsockname()


@contextmanager
def connected(address: tuple[str, int], sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=60.0) as client:
        client.sendall(sent)
        yield client


def trickled(client: socket.socket) -> bytes:
    """A byte again and again until the server has had enough; what it said."""
    client.settimeout(0.02)
    said = b""
    while True:
        try:
            client.sendall(b"x")
            part = client.recv(4096)
            if not part:
                return said
            said += part
        except TimeoutError:
            pass
        except OSError:
            return said


def answer(client: socket.socket) -> bytes:
    got = b""
    while not got.endswith(f"uid {os.geteuid()}".encode()):
        part = client.recv(4096)
        assert part, got
        got += part
    return got


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for, and that a busy machine keeps."""
    monkeypatch.setattr(connection_limits, "HEADER_S", 2.0)
    monkeypatch.setattr(connection_limits, "BODY_S", 2.0)


def ended(address: tuple[str, int], sent: bytes) -> bytes:
    """What the server said to one that begins so and then trickles, when it had enough; nothing sent is silence."""
    with connected(address, sent) as client:
        if not sent:
            return client.recv(1)
        if sent.endswith(b"\r\n\r\n") and sent != POST:
            answer(client)
        return trickled(client)


@pytest.mark.usefixtures("impatient")
def test_neither_a_header_nor_a_body_nor_silence_is_waited_for_beyond_its_deadline():
    # The last: a byte after an answer ends uvicorn's own patience with an idle connection.
    begins = [b"", GET, POST, GET + b"\r\n"]
    with served(App()) as address, ThreadPoolExecutor(len(begins)) as clients:
        silent, header, body, second = clients.map(lambda sent: ended(address, sent), begins)
    assert (silent, header, second) == (b"", b"", b"")
    assert body.startswith(b"HTTP/1.1 408 ")


def test_who_takes_nothing_of_an_answer_through_a_unix_socket_is_cut_off(tmp_path, monkeypatch):
    """TCP has a limit of its own for it; ``listen.bound`` sets that."""
    monkeypatch.setattr(connection_limits, "STALLED_S", 0.5)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    path = tmp_path / "large.sock"
    with (
        listen.bound_at(path, 0o600) as listening,
        listen.serving(large, listening),
        socket.socket(socket.AF_UNIX) as one,
    ):
        one.settimeout(60.0)
        one.connect(str(path))
        one.sendall(GET + b"\r\n")
        poll = select.poll()
        poll.register(one, select.POLLHUP)
        assert poll.poll(60_000), "it is still connected"


@pytest.mark.usefixtures("impatient")
def test_an_answer_may_take_longer_than_any_deadline_and_another_request_may_follow():
    app = App()
    app.may_answer.clear()
    with served(app) as address, connected(address, GET + b"\r\n") as agent:
        # Its deadline began after the agent's, if there were one for agents.
        with connected(address) as silent:
            assert silent.recv(1) == b""
        with connected(address) as silent:
            assert silent.recv(1) == b""
        app.may_answer.set()
        assert answer(agent).startswith(b"HTTP/1.1 200 ")
        agent.sendall(GET + b"\r\n")
        assert answer(agent).startswith(b"HTTP/1.1 200 ")
    assert app.asked == 2


def test_a_client_s_name_is_the_kernel_s_word_and_no_header():
    with served(App()) as address, connected(address, GET + b"X-Forwarded-For: 10.9.8.7\r\n\r\n") as client:
        assert answer(client).endswith(f"\r\n\r\nuid {os.geteuid()}".encode())


def test_a_thousand_connections_that_wait_at_once_are_all_answered():
    app = App()
    app.may_answer.clear()
    count = 1000
    with served(app) as address:
        agents = [socket.create_connection(address, timeout=60.0) for _ in range(count)]
        try:
            for each in agents:
                each.sendall(GET + b"\r\n")
            app.may_answer.set()
            assert all(answer(each).startswith(b"HTTP/1.1 200 ") for each in agents)
        finally:
            for each in agents:
                each.close()
    assert app.asked == count
