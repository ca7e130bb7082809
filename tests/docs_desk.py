"""A reader's desk: a folder with what the pages take to be there, in which their commands are typed.

The reader has a training script (``train.py``), our examples, ``joulewise`` and ``python`` on the path, and a home
without any history. GPUs are what the desk is put at: a virtual node's environment, or none. Nothing of the machine's
own is read or written.
"""

from __future__ import annotations

import atexit
import copy
import gzip
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from joulewise.model import catalog
from tests import preloaded
from tests.docs_pages import ROOT
from tests.plan.traced_job import Truth, fsdp

LONGEST_S = 200.0
"""For one command, so that a hang is an error."""
CLOCKS = {1410: (1.0, 1.0), 1200: (1.12, 0.82), 1005: (1.31, 0.74)}
"""MHz of a stage that was measured: its time and its energy there, over those at the highest."""

TRAIN = """
import argparse

import joulewise
from joulewise.device.work import launch
from joulewise.model import workloads

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=100, help="an epoch")
options.add_argument("--batch-size", type=int, default=32)
options.add_argument("--lr", type=float, default=0.001)
chosen = options.parse_args()
phases = workloads.get("recommender", step_s=0.15).phases()
joulewise.metric(epoch=0)
for epoch in range(1, 4):
    for _ in range(chosen.steps):
        step = [next(phases)]
        while not step[-1].ends_step:
            step.append(next(phases))
        launch(step, ahead=4)
        joulewise.step()
    val_acc = 0.6 + 0.1 * epoch
    print(f"epoch {epoch} val_acc={val_acc:.2f}", flush=True)
    joulewise.metric(epoch=epoch, val_acc=val_acc)
"""
"""A reader's training on a virtual GPU."""

TORCH_TRAIN = """
import argparse, os

import torch

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=30)
chosen = options.parse_args()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
if torch.distributed.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(chosen.steps):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(f"trained, loss {loss.item():.3f}", flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""
"""A reader's training in PyTorch that knows nothing of us."""


PROGRAM = Path(__file__).parent / "docs_program.py"


@cache
def _forking() -> Path:
    """Where this process waits for ``docs_program``, and has its commands forked."""
    path = Path(tempfile.mkdtemp(prefix="joulewise-desk-")) / "commands"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(16)

    def wait() -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_fork, args=[connection], daemon=True).start()

    threading.Thread(target=wait, daemon=True).start()
    return path


def _fork(connection: socket.socket) -> None:
    """A command that a shell has asked for, from its beginning to its end."""
    with connection:
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        body, left = b"", int.from_bytes(size, "big")
        while len(body) < left:
            body += connection.recv(left - len(body))
        asked = json.loads(body)
        stdin, stdout, stderr = streams
        command = preloaded.Command(
            *asked["words"], env=asked["environ"], cwd=asked["folder"], stdin=stdin, stdout=stdout, stderr=stderr
        )
        for stream in streams:
            os.close(stream)
        with suppress(BrokenPipeError):
            connection.sendall(command.pid.to_bytes(8, "big"))
            connection.sendall(command.wait().to_bytes(8, "big", signed=True))


class Said:
    """What came of a command: its exit code, and all that it printed."""

    def __init__(self, command: str, code: int | None, words: str) -> None:
        self.command = command
        self.code = code
        self.words = words

    def __repr__(self) -> str:
        return f"{self.command}\n→ {self.code}\n{self.words[-4000:]}"


