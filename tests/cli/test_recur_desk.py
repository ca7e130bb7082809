"""Where recurring jobs are kept: the flags, and what they open."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from joulewise.cli.recur_desk import TOKEN_VARIABLE, names, opened_desk
from joulewise.core.errors import BadSpec
from joulewise.serve.client import Client
from joulewise.tune.steady import Steady
from tests.cli.shell_trials import JOB


@pytest.fixture(autouse=True)
def _nobodys_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    for name in (TOKEN_VARIABLE, "JOULEWISE_DATABASE"):
        monkeypatch.delenv(name, raising=False)


def register(database: str | None) -> None:
    with opened_desk(JOB.name, database) as desk:
        assert isinstance(desk, Steady)
        desk.register(JOB)


def test_what_is_registered_is_found_there_and_nowhere_else(tmp_path):
    here, elsewhere = str(tmp_path / "jobs.db"), str(tmp_path / "other.db")
    register(here)
    assert (names(here), names(elsewhere)) == (["nightly"], [])
    with opened_desk(JOB.name, here) as desk:
        assert desk.job == JOB
    assert not Path(elsewhere).exists()  # looking makes nothing


def test_without_a_flag_it_is_the_variables_and_without_that_ones_own(tmp_path, monkeypatch):
    register(None)
    assert names() == ["nightly"]
    assert (tmp_path / "home" / "joulewise.db").exists()
    monkeypatch.setenv("JOULEWISE_DATABASE", f"sqlite:///{tmp_path}/jobs.db")
    assert names() == []


def test_the_file_is_let_go_of_even_if_something_failed(tmp_path):
    file = tmp_path / "jobs.db"
    with suppress(RuntimeError), opened_desk(JOB.name, str(file)) as desk:
        desk.register(JOB)
        assert str(file) in open_files()
        raise RuntimeError
    assert str(file) not in open_files()


def open_files() -> set[str]:
    links = Path("/proc/self/fd").iterdir()
    return {str(link.readlink()) for link in links if link.is_symlink()}


@pytest.mark.parametrize("look", [names, lambda *flags: opened_desk(JOB.name, *flags).__enter__()])
def test_flags_that_contradict_each_other_are_refused_before_anything_is_opened(look, tmp_path):
    with pytest.raises(BadSpec, match="--server and --database both say where the job is kept; say one of them"):
        look("jobs.db", "http://127.0.0.1:1", None)
    with pytest.raises(BadSpec, match="--token-file is for a server; name it with --server"):
        look(None, None, tmp_path / "token")
    assert not (tmp_path / "home").exists()


class Server(HTTPServer):
    """Knows one job, and remembers which tokens it was shown."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Knows)
        self.shown: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Knows(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.shown.append(self.headers["Authorization"])
        body = json.dumps({"series": [self.path]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_server_is_shown_the_files_token_else_the_variables_else_none(server, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("of-the-file\n")
    assert names(server=server.url) == ["/api/series"]
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-variable")
    names(server=server.url)
    names(server=server.url, token_file=tmp_path / "token")
    assert server.shown == [None, "Bearer of-the-variable", "Bearer of-the-file"]


def test_a_servers_desk_sends_nothing_before_it_is_used(server):
    with opened_desk(JOB.name, server=server.url) as desk:
        assert isinstance(desk, Client)
    assert server.shown == []


def test_a_token_that_cannot_be_read_is_told_without_what_is_in_it(server, tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe secret")
    for file, why in (
        ("absent", "no such file or directory"),
        ("binary", "it is not text in UTF-8"),
        (".", "is a directory"),
    ):
        with pytest.raises(BadSpec, match=f"cannot be read: {why}$"):
            names(server=server.url, token_file=tmp_path / file)
    assert server.shown == []
