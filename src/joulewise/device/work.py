"""Virtual work: one call that blocks until a virtual GPU has done it at its present clock.

A script that calls ``work`` slows down and speeds up with the clocks of its virtual GPU, and appears in its process
list. It needs a running simulator (``joulewise sim -- COMMAND``), found through ``JOULEWISE_VNVML``.

    from joulewise.device.work import work

    for batch in data:
        work("transformer")              # one training step of a library workload
        work([(0.1, 0.9, 400.0)])        # or plain numbers: gpu_s, sm_share, dynamic_w, host_s, dram_share, sharpness

Small on purpose: it runs inside training scripts, so it imports nothing outside the standard library and computes
nothing; the simulator does.
"""

from __future__ import annotations

import collections
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from joulewise.core import errors
from joulewise.core.errors import BadSpec, GpuLost, JoulewiseError
from joulewise.core.parsing import json_value

ENVIRONMENT = "JOULEWISE_VNVML"
SOCKET = "work.sock"
MOST_AHEAD = 128
"""Pieces of work on their way, beyond those that were asked for: answers to more of them may fill a socket."""
_FIELDS = ("gpu_s", "sm_share", "dynamic_w", "host_s", "dram_share", "sharpness", "static_part")
_WHOSE = ("CUDA_", "SLURM_", "LOCAL_", "RANK", "WORLD_SIZE", "NVIDIA_VISIBLE_DEVICES")

Work = Any
"""A name of the workload library (one step of it); one load, as an object, a mapping or numbers; or several."""


class Done(NamedTuple):
    """A piece of work that was done, in simulated seconds."""

    started_s: float
    finished_s: float
    energy_j: float
    """What the GPU drew meanwhile; the truth, not a reading."""


class LateAnswer(GpuLost):
    """A simulator did not answer within the time that a link allows; the answer may still be received."""


class Sent:
    """A piece of work on its way; ``done`` once somebody has waited for it."""

    def __init__(self) -> None:
        self.done: Done | None = None


class Link:
    """One connection to a simulator. Not for sharing between threads or over a fork."""

    def __init__(self, directory: str | os.PathLike[str], *, longest_s: float | None = None) -> None:
        """GpuLost if nobody answers there, within ``longest_s`` wall seconds if given; so for all later answers."""
        self.directory = os.fspath(directory)
        self._ids = itertools.count(1)
        self._unread = b""
        self._back: dict[int, tuple[Done, float]] = {}
        self._sent: dict[int, Sent] = {}
        self._launched: collections.deque[int] = collections.deque()
        self.last_sent: Sent | None = None
        """The last piece of work handed in here, so that others can tell when it was done."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(longest_s)
        try:
            # Through /proc, because a socket's own path may have no more than 107 bytes.
            directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._socket.connect(f"/proc/self/fd/{directory_fd}/{SOCKET}")
            finally:
                os.close(directory_fd)
        except OSError as error:
            self._socket.close()
            raise GpuLost(
                f"no simulator runs in {self.directory} ({error.strerror}); start one with 'joulewise sim'"
            ) from error
        environ = {name: value for name, value in os.environ.items() if name.startswith(_WHOSE)}
        self.hello = self.ask({"op": "hello", "environ": environ})
        self.speed = float(self.hello["speed"])

    def work(self, load: Work, gpu: int = 0, *, hidden: bool = False) -> Done:
        """Do ``load`` on virtual GPU ``gpu`` and return when it is done.

        It counts as begun when the caller came back for it: delays of sockets and scheduling cost nothing. With
        ``hidden``, it begins where the last work ended, so that the caller's own time in between costs nothing
        either, as where a real script's computing stands for the GPU's.
        """
        self.wait()
        wall_s = time.monotonic()
        request = {"op": "work", "gpu": gpu, "wall_s": wall_s, **_plain(load)}
        if gpu in self._back:
            last, back_wall_s = self._back[gpu]
            own_s = 0.0 if hidden else (wall_s - back_wall_s) * self.speed
            request["since_s"] = last.finished_s + own_s
        done = self.finish(self.send(request))
        self._back[gpu] = (done, time.monotonic())
        return done

    def launch(self, load: Work, gpu: int = 0, *, ahead: int = 2) -> None:
        """Hand in ``load`` and return when no more than ``ahead`` pieces are on their way, as a real GPU's queue does.

        So the GPU has work while the caller computes, and delays of the caller's own machine do not show. Those do not
        get shorter where the GPU lives faster than the wall: it is handed so many times as many pieces ahead then
        (``MOST_AHEAD`` at most), which last as long by the wall's clock as ``ahead`` of them do in real time.
        """
        self._back.clear()  # what follows begins when it is handed in, or when the GPU gets to it
        self._launched.append(self.send({"op": "work", "gpu": gpu, "wall_s": time.monotonic(), **_plain(load)}))
        while len(self._launched) > max(ahead, min(ahead * self.speed, MOST_AHEAD)):
            self.finish(self._launched.popleft())

    def wait(self) -> None:
        """Return when everything that was launched is done."""
        while self._launched:
            self.finish(self._launched.popleft())

    def finish(self, request_id: int) -> Done:
        """Wait for work that was sent."""
        sent = self._sent.pop(request_id, None)
        answer = self.receive(request_id)
        done = Done(answer["started_s"], answer["finished_s"], answer["energy_j"])
        if sent is not None:
            sent.done = done
        return done

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; raises what the simulator answers with."""
        return self.receive(self.send(request))

    def send(self, request: dict[str, Any]) -> int:
        """Send a request; returns the id to receive the answer by. Answers must be received in order."""
        request_id = next(self._ids)
        try:
            self._socket.sendall(json.dumps({**request, "id": request_id}).encode() + b"\n")
        except OSError as error:
            raise self._lost() from error
        if request.get("op") == "work":
            self.last_sent = self._sent[request_id] = Sent()
        return request_id

    def receive(self, request_id: int) -> dict[str, Any]:
        """The answer to request ``request_id``. Raises GpuLost if the simulator is gone, LateAnswer if it is slow."""
        while b"\n" not in self._unread:
            try:
                received = self._socket.recv(65536)
            except TimeoutError as error:
                raise LateAnswer(f"the simulator in {self.directory} does not answer; is the machine busy?") from error
            except OSError as error:
                raise self._lost() from error
            if not received:
                raise self._lost()
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json_value(line)
        if answer.get("id") != request_id:
            raise GpuLost(f"the simulator in {self.directory} answered out of turn; connect again")
        if "error" in answer:
            kind = getattr(errors, answer["error"], JoulewiseError)
            raise kind(answer["message"])
        return answer

    def close(self) -> None:
        """Leave the GPU; the process is no longer in its list."""
        self._socket.close()

    def __del__(self) -> None:
        # A thread that ends takes its connection with it, and need not know.
        if hasattr(self, "_socket"):
            self._socket.close()

    def _lost(self) -> GpuLost:
        return GpuLost(f"the simulator in {self.directory} has ended; start one with 'joulewise sim'")


