import fcntl
import os
import re
import select
import struct
import termios
import tty

import pytest

from joulewise.cli.panel import Panel, can_show


@pytest.fixture
def terminal(monkeypatch):
    """A pseudo-terminal of 24 × 80 whose foreground job we are, and a way to see what was written to it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())  # only a session leader could have a terminal
    outer, inner = os.openpty()
    tty.setraw(inner)
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def written() -> str:
        """What came through since the last call; the kernel passes it on a little later."""
        data = b""
        while select.select([outer], [], [], 0.1)[0]:
            data += os.read(outer, 65536)
        return data.decode()

    with os.fdopen(inner, "w") as stream:
        yield stream, written
    os.close(outer)


def test_lines_go_to_the_bottom_and_the_rest_scrolls_above(terminal):
    stream, written = terminal
    with Panel(stream, height=2) as panel:
        panel.draw(["power", "clock"])
        text = written()
        assert "\x1b[1;22r" in text
        assert "\x1b[23;1H\x1b[2Kpower\x1b[24;1H\x1b[2Kclock" in text


def test_the_room_is_made_once_and_again_after_a_change_of_size(terminal):
    stream, written = terminal
    with Panel(stream, height=2) as panel:
        panel.draw(["a"])
        written()
        panel.draw(["b"])
        assert not re.search(r"\x1b\[\d+;\d+r", written())
        fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        panel.draw(["c"])
        assert "\x1b[1;38r" in written()
        assert panel.width == 120


def test_nothing_is_left_behind(terminal):
    stream, written = terminal
    with Panel(stream, height=2) as panel:
        panel.draw(["a"])
        with panel.put_away():
            assert "\x1b[r" in written()
        panel.draw(["a"])
        written()
    assert written() == "\x1b7\x1b[r\x1b[23;1H\x1b[J\x1b8"


def test_a_small_terminal_is_left_to_the_child(terminal):
    stream, written = terminal
    fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 5, 80, 0, 0))
    with Panel(stream, height=2) as panel:
        panel.draw(["a", "b"])
    assert written() == ""


def test_a_job_in_the_background_draws_nothing(terminal, monkeypatch):
    stream, written = terminal
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    with Panel(stream, height=2) as panel:
        panel.draw(["a"])
    assert written() == ""


def test_a_panel_needs_a_terminal_that_can_move_its_cursor(terminal, monkeypatch, tmp_path):
    stream, _ = terminal
    assert can_show(stream)
    monkeypatch.setenv("TERM", "dumb")
    assert not can_show(stream)
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "file").open("w") as file:
        assert not can_show(file)
