import ast
import io
import re
from pathlib import Path

import pytest

import joulewise
from joulewise.cli import plain


def written(text, encoding):
    """What a stream of that encoding gets."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="joulewise_plain")
    stream.write(text)
    stream.flush()
    return raw.getvalue()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8.1 % ± 0.6 %", b"8.1 % +/- 0.6 %"),
        ("−3 → 4", b"-3 -> 4"),
        ("▁▄█", b"_.="),
        ("71 °C", b"71 C"),
        ("3 µs", b"3 us"),
    ],
)
def test_a_sign_that_cannot_be_written_becomes_a_plain_word(text, told):
    assert written(text, "ascii") == told


def test_what_an_encoding_has_is_written_as_it_is():
    assert written("± – °", "latin-1") == b"\xb1 - \xb0"
    assert written("± – °", "utf-8") == "± – °".encode()


def test_what_nobody_foresaw_is_a_question_mark_and_never_a_traceback():
    assert written("a 漢 b", "ascii") == b"a ? b"


def test_bytes_that_came_in_undecoded_go_out_as_they_came():
    name = b"caf\xe9.txt"
    assert written(name.decode("utf-8", "surrogateescape"), "utf-8") == name


def test_it_is_for_writing_only():
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "joulewise_plain")


def test_every_sign_of_our_own_words_has_a_plain_one():
    signs = set()
    for path in Path(joulewise.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if text.isascii() and not re.search(r"\\[xuUN]", text):
            continue  # no sign of ours, not even as an escape
        tree = ast.parse(text)
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                signs |= {sign for sign in node.value if not sign.isascii()}
    assert "±" in signs
    assert {sign for sign in signs if b"?" in written(sign, "ascii")} == set()


def test_stdout_and_stderr_take_every_text_from_then_on(monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    plain.speak_plainly()
    for stream in streams.values():
        stream.write("±")
        stream.flush()
        assert stream.buffer.getvalue() == b"+/-"
    monkeypatch.setattr("sys.stdout", None)  # as where there is nobody to talk to
    plain.speak_plainly()
