"""``joulewise sim`` as a user has it: in a process of its own, with commands and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joulewise import native
from tests import preloaded

try:
    native.library_path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)


def sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run("sim", *arguments)


def wait_until_gone(path: Path) -> bool:
    deadline_s = time.monotonic() + 120.0
    while path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not path.exists()


def test_a_command_sees_the_gpus_that_were_asked_for():
    code = "from pynvml import *; nvmlInit(); "
    code += "print([nvmlDeviceGetName(nvmlDeviceGetHandleByIndex(i)) for i in range(nvmlDeviceGetCount())])"
    done = sim("--gpu", "sim:a100*2,h200", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['NVIDIA A100 80GB PCIe', 'NVIDIA A100 80GB PCIe', 'NVIDIA H200']"
    assert done.stderr == ""


def test_its_load_runs_in_the_simulators_name():
    code = "import time; from pynvml import *; nvmlInit(); gpu = nvmlDeviceGetHandleByIndex(0)\n"
    code += "while nvmlDeviceGetPowerUsage(gpu) < 200_000: time.sleep(0.05)\n"
    code += "print(len(nvmlDeviceGetComputeRunningProcesses(gpu)))"
    done = sim("--load", "transformer", "--", sys.executable, "-c", code)
    assert done.stdout == "1\n"


def test_the_exit_code_of_the_command_is_kept():
    assert sim("--", "sh", "-c", "exit 7").returncode == 7
    assert sim("--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_is_one_line_and_127():
    done = sim("--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "joulewise: command not found: no-such-command; check the name after '--'\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "sim:warp9"), "no GPU model is called 'warp9'"),
        (("--gpu", "nvml:0"), "names no virtual GPUs"),
        (("--load", "nothing"), "no workload is called 'nothing'"),
        (("--speed", "0"), "speed=0 is not above 0"),
        (("--couple", "jax"), "jax"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_and_2(arguments, words):
    done = sim(*arguments, "--", "true")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_command(number):
    command = ["sim", "--", "sh", "-c", "echo $JOULEWISE_VNVML; exec sleep 60"]
    with preloaded.Command(*command, stdout=subprocess.PIPE) as running:
        directory = Path(running.stdout.readline().strip())
        assert directory.is_dir()
        running.send_signal(number)
        assert running.wait(timeout=120) == 128 + number
    assert wait_until_gone(directory)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_command_they_stay_up_until_a_signal_ends_them_cleanly(number):
    with preloaded.Command("sim", "--gpu", "sim:h200*2", "--json", stdout=subprocess.PIPE) as running:
        where = json.loads(running.stdout.readline())
        directory = Path(where["directory"])
        assert (directory / "state").exists()
        assert len(where["gpus"]) == 2
        code = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetCount())"
        environ = {**os.environ, **where["environment"]}
        seen = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert seen.stdout == "2\n"
        running.send_signal(number)
        assert running.wait(timeout=120) == 0
    assert wait_until_gone(directory)


def test_what_it_prints_can_be_sourced_by_a_shell(tmp_path):
    exported = tmp_path / "gpus.env"
    with exported.open("w") as file:
        running = preloaded.Command("sim", stdout=file, stderr=subprocess.PIPE)
    assert "1 virtual GPU is up: NVIDIA H200" in running.stderr.readline()
    shell = f". {exported}; {sys.executable} -c 'from pynvml import *; nvmlInit(); print(nvmlDeviceGetCount())'"
    seen = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    running.terminate()
    running.communicate(timeout=120)
    assert seen.stdout == "1\n"


def test_a_killed_simulator_is_one_line_and_the_command_goes_on():
    # The command's parent is sim, and the simulator is its only other child.
    code = "import os, signal, time; parent = os.getppid(); "
    code += "siblings = open(f'/proc/{parent}/task/{parent}/children').read().split(); "
    code += "os.kill(min({*map(int, siblings)} - {os.getpid()}), signal.SIGKILL); time.sleep(0.5); print('still here')"
    done = sim("--", sys.executable, "-c", code)
    assert done.stdout == "still here\n"
    assert done.stderr.startswith("joulewise: the simulator has ended")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 1


def test_a_killed_simulator_without_a_command_is_one_line_and_1():
    with preloaded.Command("sim", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        where = json.loads(running.stdout.readline())
        os.kill(where["pid"], signal.SIGKILL)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 1
    assert said.splitlines()[-1].startswith("joulewise: the simulator has ended")
    assert wait_until_gone(Path(where["directory"]))


def test_a_command_that_cannot_be_coupled_is_told_so():
    done = sim("--couple", "torch", "--", sys.executable, "-I", "-c", "pass")
    assert done.returncode == 0
    assert "no optimiser step was coupled; if the command took some, its Python does not read PYTHONPATH" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_that_fails_has_the_last_word():
    done = sim("--couple", "torch", "--", sys.executable, "-c", "raise SystemExit('no data')")
    assert (done.returncode, done.stderr) == (1, "no data\n")
