import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.cli.cluster_live_setup import gpu_models, kinds_of
from joulewise.cluster.declared import Declared, Report, ShareReport
from joulewise.cluster.engine import NodeSeen, Order
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec, MissingPart, NotKept
from joulewise.core.event import Aimed, Led, Limited, Ordered, Turned
from joulewise.core.plain import plain
from joulewise.report.cluster_log import ClusterLog
from joulewise.report.cluster_news import Overheard, line
from joulewise.serve import tokens
from joulewise.serve.cluster_client import ClusterClient
from joulewise.serve.tokens import Scope
from joulewise.store import MemoryJournal, open_store
from joulewise.testing.slurm_site import SlurmSite, slurm_site
from tests import preloaded
from tests.cli.clusters import called, one_line


class Up:
    """A real ``joulewise cluster up --engine sim`` in a process of its own."""

    def __init__(self, home: Path, *flags: str) -> None:
        words = ["cluster", "up", "--engine", "sim", "--port", "0", *flags]
        environ = {**os.environ, "JOULEWISE_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
        self.said: list[str] = []
        self.process = preloaded.Command(*words, env=environ, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.said.append(text)
            if found := re.search(r"scheduling on (unix:\S+) and", text):
                self.client = ClusterClient(found[1])
                return
        raise AssertionError("".join(self.said))

    def until(self, so: Callable[[Status], bool], *, timeout_s: float = 60.0) -> Status:
        """The status, once ``so`` holds of it."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            status = self.client.status()
            if so(status):
                return status
            assert time.monotonic() < deadline_s, status
            time.sleep(0.05)

    def job(self, name: str, so: Callable[[JobStatus], bool]) -> JobStatus:
        """The job of that name, once it is there and ``so`` holds of it."""
        status = self.until(lambda status: any(job.name == name and so(job) for job in status.jobs))
        return next(job for job in status.jobs if job.name == name)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=120)
        self.said.append(rest)
        return self.process.returncode


@pytest.fixture
def up(tmp_path: Path) -> Iterator[type[Up]]:
    started: list[Up] = []

    class Started(Up):
        def __init__(self, *flags: str) -> None:
            started.append(self)
            super().__init__(tmp_path, *flags)

    yield Started  # type: ignore[misc]
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def order(name: str, gpus: int, work: float = 1e9, *, elastic: bool = True) -> Order:
    return Order(name, ("true",), gpus, checkpoint="/c" if elastic else None, work=work, workload="bert", batch=128)


def test_jobs_are_handed_in_capped_explained_and_end_in_a_process_of_its_own(up):
    running = up("--gpu", "sim:a100-sxm*16", "--power-cap", "7kW", "--speed", "200", "--no-power-off")
    client = running.client
    assert running.until(lambda status: status.cap_w == 7000.0).budget_j is None
    client.submit(order("long", 8))
    client.submit(order("rigid", 8, elastic=False))
    for name in ("long", "rigid"):
        running.job(name, lambda job: job.state == "running")
    status = running.until(lambda status: status.compliant is True)
    assert {node.name for node in status.nodes} == {"a100-sxm-0", "a100-sxm-1"}
    assert client.why("rigid").says.startswith("rigid runs on 8 GPUs")
    running.job("long", lambda job: job.energy_j > 0 and job.done > 0)
    # A cut of the cap: clocks go down, and the power with them.
    client.cap(4000.0)
    status = running.until(lambda status: status.cap_w == 4000.0 and status.compliant is True)
    assert status.power_w <= 4000.0
    client.budget(1e12, 3600.0)
    running.until(lambda status: status.budget_j == 1e12)
    client.submit(order("short", 1, work=5.0))
    client.cap(None)
    running.job("short", lambda job: job.state == "ended")
    client.cancel("rigid")
    running.job("rigid", lambda job: job.state == "cancelled")
    with pytest.raises(BadSpec, match="choose another name"):
        client.submit(order("long", 4))
    assert running.end() == 0
    said, me = "".join(running.said), Caller(uid=os.geteuid())
    for words in (
        "this scheduler leads the cluster (epoch 1)",
        f"long was handed in, by {me}: 8 GPUs, elastic from 1",
        f"power cap: 4.00 kW, by {me}",
        "short has ended",
        "rigid is ended: cancelled by its user",
        "the simulated cluster ends with it",
    ):
        assert words in said
    assert "Traceback" not in said


def test_ctrl_c_ends_it_at_once_with_the_code_of_an_interrupt(up, tmp_path):
    running = up("--gpu", "sim:a100-sxm*8", "--tariff", str(_tariff(tmp_path)), "--energy-budget", "90kWh/day")
    running.until(lambda status: status.budget_j is not None)
    assert running.end(signal.SIGINT) == 130


def test_a_simulated_cluster_is_kept_where_a_database_is_named_and_can_be_looked_at_afterwards(up, tmp_path):
    file = tmp_path / "jobs.db"
    running = up("--gpu", "sim:a100-sxm*8", "--database", str(file), "--speed", "200", "--power-cap", "7kW")
    running.client.submit(order("long", 8))
    running.job("long", lambda job: job.state == "running")
    assert running.end() == 0
    with closing(open_store(str(file))) as store:
        (stream,) = store.streams("cluster/")
        log = ClusterLog(stream, store.journal(stream))
        log.refresh()
        shown = log.shown()
    assert stream.startswith("cluster/sim-")
    assert (shown.cap_w, [job.name for job in shown.jobs]) == (7000.0, ["long"])
    assert shown.jobs[0].spans[0].gpus > 0
    assert log.why("long").startswith("long was started")


def _tariff(folder: Path) -> Path:
    path = folder / "day.csv"
    path.write_text("time,g_per_kwh\n" + "".join(f"{hour},{200 + 10 * hour}\n" for hour in range(24)))
    return path


def test_a_signal_that_is_lost_holds_the_safe_cap_and_is_said(up, tmp_path):
    signal_file = tmp_path / "cap.json"
    signal_file.write_text(json.dumps({"cap_w": 6000}))
    running = up("--gpu", "sim:a100-sxm*16", "--cap-file", str(signal_file), "--cap-safe", "5kW", "--speed", "20")
    assert running.until(lambda status: status.cap_w == 6000.0).cap_source == "feed"
    signal_file.unlink()
    running.until(lambda status: status.cap_w == 5000.0)
    signal_file.write_text(json.dumps({"cap_w": 5500}))
    running.until(lambda status: status.cap_w == 5500.0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--engine", "ray"), "there are slurm and sim"),
        (("--engine", "sim", "--partition", "x"), "is Slurm's"),
        (("--engine", "sim", "--gpu", "a100"), "made of virtual GPUs"),
        (("--engine", "sim", "--speed", "0"), "60 makes an hour a minute"),
        (("--engine", "sim", "--host", "0.0.0.0"), "nobody can ask there without a token"),
        (("--engine", "sim", "--operators-group", "no-such-group"), "is no group of this machine"),
        (("--engine", "sim", "--socket", "/nowhere/s"), "--socket /nowhere/s: no such file or directory"),
        (("--engine", "sim", "--policy", "magic"), "there are priced"),
        (("--engine", "sim", "--cap-safe", "5kW"), "name its --cap-file"),
        (("--engine", "sim", "--cap-file", "/nowhere"), "/nowhere"),
        (("--engine", "sim", "--tariff", "/nowhere"), "/nowhere"),
        (("--engine", "sim", "--power-cap", "10W"), "below the"),
        (("--engine", "sim", "--energy-budget", "1kWh/week"), "below the"),
    ],
)
def test_what_cannot_be_is_one_line(args, says, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    assert called("up", *args, "--port", "0") == 2
    # What it assumes is said before a limit can be judged.
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_without_slurm_it_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    assert called("up", "--engine", "slurm", "--port", "0") == 1
    assert "install slurm-client" in one_line(capsys)


def test_gpu_models_are_named_for_all_nodes_or_by_slurm_s_types():
    assert {kind: model.key for kind, model in gpu_models("a100-sxm", ["gpu"]).items()} == {"gpu": "a100-sxm"}
    named = gpu_models("a100=a100-sxm,h200", ["a100", "h200"])
    assert {kind: model.key for kind, model in named.items()} == {"a100": "a100-sxm", "h200": "h200"}
    assert gpu_models(None, ["h200"])["h200"].key == "h200"
    with pytest.raises(BadSpec, match="name the model: --gpu a100-sxm"):
        gpu_models(None, ["gpu"])
    with pytest.raises(BadSpec, match="for nodes of Slurm's type 'tesla' write --gpu tesla=a100-sxm"):
        gpu_models(None, ["tesla"])


def test_nodes_become_kinds_with_what_their_hosts_draw():
    nodes = [NodeSeen("n1", 8, "up"), NodeSeen("n2", 8, "down"), NodeSeen("login", 0, "up")]
    (kind,) = kinds_of(nodes, gpu_models("a100-sxm", ["gpu"]), None)
    assert (kind.name, kind.nodes, kind.gpus_per_node, kind.host_w) == ("gpu", 2, 8, 1000.0)
    (kind,) = kinds_of(nodes, gpu_models("a100-sxm", ["gpu"]), 400.0)
    assert kind.host_w == 400.0
    assert kind.boot_w == 400.0 + 8 * kind.idle_gpu_w


WAY = {"gpus": 8, "setting": {"sm_mhz": 1305.0}}


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (Led(0.0, 3, {}), "this scheduler leads the cluster (epoch 3)"),
        (Ordered(0.0, "a", plain(order("a", 1))), "a was handed in: 1 GPU, elastic from 1"),
        (Ordered(0.0, "a", plain(order("a", 8, elastic=False))), "a was handed in: 8 GPUs, rigid"),
        (Aimed(0.0, 1, "a", "start", {"way": WAY, "place": {"n1": 8}}), "a starts on 8 GPUs of n1, 1305 MHz"),
        (
            Aimed(0.0, 1, "a", "retune", {"way": WAY, "place": {"n1": 8}}, "the cap fell"),
            "a goes to 1305 MHz: the cap fell",
        ),
        (Aimed(0.0, 1, "a", "preempt", {"way": None, "place": {}}), "a is stopped, to go on later"),
        (Turned(0.0, "a", "failed", {"exit_code": 3}), "a has failed with exit code 3"),
        (Turned(0.0, "a", "ended", {"energy_j": {"n1": 1500.0, "n2": 500.0}}), "a has ended, 2.000 kJ so far"),
        (Turned(0.0, "a", "lost", {}), "a is lost: its engine no longer knows it"),
        (Limited(0.0, "cap", {"cap_w": 2e4, "until_s": 60.0}), "power cap: 20.0 kW for 1 min 00 s"),
        (Limited(0.0, "cap", {"cap_w": 2e4, "source": "feed", "trouble": "lost"}), "20.0 kW (by the feed): lost"),
        (Limited(0.0, "cap", {"forget": True}), "no power cap any more"),
        (Limited(0.0, "budget", {"energy_j": 3.6e9, "period_s": 86400.0}), "1,000 kWh in every 24 h 00 min"),
    ],
)
def test_what_is_written_down_is_said_in_a_line(event, says):
    said = line(event)
    assert said is not None
    assert said.endswith(says)


def test_what_is_no_news_is_not_said():
    assert line(Turned(0.0, "a", "measured", {"energy_j": {"n1": 3.0}})) is None


def test_events_are_told_once_they_are_written_and_not_when_they_are_read():
    told: list[object] = []
    journal = Overheard(MemoryJournal(), told.append)
    event = Led(0.0, 1, {})
    assert journal.append(event, after=0) == 1
    assert [each for _, each in journal.read()] == [event] == told


@pytest.fixture
def site() -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory(prefix="jw") as folder, ExitStack() as ending:  # sockets need short paths
        try:
            made = ending.enter_context(slurm_site(Path(folder), nodes=2, gpus=2, gpu=None))
        except MissingPart as missing:
            pytest.skip(str(missing))
        yield made


class Reporting:
    """Agents of nodes that have no GPUs to set: they report, over HTTP, while the context lasts."""

    def __init__(self, nodes: Iterable[str], url: str, token: str) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._report, args=(node, ClusterClient(url, token))) for node in nodes
        ]

    def __enter__(self) -> "Reporting":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _report(self, node: str, client: ClusterClient) -> None:
        held = Declared(node, 0, 0)
        while not self._stop.wait(0.1):
            shares = tuple(ShareReport(share.id, share.version, "applied") for share in held.shares)
            said = Report(node, time.time(), held.epoch, held.number, 500.0, 1.0, 1.0, shares=shares)
            with suppress(NotKept):  # the scheduler is away
                held = client.exchange(said, wait_s=0.5)


@pytest.mark.slow
@pytest.mark.xdist_group("slurm")
def test_on_slurm_a_job_outlives_its_scheduler_and_one_handed_in_meanwhile_runs_when_it_is_back(site, tmp_path):
    environ = {**site.environment, "JOULEWISE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    environ |= {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    flags = ["--engine", "slurm", "--gpu", "a100-sxm", "--no-power-off"]
    processes: list[preloaded.Command] = []

    secret, kept = tokens.make(Scope.AGENT, tokens.EVERY_NODE)
    tokens.keep(tmp_path / tokens.FILE, kept)

    def started(port: str) -> str:
        """Where it serves its agents, once it does."""
        process = preloaded.Command("cluster", "up", *flags, "--port", port, env=environ, stderr=subprocess.PIPE)
        processes.append(process)
        said = []
        for text in process.stderr or ():
            said.append(text)
            if found := re.search(r"scheduling on unix:.* (http://\S+);", text):
                return found[1]
        raise AssertionError("".join(said))

    def submitted(name: str, script: str) -> str:
        words = ["cluster", "submit", "--name", name, "--gpus", "1", "--", "sh", "-c", script]
        made = preloaded.run(*words, env=environ, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def until(name: str, state: str) -> JobStatus:
        deadline_s = time.monotonic() + 120.0
        while True:
            status = client.status()
            found = next((job for job in status.jobs if job.name == name and job.state == state), None)
            if found is not None:
                return found
            assert time.monotonic() < deadline_s, status
            time.sleep(0.1)

    try:
        url = started("0")
        client = ClusterClient(f"unix:{tmp_path}/cluster.sock")
        with Reporting(site.nodes, url, secret):
            gate = tmp_path / "gate"
            id_ = submitted("waits", f"until [ -e {gate} ]; do sleep 0.1; done; echo done >> {tmp_path}/waits.txt")
            assert until("waits", "running").id == id_
            with pytest.raises(BadSpec, match="this cluster's queue is Slurm's"):
                client.submit(order("by-http", 1))
            processes[0].kill()
            processes[0].wait()
            submitted("later", f"echo done >> {tmp_path}/later.txt")
            started(url.rpartition(":")[2])
            assert until("later", "ended").starts == 1
            assert client.job("waits").state == "running"
            gate.touch()
            assert until("waits", "ended").starts == 1
            assert client.status().epoch == 2
        assert [(tmp_path / f"{name}.txt").read_text() for name in ("waits", "later")] == ["done\n", "done\n"]
        processes[1].terminate()
        assert processes[1].wait(60) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
