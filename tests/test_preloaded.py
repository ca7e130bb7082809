"""Commands from the forking process are what commands from a new interpreter are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded

SAMPLES = [["--version"], ["history", "--json"], ["nonsense"], ["model", "list"], ["run", "--", "sh", "-c", "exit 3"]]


@pytest.mark.parametrize("words", SAMPLES, ids=" ".join)
def test_output_and_exit_code_are_those_of_a_new_interpreter(words: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    forked = preloaded.run(*words, env=environ, cwd=tmp_path)
    command = [sys.executable, "-m", "joulewise", *words]
    cold = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (forked.returncode, forked.stdout, forked.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_a_command_has_its_own_environment_folder_input_and_pid(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import os, sys; print(os.environ['WHO'], os.getcwd(), sys.argv[1:], input())")
    environ = {**os.environ, "WHO": "me", "PYTHONPATH": str(tmp_path)}
    done = preloaded.run("a", "b", module="shown", env=environ, cwd=tmp_path, input="said\n")
    assert done.stdout == f"me {tmp_path} ['a', 'b'] said\n"
    assert "WHO" not in os.environ


@pytest.mark.parametrize("code", [0, 3, "words"])
def test_it_ends_as_an_interpreter_does(code: int | str, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(
        f"import atexit, sys, threading\natexit.register(print, 'at exit')\n"
        f"threading.Timer(0.05, print, ['thread']).start()\nsys.exit({code!r})"
    )
    done = preloaded.run(module="ends", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "thread\nat exit\n"
    assert (done.returncode, done.stderr) == ((1, "words\n") if code == "words" else (code, ""))


def test_a_fault_is_a_traceback_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("1 / 0")
    done = preloaded.run(module="fails", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_that_kills_it_is_told(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); signal.pause()"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with preloaded.Command(module="waits", env=environ, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        assert command.poll() is None
        os.kill(command.pid, number)
        assert command.wait(timeout=30.0) == -number


def test_with_a_variable_that_only_a_new_interpreter_heeds_it_gets_one(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "shown.py").write_text("import sys; print(sys.flags.hash_randomization)")
    assert preloaded.run(module="shown", env=environ).stdout == "1\n"
    environ["PYTHONHASHSEED"] = "0"
    assert preloaded.run(module="shown", env=environ).stdout == "0\n"


def test_another_library_path_is_heeded_by_the_dynamic_linker(virtual_nvml: None, tmp_path: Path) -> None:
    from joulewise import native

    (tmp_path / "loads.py").write_text("import ctypes; ctypes.CDLL('libnvidia-ml.so.1'); print('loaded')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(native.library_path().parent)}
    assert preloaded.run(module="loads", env=environ).stdout == "loaded\n"
