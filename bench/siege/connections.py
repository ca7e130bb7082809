"""Half-open connections beside honest requests.

``joulewise serve`` and ``joulewise cluster up --engine sim`` each run with a soft limit of 1,024 descriptors. One user
of the machine opens 1,100 connections and sends half a header, half a body, or nothing, opening again what is closed
(at most ``REOPENED_PER_S`` a second); another user asks ten times a second with a token, from the same loopback
address. Both servers are attacked at the same time, each kind for ``seconds_s``.

- ``honest_served_share``: of the honest requests, those answered with 200 within ten seconds; ``honest_requests`` were
  made in all, and ``honest_least_of_a_server`` to the server that had fewer.
- ``honest_p99_s``: 99 % of them took no longer, from the connection to the last byte; those without answer count as
  ten seconds.
- ``processes_died``: servers that did not live to the end, or did not end in order.
- ``stderr_mb``: what both wrote to stderr, in millions of bytes.
- ``attackers_held_most``: the most attacking connections that one server left open at once, and
  ``attackers_closed``: how many were closed in all.

It takes root, to be two other users.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from joulewise.core.errors import NotPermitted
from joulewise.serve import tokens

ATTACKER, HONEST = 65534, 65533
"""The two users; neither needs to be in any file."""
CONNECTIONS = 1100
SOFT_LIMIT = 1024
PER_S = 10.0
"""Honest requests."""
LONGEST_S = 10.0
"""A client has given up by then."""
REOPENED_PER_S = 200
_STARTED_S = 60.0
_ENDED_S = 60.0

_HEADER = b"%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
KINDS = {
    "half a header": _HEADER % b"GET /healthz",
    "half a body": _HEADER % b"POST /api/cluster/jobs" + b'Content-Length: 200\r\n\r\n{"name": "a',
    "nothing": b"",
}
_SERVERS = {
    "serve": (["serve", "--no-gpu", "--port", "0"], "/api/overview", r" on (http://\S+:\d+)"),
    "cluster up": (
        ["cluster", "up", "--engine", "sim", "--port", "0"],
        "/api/cluster",
        r"with tokens, (http://\S+:\d+);",
    ),
}

PATHS = {name: path for name, (_, path, _) in _SERVERS.items()}
"""What is asked for, for which a token is needed."""


def figures(seconds_s: float) -> dict[str, float]:
    """Attack both servers with each kind for so long. NotPermitted unless root runs it."""
    if os.geteuid() != 0:
        raise NotPermitted("the attack is by two other users, which only root can be; run it as root")
    took: dict[str, list[float]] = {name: [] for name in _SERVERS}
    held, closed, died, written = 0, 0, 0, 0
    for kind in KINDS:
        print(f"  {kind} for {seconds_s:g} s …", file=sys.stderr)
        with ExitStack() as stack:
            servers = {name: stack.enter_context(started(name)) for name in _SERVERS}
            clients = []
            for name, server in servers.items():
                attack = become(ATTACKER, "attack", server.port, kind, seconds_s)
                honest = become(HONEST, "honest", server.port, PATHS[name], server.token, seconds_s)
                clients.append((name, stack.enter_context(attack), stack.enter_context(honest)))
            for name, attacking, asking in clients:
                told = json.loads(asking.communicate(timeout=seconds_s + _ENDED_S)[0])
                took[name] += [each if each is not None else LONGEST_S for each in told["took_s"]]
                served = sum(each is not None for each in told["took_s"])
                print(f"    {name}: {served} of {len(told['took_s'])} served", file=sys.stderr)
                attacked = json.loads(attacking.communicate(timeout=_ENDED_S)[0])
                held, closed = max(held, attacked["held_most"]), closed + attacked["closed"]
            for server in servers.values():
                died += not server.end()
                written += server.log.stat().st_size
    every = sorted(each for one in took.values() for each in one)
    return {
        "honest_served_share": sum(each < LONGEST_S for each in every) / len(every),
        "honest_p99_s": every[int(0.99 * (len(every) - 1))],
        "honest_requests": len(every),
        "honest_least_of_a_server": min(map(len, took.values())),
        "processes_died": died,
        "stderr_mb": written / 1e6,
        "attackers_held_most": held,
        "attackers_closed": closed,
    }


@dataclass(slots=True)
class Server:
    """One of them, in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    token: str
    log: Path

    def end(self) -> bool:
        """Whether it lives, and ends in order when told to."""
        if self.process.poll() is not None:
            return False
        self.process.send_signal(signal.SIGTERM)
        try:
            # A server dies by the signal that it was told to end with, once all is in order.
            return self.process.wait(_ENDED_S) in (0, -signal.SIGTERM)
        except subprocess.TimeoutExpired:
            return False


