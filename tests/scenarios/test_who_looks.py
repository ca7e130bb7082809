"""What ``serve`` tells other users of the machine: nothing. Real servers, real users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.core.errors import NotKept
from joulewise.core.series import Recurring
from joulewise.serve.client import Client, jobs
from tests.scenarios.someone import ROOT, asking
from tests.serve.serving import Serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be several users")

ALICE, BOB = 65534, 4_000_001
SECRET = "--cohort=ward-7"
JOB = {"batch_sizes": [8, 16], "default": 8, "max_epochs": 10, "target": "val_acc>=0.84"}
READ = ["/api/runs", "/api/overview", "/api/gpus", "/api/series", "/api/search?q=api", "/api/events", "/metrics"]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def started(*flags: str, trusting: bool = False, cold: bool = False) -> Serving:
        made.append(Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu", *flags, trusting=trusting, cold=cold))
        return made[-1]

    yield started
    for each in made:
        assert "Traceback" not in each.end()


@pytest.fixture
def private_run(tmp_path: Path, virtual_nvml: None) -> None:
    """A run in the store whose command line is nobody else's business."""
    words = [sys.executable, "-m", "joulewise", "run", "--gpu", "sim:h200", "--speed", "20", "--", "true", SECRET]
    environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path), "JOULEWISE_DATABASE": str(tmp_path / "jobs.db")}
    subprocess.run(words, env=environ, cwd=ROOT, capture_output=True, check=True)


@pytest.fixture
def folder_of_alice() -> Iterator[Path]:
    """Where she may write, and everybody may look."""
    with tempfile.TemporaryDirectory(prefix="jw") as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.chown(folder, ALICE, ALICE)
        yield folder


@pytest.mark.usefixtures("private_run")
def test_another_user_of_the_machine_sees_and_writes_nothing(tmp_path, scenario):
    shown = scenario("R31", "another local user asks a server that was started plainly", criterion="nothing is told")
    server = Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu", trusting=False)
    try:
        asked = [("GET", path, None, {}) for path in READ if path != "/api/events"]
        asked += [("PUT", "/api/series/mine", JOB, {}), ("POST", "/api/series/mine/ask", {}, {})]
        answers = asking(ALICE, server.url, asked)
        assert [status for status, _ in answers] == [401] * len(asked)
        assert SECRET not in str(answers)
        (health,) = asking(ALICE, server.url, [("GET", "/healthz", None, {})])
        assert health == (200, '{"status":"ok"}')
    finally:
        server.end()
    shown.saw(f"{len(asked)} requests, 401 each")


@pytest.mark.usefixtures("private_run")
def test_the_link_works_once_for_reading_and_no_other_process_can_find_what_it_carries(serving, tmp_path, scenario):
    shown = scenario("R31", "the one-time link", criterion="once, to read; in no command line, file or log of others")
    server = serving(cold=True)
    address, _, code = server.link.partition("#once=")
    assert address == f"{server.url}/"

    def redeem(origin: str) -> tuple[int, str]:
        (said,) = asking(0, server.url, [("POST", "/api/session", {"code": code}, {"Origin": origin})])
        return said

    assert redeem("http://127.0.0.1:1")[0] == 403  # a page of another port has no business with it
    status, body = redeem(server.url)
    assert status == 200
    bearing = {"Authorization": f"Bearer {json.loads(body)['token']}"}
    assert redeem(server.url)[0] == 401
    (again,) = re.findall(r"#once=(\S+)", server.process.stderr.readline())
    assert again != code
    said, refused, foreign = asking(
        0,
        server.url,
        [
            ("GET", "/api/runs", None, bearing),
            ("PUT", "/api/series/mine", JOB, bearing),
            ("GET", "/api/runs", None, {**bearing, "Origin": "http://localhost:3000"}),
        ],
    )
    assert (said[0], refused[0], foreign[0]) == (200, 403, 403)
    assert SECRET in said[1]
    token = bearing["Authorization"].removeprefix("Bearer ")
    for secret in (code, again, token):
        for name in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{server.process.pid}/{name}").read_bytes()
    held = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert held
    assert not [secret for secret in (code, again, token) for content in held if secret.encode() in content]
    shown.saw("once: 200, then 401; may not write; other port: 403")


def test_a_unix_socket_serves_its_owner_and_root_whatever_its_permissions(folder_of_alice, scenario):
    shown = scenario("R31", "serve --socket, asked by its owner, root and another", criterion="owner and root alone")
    path = folder_of_alice / "serve.sock"
    words = [sys.executable, "-m", "tests.cli.as_someone", str(ALICE), sys.executable, "-m", "joulewise", "serve"]
    environ = {**os.environ, "JOULEWISE_HOME": str(folder_of_alice), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*words, "--no-gpu", "--socket", str(path)], env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            assert f"serving you and root on unix:{path}" in server.stderr.readline()
            here = f"unix:{path}"
            put, look = ("PUT", "/api/series/mine", JOB, {}), ("GET", "/api/series", None, {})
            for uid, statuses in ((ALICE, [200, 200]), (0, [200, 200]), (BOB, [0, 0])):
                assert [status for status, _ in asking(uid, here, [put, look])] == statuses
            path.chmod(0o666)
            refused = asking(BOB, here, [put, look])
            assert [status for status, _ in refused] == [403, 403]
            assert f"you are uid {BOB}" in refused[0][1]
            assert jobs(here) == ["mine"]
            Client(here, "theirs").register(Recurring("theirs", (8, 16), 8, 10))
        finally:
            server.terminate()
            server.wait(60)
    assert not path.exists()
    shown.saw("200, 200; cannot connect, and with mode 0666: 403")


def test_where_local_users_are_trusted_pages_of_other_ports_and_names_are_not(serving):
    server = serving(trusting=True)
    port = server.url.rpartition(":")[2]
    headers: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"Origin": server.url}, 200),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Host": f"rebound.example:{port}"}, 401),
        ({"Host": f"rebound.example:{port}", "Origin": f"http://rebound.example:{port}"}, 401),
    ]
    answers = asking(ALICE, server.url, [("PUT", "/api/series/mine", JOB, each) for each, _ in headers])
    assert [status for status, _ in answers] == [status for _, status in headers]


_LISTENS = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers.as_string().replace(chr(10), " "), flush=True)
        self.send_error(503)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
print("listening", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("proxied", [False, True])
def test_an_own_client_sends_no_secret_to_another_user_s_port_nor_to_a_proxy(serving, tmp_path, monkeypatch, proxied):
    server = serving()
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    port = server.url.rpartition(":")[2]
    words = [sys.executable, "-m", "tests.cli.as_someone", str(ALICE), sys.executable, "-c", _LISTENS, "127.0.0.2"]
    with subprocess.Popen([*words, port], cwd=ROOT, stdout=subprocess.PIPE, text=True) as alice:
        try:
            assert alice.stdout is not None
            assert alice.stdout.readline() == "listening\n"
            if proxied:
                monkeypatch.setenv("http_proxy", f"http://127.0.0.2:{port}")
            assert jobs(server.url if proxied else f"http://127.0.0.2:{port}") == []
            server.kill()
            with pytest.raises(NotKept):
                jobs(f"http://127.0.0.2:{port}")
        finally:
            alice.terminate()
            heard, _ = alice.communicate()
    assert "uthorization" not in heard


def test_own_clients_find_a_server_that_was_started_again_after_a_kill(serving, tmp_path, monkeypatch):
    server = serving()
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    server.kill()
    server.start()
    assert jobs(server.url) == []
