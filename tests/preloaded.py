"""Commands of ours for tests, without the start of an interpreter: most of what a short command costs is its imports.

``run`` and ``Command`` stand for ``subprocess.run`` and ``subprocess.Popen`` of ``python -m joulewise WORDS`` (or
another module of ours). A process that has imported the command line forks one child a command: it has its own pid,
environment, folder, streams, session and exit code, and ends as an interpreter does. What differs: it is the child of
that process and not of the test; and what Python or the dynamic linker read as they start cannot change, so a command
with another ``LD_LIBRARY_PATH`` gets a forking process of its own, and one with other ``PYTHON…`` variables or locale,
or in a terminal, is started cold. Tests of the start itself use ``subprocess``.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

ROOT: Final = Path(__file__).parents[1]
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "OPENBLAS", "MALLOC_")
"""Variables that only a new interpreter heeds."""
_IGNORED: Final = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
_FORK_S: Final = 60.0


class _Forker:
    """A process that forks commands. One a value of ``LD_LIBRARY_PATH``, for as long as the test process lives."""

    def __init__(self, libraries: str | None) -> None:
        ours, theirs = socket.socketpair()
        environ = {name: value for name, value in os.environ.items() if name != "JOULEWISE_TEST"}
        environ.pop("LD_LIBRARY_PATH", None)
        if libraries is not None:
            environ["LD_LIBRARY_PATH"] = libraries
        self._ours, self._lock = ours, threading.Lock()
        # A new session: a Ctrl-C in the terminal is the test process's to pass on.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
            cwd=ROOT,
            env=environ,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
        """The pid of a new command, and the socket on which its exit code will come."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            body = json.dumps(request).encode()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [*streams, theirs.fileno()]))]
            self._ours.sendmsg([len(body).to_bytes(8, "big")], rights)
            self._ours.sendall(body)
        ours.settimeout(_FORK_S)
        pid = int.from_bytes(ours.recv(8), "big")
        assert pid, "the forking process has ended"
        return pid, ours


_forkers: dict[str | None, _Forker] = {}


def _forker(libraries: str | None) -> _Forker:
    if libraries not in _forkers:
        _forkers[libraries] = _Forker(libraries)
    return _forkers[libraries]


def _wants_a_new_interpreter(environ: Mapping[str, str]) -> bool:
    names = {name for name in {*environ, *os.environ} if name.startswith(_READ_AT_START) and name not in _IGNORED}
    return any(environ.get(name) != os.environ.get(name) for name in names)


