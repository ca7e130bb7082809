"""A user without root's rights who types ``joulewise run --tune`` on a stage."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.scenarios.staging import ANYONE, Stage, until

ROOT = Path(__file__).parents[2]
AS_USER = ROOT / "tests" / "peers" / "clients" / "as_user.py"
JOB = Path(__file__).with_name("tuned_job.py")
PATIENCE_S = 90.0
"""For anything to happen that must; a hang is an error, and a busy machine is none."""


class Tuned:
    """A command being tuned; the job of ``tuned_job`` runs when it is made."""

    def __init__(self, stage: Stage, folder: Path, ranks: int) -> None:
        self.stage = stage
        self.home = folder / "home"
        self.home.mkdir()
        os.chown(self.home, ANYONE, ANYONE)
        self.done = self.home / "done"
        self._said = folder / "said"
        self._writes_before = sum(stage.writes())
        environ = {**stage.environment(), "JOULEWISE_HOME": str(self.home), "PYTHONPATH": str(ROOT / "src")}
        run = ["-m", "joulewise", "run", "--tune", "--max-slowdown", "10%", "--seed", "1", "--"]
        job = [sys.executable, str(JOB), str(self.done), f"{ranks}"]
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, AS_USER, f"{ANYONE}", sys.executable, *run, *job],
                env=environ,
                cwd=self.home,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        assert self.process.stdout is not None
        up = self.process.stdout.readline().split()
        assert up[:1] == ["up"], self.said()
        self.job = int(up[1])

    @property
    def database(self) -> Path:
        """Where the user's runs are kept."""
        return self.home / "joulewise.db"

    def said(self) -> str:
        """What joulewise has said so far."""
        return self._said.read_text()

    def writes(self) -> int:
        """How often GPUs have been written to since it began."""
        return sum(self.stage.writes()) - self._writes_before

    def await_writes(self, count: int) -> None:
        """Until GPUs have been written to so often; AssertionError if the job ends before."""
        until(lambda: self.writes() >= count or self.process.poll() is not None, PATIENCE_S)
        assert self.process.poll() is None, f"it ended after {self.writes()} of {count} writes: {self.said()}"

    def await_held(self, for_s: float) -> None:
        """Until something that was set has stayed for so long."""
        deadline_s = time.monotonic() + PATIENCE_S
        before, since_s = self.stage.all_hardware(), time.monotonic()
        default = before
        while time.monotonic() < since_s + for_s or before == default:
            assert time.monotonic() < deadline_s, f"nothing was held: {self.said()}"
            now = self.stage.all_hardware()
            if now != before:
                before, since_s = now, time.monotonic()
            time.sleep(0.002)

    def enough(self) -> None:
        """The job may come to its end."""
        (self.home / "done.enough").touch()

    def end(self) -> int:
        """Its exit code, in good time."""
        with self.process:
            return self.process.wait(PATIENCE_S)

    def ended_well(self) -> None:
        """The job itself comes to its end."""
        self.enough()
        until(lambda: self.done.exists() and self.done.read_text() == "done\n", PATIENCE_S)

    def close(self) -> None:
        """Whatever is left of it is gone."""
        self.process.kill()
        with self.process:
            self.process.wait()
        with suppress(ProcessLookupError):
            os.kill(self.job, signal.SIGKILL)


@contextmanager
def tuning(stage: Stage, *, ranks: int = 1) -> Iterator[Tuned]:
    """Somebody tunes a job while the context lasts.

    Not in pytest's folder, which every session that begins closes to other users again.
    """
    folder = Path(tempfile.mkdtemp(prefix="joulewise-tuned-"))
    folder.chmod(0o755)
    try:
        job = Tuned(stage, folder, ranks)
        try:
            yield job
        finally:
            job.close()
    finally:
        shutil.rmtree(folder)
