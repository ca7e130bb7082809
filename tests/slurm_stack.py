"""For tests of the whole stack: jobs with a known result, a scheduler that kills itself, and what was really drawn."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import MissingPart
from joulewise.testing.slurm_stack import SlurmStack, slurm_stack

TRAIN = (sys.executable, str(Path(__file__).parents[1] / "examples" / "train_elastic.py"))
STEP_S = 0.5
"""Of a step of all jobs on one GPU, nothing set."""
SUICIDAL = (sys.executable, "-m", "tests.slurm_stack")
"""Instead of ``joulewise cluster``: a scheduler that kills itself at every step of its round, each once."""
_STRUCK, _ONCE = "JOULEWISE_TEST_STRUCK", "JOULEWISE_TEST_ONCE"


@contextmanager
def stack_or_skip(**how: Any) -> Iterator[SlurmStack]:
    """A stack in a folder of its own; skips where a part is missing."""
    with tempfile.TemporaryDirectory(prefix="jw-stack-", dir="/tmp") as folder, ExitStack() as ending:
        try:
            stack = ending.enter_context(slurm_stack(Path(folder), **how))
        except MissingPart as missing:
            pytest.skip(str(missing))
        yield stack


@dataclass(frozen=True)
class User:
    """An ordinary user of this machine, for as long as ``ordinary_users`` lasts. ``folder`` is the own one."""

    name: str
    uid: int
    folder: Path

    def run(self, stack: SlurmStack, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Any command as this user, in the own folder, with the site's Slurm; whatever comes of it."""
        return subprocess.run(
            [sys.executable, "-m", "tests.cli.as_someone", str(self.uid), *words],
            env={
                **stack.environment,
                "HOME": str(self.folder),
                "JOULEWISE_HOME": str(self.folder / "home"),
                "PYTHONPATH": str(Path(__file__).parents[1]),
                **environ,
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def cluster(self, stack: SlurmStack, *words: str) -> subprocess.CompletedProcess[str]:
        """``joulewise cluster WORDS`` as this user."""
        return self.run(stack, sys.executable, "-m", "joulewise", "cluster", *words)


@contextmanager
def ordinary_users(stack: SlurmStack, *names: str) -> Iterator[tuple[User, ...]]:
    """Users with uids and home folders, and an account of Slurm's of their own name where there is accounting.

    They can reach the site: its folder is open to be passed through while they are there."""
    made: list[User] = []
    manages = [*shlex.split("sacctmgr --immediate --quiet add")]
    stack.folder.chmod(0o711)
    try:
        for number, name in enumerate(names):
            # The machine's own list of users: a name and a uid that no other run of these tests has.
            uid = 200_000 + (os.getpid() * 8 + number) % 1_000_000
            user = User(f"jw{os.getpid()}{name}", uid, stack.folder / f"of-{name}")
            add = ["useradd", "--no-create-home", "--no-log-init", "--user-group", "--uid", str(uid), user.name]
            subprocess.run(add, check=True, capture_output=True, timeout=30)
            made.append(user)
            user.folder.mkdir()
            os.chown(user.folder, uid, uid)
            if stack.site.layout.accounting_port is not None:
                for more in (("account", f"of-{name}"), ("user", user.name, f"account=of-{name}")):
                    subprocess.run(
                        [*manages, *more], env=stack.environment, check=True, capture_output=True, timeout=60
                    )
        yield tuple(made)
    finally:
        for user in made:
            # By force: their last jobs may still be on their way out.
            subprocess.run(["userdel", "--force", user.name], check=False, capture_output=True, timeout=30)


def train(
    stack: SlurmStack, name: str, gpus: int, steps: int, *script: str, flags: Sequence[str] = (), rigid: bool = False
) -> str:
    """Hand in a real small training; Slurm's number of it."""
    checkpoint = stack.work / f"{name}.checkpoint"
    words = [*TRAIN, "--steps", str(steps), "--step-seconds", f"{STEP_S:g}", "--result", str(result_file(stack, name))]
    elastic = ["--checkpoint", str(checkpoint)]
    if rigid:
        return stack.submit(name, [*words, "--rigid", *script], gpus, "--steps", str(steps), *flags)
    return stack.submit(name, [*words, *elastic, *script], gpus, "--steps", str(steps), *elastic, *flags)


def result_file(stack: SlurmStack, name: str) -> Path:
    """Where a job writes a line when it is done."""
    return stack.work / f"{name}.jsonl"


def results(stack: SlurmStack, name: str) -> list[dict[str, Any]]:
    """What a job has written: a line each time that it was done."""
    path = result_file(stack, name)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@functools.cache
def reference(steps: int) -> str:
    """The result of an undisturbed run on no GPU at all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        words = [*TRAIN, "--rigid", "--steps", str(steps), "--result", str(path)]
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "JOULEWISE_VNVML"))}
        subprocess.run(words, env=plain, check=True, capture_output=True, timeout=60)
        said: str = json.loads(path.read_text())["sha256"]
        return said


def ended_once(stack: SlurmStack, jobs: dict[str, int]) -> None:
    """Every job (name → steps) has ended with the reference result, and has said so once."""
    for name, steps in jobs.items():
        assert stack.client.job(name).state == "ended", stack.client.job(name)
        assert [each["sha256"] for each in results(stack, name)] == [reference(steps)], name


class Drawn:
    """What the cluster really draws, looked at all the time: means over at least ``window_s``, by monotonic time."""

    def __init__(self, stack: SlurmStack, window_s: float = 1.0) -> None:
        self._hosts_w = stack.host_w * len(stack.site.nodes)
        self._clients = [node.simulator.client() for node in stack.site.nodes.values() if node.simulator is not None]
        self._gpus = stack.site.layout.gpus
        self._window_s = window_s
        self._enough = threading.Event()
        self.means: list[tuple[float, float]] = []
        """When a window ended, and the mean power in it."""
        self.begun = self._read()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Drawn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _read(self) -> tuple[float, float]:
        """Seconds and joules of the GPUs."""
        joules = sum(client.truth(gpu).energy_j for client in self._clients for gpu in range(self._gpus))
        return time.monotonic(), joules

    def _watch(self) -> None:
        seen = [self._read()]
        while not self._enough.wait(0.25):
            seen.append(self._read())
            past = [each for each in seen if each[0] <= seen[-1][0] - self._window_s]
            if past:
                since = past[-1]
                passed_s = seen[-1][0] - since[0]
                self.means.append((seen[-1][0], self._hosts_w + (seen[-1][1] - since[1]) / passed_s))
                seen = seen[len(past) - 1 :]

    def busy_w(self, least_w: float, most_s: float = 60.0) -> float:
        """The mean power, once it is above ``least_w`` and has stopped rising: jobs that run are not yet at work."""
        deadline_s = time.monotonic() + most_s
        while len(self.means) < 9 or not least_w < self.means[-1][1] <= 1.05 * self.means[-9][1]:
            assert time.monotonic() < deadline_s, self.means[-9:]
            time.sleep(0.1)
        return self.means[-1][1]

    def highest_w(self, since_s: float, until_s: float) -> float:
        """Of all windows that lie between two monotonic times."""
        there = [watts for at_s, watts in self.means if since_s + self._window_s <= at_s <= until_s]
        assert there, (since_s, until_s, self.means[-3:])
        return max(there)


def struck(path: Path) -> list[str]:
    """The steps at which a suicidal scheduler has died."""
    return path.read_text().splitlines() if path.exists() else []


def suicidal(path: Path, *, once: bool = False) -> dict[str, str]:
    """The environment of one that writes down there where it died, and is started again at once, unless ``once``."""
    return {_STRUCK: str(path), _ONCE: "1" if once else "", "PYTHONPATH": str(Path(__file__).parents[1])}


def _main() -> None:
    import signal

    from joulewise.cli import main
    from joulewise.cluster import scheduler
    from tests.preloaded import preload

    # Whoever starts it again has loaded all that it needs: two dozen cold starts would be most of a test.
    preload()
    while child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL or os.environ[_ONCE]:
            sys.exit(1 if code < 0 else code)
    path = Path(os.environ[_STRUCK])
    done = set(struck(path))

    def step(name: str) -> None:
        if name in done:
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)

    made = scheduler.Scheduler.__init__
    scheduler.Scheduler.__init__ = lambda self, *words, **more: made(self, *words, **{**more, "step": step})  # type: ignore[method-assign]
    sys.argv = ["joulewise", "cluster", *sys.argv[1:]]
    main()


if __name__ == "__main__":
    _main()