class Command:
    """A command that runs, as ``subprocess.Popen`` has one; text, in UTF-8.

    ``stdin``, ``stdout`` and ``stderr`` are ``subprocess.PIPE``, ``DEVNULL``, ``STDOUT`` (for ``stderr``), an open file
    or None (the test's own).
    """

    def __init__(
        self,
        *words: str | Path,
        module: str = "joulewise",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = [sys.executable, "-m", module, *map(str, words)]
        self.returncode: int | None = None
        environ = dict(os.environ if env is None else env)
        self._cold: subprocess.Popen[str] | None = None
        if _wants_a_new_interpreter(environ):
            self._cold = subprocess.Popen(
                self.args,
                env=environ,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=True,
                start_new_session=start_new_session,
            )
            self.pid, self.stdin = self._cold.pid, self._cold.stdin
            self.stdout, self.stderr = self._cold.stdout, self._cold.stderr
            return
        theirs: list[int] = []
        with contextlib.ExitStack() as closes:

            def stream(given: int | IO[Any] | None, usual: int, mode: str) -> IO[str] | None:
                """Our end of it; theirs goes to ``theirs``."""
                if given == subprocess.PIPE:
                    read, write = os.pipe()
                    ours, other = (write, read) if mode == "w" else (read, write)
                    closes.callback(os.close, other)
                    theirs.append(other)
                    return os.fdopen(ours, mode, encoding="utf-8", buffering=1 if mode == "w" else -1)
                if given == subprocess.DEVNULL:
                    null = os.open(os.devnull, os.O_RDWR)
                    closes.callback(os.close, null)
                    theirs.append(null)
                elif given == subprocess.STDOUT:
                    theirs.append(theirs[1])
                else:
                    theirs.append(usual if given is None else given if isinstance(given, int) else given.fileno())
                return None

            self.stdin = stream(stdin, 0, "w")
            self.stdout = stream(stdout, 1, "r")
            self.stderr = stream(stderr, 2, "r")
            request = {
                "module": module,
                "argv": list(map(str, words)),
                "environ": environ,
                "cwd": str(Path.cwd() if cwd is None else cwd),
                "session": start_new_session,
            }
            self.pid, self._told = _forker(environ.get("LD_LIBRARY_PATH")).fork(request, theirs)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code, negative for a signal. subprocess.TimeoutExpired if it goes on."""
        if self._cold is not None:
            self.returncode = self._cold.wait(timeout)
        if self.returncode is None:
            ready, _, _ = select.select([self._told], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int.from_bytes(self._told.recv(8), "big", signed=True)
            self._told.close()
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Send ``input``, read both streams to the end, and wait; empty text for one that is no pipe, or was read."""
        read: dict[str, str] = {"stdout": "", "stderr": ""}

        def gather(name: str, stream: IO[str]) -> None:
            with stream:
                read[name] = stream.read()

        named = [("stdout", self.stdout), ("stderr", self.stderr)]
        left = [each for each in named if each[1] is not None and not each[1].closed]
        threads = [threading.Thread(target=gather, args=each, daemon=True) for each in left]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return read["stdout"], read["stderr"]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def run(
    *words: str | Path,
    module: str = "joulewise",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    input: str | None = None,
    timeout: float = 120.0,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured as text: ``run("history", "--json", env=environ)``."""
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if input is None else pipe
    command = Command(*words, module=module, env=env, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = command.communicate(input, timeout)
    except subprocess.TimeoutExpired:
        command.kill()
        raise
    done = subprocess.CompletedProcess(command.args, command.wait(), stdout, stderr)
    if check:
        done.check_returncode()
    return done


# The forking process.


def preload() -> None:
    """Import what commands import, but for what only few of them need and what starts threads."""
    import importlib
    import pkgutil

    import joulewise

    rare = ("joulewise.frameworks", "joulewise.testing", "joulewise.native", "joulewise.__main__")
    for module in pkgutil.walk_packages(joulewise.__path__, "joulewise."):
        if not module.name.startswith(rare) and not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _requested(asked: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    size, rights, _, _ = socket.recv_fds(asked, 8, 4)
    if not size:
        return None
    left, body = int.from_bytes(size, "big"), b""
    while len(body) < left:
        body += asked.recv(left - len(body))
    return json.loads(body), list(rights)


def _serve(asked: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in a child with what it is to be, and in the parent, with None, at the end."""
    running: dict[int, tuple[int, socket.socket]] = {}  # pidfd → pid, where to tell of its end
    while True:
        ready, _, _ = select.select([asked, *running], [], [])
        for each in ready:
            if each is asked:
                found = _requested(asked)
                if found is None:
                    return None
                request, fds = found
                tell = socket.socket(fileno=fds[3])
                pid = os.fork()
                if pid == 0:
                    asked.close()
                    for pidfd, (_, other) in running.items():
                        os.close(pidfd)
                        other.close()
                    tell.close()
                    for number, fd in enumerate(fds[:3]):
                        os.dup2(fd, number)
                    for fd in set(fds[:3]) - {0, 1, 2}:
                        os.close(fd)
                    return request
                for fd in set(fds[:3]):
                    os.close(fd)
                with contextlib.suppress(BrokenPipeError):
                    tell.sendall(pid.to_bytes(8, "big"))
                running[os.pidfd_open(pid)] = pid, tell
            else:
                pid, tell = running.pop(each)
                _, status = os.waitpid(pid, 0)
                os.close(each)
                with tell, contextlib.suppress(BrokenPipeError):
                    tell.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))


def _written(fd: int, errors: str) -> io.TextIOWrapper:
    """A stream as an interpreter opens it at its start."""
    raw = io.FileIO(fd, "w")
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, "utf-8", errors, line_buffering=fd == 2 or raw.isatty(), write_through=fd == 2)


def _become(request: Mapping[str, Any]) -> None:
    """Run a command in this process, as ``python -m MODULE WORDS`` would."""
    import runpy

    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r")), "utf-8", "surrogateescape")
    sys.stdout = sys.__stdout__ = _written(1, "surrogateescape")
    sys.stderr = sys.__stderr__ = _written(2, "backslashreplace")
    with contextlib.suppress(ImportError):
        from coverage import Coverage

        measuring = Coverage.current()
        if measuring is not None:
            measuring.switch_context(os.environ.get("JOULEWISE_TEST", ""))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request["cwd"], *filter(None, paths), *sys.path[1:]]
    sys.argv = [request["module"], *request["argv"]]
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends, but that nothing is taken apart: what was preloaded is large, and shared.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a command may have given it up
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code & 0xFF)


def _main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    preload()
    gc.collect()
    gc.freeze()  # what a child's collector looks at, the child must copy
    request = _serve(asked)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    _main()
