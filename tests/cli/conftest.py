import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.device.recording import Recorder
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from tests import preloaded

OURS = [sys.executable, "-m", "joulewise"]
"""How a command of ours begins; those in a terminal are forked, as others are by ``tests.preloaded``."""


class Terminal:
    """A command in a terminal of its own, as a user at a keyboard has it."""

    def __init__(self, command: list[str], *, rows: int = 24, columns: int = 80, **environ: str) -> None:
        self._outer, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", **environ}
        self.process: subprocess.Popen[bytes] | preloaded.Command
        if command[:3] == OURS:
            self.process = preloaded.Command(
                *command[3:],
                module="tests.cli.in_a_terminal",
                env=env,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
            )
        else:
            # setsid: a session whose terminal is the one on its stdin, as a shell's child has it.
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *command], stdin=inner, stdout=inner, stderr=inner, env=env
            )
        os.close(inner)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._outer, keys.encode())

    def read_until(self, words: str, *, timeout_s: float = 120.0) -> str:
        """Everything shown so far, once ``words`` is in it."""
        deadline = time.monotonic() + timeout_s
        while words not in self.shown:
            assert self._more(deadline - time.monotonic()), f"{words!r} did not show: {self.shown!r}"
        return self.shown

    def hang_up(self) -> None:
        """As when a window is closed or a connection is lost."""
        os.close(self._outer)
        self._outer = os.open(os.devnull, os.O_RDONLY)

    def finish(self, *, timeout_s: float = 120.0) -> int:
        """Wait for the end and return the exit code."""
        deadline = time.monotonic() + timeout_s
        while self._more(deadline - time.monotonic()):
            pass
        return self.process.wait(timeout=max(0.1, deadline - time.monotonic()))

    def plain(self) -> str:
        """What was shown, without colours and cursor movements."""
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[78D=>])", "", self.shown).replace("\r", "")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._outer)

    def _more(self, timeout_s: float) -> bool:
        """Read what is there; False at the end, or when nothing came in time."""
        ready, _, _ = select.select([self._outer], [], [], max(0.0, timeout_s))
        try:
            data = os.read(self._outer, 65536) if ready else b""
        except OSError:  # Linux says EIO once the last user of the terminal has gone
            data = b""
        self.shown += data.decode(errors="replace")
        return bool(data)


@pytest.fixture
def in_terminal() -> Iterator[type[Terminal]]:
    """``in_terminal([...])`` starts a command in a terminal; it is ended with the test."""
    started: list[Terminal] = []

    class Started(Terminal):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            started.append(self)

    yield Started
    for terminal in started:
        terminal.close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package under test is found, no GPU is hidden or chosen by accident, and what is kept
    is kept apart."""
    chosen = ("CUDA_VISIBLE_DEVICES", "JOULEWISE_VNVML", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
    kept = {name: value for name, value in os.environ.items() if name not in chosen}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "JOULEWISE_HOME": str(tmp_path / "home")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Commands with another ``LD_LIBRARY_PATH`` have a forking process of their own: in one worker, not in each."""
    for item in items:
        if "no_driver" in getattr(item, "fixturenames", ()) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("no-driver"))


@pytest.fixture(scope="session")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An ``LD_LIBRARY_PATH`` on which no NVIDIA driver can be loaded, whatever the machine has."""
    folder = tmp_path_factory.mktemp("no-driver")
    (folder / "libnvidia-ml.so.1").write_text("not a library")
    return str(folder)


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded minute of a virtual H200: a GPU that can be measured without starting a simulator."""
    path = tmp_path_factory.mktemp("recording") / "run.jsonl"
    clock = VirtualTime()
    gpu = VirtualGpu(catalog.load("h200"), time=clock, seed=1)
    with Recorder(path, [gpu]) as recorder:
        for tick in range(600):
            clock.sleep(0.1)
            recorder.reading(0, gpu.read())
            if tick % 10 == 0:
                recorder.energy(0, gpu.energy())
    return path


@pytest.fixture
def idle_gpu() -> VirtualGpu:
    """A virtual H200 of this process, in virtual time, that has been there for a while."""
    clock = VirtualTime(100.0)
    gpu = VirtualGpu(catalog.load("h200"), time=clock)
    clock.sleep(10.0)
    return gpu
