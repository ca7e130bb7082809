"""A command run as it is: its own output, its own exit code, and the signals meant for it.

The child stays in our process group, so a terminal's Ctrl-C, Ctrl-Z and hang-up reach it from the kernel, and
job control works as if we were not there. A signal that another process sent to us alone (``kill``, a scheduler)
is passed on; one that the kernel sent to the whole group is not, because the child already has it. Only siginfo
tells the two apart, so signals are blocked and fetched with ``sigtimedwait`` instead of handled.

Not here: what is done while the child runs; see ``joulewise.cli.run``.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType

PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_HELD = PASSED_ON | {signal.SIGCHLD, signal.SIGTSTP}

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_BY_SIGNAL = 128


@contextmanager
def signals_held() -> Iterator[set[int]]:
    """Keep the signals that concern a child pending in this thread, and in threads started meanwhile.

    Gives the mask from before, which the child shall have.

    Enter it before anything starts a thread (numpy does on import): a thread that does not hold them would
    swallow them. Processes started inside hold them too, unless they are started under ``signals_let_through``.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield {int(number) for number in before}
    finally:
        while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_let_through() -> Iterator[None]:
    """Inside ``signals_held``: act on signals as usual for a while, and let what is started here do so too."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Child:
    """A running command. Make it, and wait for it, inside ``signals_held``.

    ``mask`` is what ``signals_held`` gave; ``while_stopped`` is entered while Ctrl-Z has us stopped, to tidy the
    screen; ``files`` is what it has instead of our descriptors: its number → which of ours. Raises KeyboardInterrupt
    when a signal to stop is already waiting, and OSError when the command cannot be started (``exit_code_of`` says
    what a shell would return).
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        mask: set[int],
        *,
        while_stopped: Callable[[], AbstractContextManager[object]] = nullcontext,
        files: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        if signal.sigpending() & PASSED_ON:
            raise KeyboardInterrupt
        look_for(command[0])
        self.stopped_by: int | None = None
        """The last signal that asked the child to stop, from us or from the terminal; None while nobody did."""
        self._while_stopped = while_stopped
        self.pid = os.posix_spawnp(
            command[0],
            list(command),
            dict(environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, ours, its) for its, ours in files.items()],
            setsigmask=mask,
            # Python ignores these two, and what is ignored stays so over exec.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )

    def wait(self, timeout_s: float) -> int | None:
        """The exit code once the child has ended, or None after ``timeout_s`` or a stop (Ctrl-Z) and continue.

        128 + n when signal n ended it, as shells say.
        """
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            info = signal.sigtimedwait(_HELD, timeout_s)
            if info is None:
                return None
            if info.si_signo in PASSED_ON:
                self.stopped_by = info.si_signo
                if info.si_pid != 0:  # 0: the kernel sent it to the whole group
                    os.kill(self.pid, info.si_signo)
            elif info.si_signo == signal.SIGTSTP:
                with self._while_stopped():
                    os.kill(os.getpid(), signal.SIGSTOP)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == 0:
                return None
        # What the terminal sent to us both may still be waiting here: the child was faster.
        while (late := signal.sigtimedwait(PASSED_ON, 0)) is not None:
            self.stopped_by = late.si_signo
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else _BY_SIGNAL - code


def look_for(name: str) -> None:
    """Raise the OSError that starting the command ``name`` would raise, as far as a look at its file can tell."""
    if name and shutil.which(name) is not None:
        return
    if name and Path(name).is_dir() and "/" in name:
        code = errno.EISDIR
    elif name and shutil.which(name, mode=os.F_OK) is not None:
        code = errno.EACCES
    else:
        code = errno.ENOENT
    raise OSError(code, os.strerror(code), name)


def why_not_started(name: str, error: OSError) -> str:
    """One line on a command that cannot be started, with the way out."""
    if not name:
        return "the command after '--' is an empty word; is a variable of your shell not set?"
    if isinstance(error, FileNotFoundError):
        if shutil.which(name) is not None:
            return f"cannot execute {name}: the program that its first line (#!) names is not there; correct that line"
        near = f"write './{name}'" if "/" not in name and Path(name).exists() else "check the name after '--'"
        return f"command not found: {name}; {near}"
    way_out = "is it a program, and executable (chmod +x)?"
    if error.errno == errno.ENOEXEC:
        way_out = f"a script needs a first line such as '#!/bin/sh', or write 'sh {name}'"
    elif isinstance(error, IsADirectoryError):
        way_out = "name a program"
    return f"cannot execute {name}: {(error.strerror or str(error)).lower()}; {way_out}"


def exit_code_of(error: OSError) -> int:
    """What a shell returns when a command cannot be started: 127 not found, 126 not executable."""
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