class Desk:
    """A folder, and the environment of what is typed there."""

    def __init__(self, folder: Path, *, train: str = TRAIN, python: Path | None = None, cold: bool = False) -> None:
        """``python``: whose interpreter the reader has; ours by default. ``cold``: each ``joulewise`` is started as a
        reader's is, and not forked."""
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / "train.py").write_text(train.lstrip(), "utf-8")
        programs = folder / "bin"
        programs.mkdir()
        # No link: an interpreter that is called by another path may not find its own environment.
        (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (programs / "python").chmod(0o755)
        ours = "-m joulewise" if cold else f"-I -S {PROGRAM} {_forking()}"
        (programs / "joulewise").write_text(f'#!/bin/sh\nexec "{sys.executable}" {ours} "$@"\n')
        (programs / "joulewise").chmod(0o755)
        path = [str(programs), os.environ["PATH"]]
        if python is not None:
            (programs / "python").unlink()
            path.insert(1, str(python.parent))
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("JOULEWISE_H", "XDG_"))}
        self.environ = {
            **ours,
            "HOME": str(folder),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "120",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def beside(self, environ: Mapping[str, str]) -> Desk:
        """The same desk, seen from another machine."""
        other = copy.copy(self)
        other.environ = dict(environ)
        return other

    def type(self, command: str, *, answers: str = "") -> Said:
        """Run a command to its end; ``answers`` are what it reads from the keyboard."""
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environ,
            input=answers,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
            start_new_session=True,
        )
        return Said(command, ran.returncode, ran.stdout)

    @contextmanager
    def left_running(self, command: str, ready: str) -> Iterator[Said]:
        """A command that goes on until it is told to end; what it had said when it said ``ready``. It ends in order."""
        descriptor, name = tempfile.mkstemp(prefix="said-", dir=self.folder)
        log = Path(name)
        with os.fdopen(descriptor, "w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline_s = time.monotonic() + LONGEST_S
            while not re.search(ready, said := log.read_text("utf-8")):
                assert process.poll() is None, Said(command, process.returncode, said)
                assert time.monotonic() < deadline_s, Said(command, None, said)
                time.sleep(0.05)
            yield Said(command, None, said)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
        assert process.returncode in (0, 130), Said(command, process.returncode, log.read_text("utf-8"))

    def at_a_terminal(self, command: str, until: str, then: str) -> Said:
        """Run a command that draws, and press keys once ``until`` is on the screen."""
        child, screen = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execvpe("bash", ["bash", "-c", f"exec {command}"], {**self.environ, "TERM": "xterm", "LINES": "40"})
        seen, pressed = "", False
        deadline_s = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline_s:
            if select.select([screen], [], [], 0.1)[0]:
                try:
                    seen += os.read(screen, 65536).decode("utf-8", "replace")
                except OSError:  # its end
                    break
            if not pressed and re.search(until, seen):
                os.write(screen, then.encode())
                pressed = True
        else:
            os.kill(child, signal.SIGKILL)
        os.close(screen)
        return Said(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen)


def measured_stages(file: Path, stages: int = 8) -> None:
    """A profile as the page on plans shows it, whole: every stage at some clocks."""
    rows = ["stage,instruction,frequency,time,energy"]
    for stage in range(stages):
        heavier = 1.0 + 0.03 * (stage % 3)
        for mhz, (slower, cheaper) in CLOCKS.items():
            for kind, time_s, energy_j in (("forward", 0.0502, 23.8), ("backward", 0.0930, 44.6)):
                rows.append(f"{stage},{kind},{mhz},{time_s * slower * heavier:.5f},{energy_j * cheaper * heavier:.4f}")
    file.write_text("\n".join(rows) + "\n", "utf-8")


def traces(folder: Path) -> None:
    """Profiler traces of two ranks, zipped and not."""
    gpu = catalog.load("h200")
    truth = Truth(fsdp(1, gpu, layers=3), gpu, seed=0)
    for rank in range(2):
        text = json.dumps(truth.kineto(rank=rank, seed=rank))
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(text.encode()))
        (folder / "trace.json").write_text(text, "utf-8")


def sweep(file: Path) -> None:
    """Measurements of a GPU at some clocks and limits: some of ours of an H200, which are fitted sooner than all."""
    head, *rows = (ROOT / "bench" / "results" / "h200" / "points.csv").read_text("utf-8").splitlines()
    file.write_text("\n".join((head, *rows[::4])) + "\n", "utf-8")


def instead(command: str, other: Mapping[str, str]) -> str:
    """A command with what is the reader's own (a host, a user, the name of a run) put in."""
    for pattern, replacement in other.items():
        command = re.sub(pattern, replacement, command)
    return command
