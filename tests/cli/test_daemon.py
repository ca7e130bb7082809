"""``joulewise daemon``: the verb turns into the daemon, which is tested in tests/daemon."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.device.remote_client import DaemonClient
from tests.daemon.running import until


def test_the_example_of_its_help_runs_and_sigterm_ends_it(virtual_nvml, environ, tmp_path):
    here = ["--socket", "./d.sock", "--state", "./state", "--grants", "./grants", "--audit", "./audit.jsonl"]
    words = [sys.executable, "-m", "joulewise"]
    argv = [*words, "sim", "--", *words, "daemon", *here]
    tmp_path.chmod(0o755)
    with subprocess.Popen(argv, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr.readline() == "joulewise daemon: ready on d.sock\n"
            with DaemonClient(tmp_path / "d.sock") as client:
                assert len(client.hello["gpus"]) == 1
                daemon = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[-1]
                # It is the daemon, not a command line that waits for one: none of what the command line needs is there.
                command = Path(f"/proc/{daemon}/cmdline").read_text().split("\0")
                assert command[1:4] == ["-P", "-m", "joulewise.daemon"]
                assert {"typer", "rich", "numpy"}.isdisjoint(client.status()["modules"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
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
    ran = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode != 0, ran.stdout, ran.stderr.count("\n")) == (True, "", 1)
    assert message in ran.stderr
