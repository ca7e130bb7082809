"""An agent that runs, for tests: a real process on a node of virtual GPUs with a real daemon, and whom it talks to.

``Scheduler`` is the other end of the agents' wire, played by the test: it says what the test declares and keeps what it
is told. ``RunningAgent`` is ``joulewise cluster agent`` in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joulewise.cluster.declared import Declared, Report, Share
from joulewise.core.plain import built, plain
from joulewise.daemon import grants
from joulewise.daemon.grants import Grant
from tests import preloaded
from tests.daemon.running import RunningDaemon, until

TOKEN = "a-token-of-the-tests-that-is-long-enough"


class Scheduler:
    """What is declared, and what was reported, newest last."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, Report]] = []
        """With the monotonic time at which each came."""
        self.down = False
        self._declared = Declared("n1", 1, 1)
        self._changed = threading.Condition()
        scheduler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if scheduler.down or TOKEN not in (self.headers.get("Authorization") or ""):
                    self._answer(503 if scheduler.down else 401, {"message": "not now"})
                    return
                asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                answer = scheduler.exchange(built(Report, json.loads(body)), float(asked["wait_s"][0]))
                self._answer(200, plain(answer))

            def _answer(self, code: int, value: Any) -> None:
                said = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                with suppress(OSError):  # an agent that was killed does not wait
                    self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def exchange(self, report: Report, wait_s: float) -> Declared:
        with self._changed:
            self.reports.append((time.monotonic(), report))
            held = (report.epoch, report.number)
            self._changed.wait_for(lambda: (self._declared.epoch, self._declared.number) > held, wait_s)
            return self._declared

    def declare(self, *shares: Share, epoch: int = 1, **how: Any) -> float:
        """From now on; the monotonic time of it."""
        with self._changed:
            self._declared = replace(
                Declared("n1", epoch, self._declared.number + 1, shares), **{"ceiling_w": None, **how}
            )
            self._changed.notify_all()
            return time.monotonic()

    @property
    def latest(self) -> Report | None:
        return self.reports[-1][1] if self.reports else None

    def until(self, true: Callable[[Report], Any], most_s: float = 20.0, what: str = "") -> Report:
        """The first report from now on of which it is true."""
        begun = len(self.reports)

        def found() -> Any:
            return next((report for _, report in self.reports[begun:] if true(report)), None)

        until(found, most_s, what=f"{what} in {self.latest}")
        report: Report = found()
        return report

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class RunningAgent:
    """The process and its folders."""

    def __init__(self, daemon: RunningDaemon, scheduler: Scheduler, folder: Path, host_w: float | None) -> None:
        self.daemon, self.scheduler, self.folder, self.host_w = daemon, scheduler, folder, host_w
        self.process: preloaded.Command | None = None
        folder.mkdir(exist_ok=True)
        self.token = folder / "token"
        self.token.write_text(TOKEN + "\n")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        flags = {
            "--node": "n1",
            "--server": self.scheduler.url,
            "--token-file": self.token,
            "--socket": self.daemon.socket,
            "--grants": self.daemon.grants,
            "--state": self.folder / "state",
            **({} if self.host_w is None else {"--host-watts": self.host_w}),
        }
        words = [str(word) for pair in flags.items() for word in pair]
        environ = {**self.daemon.node.environment(), "JOULEWISE_POWERCAP_ROOT": str(self.folder / "no-rapl")}
        with (self.folder / "stderr").open("ab") as stderr:
            self.process = preloaded.Command("cluster", "agent", *words, env=environ, stderr=stderr)

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20.0)
        self.process = None
        return code

    # -- what a prolog and an epilog do

    def claim(self, job: str, *uuids: str) -> None:
        grants.add(self.daemon.grants, Grant(f"slurm-{job}", os.getuid(), uuids, None, {}, time.time() + 3600, job))

    def epilog(self, job: str) -> subprocess.CompletedProcess[str]:
        """``joulewise restore --job``, as an epilog runs it."""
        folders = ["--grants", str(self.daemon.grants), "--state", str(self.daemon.state)]
        words = ["restore", "--job", job, "--socket", str(self.daemon.socket), *folders]
        return preloaded.run(*words, env=self.daemon.node.environment())


@contextmanager
def running_agent(daemon: RunningDaemon, folder: Path, *, host_w: float | None = 300.0) -> Iterator[RunningAgent]:
    """An agent on the daemon's node with a scheduler of its own, until the context ends; it has reported by then."""
    scheduler = Scheduler()
    agent = RunningAgent(daemon, scheduler, folder, host_w)
    try:
        agent.start()
        until(lambda: scheduler.reports or agent.process is None or agent.process.poll() is not None, 60.0)
        assert scheduler.reports, agent.stderr()
        yield agent
    finally:
        if agent.process is not None:
            agent.process.kill()
            agent.process.wait()
        scheduler.close()
