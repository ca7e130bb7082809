"""Somebody on the machine: a process with a uid, and maybe namespaces, of its own that says what it is told to say.

``Someone`` is the hand of the test, this file run as a program is the process. It starts as root, loads all it needs
(another user may not be able to read the interpreter's files), and gives its rights away for good before it acts. It
speaks the protocol byte by byte, so that it can also say what no honest client would.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
LONGEST_S = 20.0
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18

UidMap = Iterable[tuple[int, int, int]]
"""Inside, outside, how many; as in /proc/PID/uid_map."""


class Someone:
    """Starts the process and tells it what to do. ``ask`` gives the daemon's answer as it came, errors too."""

    def __init__(
        self,
        uid: int,
        *,
        groups: Iterable[int] = (),
        uid_map: UidMap | None = None,
        pid_namespace: bool = False,
        bind: tuple[Path, Path] | None = None,
    ) -> None:
        """``uid_map``: in a user namespace of its own, as its root. ``bind``: mounts the first folder on the second."""
        wanted = {
            "uid": uid,
            "groups": list(groups),
            "user_namespace": uid_map is not None,
            "pid_namespace": pid_namespace,
            "bind": None if bind is None else [str(path) for path in bind],
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.someone", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            bufsize=0,
        )
        self.pid = self._process.pid
        """As the host sees it."""
        self.init_pid: int | None = None
        """The first process of its pid namespace, as the host sees it."""
        self._unread = b""
        try:
            if uid_map is not None:
                assert self._hear() == "map me"
                lines = "\n".join(" ".join(map(str, line)) for line in uid_map)
                for kind in ("uid_map", "gid_map"):
                    Path(f"/proc/{self.pid}/{kind}").write_text(lines)
                self._tell("mapped")
            if pid_namespace:
                self.init_pid = int(self._hear())
                children = Path(f"/proc/{self.init_pid}/task/{self.init_pid}/children")
                self.pid = int(children.read_text().split()[0])
                self._tell("found")
            assert self._hear() == "ready"
        except BaseException:
            self.close()
            raise

    def __call__(self, verb: str, *arguments: Any) -> Any:
        """What the process answers; AssertionError if it failed itself."""
        self.begin(verb, *arguments)
        return self.end()

    def begin(self, verb: str, *arguments: Any) -> None:
        """Tell it, and do not wait."""
        self._tell([verb, *arguments])

    def end(self) -> Any:
        """What it answers to what was told it before."""
        answer = self._hear()
        assert "failed" not in answer, answer["failed"]
        return answer["done"]

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The daemon's answer to one request."""
        return dict(self("ask", {"op": op, **fields}))

    def kill(self, pid: int | None = None) -> None:
        """The process (or another that it started) dies at once; returns when the kernel says that it is dead."""
        dying = os.pidfd_open(self.pid if pid is None else pid)
        try:
            signal.pidfd_send_signal(dying, signal.SIGKILL)
            select.select([dying], [], [], LONGEST_S)
        finally:
            os.close(dying)

    def close(self) -> None:
        """End it and whatever it started in its namespace. Idempotent."""
        for pid in (self.init_pid, self.pid):
            if pid is not None and self._process.poll() is None:
                with suppress(ProcessLookupError):
                    self.kill(pid)
        self._process.kill()
        self._process.wait(LONGEST_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], LONGEST_S)
            received = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            assert received, f"{self._process.args[3]} said nothing; exit code {self._process.poll()}"  # type: ignore[index]
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Actor:
    """The process's own side: a connection, and what can be done with it."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._daemon: socket.socket | None = None
        self._unread = b""
        self._kept: list[object] = []
        self._twin: tuple[Any, Any]

    def who(self) -> list[int]:
        """As it sees itself."""
        return [os.getpid(), os.getuid()]

    def connect(self, path: str) -> None:
        self._daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._daemon.settimeout(LONGEST_S)
        self._daemon.connect(path)
        self._unread = b""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; ``{"hung_up": true}`` if the daemon ended the connection instead."""
        try:
            self._send(request)
            return self._answer()
        except OSError as error:
            return {"hung_up": True, "why": str(error)}

    def ask_line(self, line: str) -> dict[str, Any]:
        """One line as it is, right or wrong."""
        self.say(line + "\n")
        return self._answer()

    def ask_as(self, request: dict[str, Any], pid: int, uid: int) -> dict[str, Any]:
        """One request that claims to be from another process, by the credentials that travel with it."""
        assert self._daemon is not None
        claimed = struct.pack("=iII", pid, uid, uid)
        line = json.dumps({"id": next(self._ids), **request}).encode() + b"\n"
        try:
            self._daemon.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, claimed)])
        except OSError as error:
            return {"refused_by_kernel": error.errno}
        return self._answer()

    def ask_with_descriptor(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request that brings an open file along."""
        assert self._daemon is not None
        line = json.dumps({"id": next(self._ids), **request}).encode() + b"\n"
        self._daemon.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1]))])
        return self._answer()

    def say(self, text: str) -> None:
        """Bytes as they are (Latin-1)."""
        assert self._daemon is not None
        self._daemon.sendall(text.encode("latin-1"))

    def hang_up(self) -> None:
        assert self._daemon is not None
        self._daemon.close()

    def work(self, directory: str, gpu: int) -> None:
        """Be in the process list of a virtual GPU from now on."""
        link = Link(directory)
        link.work([(0.001, 0.5, 100.0)], gpu)
        self._kept.append(link)

    def ask_by_child(self, request: dict[str, Any]) -> dict[str, Any]:
        """A child, which has inherited the connection, asks on it."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write_end, json.dumps(self.ask(request)).encode() + b"\n")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            return dict(json.loads(told.readline()))

    def leave_child(self) -> int:
        """A child that inherits the connection, says nothing and lives on; its pid as it is seen here."""
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        return child

    def leave_client(self, path: str, requests: list[dict[str, Any]]) -> list[Any]:
        """A child that connects itself and asks, then lives on: its pid, and the answers.

        A request whose lease is "mine" means the one that was taken before it.
        """
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            answers: list[dict[str, Any]] = []
            self.connect(path)
            for request in requests:
                if request.get("lease") == "mine":
                    request["lease"] = next(each["ok"]["lease"] for each in answers if "lease" in each.get("ok", {}))
                answers.append(self.ask(request))
            os.write(write_end, json.dumps(answers).encode() + b"\n")
            signal.pause()
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as told:
            return [child, json.loads(told.readline())]

    def take_pid(self, pid: int) -> bool:
        """Fork once; if the child has got ``pid``, it lives and waits for ``ask_by_twin``. Nobody can do better."""
        to_twin, from_twin = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            if os.getpid() != pid:
                os._exit(1)
            os.close(to_twin[1])
            with os.fdopen(to_twin[0]) as told, os.fdopen(from_twin[1], "w") as tell:
                for line in told:
                    request = json.loads(line)
                    if "connect" in request:
                        self.connect(request["connect"])
                        continue
                    tell.write(json.dumps(self.ask(request)) + "\n")
                    tell.flush()
            os._exit(0)
        os.close(to_twin[0])
        os.close(from_twin[1])
        if child == pid:
            self._twin = (os.fdopen(to_twin[1], "w"), os.fdopen(from_twin[0]))
            return True
        os.close(to_twin[1])
        os.close(from_twin[0])
        os.waitpid(child, 0)
        return False

    def twin_connects(self, path: str) -> None:
        """The child of ``take_pid`` opens a connection of its own."""
        self.tell_twin({"connect": path})

    def tell_twin(self, request: dict[str, Any]) -> None:
        """The child of ``take_pid`` asks on the connection that it has inherited."""
        self._twin[0].write(json.dumps(request) + "\n")
        self._twin[0].flush()

    def hear_twin(self) -> dict[str, Any]:
        """What it was answered."""
        return dict(json.loads(self._twin[1].readline()))

    def receive(self, path: str) -> None:
        """Wait at ``path`` for somebody's connection, and use it from now on as if it were our own."""
        desk = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        desk.settimeout(LONGEST_S)
        desk.bind(path)
        Path(path).chmod(0o777)
        _, ancillary, _, _ = desk.recvmsg(16, socket.CMSG_SPACE(4))
        desk.close()
        self._daemon = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
        self._daemon.settimeout(LONGEST_S)

    def give(self, path: str) -> None:
        """Pass our connection to whoever waits at ``path``; we keep it, too."""
        assert self._daemon is not None
        give_by = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        deadline_s = time.monotonic() + LONGEST_S
        while True:
            try:
                descriptor = array.array("i", [self._daemon.fileno()])
                give_by.sendmsg([b"take it"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)], 0, path)
                break
            except (FileNotFoundError, ConnectionRefusedError, PermissionError):
                assert time.monotonic() < deadline_s
                time.sleep(0.005)
        give_by.close()

    def become(self, uid: int) -> None:
        """Give up root for another user, the connection still open."""
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._daemon is not None
        self._daemon.sendall(json.dumps({"id": next(self._ids), **request}).encode() + b"\n")

    def _answer(self) -> dict[str, Any]:
        assert self._daemon is not None
        while True:
            while b"\n" not in self._unread:
                received = self._daemon.recv(1 << 16)
                if not received:
                    return {"hung_up": True}
                self._unread += received
            line, _, self._unread = self._unread.partition(b"\n")
            message = dict(json.loads(line))
            if "event" not in message:
                return message


