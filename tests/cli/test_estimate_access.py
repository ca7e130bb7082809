"""Who asks a Prometheus: one way to say it, from files, and a word where a secret would travel in the clear."""

import base64

import pytest

from joulewise.cli.estimate_access import headers, in_the_clear
from joulewise.core.errors import BadSpec


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text("correct horse\n")
    return file


def test_a_name_and_a_password_are_sent_as_basic_authentication(secret):
    sent = headers(["X-Scope-OrgID: a"], user="ada", password_file=secret)
    assert sent["X-Scope-OrgID"] == "a"
    kind, pair = sent["Authorization"].split()
    assert (kind, base64.b64decode(pair)) == ("Basic", b"ada:correct horse")


def test_a_token_is_sent_without_the_spaces_around_it(tmp_path):
    file = tmp_path / "token"
    file.write_text(" s3cret \n")
    assert headers([], token_file=file) == {"Authorization": "Bearer s3cret"}


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_two_ways_to_say_who_asks_are_refused(secret, name):
    ways = [
        {"written": [f"{name}: Bearer x"], "token_file": secret},
        {"written": [f"{name}: Bearer x"], "user": "ada", "password_file": secret},
        {"written": [], "token_file": secret, "user": "ada", "password_file": secret},
    ]
    for way in ways:
        with pytest.raises(BadSpec, match="both say who asks"):
            headers(**way)


@pytest.mark.parametrize(
    ("text", "words"), [("", "holds no secret"), ("one\ntwo\n", "holds no secret"), (b"\xff\xfe", "cannot be read")]
)
def test_a_password_file_that_holds_no_password_is_refused(tmp_path, text, words):
    file = tmp_path / "secret"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadSpec, match=words):
        headers([], user="ada", password_file=file)


def test_a_name_with_a_colon_is_refused_and_so_is_a_name_without_a_password(secret):
    with pytest.raises(BadSpec, match="no colon"):
        headers([], user="ada:pw", password_file=secret)
    for one in ({"user": "ada"}, {"password_file": secret}):
        with pytest.raises(BadSpec, match="go together"):
            headers([], **one)


def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(BadSpec):
        headers(["X: a\r\nY: b"])


@pytest.mark.parametrize(
    ("url", "said"),
    [("http://prom:9090", True), ("https://prom", False), ("http://127.0.0.1:9090", False), ("http://[::1]:1", False)],
)
def test_a_secret_in_the_clear_is_said(url, said):
    assert (in_the_clear(url, {"authorization": "Bearer x"}) is not None) == said
    assert in_the_clear(url, {"X-Scope-OrgID": "a"}) is None