@contextmanager
def started(name: str, limit: str = f"ulimit -Sn {SOFT_LIMIT}", python: Sequence[str] = ()) -> Iterator[Server]:
    """A server that listens, with a fresh home and a token that may read and write. ``python``: its flags."""
    command, _, listens = _SERVERS[name]
    with tempfile.TemporaryDirectory(prefix="joulewise-siege-") as home:
        file, log = Path(home) / "siege.tokens", Path(home) / "stderr"
        secret, token = tokens.make(tokens.Scope.WRITE, "siege")
        tokens.keep(file, token)
        with log.open("wb") as stderr:
            limited = ["/bin/sh", "-c", f'{limit}; exec "$@"', "sh"]
            process = subprocess.Popen(
                [*limited, sys.executable, *python, "-m", "joulewise", *command, "--token-file", str(file)],
                env={**os.environ, "JOULEWISE_HOME": home, "OPENBLAS_NUM_THREADS": "1"},
                stderr=stderr,
            )
        try:
            yield Server(process, _port(process, log, listens), secret, log)
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path, listens: str) -> int:
    until_s = time.monotonic() + _STARTED_S
    while (found := re.search(listens, log.read_text(errors="replace"))) is None:
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"the server did not start; it said: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)
    return int(found[1].rpartition(":")[2])


def become(uid: int, *words: object) -> subprocess.Popen[str]:
    """Another user's process: ``attack``, ``honest`` or ``patient`` with what it takes."""
    command = [sys.executable, "-m", "bench.siege.connections", str(uid), *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# What the other users run.


class Attack:
    """Connections that send the begin of something, and are opened again where they are closed."""

    def __init__(self, port: int, begins: Sequence[bytes], count: int = CONNECTIONS) -> None:
        self._address = ("127.0.0.1", port)
        self._begins = itertools.cycle(begins)
        self._count = count
        self._poll = select.epoll()
        self._open: dict[int, socket.socket] = {}
        self._may_open = float(count)
        self._time_s = time.monotonic()
        self.begun = self.closed = self.held_most = 0

    def turn(self, most_s: float) -> None:
        """Open what is missing, within the rate; see what was closed."""
        now_s = time.monotonic()
        self._may_open = min(self._count, self._may_open + (now_s - self._time_s) * REOPENED_PER_S)
        self._time_s = now_s
        while len(self._open) < self._count and self._may_open >= 1.0:
            self._may_open -= 1.0
            self._connect()
        for fd, events in self._poll.poll(most_s):
            if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                self._poll.unregister(fd)
                self._open.pop(fd).close()
                self.closed += 1
            elif events & select.EPOLLOUT:
                with suppress(OSError):
                    self._open[fd].send(next(self._begins))
                self.begun += 1
                self._poll.modify(fd, select.EPOLLIN | select.EPOLLRDHUP)
        self.held_most = max(self.held_most, len(self._open))

    def _connect(self) -> None:
        client = socket.socket()
        client.setblocking(False)
        with suppress(BlockingIOError):
            client.connect(self._address)
        self._open[client.fileno()] = client
        self._poll.register(client, select.EPOLLOUT | select.EPOLLRDHUP)


def attack(port: int, kind: str, seconds_s: float) -> None:
    attacking = Attack(port, [KINDS[kind]])
    until_s = time.monotonic() + seconds_s
    while time.monotonic() < until_s:
        attacking.turn(0.05)
    print(json.dumps({"held_most": attacking.held_most, "closed": attacking.closed}))


async def honest(port: int, path: str, token: str, seconds_s: float) -> None:
    """Ask at a steady pace, however long answers take."""
    begun_s = time.monotonic()
    asked = []
    for number in range(round(seconds_s * PER_S)):
        await asyncio.sleep(max(0.0, begun_s + number / PER_S - time.monotonic()))
        asked.append(asyncio.create_task(asked_once(port, path, token)))
    print(json.dumps({"took_s": await asyncio.gather(*asked)}))


async def patient(port: int, path: str, token: str, count: int) -> None:
    """Ask so many times, one after the other, and wait long; the first that is not answered is the last."""
    took: list[float | None] = []
    while len(took) < count and None not in took:
        took.append(await asked_once(port, path, token, longest_s=60.0))
    print(json.dumps({"took_s": took}))


async def asked_once(port: int, path: str, token: str, *, longest_s: float = LONGEST_S) -> float | None:
    """How long one answer took, in seconds; None if there was none within ``longest_s``, or it was not 200."""
    begun_s = time.monotonic()
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(longest_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode())
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return time.monotonic() - begun_s if answer.startswith(b"HTTP/1.1 200 ") else None


def main(words: Sequence[str]) -> None:
    """Become the user, then do what is asked."""
    uid, what, port, *more = words
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * CONNECTIONS), hard))
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    if what == "attack":
        attack(int(port), more[0], float(more[1]))
    elif what == "patient":
        asyncio.run(patient(int(port), more[0], more[1], int(more[2])))
    else:
        asyncio.run(honest(int(port), more[0], more[1], float(more[2])))


if __name__ == "__main__":
    main(sys.argv[1:])
