"""What other machines and files say reaches a terminal as text and as nothing else, in a pipe and in colours.

Each channel has its own process of joulewise, and a server or a store that tells it ``EVIL``.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joulewise.cluster.scheduler_status import JobStatus, NodeStatus
from joulewise.core.plain import plain
from tests import preloaded
from tests.cli.conftest import OURS
from tests.serve.cluster_toys import NOBODY

EVIL = "\x1b]0;owned\x07\x1b[8m\x9b31m\u202egnp\x7f\x1b]8;;http://x\x1b\\[red]EVIL"
"""Retitles the terminal, hides text, colours it by a C1 sequence, turns it round, deletes, links; and rich's markup."""
MARKS = ("\x1b]", "\x1b[8m", "\x07", "\x9b", "\u202e", "\x7f")
"""What of it a terminal would obey. Of the colours that are ours, none is among them."""
SHOWN = "\\u001b]0;owned"
QUOTED = "\\x1b]0;owned"  # as Python writes it where a message quotes what was given
STATUS = replace(
    NOBODY,
    cap_source=EVIL,
    engine=EVIL,
    troubles=(EVIL,),
    nodes=(NodeStatus(EVIL, "up", EVIL, 8, 8, 0, None, 1.0, 1.0, None, None, 42.0, (EVIL,)),),
    jobs=(JobStatus(EVIL, "41", "running", "", 8, {EVIL: 8}),),
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Answers every question with escapes: its path says how."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/moved"):
                self._send(302, b"", Location=f"http://elsewhere/{EVIL}")
            elif self.path.startswith("/refusing"):
                self._send(400, json.dumps({"error": EVIL, "message": EVIL}, ensure_ascii=False).encode())
            elif self.path.startswith("/reason"):
                self._send(418, b"no JSON", reason=EVIL)
            elif self.path.startswith("/deep-answer"):
                self._send(200, b"[" * 100_000)
            elif self.path.startswith("/deep-refusal"):
                self._send(400, b'{"a":' * 100_000)
            else:
                self._send(200, json.dumps(plain(STATUS)).encode())

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.do_GET
            raise AttributeError(name)

        def _send(self, code: int, body: bytes, *, reason: str = "", **headers: str) -> None:
            latin = {name: value.encode().decode("latin-1") for name, value in headers.items()}
            self.send_response(code, reason.encode("latin-1", "replace").decode("latin-1") or None)
            for name, value in {**latin, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


@pytest.fixture
def store(tmp_path: Path, environ: dict[str, str]) -> Path:
    """A store with a run whose command has escapes in it."""
    path = tmp_path / "runs.db"
    environ = {**environ, "JOULEWISE_DATABASE": str(path)}
    words = ["run", "--gpu", "sim:h200", "--speed", "20", "--tune", "--dry-run", "--", "true", EVIL]
    done = preloaded.run(*words, env=environ)
    assert done.returncode == 0, done.stderr
    assert not any(mark in done.stderr for mark in MARKS)
    return path


def channels(server: str, tmp_path: Path) -> dict[str, list[str]]:
    """Every way in which text of others comes to a terminal: its call."""
    return {
        "Prometheus's error": ["estimate", "--prometheus", f"{server}/refusing"],
        "Prometheus's Location": ["estimate", "--prometheus", f"{server}/moved"],
        "a reason phrase": ["cluster", "status", "--server", f"{server}/reason"],
        "a scheduler's refusal": ["cluster", "cancel", "a", "--server", f"{server}/refusing"],
        "a desk's refusal": ["recur", "status", "job", "--server", f"{server}/refusing"],
        "jobs, nodes and troubles": ["cluster", "status", "--server", server],
        "the same as JSON": ["cluster", "status", "--json", "--server", server],
        "a file's name": ["plan", "show", str(tmp_path / EVIL.replace("/", "_"))],
        "a verb": [EVIL],
        "a journal's run": ["history"],
    }


def test_no_control_character_of_others_reaches_a_pipe_or_a_terminal(
    server: str, store: Path, tmp_path: Path, environ: dict[str, str], in_terminal: Any, scenario: Any
) -> None:
    shown = scenario("R33", "escapes from servers, stores and files", criterion="written out, in pipe and terminal")
    environ = {**environ, "JOULEWISE_DATABASE": str(store)}
    asked = channels(server, tmp_path)
    for name, words in asked.items():
        piped = preloaded.run(*words, env=environ)
        terminal = in_terminal([*OURS, *words], columns=200, **environ)
        terminal.finish()
        for said in (piped.stdout + piped.stderr, terminal.shown):
            assert [mark for mark in MARKS if mark in said] == [], name
            assert SHOWN in said or QUOTED in said, (name, said)
            assert "a fault of joulewise" not in said, name
        assert "\x1b" not in piped.stdout + piped.stderr, name
    shown.saw(f"{len(asked)} channels, 0 of {len(MARKS)} marks")


def test_json_says_exactly_what_was_told(server: str, environ: dict[str, str]) -> None:
    done = preloaded.run("cluster", "status", "--json", "--server", server, env=environ, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(plain(STATUS)))


def test_a_live_view_shows_them_too_and_moves_the_cursor_itself(
    server: str, environ: dict[str, str], in_terminal: Any
) -> None:
    command = [*OURS, "cluster", "status", "--live", "--server", server]
    terminal = in_terminal(command, columns=200, rows=50, **environ)
    said = terminal.read_until(SHOWN)
    assert [mark for mark in MARKS if mark in said] == []
    assert "\x1b[" in said


@pytest.mark.parametrize("verb", [["cluster", "status"], ["recur", "list"], ["estimate"]])
@pytest.mark.parametrize("path", ["deep-answer", "deep-refusal"])
def test_an_answer_that_nests_too_deeply_is_one_line(
    server: str, environ: dict[str, str], verb: list[str], path: str
) -> None:
    flag = "--prometheus" if verb == ["estimate"] else "--server"
    done = preloaded.run(*verb, flag, f"{server}/{path}", env=environ)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert "a fault of joulewise" not in done.stderr
    assert "127.0.0.1" in done.stderr
