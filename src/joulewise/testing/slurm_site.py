"""A whole Slurm site on one machine: its controller, its nodes with virtual GPUs, their daemons, their power switches.

What it is: real Slurm (munge, slurmctld, a slurmd a node, slurmdbd on MariaDB if asked for) in a folder of its own, on
ports of its own, so that several sites live side by side. Each node has a simulator of virtual GPUs and a joulewise
daemon; jobs see their node's GPUs through the virtual NVML. Parts can be killed as a crash would, and started again.
Nothing is left when the context ends, nor when the process that made it is killed.

    with slurm_site(folder, nodes=4, gpus=8) as site:
        engine = SlurmEngine(commands=site.commands)
        site.kill_node("n2")

What it is not: fast. All nodes share this machine's processors, so a job here computes little and lets its virtual GPU
work.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from joulewise.cluster.engines import slurm_text
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from joulewise.core.errors import EngineLost, JoulewiseError, MissingPart
from joulewise.device.node import RunningNode, spawn
from joulewise.device.remote import DaemonClient
from joulewise.testing import slurm_site_parts as parts
from joulewise.testing.slurm_site_parts import Layout

START_S = 60.0
"""For any one part to answer; a second or so where nothing else has the processors."""
_WARD = Path(__file__).with_name("slurm_site_ward.py")
_PROGRAMS = ("slurmctld", "slurmd", "munged", "squeue", "sinfo", "sbatch", "srun", "scontrol", "scancel")
_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "sacctmgr")


class Part:
    """A process of the site, with everything that comes of it: ``kill`` leaves nothing."""

    def __init__(self, command: Sequence[str], log: Path, environ: Mapping[str, str], directory: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WARD), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(environ),
                cwd=directory,
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it and all that came of it, by SIGKILL. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class SiteNode:
    """A node of a site: ``simulator`` (None if it has no virtual GPUs) and the folders of its daemon."""

    def __init__(self, site: SlurmSite, name: str, simulator: RunningNode | None) -> None:
        self.name = name
        self.folder = site.folder / name
        self.socket = self.folder / "daemon.sock"
        self.state = self.folder / "state"
        self.grants = self.folder / "grants"
        self.simulator = simulator
        self._site = site
        self._parts: dict[str, Part] = {}
        self._services: dict[str, tuple[Sequence[str], Mapping[str, str] | None]] = {}

    def environment(self) -> dict[str, str]:
        """For a process on this node: its virtual GPUs, and the site's Slurm."""
        environ = dict(self._site.environment)
        return environ if self.simulator is None else self.simulator.environment(environ)

    def start(
        self, name: str, command: Sequence[str], environ: Mapping[str, str] | None = None, *, boots: bool = False
    ) -> None:
        """Run something of the node's own (an agent) until the node is killed; its output goes to ``NAME.log``.
        ``boots``: it comes back whenever the node boots."""
        self.kill(name)
        if boots:
            self._services[name] = (command, environ)
        log = self.folder / f"{name}.log"
        self._parts[name] = Part(command, log, {**self.environment(), **(environ or {})}, self.folder)

    def kill(self, name: str) -> None:
        """End one part of the node (``slurmd``, ``daemon``, one of ``start``) by SIGKILL. Idempotent."""
        part = self._parts.pop(name, None)
        if part is not None:
            part.kill()

    def alive(self, name: str) -> bool:
        """Whether a part of the node runs."""
        return name in self._parts and self._parts[name].alive()

    def crash(self) -> None:
        """Everything on the node ends at once: slurmd, jobs, daemon and what was started. Its GPUs stay."""
        for name in list(self._parts):
            self.kill(name)
        # What a real node keeps in /run goes with it.
        shutil.rmtree(self.grants, ignore_errors=True)

    def boot(self) -> None:
        """Start its daemon, what comes back with it, and its slurmd, where they do not run."""
        if self.simulator is not None and not self.alive("daemon"):
            self.start_daemon()
        for name, (command, environ) in self._services.items():
            if not self.alive(name):
                self.start(name, command, environ)
        if not self.alive("slurmd"):
            conf = str(self._site.layout.conf)
            self.start("slurmd", ["slurmd", "-D", "-b", "-f", conf, "-N", self.name])

    def start_daemon(self) -> None:
        """Start its daemon and wait until it serves."""
        for each in (self.state, self.grants):
            each.mkdir(mode=0o700, exist_ok=True)
        words = {"--socket": self.socket, "--state": self.state, "--grants": self.grants}
        flags = [word for flag, path in words.items() for word in (flag, str(path))]
        audit = ["--audit", str(self.folder / "audit.jsonl")]
        self.start("daemon", [sys.executable, "-m", "joulewise.daemon", *flags, *audit])
        _until(self._serves, f"the daemon of {self.name} does not serve; see {self.folder / 'daemon.log'}")

    def _serves(self) -> bool:
        try:
            DaemonClient(self.socket).close()
        except JoulewiseError:
            if not self.alive("daemon"):
                raise
            return False
        return True


