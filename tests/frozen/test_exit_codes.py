"""Exit codes, which scripts and schedulers go by (docs/cli.md)."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import preloaded
from tests.frozen.conftest import TUNED

RUN = ("run", "--gpu", "sim:h200", "--no-keep", "--")
CODES: dict[str, tuple[tuple[str, ...], int]] = {
    "done": (("--version",), 0),
    "nothing asked": ((), 0),
    "an unknown verb": (("nonsense",), 2),
    "an unknown flag": (("top", "--nonsense"), 2),
    "a bad value": (("run", "--max-slowdown", "fast", "--", "true"), 2),
    "a bad GPU spec": (("run", "--gpu", "none:0", "--", "true"), 2),
    "a value that this GPU has not": (("run", "--gpu", "sim:h200", "--set", "sm_mhz=9999", "--", "true"), 2),
    "no such run": (("history", "20000101-000000-none"), 2),
    "a run that verifies": (("verify", TUNED, "--database", "{store}"), 0),
    "a file that is no plan": (("plan", "show", "{store}"), 2),
    "a plan for other GPUs": (("plan", "check", "{folder}/plan-2.json", "--gpu-name", "NVIDIA T4"), 1),
    "no scheduler": (("cluster", "status", "--server", "unix:/none"), 1),
    "the command's own": ((*RUN, "sh", "-c", "exit 37"), 37),
    "the command was killed": ((*RUN, "sh", "-c", "kill -9 $$"), 137),
    "the command was not found": ((*RUN, "no-such-command"), 127),
    "the command cannot be run": ((*RUN, "/"), 126),
}


@pytest.mark.parametrize("what", CODES)
def test_a_command_ends_with_this_code(what: str, written: Path, tmp_path: Path) -> None:
    words, code = CODES[what]
    filled = [word.replace("{store}", str(written / "store.db")).replace("{folder}", str(written)) for word in words]
    done = preloaded.run(*filled, env={**os.environ, "JOULEWISE_HOME": str(tmp_path)}, cwd=tmp_path)
    assert done.returncode == code, done.stderr


def test_interrupted_is_130(tmp_path: Path) -> None:
    environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path)}
    words = ("top", "--json", "--interval", "0.2", "--gpu", "sim:h200")
    with preloaded.Command(*words, env=environ, stdout=subprocess.PIPE, start_new_session=True) as top:
        assert top.stdout is not None
        top.stdout.readline()
        top.send_signal(signal.SIGINT)
        top.stdout.read()
    assert top.returncode == 130
