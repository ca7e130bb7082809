"""Where processes hand in virtual work: the simulator's side of ``work.sock``, one JSON object a line.

A request names an ``op`` and may carry an ``id``, which its reply repeats. Who asks is known from the socket itself
(SO_PEERCRED), so the pid in a GPU's process list cannot be invented; when the connection ends, the process leaves the
GPU and its work with it.

========= ==================================================== =====================================================
op        fields                                               reply
========= ==================================================== =====================================================
hello     environ                                              speed, now_s, gpus (uuid, name), mine (own GPU index)
work      gpu; loads (numbers) or load (a name): one step;     once it is done: started_s, finished_s, energy_j
          wall_s (when it was sent), since_s (as of when),
          ahead (the sender does not wait for it)
truth     gpu                                                  time_s, energy_j, power_w, sm_mhz, temperature_c
status                                                         coupled: steps, late_steps, late_s; cpu_s; now_s;
                                                               nvml_clients: their pids
nvml                                                           once the driver is loaded; the client is an NVML client
                                                               as long as it stays connected (sent by the library)
show      gpu                                                  once its instruments' present values are published
fault     gpu, kind, arguments                                 (owner and root only)
clear     gpu                                                  (owner and root only)
========= ==================================================== =====================================================

A request that cannot be served is answered with ``error`` (a class of ``core.errors``) and ``message``.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, JoulewiseError, NotPermitted
from joulewise.core.parsing import json_value
from joulewise.core.timeline import ScaledTime
from joulewise.device.state import Job
from joulewise.device.virtual import VirtualGpu
from joulewise.device.visible import visible
from joulewise.model import workloads
from joulewise.model.physics import Load

SOCKET = "work.sock"
_LONGEST_LINE = 2**20  # a step of a thousand phases is some 50 kB
_BARE = workloads.Events()

Answer = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Client:
    """One connection."""

    connection: socket.socket
    pid: int
    uid: int
    nvml: bool = False
    unread: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[object, int, Job]] = field(default_factory=list)
    last: dict[int, Job] = field(default_factory=dict)
    told_s: dict[int, float] = field(default_factory=dict)
    """GPU → when the last work ended whose end this client has been told."""
    steps: dict[tuple[int, str], Iterator[workloads.Phase]] = field(default_factory=dict)


@dataclass(slots=True)
class Coupled:
    """How well coupled scripts kept up with their virtual GPUs."""

    steps: int = 0
    late_steps: int = 0
    """Steps before which the virtual GPU had to wait for the real one."""
    late_s: float = 0.0


class Desk:
    """The listening socket of one simulator and all its clients."""

    def __init__(
        self,
        directory: Path,
        gpus: Sequence[VirtualGpu],
        clock: ScaledTime,
        *,
        fault: Callable[[int, str, Mapping[str, Any]], None],
        clear: Callable[[int], None],
        load_driver: Callable[[], None],
        show: Callable[[int], None],
    ) -> None:
        self._gpus = gpus
        self._clock = clock
        self._fault, self._clear, self._load_driver, self._show = fault, clear, load_driver, show
        self._clients: dict[socket.socket, _Client] = {}
        self._told_s: dict[int, float] = {}  # as a client's, of those that are gone
        self._left_s: dict[tuple[int, int], float] = {}
        """GPU and pid → when the process left the GPU."""
        self.coupled = Coupled()
        self.path = directory / SOCKET
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.path.unlink(missing_ok=True)  # a simulator that was killed here has left its own
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Through /proc, because a socket's own path may have no more than 107 bytes.
            self.listener.bind(f"/proc/self/fd/{directory_fd}/{SOCKET}")
        finally:
            os.close(directory_fd)
        # Work is for whoever can see the directory; faults are not (see _owner).
        self.path.chmod(0o666)
        self.listener.listen(1024)
        self._serve: Mapping[str, Callable[[_Client, Answer], Answer | None]] = {
            "hello": self._hello,
            "work": self._work,
            "truth": self._truth,
            "status": self._status,
            "nvml": self._nvml,
            "show": self._do_show,
            "fault": self._do_fault,
            "clear": self._do_clear,
        }

    @property
    def nvml_clients(self) -> list[int]:
        """The pids of all processes that have opened NVML and live; the kernel tells when one does not."""
        return sorted({client.pid for client in self._clients.values() if client.nvml})

    def accept(self, selector: selectors.BaseSelector) -> None:
        """Let in whoever has knocked."""
        with suppress(OSError):  # nobody is left, or there are no descriptors for more
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                pid, uid, _ = struct.unpack("3i", credentials)
                self._clients[connection] = _Client(connection, pid, uid)
                selector.register(connection, selectors.EVENT_READ)

    def hear(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        """Serve what a client has sent, or see it off."""
        client = self._clients[connection]
        try:
            received = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        client.unread += received
        *lines, rest = client.unread.split(b"\n")
        client.unread = bytearray(rest)
        gone = not received or len(rest) > _LONGEST_LINE
        for line in lines:
            gone = gone or not self._answer(client, bytes(line))
        if gone:
            self._drop(client, selector)

    def next_s(self) -> float:
        """When the next piece of work that somebody waits for is expected to be done."""
        soonest_s = float("inf")
        for client in self._clients.values():
            seen: set[int] = set()
            for _, index, job in client.waiting:
                if index not in seen:  # a GPU does a client's work in the order in which it came
                    seen.add(index)
                    soonest_s = min(soonest_s, self._gpus[index].board.expected_s(job))
        return soonest_s

    def complete(self, selector: selectors.BaseSelector) -> None:
        """Tell clients what is done by now."""
        for gpu in {self._gpus[index] for client in self._clients.values() for _, index, _ in client.waiting}:
            gpu.advance()
        for client in list(self._clients.values()):
            done = [entry for entry in client.waiting if entry[2].finished_s is not None]
            for entry in done:
                request_id, index, job = entry
                client.waiting.remove(entry)
                client.told_s[index] = job.finished_s or 0.0
                answer = {"started_s": job.started_s, "finished_s": job.finished_s, "energy_j": job.energy_j}
                if not self._send(client, request_id, answer):
                    self._drop(client, selector)
                    break

    def close(self) -> None:
        """See everybody off."""
        for client in self._clients.values():
            client.connection.close()
        self._clients.clear()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def _answer(self, client: _Client, line: bytes) -> bool:
        """Serve one request; False if the client cannot be talked to."""
        request_id: object = None
        try:
            request = json_value(line)
            if not isinstance(request, dict):
                raise BadSpec("a request is one JSON object a line")
            request_id = request.get("id")
            serve = self._serve.get(str(request.get("op")))
            if serve is None:
                raise BadSpec(f"no op is called {request.get('op')!r}; there are {', '.join(self._serve)}")
            answer = serve(client, request)
        except JoulewiseError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        except Exception as error:  # whatever one client sends, the others keep their GPUs
            answer = {"error": "BadSpec", "message": f"cannot understand the request: {error!r}"}
        return answer is None or self._send(client, request_id, answer)

    def _send(self, client: _Client, request_id: object, answer: Answer) -> bool:
        """False if the client is gone, or has not read for so long that its replies fill the socket."""
        line = json.dumps(answer if request_id is None else {"id": request_id, **answer}) + "\n"
        try:
            return client.connection.send(line.encode()) == len(line)
        except OSError:
            return False

    def _drop(self, client: _Client, selector: selectors.BaseSelector) -> None:
        del self._clients[client.connection]
        selector.unregister(client.connection)
        client.connection.close()
        for index, told_s in client.told_s.items():
            self._told_s[index] = max(told_s, self._told_s.get(index, told_s))
        # A process may have several connections, one a thread; it leaves a GPU with the last of them.
        others = {index for other in self._clients.values() if other.pid == client.pid for index in other.last}
        for index in client.last:
            if index in others:
                self._gpus[index].withdraw([job for _, where, job in client.waiting if where == index])
            else:
                self._gpus[index].detach(client.pid)
                self._left_s[index, client.pid] = self._gpus[index].advance()

    # The ops.

    def _hello(self, _: _Client, request: Answer) -> Answer:
        environ = request.get("environ") or {}
        infos = [gpu.info for gpu in self._gpus]
        mine = visible({str(name): str(value) for name, value in environ.items()}, infos).uuids
        uuids = [info.uuid for info in infos]
        return {
            "speed": self._clock.speed,
            "now_s": self._clock.now_s(),
            "gpus": [{"uuid": info.uuid, "name": info.name} for info in infos],
            "mine": [uuids.index(uuid) for uuid in mine],
        }

    def _work(self, client: _Client, request: Answer) -> None:
        index = self._index(request)
        gpu = self._gpus[index]
        loads = self._loads(client, index, request)
        at_s = gpu.advance()
        if (wall_s := request.get("wall_s")) is not None:
            at_s = min(at_s, self._clock.at_wall_s(_finite(wall_s)))
        if (since_s := request.get("since_s")) is not None:
            at_s = min(at_s, _finite(since_s))
        # What others have been told is so: work that comes late does not begin beside theirs. Nor does it begin before
        # the process left the GPU with an earlier connection, which would take it back.
        others = [self._told_s, *(other.told_s for other in self._clients.values() if other is not client)]
        bounds = [told_s[index] for told_s in others if index in told_s]
        at_s = max(at_s, self._left_s.get((index, client.pid), at_s), *bounds)
        if request.get("ahead"):
            self._count_coupled(client.last.get(index), at_s)
        job = gpu.submit(loads, client.pid, at_s)
        client.last[index] = job
        client.waiting.append((request.get("id"), index, job))

    def _loads(self, client: _Client, index: int, request: Answer) -> list[Load]:
        name = request.get("load")
        if name is None:
            return [Load(*(float(number) for number in numbers)) for numbers in request["loads"]]
        phases = client.steps.get((index, name))
        if phases is None:
            workload = workloads.get(str(name), gpu=self._gpus[index].model)
            # Evaluation and checkpoints are the script's own; only bare steps are asked for.
            phases = client.steps[index, name] = replace(workload, events=_BARE).phases()
        loads = []
        for phase in phases:
            loads.append(phase.load)
            if phase.ends_step:
                break
        return loads

    def _count_coupled(self, last: Job | None, at_s: float) -> None:
        self.coupled.steps += 1
        if last is not None and last.finished_s is not None and at_s > last.finished_s:
            self.coupled.late_steps += 1
            self.coupled.late_s += at_s - last.finished_s

    def _truth(self, _: _Client, request: Answer) -> Answer:
        return asdict(self._gpus[self._index(request)].truth())

    def _status(self, _: _Client, __: Answer) -> Answer:
        return {
            "coupled": asdict(self.coupled),
            "cpu_s": time.process_time(),
            "now_s": self._clock.now_s(),
            "nvml_clients": self.nvml_clients,
        }

    def _nvml(self, client: _Client, _: Answer) -> Answer:
        client.nvml = True
        self._load_driver()
        return {}

    def _do_show(self, _: _Client, request: Answer) -> Answer:
        self._show(self._index(request))
        return {}

    def _do_fault(self, client: _Client, request: Answer) -> Answer:
        self._owner(client)
        self._fault(self._index(request), str(request.get("kind")), request.get("arguments") or {})
        return {}

    def _do_clear(self, client: _Client, request: Answer) -> Answer:
        self._owner(client)
        self._clear(self._index(request))
        return {}

    def _owner(self, client: _Client) -> None:
        if client.uid not in (0, os.geteuid()):
            raise NotPermitted(f"user {client.uid} may not break these GPUs; ask their owner, user {os.geteuid()}")

    def _index(self, request: Answer) -> int:
        index = request.get("gpu", 0)
        if not isinstance(index, int) or not 0 <= index < len(self._gpus):
            raise BadSpec(f"there is no virtual GPU {index!r}; there are 0 to {len(self._gpus) - 1}")
        return index


def _finite(number: Any) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise BadSpec(f"{number!r} is no moment; send seconds")
    return value