class SlurmSite:
    """A site that runs; made by ``slurm_site``."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.folder = layout.folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "JOULEWISE_VNVML"))},
            "SLURM_CONF": str(layout.conf),
        }
        self.commands = SlurmCommands(self.environment)
        self.nodes: dict[str, SiteNode] = {}
        self._parts: dict[str, Part] = {}
        self._stopping = threading.Event()
        self._boots: list[tuple[float, str]] = []
        self._board = threading.Thread(target=self._switch, name="board controllers", daemon=True)

    def kill_node(self, name: str) -> None:
        """As a crash of the machine: its slurmd, its jobs' processes and its daemon end at once."""
        self.nodes[name].crash()

    def revive_node(self, name: str) -> None:
        """Start a node that was killed, and wait until Slurm has it back."""
        self.nodes[name].boot()
        self._wait_for_nodes({name})

    def kill_controller(self) -> None:
        """SIGKILL to slurmctld."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.layout.conf)])
        _until(self._answers, f"slurmctld does not answer; see {self.folder / 'log' / 'slurmctld.log'}")

    def kill_munge(self) -> None:
        """SIGKILL to the site's munge: nobody is trusted any more."""
        self._kill("munged")
        self.layout.munge.unlink(missing_ok=True)

    def start_munge(self) -> None:
        """Start the site's own munge."""
        home = self.layout.munge.parent
        files = {"key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        words = [f"--{flag}={home / name}" for flag, name in files.items()]
        self._start("munged", ["munged", "-F", "--force", "--num-threads=10", f"--socket={self.layout.munge}", *words])
        _until(self.layout.munge.exists, f"munged does not start; see {home / 'log'}")

    def start_accounting(self) -> None:
        """Start MariaDB and slurmdbd on an empty database."""
        home = self.folder / "database"
        made = subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={home}", "--user=root", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise EngineLost(f"MariaDB's tables could not be made: {made.stderr.strip() or made.stdout.strip()}")
        quick = ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=16M"]
        where = [f"--datadir={home}", f"--socket={home}/socket", f"--port={self.layout.database_port}"]
        only = ["--user=root", "--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-name-resolve"]
        self._start("mariadbd", ["mariadbd", "--no-defaults", *where, *only, "--skip-networking=0", *quick])
        _until((home / "socket").exists, f"MariaDB does not start; see {self.folder / 'log' / 'mariadbd.out'}")
        self._start("slurmdbd", ["slurmdbd", "-D"])
        _until(self._keeps_accounts, f"slurmdbd does not answer; see {self.folder / 'log' / 'slurmdbd.log'}")

    def close(self) -> None:
        """End everything. Idempotent."""
        self._stopping.set()
        if self._board.is_alive():
            self._board.join()
        for node in self.nodes.values():
            node.crash()
        for name in list(self._parts):
            self._kill(name)

    def begin(self) -> None:
        """Start all parts and wait until every node is idle."""
        self.start_munge()
        if self.layout.accounting_port is not None:
            self.start_accounting()
        self.start_controller()
        for node in self.nodes.values():
            node.boot()
        self._board.start()
        self._wait_for_nodes(set(self.nodes))

    def _switch(self) -> None:
        """Do what the board controllers are told: off is at once, on takes ``boot_s``."""
        while not self._stopping.wait(0.1):
            for path in sorted((self.folder / "power").iterdir()):
                if path.name.startswith("."):
                    continue
                _, name, what = path.name.split(".")
                path.unlink()
                self._boots = [each for each in self._boots if each[1] != name]
                if what == "off":
                    self.nodes[name].crash()
                else:
                    self._boots.append((time.monotonic() + self.layout.boot_s, name))
            for due_s, name in list(self._boots):
                if due_s <= time.monotonic():
                    self._boots.remove((due_s, name))
                    self.nodes[name].boot()

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._kill(name)
        self._parts[name] = Part(command, self.folder / "log" / f"{name}.out", self.environment, self.folder)

    def _kill(self, name: str) -> None:
        part = self._parts.pop(name, None)
        if part is not None:
            part.kill()

    def _answers(self) -> bool:
        with suppress(EngineLost):
            return "UP" in self.commands.run("scontrol", "ping")
        return False

    def _keeps_accounts(self) -> bool:
        with suppress(EngineLost):
            self.commands.run("sacctmgr", "-n", "show", "cluster")
            return True
        return False

    def _wait_for_nodes(self, names: set[str]) -> None:
        def there() -> bool:
            with suppress(EngineLost):
                nodes = slurm_text.nodes(self.commands.answer("sinfo"))
                return names <= {node.name for node in nodes if node.state == "up" and node.gpus}
            return False

        _until(there, f"{', '.join(sorted(names))}: not all up in Slurm; see {self.folder / 'log'}")


@contextmanager
def slurm_site(
    folder: Path,
    *,
    nodes: int = 4,
    gpus: int = 8,
    gpu: str | None = "a100-sxm",
    speed: float = 1.0,
    accounting: bool = False,
    slurmd_timeout_s: int = 5,
    boot_s: float = 1.0,
) -> Iterator[SlurmSite]:
    """Run a site with its files under ``folder`` while the context lasts: ``n1`` … of ``gpus`` GPUs each.

    ``gpu`` names the virtual GPUs (``sim:NAME``), which live ``speed`` times as fast as the wall; None: the nodes have
    no simulators and no daemons, for what is about Slurm alone. ``slurmd_timeout_s``: Slurm takes a node for dead
    after about twice that. MissingPart where Slurm is not installed or we are not root.
    """
    _check(accounting)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = folder.resolve()
    if len(os.fsencode(folder / "munge" / "socket")) > 100:
        raise MissingPart(f"{folder} is too long a path for sockets (100 bytes); use a shorter one, as under /tmp")
    ports = parts.free_ports(nodes + 3)
    layout = Layout(
        folder=folder,
        cluster=parts.cluster_name(),
        nodes={f"n{number + 1}": ports[number + 3] for number in range(nodes)},
        gpus=gpus,
        kind=gpu or "",
        port=ports[0],
        accounting_port=ports[1] if accounting else None,
        database_port=ports[2] if accounting else None,
        slurmd_timeout_s=slurmd_timeout_s,
        boot_s=boot_s,
    )
    with ExitStack() as ending:
        ending.callback(_unmake_devices, _make_devices(gpus))
        parts.write(layout)
        site = SlurmSite(layout)
        ending.callback(site.close)
        for name in layout.nodes:
            node = None if gpu is None else ending.enter_context(spawn(f"sim:{gpu}*{gpus}", speed=speed))
            site.nodes[name] = SiteNode(site, name, node)
            if node is not None:
                seen = node.environment({})
                parts.node_settings(layout, name, seen, parts.joulewise_command())
        ending.callback(site.close)  # before the simulators end
        site.begin()
        yield site


def _check(accounting: bool) -> None:
    if os.geteuid() != 0:
        raise MissingPart("a virtual Slurm site is root's to start: slurmd runs jobs as their users")
    needed = (*_PROGRAMS, *(_ACCOUNTING if accounting else ()))
    if missing := [name for name in needed if shutil.which(name) is None]:
        raise MissingPart(
            f"Slurm is not all here ({', '.join(missing)}); Debian: apt-get install slurmctld slurmd slurm-client munge"
            + (" slurmdbd mariadb-server" if accounting else "")
        )


def _make_devices(count: int) -> list[Path]:
    """Device files for Slurm to count; those that were not there."""
    made = []
    for number in range(count):
        path = Path(f"{parts.DEVICES}{number}")
        with suppress(FileExistsError):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            made.append(path)
    return made


def _unmake_devices(made: list[Path]) -> None:
    # Another site may have begun to count them meanwhile: then they are left, and harm nobody.
    if not any(_is_site(each) for each in Path("/proc").iterdir() if each.name.isdecimal()):
        for path in made:
            path.unlink(missing_ok=True)


def _is_site(process: Path) -> bool:
    with suppress(OSError):
        return (process / "comm").read_text().strip() in {"munged", "slurmctld", "slurmd"}
    return False


def _until(true: Callable[[], object], otherwise: str, most_s: float = START_S) -> None:
    deadline_s = time.monotonic() + most_s
    while not true():
        if time.monotonic() > deadline_s:
            raise EngineLost(f"after {most_s:g} s {otherwise}")
        time.sleep(0.05)
