"""``python -m joulewise.daemon``: the daemon as a process. Started by systemd, or by ``joulewise daemon``.

Gives back what a daemon before it owed, then serves. SIGTERM and SIGINT end all leases and then it; SIGHUP reads the
site's rules again.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from joulewise.core.errors import BadSpec, JoulewiseError, LeaseTaken, NoGpu, NotSaved
from joulewise.core.visible import visible
from joulewise.daemon import site
from joulewise.daemon.audit import AUDIT, Audit
from joulewise.daemon.grants import GRANTS, Grants
from joulewise.daemon.notify import Notify
from joulewise.daemon.server import Server, check_dead, listen
from joulewise.daemon.service import Service
from joulewise.daemon.station import LATE_S, Station
from joulewise.daemon.worker import Job, Workers
from joulewise.device import locks, nvml_library
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending
from joulewise.device.locks import Lock
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.nvml_reads import count
from joulewise.device.nvml_space import mig_is_on
from joulewise.device.saved import STATE, Saved
from joulewise.device.wire import SOCKET

_MOST_STOP_S = 20.0
"""For everything to be given back at the end; what hangs longer is left to 'joulewise restore' and the next start."""
_MOST_LEAVING_S = 0.2
"""For the threads to end once nothing is left to do; one that hangs in the driver does not."""
_ARENA_MAX = -8  # M_ARENA_MAX in <malloc.h>
_LOOK_AGAIN_S = 5.0
"""For a GPU that did not answer: one that is being reset takes seconds."""
_SWITCH_S = 0.0005
"""Python lets a thread run for 5 ms before another one may; a worker that has a result shall not wait so long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop. 0 if everything was given back, 1 if not, 2 if it was started in a wrong way."""
    options = _options(arguments)
    try:
        return Daemon(options).run()
    except JoulewiseError as error:
        _say(str(error))
        return 2 if isinstance(error, BadSpec) else 1


class Daemon:
    """The parts, put together."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._site: Path = options.site
        self._notify = Notify()
        self._locks = _only_one(options.state, options.socket)
        self._policy = site.load(self._site)
        self._state: Path = options.state
        self._workers = Workers()
        self._looking: set[int] = set()
        self._said: dict[int, str] = {}
        self._service = Service(
            (),
            policy=self._policy,
            grants=Grants(options.grants),
            audit=Audit(options.audit),
            time=nvml_library.time_source(),
            wall=time.monotonic,
        )
        self._options = options

    def run(self) -> int:
        """Serve until a signal comes."""
        sys.setswitchinterval(_SWITCH_S)
        _raise_descriptors()
        _share_one_heap()
        wakes, signals = socket.socketpair()
        for end in (wakes, signals):
            end.setblocking(False)
        signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._find_debts()
        self._service.start()
        self._find_gpus()
        path: Path = self._options.socket
        try:
            listener = listen(path, self._options.socket_mode)
        except OSError as error:
            raise BadSpec(f"cannot listen on {path} ({error.strerror}); name another place with --socket") from None
        server = Server(listener, self._service, self._workers, time.monotonic)
        server.watch(wakes.fileno(), lambda: self._signalled(wakes.recv(64)))
        self._say_ready(path)
        clean = self._serve(server)
        path.unlink(missing_ok=True)
        server.close()
        listener.close()
        self._workers.close(_MOST_LEAVING_S)
        for gpu in self._service.owed:
            _say(f"what a process before had set on {gpu} could not be given back; 'joulewise restore' tries again")
        return 0 if clean else 1

    def _find_debts(self) -> None:
        """What processes before us have left, so that it is seen also where the GPU does not answer."""
        try:
            known = Saved.known(self._state)
        except NotSaved as error:
            _say(str(error))
            return
        for uuid in known:
            try:
                saved = Saved.open(self._state, uuid)
            except LeaseTaken:
                continue  # a living process's
            except NotSaved as error:
                _say(str(error))
                self._service.owe(uuid, (), str(error))
                continue
            if saved.unknown or saved.damage:
                _say(saved.unknown or f"what was saved of {uuid} is damaged: {saved.damage}; what precedes that counts")
            if saved.entries or saved.unknown:
                self._service.owe(uuid, saved.entries.values(), saved.unknown or "the GPU has not answered yet")
            saved.close()

    def _find_gpus(self) -> None:
        """Until every GPU is found and what a daemon before us owed there is given back, but for those that hang.

        NoGpu if there is none at all. What has not come by then is added when it does.
        """
        nvml = nvml_library.nvml()
        number = count(nvml)
        for index in range(number):
            self._look_for(index)
        deadline_s = time.monotonic() + LATE_S
        while time.monotonic() < deadline_s and (self._looking or not self._service.idle):
            select.select([self._workers.fd], [], [], 0.1)
            self._workers.deliver()
        for index in self._looking:
            _say(f"GPU {index}: the driver does not answer for it within {LATE_S:g} s; it is left out until it does")
        if not self._service.gpus:
            raise NoGpu(f"none of {number} GPUs answers; see 'joulewise doctor'")

    def _look_for(self, index: int) -> None:
        """Ask the driver for a GPU, in a thread of its own, which is the GPU's from then on."""
        self._looking.add(index)

        def found(job: Job) -> None:
            self._looking.discard(index)
            if job.error is None:
                self._service.add(self._station(job.result, job.gpu))
                return
            if self._said.get(index) != str(job.error):
                self._said[index] = str(job.error)
                _say(f"GPU {index} is left out until it answers: {job.error}")
            self._service.later(_LOOK_AGAIN_S, lambda: self._look_for(index))

        self._workers.submit(Job(f"GPU {index}", lambda: _controls(index), found, time.monotonic()))

    def _station(self, controls: NvmlControls, thread: str) -> Station:
        return Station(
            controls,
            self._open_keeper,
            self._workers,
            time.monotonic,
            index=controls.index,
            driver=controls.driver,
            mig=lambda: mig_is_on(*controls.session()),
            thread=thread,
        )

    def _serve(self, server: Server) -> bool:
        """Until everything is given back after a signal; False if that took too long."""
        alive_s = self._notify.watchdog_s
        next_alive_s = 0.0
        stop_by_s: float | None = None
        while True:
            server.turn(1.0 if alive_s is None else min(1.0, alive_s))
            now_s = time.monotonic()
            if alive_s is not None and now_s >= next_alive_s:
                next_alive_s = now_s + alive_s
                self._notify.alive()
            if self._service.stopping:
                if stop_by_s is None:
                    stop_by_s = now_s + _MOST_STOP_S
                if self._service.idle or now_s > stop_by_s:
                    return self._service.restored

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGHUP:
                self._read_site_again()
            elif number in (signal.SIGTERM, signal.SIGINT) and not self._service.stopping:
                self._notify.stopping()
                self._service.stop()

    def _read_site_again(self) -> None:
        try:
            policy = site.load(self._site)
        except JoulewiseError as error:
            _say(f"the rules of before stay in force: {error}")
            return
        self._policy = policy
        self._service.set_policy(policy)

    def _open_keeper(self, controls: Controls) -> Keeper:
        """In a worker, when a GPU is first used. NotSaved, and its file is nobody's, while something there is unknown:
        whoever sees to that shall not have to stop us."""
        saved = Saved.open(self._state, controls.uuid)
        try:
            if controls.locks is not None:
                saved.lock_gpu(controls.locks, socket=self._options.socket)
            baseline = self._policy.baseline(controls.uuid)
            keeper = Keeper(controls, saved, baseline=baseline, persistence=self._policy.persistence)
            if saved.unknown:
                why = next(each.why for each in reversed(keeper.replay()) if each.ending is Ending.FAILED)
                raise NotSaved(why, owed=True)
        except BaseException:
            saved.close()
            raise
        return keeper

    def _say_ready(self, path: Path) -> None:
        _say(f"ready on {path}")
        self._notify.ready()
        if self._options.ready_fd is not None:
            os.write(self._options.ready_fd, b"ready\n")
            os.close(self._options.ready_fd)