_links = threading.local()


def _after_fork() -> None:
    """A child must not hold its parent's connection open, nor speak on it."""
    global _links
    _links = threading.local()


os.register_at_fork(after_in_child=_after_fork)


def work(load: Work, gpu: int = 0, *, hidden: bool = False) -> Done:
    """Do ``load`` on virtual GPU ``gpu`` of the simulator in ``JOULEWISE_VNVML``; blocks until it is done.

    See ``Link.work``. Threads and forked children each have their own connection. Raises GpuLost if no simulator
    runs, BadSpec if the load is none.
    """
    link = current()
    try:
        return link.work(load, gpu, hidden=hidden)
    except BadSpec:
        raise
    except BaseException:
        # An interrupted wait leaves an answer on its way; the next call starts afresh.
        _links.link = None
        link.close()
        raise


def launch(load: Work, gpu: int = 0, *, ahead: int = 2) -> None:
    """Hand ``load`` to virtual GPU ``gpu`` and go on while it is being done; see ``Link.launch``.

    A later ``work`` waits for it. Raises as ``work`` does.
    """
    link = current()
    try:
        link.launch(load, gpu, ahead=ahead)
    except BadSpec:
        raise
    except BaseException:
        _links.link = None
        link.close()
        raise


def current() -> Link:
    """This thread's connection, made on first use and again after a fork."""
    directory = os.environ.get(ENVIRONMENT)
    if not directory:
        raise GpuLost(f"{ENVIRONMENT} is not set, so there is no virtual GPU; run under 'joulewise sim -- COMMAND'")
    link: Link | None = getattr(_links, "link", None)
    if link is None or link.directory != directory:
        link = _links.link = Link(directory)
    return link


def last_sent() -> Sent | None:
    """The last piece of work that this thread has handed in; None where there is none. Makes no connection."""
    link: Link | None = getattr(_links, "link", None)
    return link.last_sent if link is not None else None


def _plain(load: Work) -> dict[str, Any]:
    """A name as it is; a load, or several, as lists of numbers. BadSpec for anything else."""
    if isinstance(load, str):
        return {"load": load}
    try:
        return {"loads": _lists(load)}
    except (TypeError, ValueError, KeyError) as error:
        raise BadSpec(f"{load!r} is no work ({error!r}); give a workload's name, a load, or a list of loads") from None


def _lists(load: Work) -> list[Sequence[float]]:
    if hasattr(load, "gpu_s") or isinstance(load, Mapping):
        load = [load]
    loads = list(load)
    if loads and isinstance(loads[0], (int, float)):
        loads = [loads]
    return [_numbers(each) for each in loads]


def _numbers(load: Any) -> Sequence[float]:
    if isinstance(load, Mapping):
        unknown = set(load) - set(_FIELDS)
        if unknown:
            raise BadSpec(f"a load has no {', '.join(sorted(unknown))}; it has {', '.join(_FIELDS)}")
        defaults = {"host_s": 0.0, "dram_share": 0.0, "sharpness": 1.0, "static_part": 1.0}
        return [float({**defaults, **load}[name]) for name in _FIELDS]
    if hasattr(load, "load"):  # a phase of a workload
        load = load.load
    if hasattr(load, "gpu_s"):
        return [float(getattr(load, name)) for name in _FIELDS]
    return [float(number) for number in load]
