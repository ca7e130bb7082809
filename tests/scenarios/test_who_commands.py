"""Who commands a cluster: real schedulers, real users of the machine, and what the journal says of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.cluster.declared import Report
from joulewise.cluster.scheduler_status import Status
from joulewise.core.event import Aimed, Limited, Ordered
from joulewise.core.plain import plain
from joulewise.serve import tokens
from joulewise.serve.cluster_client import ClusterClient
from joulewise.serve.tokens import Scope
from joulewise.store import open_store
from tests import preloaded
from tests.scenarios.someone import as_user, asking

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be several users")

ALICE, BOB = 65534, 4_000_001
AT = "/api/cluster"
GPUS = ("--gpu", "sim:a100-sxm*16", "--no-power-off", "--speed", "100")
REPORT = plain(Report("a100-sxm-0", 1.8e9, 1, 1, 1.0, 1.0, 1.0))
FORBIDDEN = [
    ("PUT", f"{AT}/cap", {"power_w": 3000.0}, {}),
    ("PUT", f"{AT}/budget", {"energy_j": 1e12, "period_s": 3600.0}, {}),
    ("DELETE", f"{AT}/jobs/hers", None, {}),
    ("POST", f"{AT}/nodes/a100-sxm-0", REPORT, {}),
]
"""What no user may do to others."""


class Up:
    """A real ``joulewise cluster up --engine sim``; ``said`` is all that it has said by the time that it serves."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.environ = {"JOULEWISE_HOME": str(home)}
        words = ["cluster", "up", "--engine", "sim", *GPUS, "--port", "0", *flags]
        environ = {**os.environ, **self.environ}
        self.process = preloaded.Command(*words, env=environ, stderr=subprocess.PIPE)
        self.said = ""

    def begin(self) -> None:
        """Wait until it serves."""
        assert self.process.stderr is not None
        while "joulewise cluster status" not in self.said:
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        found = re.search(r"http://127\.0\.0\.1:\d+", self.said)
        assert found is not None, self.said
        self.url = found[0]

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=60)
        return rest


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    made: list[Up] = []

    def started(*flags: str) -> Up:
        made.append(Up(tmp_path, *flags))
        made[-1].begin()
        return made[-1]

    yield started
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def until(client: ClusterClient, so: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + 60.0
    while not so(status := client.status()):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.05)
    return status


def test_another_user_of_the_machine_gets_nothing_from_the_port_without_a_token(up, scenario):
    shown = scenario("R27", "a user without a token asks the scheduler's TCP port", criterion="nothing is served")
    running = up("--power-cap", "7kW")
    asked = [*FORBIDDEN, ("POST", f"{AT}/jobs", {"name": "x", "command": ["true"], "gpus": 1}, {})]
    asked += [("GET", path, None, {}) for path in (AT, f"{AT}/jobs/hers", "/metrics")]
    for uid in (ALICE, 0):  # TCP tells nobody from anybody
        assert [status for status, _ in asking(uid, running.url, asked)] == [401] * len(asked)
    rest = running.end()
    assert "power cap" not in rest
    shown.saw(f"{len(asked)} kinds of requests: 401 each, the cap as it was")


