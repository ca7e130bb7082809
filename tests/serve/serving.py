"""A real ``joulewise serve`` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.preloaded import Command


class Serving:
    """Started at once; ``url`` is where it listens. Killed or ended, it can be started again at the same address.

    It trusts this machine's users, so that most tests need no token. ``trusting``: False for what a user gets who says
    nothing; ``link`` is then what it printed, ``socket`` where it serves its user's clients. ``cold``: in an
    interpreter of its own, for what the kernel has of its command line and environment."""

    def __init__(self, database: str, home: Path, *flags: str, trusting: bool = True, cold: bool = False) -> None:
        trust = ["--trust-local-users"] if trusting else []
        self._command = [sys.executable, "-m", "joulewise", "serve", "--database", database, *trust, *flags]
        self._cold = cold
        self._home = home
        self.said = ""
        self._environ = {**os.environ, "JOULEWISE_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
        self._port = "0"
        self.url = ""
        self.start()

    def start(self) -> None:
        """Returns when it listens."""
        self.start_again()
        said = ""
        while (found := re.search(r"on (http://\S+:(\d+))", said)) is None and (line := self.process.stderr.readline()):
            said += line
        self.said = said
        if found is None:
            self.process.kill()
            raise AssertionError(said + self.process.communicate()[1])
        self.url, self._port = found[1], found[2]

    @property
    def link(self) -> str:
        found = re.search(r"http://\S+/#once=\S+", self.said)
        assert found is not None, self.said
        return found[0]

    @property
    def socket(self) -> Path:
        return self._home / f"serve-{self._port}.sock"

    def start_again(self) -> None:
        """Returns at once; where it will listen is known if it did before."""
        self.process: Command | subprocess.Popen[str]
        command = [*self._command, "--port", self._port]
        if self._cold:
            self.process = subprocess.Popen(command, env=self._environ, stderr=subprocess.PIPE, text=True)
        else:
            self.process = Command(*command[3:], env=self._environ, stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def end(self) -> str:
        """Told to end, it does; what it had to say."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return said
