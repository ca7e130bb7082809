import json

import pytest

from joulewise.core.errors import NotKept
from joulewise.core.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\u001b[2J"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "\\u001b]8;;http://x\\u0007link\\u001b]8;;\\u0007"),
        ("\x9b31m", "\\u009b31m"),
        ("a\x7f\x08b", "a\\u007f\\u0008b"),
        ("over\rwritten", "over\\u000dwritten"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        (b"\x9b31m".decode("utf-8", "surrogateescape"), "\\udc9b31m"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert visible(text) == shown


PLAIN = ("", "tab\tand\nline", "8.1 % ± 0.6 % ▁▄█ 漢 é", "שלום", b"caf\xe9".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("text", PLAIN)
def test_all_other_text_stays_as_it_is(text):
    assert visible(text) == text


def test_json_that_goes_through_is_the_same_value():
    characters = [chr(code) for code in (*range(0x2100), *range(0xDC80, 0xDCA0))]
    value = {character: f"a{character}b" for character in characters}
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert json.loads(visible(text)) == value


def test_an_error_of_ours_shows_what_it_was_told_by_others():
    assert str(NotKept("http://a: \x1b]0;owned\x07")) == "http://a: \\u001b]0;owned\\u0007"
