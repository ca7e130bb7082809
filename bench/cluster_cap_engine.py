"""A small real engine for ``bench.cluster cap``: virtual nodes with daemons and agents, jobs as processes. No Slurm.

A node is three processes: a simulator of GPUs, a joulewise daemon, and ``joulewise cluster agent``. A job is a process
that keeps its GPUs busy (``bench.cluster_cap_load``); when it starts, its GPUs are claimed in the grants folder of each
node, as a prolog does, and when it stops the claims go. Stopping takes no time here: how long a checkpoint takes is not
what is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from joulewise.cluster.engine import DONE, Happened, JobSeen, JobState, NodeSeen, Order, Place
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec, Fenced, JoulewiseError
from joulewise.daemon import grants
from joulewise.daemon.grants import Grant
from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.remote import DaemonClient

_START_S = 60.0
_ROOT = Path(__file__).resolve().parents[1]


class Node:
    """One virtual node: its simulator, its folders, and the processes that serve it."""

    def __init__(self, name: str, running: RunningNode, folder: Path, host_w: float) -> None:
        self.name, self.running, self.folder, self.host_w = name, running, folder, host_w
        self.grants = folder / "grants"
        self.socket = folder / "run" / "daemon.sock"
        self._client = running.client()
        self.uuids = self._client.uuids
        self.free = list(range(len(self.uuids)))
        self.agent: subprocess.Popen[bytes] | None = None
        for each in (self.grants, self.folder / "state", self.folder / "agent"):
            each.mkdir(mode=0o700, parents=True)
        for each in (self.socket.parent, self.folder / "log"):
            each.mkdir(mode=0o755)
        self.daemon = self._run(
            "-m", "joulewise.daemon", "--socket", self.socket, "--state", folder / "state", "--grants", self.grants,
            "--audit", folder / "log" / "audit.jsonl",
        )  # fmt: skip

    def start_agent(self, url: str, token: Path) -> None:
        """Once the scheduler serves."""
        self.agent = self._run(
            "-m", "joulewise", "cluster", "agent", "--node", self.name, "--server", url, "--token-file", token,
            "--socket", self.socket, "--grants", self.grants, "--state", self.folder / "agent",
            "--host-watts", self.host_w,
        )  # fmt: skip

    def wait_daemon(self) -> None:
        """Until it serves. JoulewiseError, with its own words, where it does not."""
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                DaemonClient(self.socket).close()
            except JoulewiseError:
                if self.daemon.poll() is not None or time.monotonic() > deadline_s:
                    raise JoulewiseError(f"the daemon of {self.name} does not serve: {self.said()}") from None
                time.sleep(0.05)
            else:
                return

    def power_w(self) -> float:
        """What it really draws: every GPU's truth, and its host."""
        return self.host_w + sum(self._client.truth(gpu).power_w for gpu in range(len(self.uuids)))

    def client(self) -> NodeClient:
        """Another connection to its simulator."""
        return self.running.client()

    def said(self) -> str:
        """The last line that its daemon or agent said."""
        lines = (self.folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def close(self) -> None:
        """End its agent, then its daemon."""
        for process in (self.agent, self.daemon):
            if process is not None:
                _end(process)
        self._client.close()

    def _run(self, *words: object) -> subprocess.Popen[bytes]:
        environ = {**self.running.environment(), "JOULEWISE_POWERCAP_ROOT": str(self.folder / "no-rapl")}
        with (self.folder / "stderr").open("ab") as stderr:
            return subprocess.Popen([sys.executable, *map(str, words)], env=environ, stderr=stderr, cwd=_ROOT)


@contextmanager
def nodes(folder: Path, count: int, gpus: int, *, model: str, host_w: float, cards: int) -> Iterator[list[Node]]:
    """So many nodes, their daemons serving; all ends with the context."""
    made: list[Node] = []
    running = []
    try:
        for number in range(count):
            name = f"n{number + 1}"
            spawned = spawn(f"sim:{model}*{gpus}", cards=cards + number)
            running.append(spawned)
            made.append(Node(name, spawned.__enter__(), folder / name, host_w))
        for node in made:
            node.wait_daemon()
        yield made
    finally:
        for node in made:
            node.close()
        for spawned in running:
            spawned.__exit__(None, None, None)


@dataclass
class _Job:
    order: Order
    id: str
    load: tuple[float, float, float]
    state: JobState = "waiting"
    place: dict[str, int] = field(default_factory=dict)
    taken: dict[str, list[int]] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    since_s: float = 0.0
    account_j: float = 0.0


class LoadEngine:
    """The protocol of ``cluster/engine`` on some nodes. ``loads``: by job, seconds, SM share and watts of a piece."""

    def __init__(self, there: Sequence[Node], kind: str, loads: Mapping[str, tuple[float, float, float]]) -> None:
        self._nodes = {node.name: node for node in there}
        self._kind = kind
        self._loads = loads
        self._jobs: dict[str, _Job] = {}
        self._news: list[Happened] = []
        self._wake = threading.Condition()
        self._epoch = 0
        self.preempted: list[tuple[float, str]] = []
        self.resized: list[tuple[float, str]] = []

    def take(self, epoch: int) -> None:
        """The highest acts."""
        if epoch < self._epoch:
            raise Fenced(f"epoch {epoch} comes after epoch {self._epoch}")
        self._epoch = epoch

    def nodes(self) -> tuple[NodeSeen, ...]:
        """All, always up."""
        return tuple(NodeSeen(node.name, len(node.uuids), "up", self._kind) for node in self._nodes.values())

    def jobs(self) -> tuple[JobSeen, ...]:
        """All that came."""
        with self._wake:
            return tuple(
                JobSeen(job.order.name, job.id, job.state, job.order, dict(job.place), job.starts, job.since_s)
                for job in self._jobs.values()
            )

    def submit(self, order: Order, by: Caller | None = None) -> str:  # noqa: ARG002
        """Hand a job in."""
        with self._wake:
            known = self._jobs.get(order.name)
            if known is None:
                known = self._jobs[order.name] = _Job(order, str(len(self._jobs) + 1), self._loads[order.name])
                self._say("submitted", order.name)
            return known.id

    def start(self, name: str, place: Place) -> None:
        """It runs there, if these GPUs are free; said again until they are."""
        with self._wake:
            job = self._job(name)
            if job.state != "waiting" or any(len(self._nodes[node].free) < gpus for node, gpus in place.items()):
                return
            words = []
            for node, gpus in place.items():
                there = self._nodes[node]
                job.taken[node], there.free = there.free[:gpus], there.free[gpus:]
                uuids = tuple(there.uuids[gpu] for gpu in job.taken[node])
                claim = Grant(f"bench-{job.id}", os.getuid(), uuids, None, {}, time.time() + 3600.0, job.id)
                grants.add(there.grants, claim)
                words.append(f"{there.running.directory}:{','.join(map(str, job.taken[node]))}")
            assert job.order.checkpoint is not None
            command = [sys.executable, "-m", "bench.cluster_cap_load", job.order.checkpoint, *map(str, job.load)]
            job.process = subprocess.Popen([*command, *words], cwd=_ROOT)
            job.place = dict(place)
            job.starts += 1
            self._turn(job, "running", "started")

    def resize(self, name: str, place: Place) -> None:
        """Stop, and run there instead."""
        with self._wake:
            job = self._job(name)
            if job.state == "running" and job.place != dict(place):
                self.resized.append((time.monotonic(), name))
                self._halt(job)
            self.start(name, place)

    def preempt(self, name: str) -> None:
        """Stop, and wait."""
        with self._wake:
            job = self._job(name)
            if job.state == "running":
                self.preempted.append((time.monotonic(), name))
                self._halt(job)

    def stop(self, name: str, why: str) -> None:
        """End for good."""
        with self._wake:
            job = self._job(name)
            if job.state not in DONE:
                self._halt(job)
                self._turn(job, "cancelled", "cancelled", why)

    def power(self, node: str, *, on: bool) -> None:
        """Nodes here are always on."""
        if not on:
            raise BadSpec(f"node {node} cannot be switched off here")

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        """Until something happens, ``longest_s`` at most."""
        with self._wake:
            self._wake.wait_for(lambda: bool(self._news), longest_s)
            news = tuple(self._news)
            self._news.clear()
            return news

    def account(self, name: str, energy_j: float, id: str = "") -> None:  # noqa: ARG002 (names are used once here)
        """Written down with the job."""
        self._job(name).account_j = energy_j

    def close(self) -> None:
        """End all jobs."""
        with self._wake:
            for job in self._jobs.values():
                self._halt(job)

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            raise BadSpec(f"no job is called {name!r} here")
        return self._jobs[name]

    def _halt(self, job: _Job) -> None:
        if job.process is not None:
            _end(job.process)
            job.process = None
            for node, taken in job.taken.items():
                grants.remove(self._nodes[node].grants, job=job.id)
                self._nodes[node].free += taken
            job.taken, job.place = {}, {}
            self._turn(job, "waiting", "stopped")

    def _turn(self, job: _Job, state: JobState, what: str, says: str = "") -> None:
        job.state, job.since_s = state, time.time()
        self._say(what, job.order.name, says)

    def _say(self, what: str, about: str, says: str = "") -> None:
        self._news.append(Happened(time.time(), what, about, says))
        self._wake.notify_all()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
