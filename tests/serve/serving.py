"""A real ``joulewise serve`` in a process of its own."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.preloaded import Command


class Serving:
    """Started at once; ``url`` is where it listens. Killed or ended, it can be started again at the same address.

    It trusts this machine's users, so that most tests need no token. ``trusting``: False for what a user gets who says
    nothing; ``link`` is then what it printed, ``socket`` where it serves its user's clients."""

    def __init__(self, database: str, home: Path, *flags: str, trusting: bool = True) -> None:
        trust = ["--trust-local-users"] if trusting else []
        self._words = ["serve", "--database", database, *trust, *flags]
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
        self.process = Command(*self._words, "--port", self._port, env=self._environ, stderr=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def end(self) -> str:
        """Told to end, it does; what it had to say."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return said
