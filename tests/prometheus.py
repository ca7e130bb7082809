"""A real Prometheus for tests: its data in a temporary folder, on a free port of this machine, gone afterwards.

``prometheus`` starts as many as a test wants:

    server = prometheus(scrapes={"joulewise": url}, every_s=1.0)
    server.wait_for('up{job="joulewise"} == 1')
    server.value("rate(joulewise_gpu_energy_joules_total[10s])")

``history`` is OpenMetrics text with times, which is there before it starts (``promtool`` makes blocks of it).
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_ASKS = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine, whatever a proxy says
# Whatever happens to the test process, its end closes this shell's input, and that stops the server.
_UNTIL_INPUT_ENDS = '"$@" & pid=$!; read -r _; kill $pid; wait $pid'
_DEADLINE_S = 60.0
_WITHIN_S = 30.0
"""For what shall be seen soon: the first scrape comes some 5 s after the start, later on a busy machine."""


class PrometheusServer:
    """A server on a folder of its own; ``url`` is where it answers."""

    def __init__(
        self, folder: Path, scrapes: Mapping[str, str], every_s: float, tokens: Mapping[str, str], history: str
    ) -> None:
        self.folder = folder
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._shell: subprocess.Popen[bytes] | None = None
        (folder / "prometheus.yml").write_text(json.dumps(_config(scrapes, every_s, tokens)), "utf-8")  # JSON is YAML
        if history:
            (folder / "history").write_text(history, "utf-8")
            made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "history", "data"]
            done = subprocess.run(made, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + done.stdout

    def start(self) -> None:
        """Returns when it answers."""
        command = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--storage.tsdb.retention.time=10y",  # what a test brings along may be of any year
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        with (self.folder / "log").open("ab") as log:
            self._shell = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + _DEADLINE_S
        while not self._ready():
            if time.monotonic() > deadline_s or self._shell.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it in order. Idempotent."""
        if self._shell is not None:
            self._shell.stdin.close()
            self._shell.wait(_DEADLINE_S)
            self._shell = None

    def ask(self, path: str, **fields: Any) -> Any:
        """``data`` of an answer of its HTTP API: ``ask("query", query="up")``."""
        with _ASKS.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}", timeout=_DEADLINE_S) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, promql: str, *, at_s: float | None = None) -> list[tuple[dict[str, str], float]]:
        """An instant vector: labels and value of each series. AssertionError where the query makes no sense."""
        try:
            data = self.ask("query", query=promql, **({} if at_s is None else {"time": f"{at_s:.3f}"}))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{promql}: {error.read().decode(errors='replace')}") from error
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    def value(self, promql: str, *, at_s: float | None = None) -> float:
        """The value of a query with one series."""
        ((_, value),) = self.query(promql, at_s=at_s)
        return value

    def samples(self, selector: str, for_s: float, *, at_s: float | None = None) -> list[list[tuple[float, float]]]:
        """The raw samples of each series of the last ``for_s`` seconds: (time, value), as they were scraped."""
        fields = {} if at_s is None else {"time": f"{at_s:.3f}"}
        data = self.ask("query", query=f"{selector}[{round(for_s * 1000)}ms]", **fields)
        return [[(at_s, float(value)) for at_s, value in series["values"]] for series in data["result"]]

    def wait_for(self, promql: str, *, within_s: float = _WITHIN_S) -> list[tuple[dict[str, str], float]]:
        """What a query gives as soon as it gives something."""
        deadline_s = time.monotonic() + within_s
        while not (found := self.query(promql)):
            assert time.monotonic() < deadline_s, f"{promql}: nothing within {within_s:g} s; {self.ask('targets')}"
            time.sleep(0.2)
        return found

    def _ready(self) -> bool:
        try:
            with _ASKS.open(f"{self.url}/-/ready", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _config(scrapes: Mapping[str, str], every_s: float, tokens: Mapping[str, str]) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = []
    for job, url in scrapes.items():
        where = urllib.parse.urlsplit(url)
        jobs.append({"job_name": job, "static_configs": [{"targets": [where.netloc]}]})
        if where.path.strip("/"):
            jobs[-1]["metrics_path"] = where.path
        if job in tokens:
            jobs[-1]["authorization"] = {"credentials": tokens[job]}
    every = f"{round(every_s * 1000)}ms"
    return {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": jobs}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def check_metrics(text: bytes) -> str:
    """What ``promtool check metrics`` has to say against a scrape; empty where it is clean."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    return said or ("" if done.returncode == 0 else f"exit code {done.returncode}")


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., PrometheusServer]]:
    """Starts servers; skips where Prometheus is not installed."""
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt-get install prometheus)")
    servers: list[PrometheusServer] = []

    def started(
        *,
        scrapes: Mapping[str, str] | None = None,
        every_s: float = 1.0,
        tokens: Mapping[str, str] | None = None,
        history: str = "",
    ) -> PrometheusServer:
        folder = tmp_path / f"prometheus-{len(servers)}"
        folder.mkdir()
        servers.append(PrometheusServer(folder, scrapes or {}, every_s, tokens or {}, history))
        servers[-1].start()
        return servers[-1]

    try:
        yield started
    finally:
        for server in servers:
            server.stop()
