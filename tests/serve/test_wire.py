import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.timeline import VirtualTime
from joulewise.serve.wire import Wire


class Scripted:
    """A server that gives the answers it was told to, one a request, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, dict[str, str]] | None] = []
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                scripted.seen.append((self.command, self.path, dict(self.headers), body))
                answer = scripted.answers.pop(0)
                if answer is None:  # hang up in the middle
                    self.close_connection = True
                    return
                status, content, headers = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do  # noqa: N815 - their names in the library

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def say(self, status: int, content: object = None, **headers: str) -> None:
        text = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        self.answers.append((status, text, headers))

    def hang_up(self) -> None:
        self.answers.append(None)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


def test_a_call_carries_json_and_the_token_and_gives_what_was_answered(server):
    server.say(200, {"trial": 3})
    assert Wire(server.url + "/", "jw_x").call("POST", "/api/ask", {"a": "ü"}) == {"trial": 3}
    method, path, headers, body = server.seen[0]
    assert (method, path, json.loads(body)) == ("POST", "/api/ask", {"a": "ü"})
    assert headers["Authorization"] == "Bearer jw_x"
    assert headers["Content-Type"] == "application/json"


def test_an_answer_without_a_body_is_none(server):
    server.say(204)
    assert Wire(server.url).call("POST", "/x", {}) is None


@pytest.mark.parametrize("came", [b"", b'{"trial":'])
def test_an_answer_that_breaks_off_is_no_answer(server, came):
    server.say(200, came, **{"Content-Length": "12"})
    with pytest.raises(NotKept, match="does not answer"):
        Wire(server.url).call("GET", "/x")
    server.say(200, came, **{"Content-Length": "12"})
    server.say(200, 7)
    assert Wire(server.url, time=VirtualTime()).call("GET", "/x", patience_s=60) == 7


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_what_is_refused_is_said_in_the_servers_words_and_not_tried_again(server, status):
    server.say(status, {"error": "x", "message": "the default 7 is none of 8, 16"})
    with pytest.raises(BadSpec, match="the default 7 is none of 8, 16"):
        Wire(server.url).call("PUT", "/x", {}, patience_s=60)
    assert len(server.seen) == 1


def test_what_passes_is_tried_again_with_growing_pauses(server):
    server.say(503, {"error": "NotKept", "message": "away"})
    server.hang_up()
    server.say(502, b"<html>a proxy</html>")
    server.say(200, 7)
    time = VirtualTime()
    assert Wire(server.url, time=time).call("GET", "/x", patience_s=60) == 7
    # Three pauses, each between half and all of 0.1, 0.2 and 0.4 s.
    assert 0.35 <= time.now_s() <= 0.7


def test_patience_ends(server):
    for _ in range(100):
        server.say(503, {"error": "NotKept", "message": "the disk is full"})
    time = VirtualTime()
    with pytest.raises(NotKept, match="the disk is full"):
        Wire(server.url, time=time).call("GET", "/x", patience_s=20)
    assert 15 <= time.now_s() <= 20
    assert len(server.seen) < 15


def test_a_server_that_is_not_there_is_named():
    gone = Scripted()
    gone.close()
    with pytest.raises(NotKept, match=f"{gone.url} does not answer: .*refused.*; is 'joulewise serve' running"):
        Wire(gone.url).call("GET", "/x")


def test_a_token_does_not_follow_a_redirect(server):
    server.say(307, b"", Location="http://127.0.0.1:9/elsewhere")
    with pytest.raises(BadSpec, match="307"):
        Wire(server.url, "jw_x").call("GET", "/x", patience_s=60)


def test_a_server_that_is_not_ours_is_said_to_be_so(server):
    server.say(200, b"<html>hello</html>")
    with pytest.raises(BadSpec, match="is the address right"):
        Wire(server.url).call("GET", "/x")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "server:8745",
        "ftp://server",
        "http://",
        "http://s:70000",
        "http://s?x=1",
        "http://u:p@s",
        "file:///x",
        "http://u:p@s?x",
        "x://u:p@s",
    ],
)
def test_what_is_no_address_is_refused_at_once(url):
    with pytest.raises(BadSpec) as refused:
        Wire(url)
    assert "u:p" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü"])
def test_what_is_no_token_is_refused_at_once(token):
    with pytest.raises(BadSpec, match="no token"):
        Wire("http://localhost:1", token)
