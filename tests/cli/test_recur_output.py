"""What a command prints passes through unchanged and at once: real processes, pipes and terminals."""

import os
import subprocess
import sys

import pytest

# Runs what follows as ``recur run`` does, and says at the end which lines were seen.
PASSED_ON = """
import os, sys
from joulewise.cli.child import Child, signals_held
from joulewise.cli.recur_output import Output

seen = []
with signals_held() as mask, Output(seen.append) as output:
    child = Child(sys.argv[2:], os.environ, mask, files=output.files)
    output.begin()
    while (code := child.wait(0.05)) is None:
        output.keep_up()
    output.end()
with open(sys.argv[1], "w") as file:
    print(*seen, sep="|", file=file)
    print(*output.last_lines[-2:], sep="|", file=file)
sys.exit(code)
"""
PRINTS = (
    "import sys, time; print('first', flush=True); print('to stderr', file=sys.stderr); "
    "print(sys.stdout.isatty(), sys.stderr.isatty()); sys.stdout.write('bar 1\\rbar 2\\n'); sys.exit(3)"
)


def argv(file, *command: str) -> list[str]:
    return [sys.executable, "-c", PASSED_ON, str(file), *command]


def test_streams_stay_apart_and_every_line_is_seen(environ, tmp_path):
    ran = subprocess.run(
        argv(tmp_path / "seen", sys.executable, "-c", PRINTS), env=environ, capture_output=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, b"first\nFalse False\nbar 1\rbar 2\n", b"to stderr\n")
    seen, last = (tmp_path / "seen").read_text().splitlines()
    assert sorted(seen.split("|")) == ["False False", "bar 1", "bar 2", "first", "to stderr"]
    assert last == "|".join(seen.split("|")[-2:])


def test_in_a_terminal_the_command_has_one_as_large_and_lines_come_as_they_are_printed(environ, tmp_path, in_terminal):
    prints = "import os, sys; print(os.get_terminal_size(1), sys.stderr.isatty()); input(); print('bye')"
    terminal = in_terminal(argv(tmp_path / "seen", sys.executable, "-c", prints), rows=33, columns=111, **environ)
    terminal.read_until("True")  # while the command waits for a key, and so without its being flushed by its end
    assert "columns=111, lines=33" in terminal.shown
    terminal.type("\n")
    assert terminal.finish() == 0
    assert terminal.shown.endswith("bye\r\n")
    assert "\r\r\n" not in terminal.shown


def test_a_command_whose_reader_has_gone_notices_as_without_us(environ, tmp_path):
    endless = "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: print('more')"
    with subprocess.Popen(
        argv(tmp_path / "seen", sys.executable, "-c", endless), env=environ, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 128 + 13


def test_what_a_command_leaves_behind_does_not_hold_us_up(environ, tmp_path):
    read, write = os.pipe()
    process = subprocess.Popen(
        argv(tmp_path / "seen", "sh", "-c", "sleep 30 & echo done"), env=environ, stdout=write, start_new_session=True
    )
    os.close(write)
    assert process.wait(timeout=25) == 0
    assert os.read(read, 100) == b"done\n"
    os.close(read)
    os.killpg(process.pid, 9)


def test_a_closed_stream_stays_closed(environ, tmp_path):
    shell = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *argv(tmp_path / "seen", "sh", "-c", "echo hello")],
        env=environ,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    assert shell.returncode != 0


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_line_of_any_length_is_passed_on_whole(environ, tmp_path, size):
    ran = subprocess.run(
        argv(tmp_path / "seen", sys.executable, "-c", f"print('x' * {size})"),
        env=environ,
        capture_output=True,
        timeout=60,
    )
    assert len(ran.stdout) == size + 1