def _must(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _tell(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _lines() -> Iterable[Any]:
    """What the test says, one by one; nothing is read ahead, since a fork may come between."""
    line = b""
    while letter := os.read(0, 1):
        line += letter
        if letter == b"\n":
            yield json.loads(line)
            line = b""


def main() -> None:
    """Become who is wanted, then do what is told until there is nobody to tell."""
    wanted = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    told = iter(_lines())
    if wanted["uid"] != 0:
        os.setgroups(wanted["groups"])
        os.setresgid(wanted["uid"], wanted["uid"], wanted["uid"])
        os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
    if wanted["user_namespace"]:
        _must(libc.unshare(_CLONE_NEWUSER), "unshare user")
        _tell("map me")
        assert next(told) == "mapped"
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    if wanted["pid_namespace"]:
        _must(libc.unshare(_CLONE_NEWPID), "unshare pid")
        go, gone = os.pipe()
        init = os.fork()
        if init:
            os.close(gone)
            os.read(go, 1)  # until the client is there to be found
            _tell(init)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) & 127)
        client = os.fork()
        if client:
            os.write(gone, b"!")
            os.close(0)
            while os.wait()[0] != client:
                pass
            signal.pause()  # the namespace outlives its client
        os.close(gone)
        assert next(told) == "found"
    if wanted["bind"] or wanted["pid_namespace"]:
        _must(libc.unshare(_CLONE_NEWNS), "unshare mounts")
        _must(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "private mounts")
        if wanted["pid_namespace"]:
            _must(libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None), "mount proc")
        if wanted["bind"]:
            source, target = (os.fsencode(path) for path in wanted["bind"])
            _must(libc.mount(source, target, None, ctypes.c_ulong(_MS_BIND), None), "bind mount")
    actor = _Actor()
    _tell("ready")
    for verb, *arguments in told:
        try:
            _tell({"done": getattr(actor, verb)(*arguments)})
        except Exception as error:
            _tell({"failed": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    from joulewise.device.work import Link

    main()
