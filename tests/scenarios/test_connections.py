"""R26 and R36: what one user of a machine holds of an HTTP server does not keep another's requests from it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from bench.siege import connections
from bench.siege.connections import ATTACKER, CONNECTIONS, HONEST
from joulewise.serve import tokens
from joulewise.serve.face_hub import MOST_LISTENERS
from tests.scenarios.client import ROOT
from tests.serve.serving import Serving
from tests.tiers import sample

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be two other users")

ASKED = 20
PATIENT_S = 60.0


@contextmanager
def attacking(port: int) -> Iterator[subprocess.Popen[str]]:
    """Half-open connections of another user, all of which have begun."""
    command = [sys.executable, "-m", "tests.scenarios.half_open", str(ATTACKER), str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def asked(port: int, path: str, token: str) -> list[float | None]:
    """How long answers took a patient user, one after the other; None where there was none."""
    process = connections.become(HONEST, "patient", port, path, token, ASKED)
    return list(json.loads(process.communicate()[0])["took_s"])


# With the hard limit at 1,024, too, there is no more room for the crowd than it takes to shut everybody out.
SERVERS = [("serve", "ulimit -Sn 1024"), ("serve", "ulimit -n 1024"), ("cluster up", "ulimit -n 1024")]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(("name", "limit"), sample(SERVERS, 1, of="servers under a crowd"))
def test_half_open_connections_of_one_user_neither_silence_nor_end_a_server(scenario, name, limit):
    shown = scenario(
        "R26",
        f"1,100 half-open connections to {name}, {limit}",
        criterion=f"{ASKED} of {ASKED} honest requests served, the server lives",
    )
    with connections.started(name, limit) as server:
        with attacking(server.port) as attack:
            took = asked(server.port, connections.PATHS[name], server.token)
            assert None not in took
            # Their deadlines end them, although nobody else wants their places.
            assert attack.stdout is not None
            assert attack.stdout.readline() == "2\n"
        assert server.end()
        written = server.log.read_text()
        assert "Traceback" not in written
        assert len(written) < 100_000
    assert len(took) == ASKED
    worst_s = max(each for each in took if each is not None)
    shown.saw(f"{len(took)} of {ASKED} served, the slowest in {worst_s:.2f} s; {CONNECTIONS} attackers closed")


@pytest.mark.parametrize("name", ["serve", "cluster up"])
def test_nothing_is_imported_once_somebody_may_connect(name):
    """Under a crowd there may be no descriptor for it."""
    with connections.started(name, python=["-X", "importtime"]) as server:
        get(server, "/nothing")
        before = server.log.stat().st_size
        for path in (connections.PATHS[name], "/docs", "/openapi.json", "/metrics", "/healthz", "/"):
            get(server, path)
        assert server.log.read_text()[before:].count("import time:") == 0


def get(server: connections.Server, path: str) -> None:
    took = connections.asked_once(server.port, path, server.token, longest_s=PATIENT_S)
    asyncio.run(took)


STREAMS = """
import http.client, sys
port, token, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
streams = []
for number in range(count):
    streams.append(http.client.HTTPConnection("127.0.0.1", port))
    # What a header says of where it comes from is no address.
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": f"10.0.{number // 250}.{number % 250}"}
    streams[-1].request("GET", "/api/events", headers=headers)
print(sum(stream.getresponse().status == 200 for stream in streams), flush=True)
sys.stdin.readline()
"""


def test_one_client_cannot_hold_all_places_of_event_streams(scenario, tmp_path: Path):
    shown = scenario("R36", "one token asks for more event streams than there are places", criterion="another gets one")
    file = tmp_path / "two.tokens"
    greedy, modest = (_token(file, name) for name in ("greedy", "modest"))
    server = Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu", "--token-file", str(file))
    port = int(server.url.rpartition(":")[2])
    command = ["-m", "tests.cli.as_someone", str(ATTACKER), sys.executable, "-c", STREAMS]
    holding = subprocess.Popen(
        [sys.executable, *command, str(port), greedy, str(MOST_LISTENERS + 20)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert holding.stdout is not None
        held = int(holding.stdout.readline())
        request = urllib.request.Request(f"{server.url}/api/events", headers={"Authorization": f"Bearer {modest}"})
        with urllib.request.urlopen(request, timeout=PATIENT_S) as stream:
            assert stream.status == 200
            assert stream.readline() == b"retry: 3000\n"
    finally:
        holding.communicate("\n")
        said = server.end()
    assert held <= MOST_LISTENERS / 2
    assert "Traceback" not in said
    shown.saw(f"{held} of {MOST_LISTENERS} places for the one, and one for the other")


def _token(file: Path, name: str) -> str:
    secret, token = tokens.make(tokens.Scope.READ, name)
    tokens.keep(file, token)
    return secret
