"""The guardian: a small process next to a LocalLease that gives everything back if the lease's process dies.

It sees the death through a pidfd, and through a pipe that it shares with that process alone; then it takes over the
files and gives back. It has a session of its own and ignores the signals that end a job, since its work begins
where the job's ends; only SIGKILL to both at once gets past it, and then 'joulewise restore' or the next lease does
the same. ``Guardian`` is the starter's end of it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from joulewise.core import errors
from joulewise.core.errors import JoulewiseError, LeaseTaken, NotSaved
from joulewise.core.visible import visible
from joulewise.device.lease import Ending
from joulewise.device.rescue import rescue

# The child runs this very package, wherever it lies; at the end of the path, so that it hides nothing.
_HOME: Final = str(Path(errors.__file__).parents[2])
_START: Final = "import sys; sys.path.append(sys.argv[2]); from joulewise.device.guardian import main; sys.exit(main())"

_START_S: Final = 30.0  # to load Python and NVML; it needs 0.2 s on an idle machine
_END_S: Final = 5.0  # to end when told; it needs milliseconds
_SOONEST_S, _LATEST_S = 0.01, 1.0  # between attempts: a dying process lets go of its pipe just before its files
_PATIENCE_S: Final = 60.0  # a GPU that needs a reset gets a minute for it; after that the file waits for the next one
_IN_OTHER_HANDS_S: Final = 3.0  # whoever has the file by then has replayed it: who opens one does


class Guardian:
    """The starter's end: alive until ``dismiss``, or until this process dies."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Not to be called: ``start`` waits until the guardian watches."""
        self._process = process
        self._starter = os.getpid()
        _running.append(self)

    @property
    def pid(self) -> int:
        """The guardian's own."""
        return self._process.pid

    @classmethod
    def start(cls, state: Path, gpus: Sequence[str]) -> Guardian:
        """A guardian over ``gpus`` that watches this process already. NotSaved if it does not come up."""
        pidfd = os.pidfd_open(os.getpid())
        order = {"state": str(state), "gpus": list(gpus), "pidfd": pidfd}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(order), _HOME],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(pidfd,),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise NotSaved(f"no guardian could be started ({error}), so nothing was set") from None
        finally:
            os.close(pidfd)
        guardian = cls(process)
        if not _says_ready(process):
            process.kill()
            guardian.dismiss()
            raise NotSaved("the guardian of this lease did not come up, so nothing was set; see its message above")
        return guardian

    def dismiss(self, *, owed: bool = False) -> None:
        """End it; if something is still ``owed``, it goes on trying by itself for a while. Idempotent."""
        if self not in _running:
            return
        _running.remove(self)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # it may be dead, and then it is dismissed
            if not owed:
                os.write(self._process.stdin.fileno(), b"done")
        self._process.stdin.close()
        self._process.stdout.close()
        if owed:
            self._process.returncode = 0  # it outlives us on purpose; init takes care of it
            return
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        """In a forked child: the pipe is the parent's, and must end with it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.returncode = 0


_running: list[Guardian] = []


def _after_fork() -> None:
    for guardian in _running:
        guardian.let_go()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)


def _says_ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(_START_S)) and process.stdout.readline() == b"ready\n"


# ---- the other process ---------------------------------------------------------------------------------------------


def main() -> int:
    """Watch as the order in the first argument says, then give back. 0 if nothing is owed any more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.argv[1])
    try:
        _open_nvml()
    except JoulewiseError as error:
        print(visible(f"joulewise guardian: {error}"), file=sys.stderr)
        return 1
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if _dismissed(order["pidfd"]):
        return 0
    left = give_back(Path(order["state"]), order["gpus"])
    for uuid, why in left.items():
        print(visible(f"joulewise guardian: {uuid} is still owed ({why}); run 'joulewise restore'"), file=sys.stderr)
    return 1 if left else 0


def give_back(state: Path, gpus: Sequence[str]) -> Mapping[str, str]:
    """Rescue ``gpus`` until nothing is owed, for a minute at most; what is left, and why."""
    left = dict.fromkeys(gpus, "")
    start_s, wait_s = time.monotonic(), _SOONEST_S
    while True:
        spent_s = time.monotonic() - start_s
        for uuid in list(left):
            left[uuid], over = _rescue(state, uuid, patient=spent_s < _IN_OTHER_HANDS_S)
            if over:
                del left[uuid]
        if not left or spent_s > _PATIENCE_S:
            return left
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LATEST_S)


def _rescue(state: Path, uuid: str, *, patient: bool) -> tuple[str, bool]:
    """Why something is still owed, and whether this is over."""
    try:
        given = rescue(state, uuid)
    except LeaseTaken as error:
        return str(error), not patient
    except JoulewiseError as error:
        return str(error), False
    failed = [each.why for each in given if each.ending is Ending.FAILED]
    return "; ".join(failed), not failed


def _open_nvml() -> None:
    """Now, while all is well: at the moment of need it has to be quick."""
    from joulewise.device import nvml_controls, nvml_library  # noqa: F401 (loaded for later)

    nvml_library.nvml()


def _dismissed(pidfd: int) -> bool:
    """Wait for a word or a death; whether it was the word."""
    watched: dict[int, Any] = {0: selectors.EVENT_READ, pidfd: selectors.EVENT_READ}
    with selectors.DefaultSelector() as selector:
        for fd, events in watched.items():
            selector.register(fd, events)
        selector.select()
    # Both may have come: a word is a word even if death followed.
    os.set_blocking(0, False)
    with suppress(BlockingIOError):
        return os.read(0, 16) == b"done"
    return False


if __name__ == "__main__":
    sys.exit(main())
