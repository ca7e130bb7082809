"""A virtual Slurm site with all of joulewise on it: the scheduler, and an agent a node, each a process of its own.

What it is: ``slurm_site`` plus ``joulewise cluster up`` and ``joulewise cluster agent``, started, killed and asked as
operators and users do, through the command line and the scheduler's Unix socket; agents have a token. The truth of all
virtual GPUs is at hand as well.
Nothing is left when the context ends, nor when the process that made it is killed.

    with slurm_stack(folder) as stack:
        stack.submit("night", ["python", "train.py"], 4, "--checkpoint", "ckpt")
        stack.until(lambda status: status.jobs[0].state == "ended")

What it is not: a scheduler or a test of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.core.errors import BadSpec, EngineLost, NotKept
from joulewise.device.node import NodeClient
from joulewise.device.virtual import Truth
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.serve import tokens
from joulewise.serve.cluster_client import ClusterClient
from joulewise.serve.tokens import Scope
from joulewise.testing.slurm_site import START_S, Part, SiteNode, SlurmSite, slurm_site
from joulewise.testing.slurm_site_parts import free_ports

HOST_W = 400.0
"""What each host is declared to draw."""
Hardware = tuple[float | None, tuple[int, int] | None, tuple[int, int] | None]
"""A GPU's power limit in watts and its two clock locks."""
_COMMAND = (sys.executable, "-m", "joulewise", "cluster")
_POLL_S = 0.1