def test_users_act_on_what_is_theirs_operators_on_all_and_the_journal_names_them(up, tmp_path, scenario):
    shown = scenario("R27", "two users and root on one scheduler", criterion="by uid, named in the journal")
    (agent, agent_kept), (operator, operator_kept) = (
        tokens.make(Scope.AGENT, "a100-sxm-0"),
        tokens.make(Scope.WRITE, "control-room"),
    )
    for kept in (agent_kept, operator_kept):
        tokens.keep(tmp_path / tokens.FILE, kept)
    database = tmp_path / "jobs.db"
    running = up("--database", str(database), "--power-cap", "7kW")
    here = f"unix:{tmp_path}/cluster.sock"
    client = ClusterClient(here)

    def cluster(uid: int, *words: str) -> tuple[int, str]:
        said = as_user(uid, [sys.executable, "-m", "joulewise", "cluster", *words, "--server", here])
        return said.returncode, said.stderr

    for uid, name in ((ALICE, "hers"), (ALICE, "hers-too"), (BOB, "his")):
        words = ("submit", "--engine", "sim", "--name", name, "--gpus", "1", "--server", here, "--", "true")
        said = as_user(uid, [sys.executable, "-m", "joulewise", "cluster", *words])
        assert said.returncode == 0, said.stderr
    until(client, lambda status: len(status.jobs) == 3)
    # Bob may look; he may not touch what is hers, nor the cluster, whatever he says of himself.
    assert [status for status, _ in asking(BOB, here, FORBIDDEN)] == [403] * len(FORBIDDEN)
    claims = {"Authorization": "Bearer x", "X-Forwarded-For": "127.0.0.1", "X-Remote-User": "root"}
    assert [status for status, _ in asking(BOB, here, [(*FORBIDDEN[0][:3], claims)])] == [403]
    assert [status for status, _ in asking(BOB, here, [("GET", AT, None, {})])] == [200]
    code, said = cluster(BOB, "cancel", "hers")
    assert (code, "job 'hers' is not yours" in said) == (2, True), said
    code, said = cluster(BOB, "cap", "5kW")
    assert (code, f"you are uid {BOB}" in said) == (2, True), said
    assert client.status().cap_w == 7000.0
    # Each ends their own; root ends anybody's, and says what the cluster may draw.
    assert cluster(BOB, "cancel", "his")[0] == 0
    assert cluster(0, "cancel", "hers")[0] == 0
    assert cluster(ALICE, "cancel", "hers-too")[0] == 0
    assert cluster(0, "cap", "6kW")[0] == 0
    # With tokens over TCP: an agent reports, and nothing else; an operator does all.
    bearing = {"Authorization": f"Bearer {agent}"}
    answers = asking(ALICE, running.url, [(*each[:3], bearing) for each in FORBIDDEN])
    assert [status for status, _ in answers] == [403, 403, 403, 200]
    bearing = {"Authorization": f"Bearer {operator}"}
    assert asking(ALICE, running.url, [("PUT", f"{AT}/cap", {"power_w": 5000.0}, bearing)])[0][0] == 204
    until(client, lambda status: all(job.state == "cancelled" for job in status.jobs) and status.cap_w == 5000.0)
    said = running.end()
    with closing(open_store(str(database))) as store:
        (stream,) = store.streams("cluster/")
        events = [event for _, event in store.journal(stream).read()]
    root, alice, bob = {"uid": 0, "user": "root"}, {"uid": ALICE, "user": "nobody"}, {"uid": BOB}
    assert [(event.name, event.facts["by"]) for event in events if isinstance(event, Ordered)] == [
        ("hers", alice),
        ("hers-too", alice),
        ("his", bob),
    ]
    stops = {event.name: event for event in events if isinstance(event, Aimed) and event.what == "stop"}
    assert {name: (event.reason, event.facts["by"]) for name, event in stops.items()} == {
        "his": ("cancelled by its user", bob),
        "hers": ("cancelled by root (uid 0)", root),
        "hers-too": ("cancelled by its user", alice),
    }
    caps = [(event.facts["cap_w"], event.facts["by"]) for event in events if isinstance(event, Limited)]
    assert caps == [(7000.0, root), (6000.0, root), (5000.0, {"token": "control-room"})]
    assert "power cap: 5.00 kW, by token control-room" in said
    shown.saw("4 acts refused, 7 done, each under its author's name")


def test_a_second_scheduler_does_not_take_the_socket_of_one_that_lives_and_takes_that_of_one_that_died(up, tmp_path):
    running = up()
    words = [sys.executable, "-m", "joulewise", "cluster", "up", "--engine", "sim", *GPUS, "--port", "0"]
    second = as_user(0, words, running.environ)
    assert second.returncode == 2
    assert f"{tmp_path}/cluster.sock: another process listens there" in second.stderr
    assert ClusterClient(f"unix:{tmp_path}/cluster.sock").status().epoch == 1
    running.process.kill()
    running.process.wait()
    assert (tmp_path / "cluster.sock").exists()
    up()
    assert ClusterClient(f"unix:{tmp_path}/cluster.sock").status().epoch == 1


def test_a_user_s_own_scheduler_is_root_s_and_theirs_alone(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    words = [sys.executable, "-m", "tests.cli.as_someone", str(ALICE), sys.executable, "-m", "joulewise", "cluster"]
    environ = {**os.environ, "JOULEWISE_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
    up = [*words, "up", "--engine", "sim", *GPUS, "--port", "0"]
    with subprocess.Popen(up, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "joulewise cluster status" in line:
                    break
            here = f"unix:{home}/cluster.sock"
            look, cap = ("GET", AT, None, {}), ("PUT", f"{AT}/cap", {"power_w": 9000.0}, {})
            for uid, statuses in ((ALICE, [200, 204]), (0, [200, 204]), (BOB, [0, 0])):
                assert [status for status, _ in asking(uid, here, [look, cap])] == statuses
        finally:
            process.terminate()