def _controls(index: int) -> NvmlControls:
    """The GPU that the driver lists there. GpuError if it has none to show."""
    nvml = nvml_library.nvml()
    try:
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        raise nvml_library.translated(error.value, "name", f"GPU {index}") from None
    return NvmlControls(uuid)


def _say(text: str) -> None:
    print(visible(f"joulewise daemon: {text}"), file=sys.stderr, flush=True)


def _raise_descriptors() -> None:
    """As many descriptors as we may have: two for each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _share_one_heap() -> None:
    """glibc gives each thread a heap of its own, and each would grow to the size of the busiest; one is enough."""
    with suppress(AttributeError):  # another C library has no such thing
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    gc.collect()
    gc.freeze()  # what was loaded stays: no need to look through it ever again


def _only_one(state: Path, socket: Path) -> list[Lock | int]:
    """Be the one daemon of these GPUs, of this state folder and of this socket, for as long as we live.

    LeaseTaken, naming the other daemon, if there is one; then nothing of its has been touched.
    """
    taken: list[Lock | int] = []
    try:
        folder = locks.folder()
        try:
            locks.check_folder(folder)
            taken.append(_lock(folder / "daemon.lock", "control of this machine's GPUs", socket))
        except OSError as error:
            raise NotSaved(
                f"the daemon needs the lock in {folder} ({error.strerror or error}); start it as root"
            ) from None
        try:
            taken.append(_lock(state / "daemon.lock", f"the state folder {state}", socket))
        except OSError as error:
            # Read only: nothing can be leased, but what is owed can be given back, and a lock can be held on a folder.
            taken.append(_lock_folder(state, error))
        try:
            socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            taken.append(_lock(socket.with_name(socket.name + ".lock"), f"the socket {socket}", socket))
        except OSError as error:
            why = error.strerror or error
            raise BadSpec(f"cannot listen on {socket} ({why}); name another place with --socket") from None
        check_dead(socket)
    except BaseException:
        for lock in taken:
            if isinstance(lock, Lock):
                lock.release()
            else:
                os.close(lock)
        raise
    return taken


def _lock(path: Path, what: str, socket: Path) -> Lock:
    lock = Lock.take(path, what, "stop that first")
    lock.sign(socket=str(socket.absolute()))
    return lock


def _lock_folder(state: Path, why: OSError) -> int:
    try:
        fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise NotSaved(f"the state folder {state} cannot be used ({why.strerror}); name one with --state") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise LeaseTaken(f"another daemon runs with the state folder {state}; stop it first") from None
    return fd


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m joulewise.daemon", description=__doc__)
    parser.add_argument("--socket", type=Path, default=SOCKET, help="where it listens (%(default)s)")
    parser.add_argument("--state", type=Path, default=STATE, help="what was there before leases (%(default)s)")
    parser.add_argument("--grants", type=Path, default=GRANTS, help="the folder of grants (%(default)s)")
    parser.add_argument("--audit", type=Path, default=AUDIT, help="who did what (%(default)s)")
    parser.add_argument("--site", type=Path, default=site.SITE, help="the site's rules (%(default)s, if there)")
    parser.add_argument(
        "--socket-mode",
        type=lambda text: int(text, 8),
        default=0o666,
        help="who may connect, as file permissions in octal; what they may then do is decided by rights",
    )
    parser.add_argument("--ready-fd", type=int, help="written to and closed once it serves")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