class SlurmStack:
    """A stack that runs; made by ``slurm_stack``. ``flags`` are of ``joulewise cluster up``."""

    def __init__(self, site: SlurmSite, flags: Sequence[str], host_w: float) -> None:
        self.site = site
        self.folder = site.folder
        self.host_w = host_w
        self.work = site.folder / "jobs"
        """Where users submit from."""
        self.flags = tuple(flags)
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}"
        """For agents, who have tokens."""
        self.home = site.folder / "home"
        self.socket = site.folder / "cluster.sock"
        """For operators and users of this machine; as ``server`` for ``--server`` and ``$JOULEWISE_CLUSTER``."""
        self.server = f"unix:{self.socket}"
        self.client = ClusterClient(self.server)
        self.log = site.folder / "log" / "scheduler.log"
        self.environment = {
            **site.environment,
            "JOULEWISE_HOME": str(self.home),
            "JOULEWISE_CLUSTER": self.server,
            "JOULEWISE_POWERCAP_ROOT": str(site.folder / "no-rapl"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._scheduler: Part | None = None
        self._truths: dict[str, NodeClient] = {}
        self._token = site.folder / "token"

    # The scheduler.

    def start_scheduler(self, *, command: Sequence[str] = _COMMAND, environ: Mapping[str, str] | None = None) -> None:
        """Start ``cluster up`` and wait until it serves. ``command``: what is run instead of joulewise's own."""
        self.kill_scheduler()
        words = [*command, "up", "--engine", "slurm", "--host-watts", f"{self.host_w:g}"]
        words += ["--socket", str(self.socket), "--port", str(self._port)]
        self._scheduler = Part(
            [*words, *self.flags], self.log, {**self.environment, **(environ or {})}, self.site.folder
        )
        deadline_s = time.monotonic() + START_S
        while not self._serves():
            if not self.scheduler_alive and command is not _COMMAND:
                return  # it may have killed itself, as tests ask for
            if not self.scheduler_alive or time.monotonic() > deadline_s:
                raise EngineLost(f"the scheduler does not serve; it said: {self.log.read_text()[-500:].strip()}")
            time.sleep(_POLL_S)

    @property
    def scheduler_alive(self) -> bool:
        """Whether it runs."""
        return self._scheduler is not None and self._scheduler.alive()

    def kill_scheduler(self) -> None:
        """SIGKILL. Idempotent."""
        if self._scheduler is not None:
            self._scheduler.kill()
            self._scheduler = None

    def _serves(self) -> bool:
        with suppress(NotKept):
            self.client.status()
            return True
        return False

    # The nodes.

    def start_agent(self, node: str) -> None:
        """Start the agent of a node; it comes back whenever the node boots."""
        there = self.site.nodes[node]
        flags = {
            "--node": node,
            "--server": self.url,
            "--token-file": self._token,
            "--socket": there.socket,
            "--grants": there.grants,
            "--state": there.folder / "agent",
            "--host-watts": f"{self.host_w:g}",
        }
        words = [str(word) for pair in flags.items() for word in pair]
        environ = {name: self.environment[name] for name in ("JOULEWISE_POWERCAP_ROOT", "OPENBLAS_NUM_THREADS")}
        there.start("agent", [*_COMMAND, "agent", *words], environ, boots=True)

    def truth(self, node: str) -> list[Truth]:
        """What is really so with each GPU of a node."""
        client = self._truths.get(node)
        if client is None:
            client = self._truths[node] = _simulator(self.site.nodes[node])
        return [client.truth(gpu) for gpu in range(self.site.layout.gpus)]

    def hardware(self, node: str) -> list[Hardware]:
        """What the driver of a node holds for each GPU, also what NVML does not show."""
        simulator = self.site.nodes[node].simulator
        if simulator is None:
            return []
        with VnvmlState.open(simulator.directory) as words:
            controls = [words.read_control(gpu) for gpu in range(self.site.layout.gpus)]
        return [(each.power_limit_w, each.sm_lock_mhz, each.memory_lock_mhz) for each in controls]

    def power_w(self) -> float:
        """What all nodes really draw, hosts as declared."""
        return sum(self.host_w + sum(gpu.power_w for gpu in self.truth(node)) for node in self.site.nodes)

    def gpu_j(self) -> float:
        """What all GPUs have really drawn since they were made."""
        return sum(gpu.energy_j for node in self.site.nodes for gpu in self.truth(node))

    def unaccounted_j(self, over_s: float = 3.0) -> float:
        """What agents call nobody's, less what was really drawn, hosts as declared: a mean over some seconds.

        Agents tell once a second, so at one moment the two are up to a second apart; as a mean that is the same at any
        time when nothing runs. Between two such times it grows by what is missing of jobs, with the other sign.
        """
        seen: list[float] = []
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + over_s:
            status = self.status()
            if status is not None:
                hosts_j = self.host_w * len(self.site.nodes) * time.monotonic()
                seen.append(status.idle_j - self.gpu_j() - hosts_j)
            time.sleep(_POLL_S)
        if not seen:
            raise EngineLost(f"the scheduler does not answer; see {self.log}")
        return sum(seen) / len(seen)

    # Users and operators.

    def call(self, *words: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        """``joulewise cluster WORDS``, whatever comes of it."""
        self.work.mkdir(exist_ok=True)
        return subprocess.run(
            [*_COMMAND, *words],
            env=self.environment,
            cwd=directory or self.work,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * START_S,
        )

    def submit(self, name: str, command: Sequence[str], gpus: int, *flags: str) -> str:
        """Hand a job in as a user does; Slurm's number of it. BadSpec where that is refused."""
        made = self.call("submit", "--name", name, "--gpus", str(gpus), *flags, "--", *command)
        if made.returncode:
            raise BadSpec(made.stderr.strip())
        return made.stdout.strip()

    def status(self) -> Status | None:
        """How all stands; None while the scheduler is away."""
        with suppress(NotKept):
            return self.client.status()
        return None

    def until(self, so: Callable[[Status], bool], what: str = "", *, longest_s: float = 2 * START_S) -> Status:
        """The status, once ``so`` holds of it. EngineLost where it never does."""
        deadline_s = time.monotonic() + longest_s
        while True:
            status = self.status()
            if status is not None and so(status):
                return status
            if time.monotonic() > deadline_s:
                raise EngineLost(f"not so after {longest_s:g} s: {what or so}; the scheduler says {status}")
            time.sleep(_POLL_S)

    def job(self, name: str, so: Callable[[JobStatus], bool], *, longest_s: float = 2 * START_S) -> JobStatus:
        """The job of that name, once it is there and ``so`` holds of it."""

        def found(status: Status) -> bool:
            return any(job.name == name and so(job) for job in status.jobs)

        status = self.until(found, f"job {name}", longest_s=longest_s)
        return next(job for job in status.jobs if job.name == name)

    def begin(self) -> None:
        """Start scheduler and agents, and wait until every agent has been heard."""
        secret, kept = tokens.make(Scope.AGENT, tokens.EVERY_NODE)
        tokens.keep(self.home / tokens.FILE, kept)
        self._token.touch(mode=0o600)
        self._token.write_text(secret + "\n", encoding="utf-8")
        self.start_scheduler()
        for node in self.site.nodes:
            self.start_agent(node)
        self.until(lambda status: all(node.power_w is not None for node in status.nodes), "all agents are heard")

    def close(self) -> None:
        """End what was started here; the site ends the rest. Idempotent."""
        self.kill_scheduler()
        for client in self._truths.values():
            client.close()
        self._truths.clear()


@contextmanager
def slurm_stack(
    folder: Path,
    *,
    nodes: int = 4,
    gpus: int = 8,
    gpu: str = "a100-sxm",
    accounting: bool = False,
    slurmd_timeout_s: int = 5,
    host_w: float = HOST_W,
    flags: Sequence[str] = ("--no-power-off",),
) -> Iterator[SlurmStack]:
    """Run a site with scheduler and agents while the context lasts; ``flags`` are of ``joulewise cluster up``.

    MissingPart where Slurm is not installed or we are not root.
    """
    with slurm_site(
        folder, nodes=nodes, gpus=gpus, gpu=gpu, accounting=accounting, slurmd_timeout_s=slurmd_timeout_s
    ) as site:
        stack = SlurmStack(site, flags, host_w)
        try:
            stack.begin()
            yield stack
        finally:
            stack.close()


def _simulator(node: SiteNode) -> NodeClient:
    if node.simulator is None:
        raise BadSpec(f"{node.name} has no virtual GPUs; give the site some")
    return node.simulator.client()
