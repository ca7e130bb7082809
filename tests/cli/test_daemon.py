"""``joulewise daemon``: the verb turns into the daemon, which is tested in tests/daemon."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cli import VERBS, main
from joulewise.device.remote_client import DaemonClient
from tests.daemon.running import until


def test_the_example_of_its_help_runs_and_sigterm_ends_it(virtual_nvml, may_set, environ, tmp_path):
    here = ["--socket", "./d.sock", "--state", "./state", "--grants", "./grants", "--audit", "./audit.jsonl"]
    here += ["--socket-mode", "660"]
    words = [sys.executable, "-m", "joulewise"]
    argv = [*words, "sim", "--", *words, "daemon", *here]
    tmp_path.chmod(0o755)
    with subprocess.Popen(argv, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr.readline() == "joulewise daemon: ready on d.sock\n"
            with DaemonClient(tmp_path / "d.sock") as client:
                assert len(client.hello["gpus"]) == 1
                assert (tmp_path / "d.sock").stat().st_mode & 0o777 == 0o660
                daemon = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[-1]
                # It is the daemon, not a command line that waits for one: none of what the command line needs is there.
                command = Path(f"/proc/{daemon}/cmdline").read_text().split("\0")
                assert command[1:4] == ["-P", "-m", "joulewise.daemon"]
                assert {"typer", "rich", "numpy"}.isdisjoint(client.status()["modules"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
    until(lambda: not (tmp_path / "d.sock").exists())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--site", "none.toml"], "there is no site file none.toml"),
        (["--state", "/proc/none"], "/proc/none"),
    ],
)
def test_what_it_cannot_start_with_is_one_line(virtual_nvml, environ, tmp_path, flags, message):
    given = {"--socket": "d.sock", "--state": "state", "--grants": "grants", "--audit": "audit.jsonl"}
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    words = [sys.executable, "-m", "joulewise"]
    argv = [*words, "sim", "--", *words, "daemon", *(word for pair in given.items() for word in pair)]
    ran = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode != 0, ran.stdout, ran.stderr.count("\n")) == (True, "", 1)
    assert message in ran.stderr


# Everything is loaded as root, since another user may not be able to read the interpreter's files.
AS_USER = """
import os, sys
from joulewise.cli import main
try:
    main(["daemon", "--socket-mode", "none"])
except SystemExit:
    pass
os.setresgid(12345, 12345, 12345)
os.setresuid(12345, 12345, 12345)
main(["daemon", *sys.argv[1:]])
"""


def refused(argv: list[str], environ: dict[str, str], cwd: Path) -> str:
    """What the verb says, in one line, to a user who is not root."""
    command = [sys.executable, "-c", AS_USER, *argv]
    ran = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 2)
    return ran.stderr.splitlines()[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_user_is_told_that_it_needs_root_or_folders_of_their_own(environ, tmp_path):
    assert "the daemon needs root" in refused([], environ, tmp_path)
    virtual = {**environ, "JOULEWISE_VNVML": str(tmp_path)}
    said = refused(["--socket", "d.sock", "--audit", "a"], virtual, tmp_path)
    assert "name --state, --grants" in said


@pytest.mark.parametrize("mode", ["rw", "9", "0o666", "66666"])
def test_a_mode_that_is_none_is_refused(capsys, mode):
    with pytest.raises(SystemExit) as ended:
        main(["daemon", "--socket-mode", mode])
    assert ended.value.code == 2
    assert "no mode as chmod writes it" in capsys.readouterr().err


def test_it_takes_every_flag_of_the_daemon(capsys):
    """The module's own parser and the verb's know the same flags."""
    from joulewise.daemon.__main__ import _options

    with pytest.raises(SystemExit):
        _options(["--help"])
    theirs = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    command = VERBS["daemon"].load("daemon")
    assert theirs == {name for param in command.params for name in param.opts} - {"--print-unit"}
