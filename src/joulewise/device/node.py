"""A node of virtual GPUs in a process of its own: start it, find it, break it, end it.

``spawn`` starts the simulator (``device/simulator``) and gives a handle; whatever is started with the handle's
environment sees the GPUs through NVML and can do virtual work on them. The simulator ends with its starter, however
that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joulewise import native
from joulewise.core import errors
from joulewise.core.errors import BadSpec, JoulewiseError, MissingPart
from joulewise.core.parsing import json_value
from joulewise.device.discover import parse
from joulewise.device.simulator import Order
from joulewise.device.virtual import Truth
from joulewise.device.work import ENVIRONMENT, Link

# The child runs this very package, wherever it lies; at the end of the path, so that it hides nothing.
_HOME = str(Path(errors.__file__).parents[2])
_START = "import sys; sys.path.append(sys.argv[2]); from joulewise.device.simulator import main; sys.exit(main())"
_LONGEST_END_S = 5.0  # for a simulator to tidy up; it needs milliseconds


class NodeClient:
    """A connection to a simulator, for what is not work: its truth, and its faults."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._link = Link(directory)

    @property
    def speed(self) -> float:
        """Simulated seconds per second."""
        return self._link.speed

    @property
    def gpus(self) -> list[dict[str, str]]:
        """The GPUs in order, each with ``uuid`` and ``name``."""
        return list(self._link.hello["gpus"])

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs by name, in order."""
        return tuple(gpu["uuid"] for gpu in self.gpus)

    def truth(self, index: int = 0) -> Truth:
        """What is really so with GPU ``index``."""
        answer = self._link.ask({"op": "truth", "gpu": index})
        del answer["id"]
        return Truth(**answer)

    def status(self) -> Mapping[str, Any]:
        """How coupled scripts keep up (``coupled``), the simulator's own processor time (``cpu_s``), and the pids that
        have opened NVML (``nvml_clients``)."""
        return self._link.ask({"op": "status"})

    def fault(self, index: int, kind: str, **arguments: Any) -> None:
        """Break GPU ``index`` for NVML clients: see ``simulator.FAULTS``.

        ``unsupported`` takes ``groups`` of calls, ``slow`` also ``seconds``; ``mig`` takes ``on``; ``bmc`` (the board's
        controller holds power down) takes ``limit_w``, None to end it. These end with ``clear``.

        What follows is no fault but something that happens to settings, and stays: ``foreign`` takes knobs and values;
        ``persistence`` takes ``on``; ``reload`` concerns all GPUs unless it is ``alone``. Raises BadSpec for what it
        does not know.
        """
        self._link.ask({"op": "fault", "gpu": index, "kind": kind, "arguments": arguments})

    def clear(self, index: int) -> None:
        """GPU ``index`` works again."""
        self._link.ask({"op": "clear", "gpu": index})

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RunningNode:
    """A simulator that runs; made by ``spawn``."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.directory = directory
        self.pid = process.pid
        self._process = process

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """``environ`` (this process's if None) with what lets a process and its children see the virtual GPUs.

        Raises MissingPart if the virtual NVML has not been built.
        """
        environ = dict(os.environ if environ is None else environ)
        try:
            library = native.library_path().parent
        except FileNotFoundError as error:
            raise MissingPart(str(error)) from error
        rest = environ.get("LD_LIBRARY_PATH")
        environ["LD_LIBRARY_PATH"] = f"{library}:{rest}" if rest else str(library)
        environ[ENVIRONMENT] = str(self.directory)
        return environ

    def client(self) -> NodeClient:
        """A connection for truth and faults."""
        return NodeClient(self.directory)

    def alive(self) -> bool:
        """Whether the simulator runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a crash would: nothing is tidied up by the simulator itself."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it. Idempotent."""
        _end(self._process)


@contextmanager
def spawn(
    spec: str = "sim",
    *,
    speed: float = 1.0,
    load: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    cards: int | None = None,
) -> Iterator[RunningNode]:
    """Run the virtual GPUs of ``spec`` (``sim:a100*4``) in a process of their own while the context lasts.

    They live ``speed`` times as fast as the wall, and each plays the workload ``load`` if one is named. ``directory``
    is made private and removed if not given. ``seed`` draws the cards' sensor errors; without it sensors have no
    gain error. ``cards`` draws each GPU as a card of ``model/truth``. Raises BadSpec for what cannot be simulated.
    """
    wanted = parse(spec)
    if wanted.backend != "sim":
        raise BadSpec(f"{spec!r} names no virtual GPUs; write 'sim:h200*8' or 'sim:a100,h200'")
    order = Order(wanted.models, speed, load, None if directory is None else os.fspath(directory), seed, cards)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, order.to_json(), _HOME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != ENVIRONMENT},
        start_new_session=True,  # a terminal's Ctrl-C is for the command, not for its GPUs
    )
    try:
        node = RunningNode(process, _where(process))
    except BaseException:
        _end(process)
        raise
    try:
        yield node
    finally:
        node.close()
        if directory is None:
            shutil.rmtree(node.directory, ignore_errors=True)  # if it was killed, it left its files


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a simulator tidy up and end, however far it has come; kill it if it does not. Idempotent."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()  # the lifeline
    try:
        process.wait(_LONGEST_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()  # not before: it may be about to say where it is


def _where(process: subprocess.Popen[bytes]) -> Path:
    """Wait until the simulator has said where it is; raise what it has said instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise JoulewiseError(f"the simulator ended at once, with exit code {process.wait()}; see its message above")
    answer = json_value(line)
    if "error" in answer:
        kind = getattr(errors, answer["error"], JoulewiseError)
        raise kind(answer["message"])
    return Path(answer["directory"])
