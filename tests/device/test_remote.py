"""Leases and GPUs through a real daemon, in a process of its own, on virtual GPUs in another."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import BadMessage, GpuLost, LeaseLost, LeaseTaken, NoDaemon, NoGpu, NotNow, OutOfRange
from joulewise.core.knob import KNOBS, Setting
from joulewise.core.timeline import WallTime
from joulewise.device.lease import Ending, Lease
from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.remote import DaemonClient, RemoteGpu, RemoteLease
from joulewise.testing import GpuConformance, LeaseConformance
from tests.daemon.running import RunningDaemon, Words, running_daemon, until

# Tests write faster than people: the pace has tests of its own.
SITE = "[pace]\nwrites_per_s = 100000\nburst = 100000\n"
LIMIT = frozenset({"power_limit_w"})


class RemoteStage:
    """Two GPUs behind the daemon, seen past it through the simulator's memory."""

    def __init__(self, daemon: RunningDaemon, faults: NodeClient) -> None:
        self.daemon = daemon
        self.faults = faults
        self.words = Words(daemon.node)
        self.time = WallTime()
        with RemoteGpu(faults.uuids[0], socket=daemon.socket) as gpu:
            self.space = gpu.info.space
        self.uuids: Sequence[str] = faults.uuids

    def take(self, uuids: Sequence[str], knobs: Collection[str]) -> Lease:
        return RemoteLease.take(uuids, knobs, socket=self.daemon.socket)

    def limit_w(self, uuid: str) -> float:
        return self.words.limit_w(self.uuids.index(uuid))

    def ceiling_mhz(self, uuid: str) -> float | None:
        lock = self.words.sm_lock(self.uuids.index(uuid))
        return None if lock is None else float(lock[1])

    def set_limit(self, uuid: str, limit_w: float) -> None:
        self.faults.fault(self.uuids.index(uuid), "foreign", power_limit_w=limit_w)

    def refuse(self, uuid: str, on: bool) -> None:
        if on:
            self.faults.fault(self.uuids.index(uuid), "no_permission")
        else:
            self.faults.clear(self.uuids.index(uuid))


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with spawn("sim:h200*2") as node:
        yield node


@pytest.fixture(scope="module")
def daemon(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(node, tmp_path_factory.mktemp("daemon"), site=SITE) as daemon:
        yield daemon


@pytest.fixture
def there(daemon: RunningDaemon) -> Iterator[RemoteStage]:
    if daemon.process is None:
        daemon.start()
    with daemon.node.client() as faults:
        stage = RemoteStage(daemon, faults)
        for uuid in stage.uuids:
            stage.set_limit(uuid, stage.space.knobs["power_limit_w"].high)
        yield stage
        for index in range(2):
            faults.clear(index)
        stage.words.close()
        assert open_fds_of_sockets() == 0, "a test left a connection open"


def open_fds_of_sockets() -> int:
    """Connections to the daemon that this process still has."""
    gc.collect()
    from joulewise.device import remote_client

    return len(remote_client._open)


class TestRemoteLease(LeaseConformance):
    @pytest.fixture
    def stage(self, there: RemoteStage) -> RemoteStage:
        return there


class TestRemoteGpu(GpuConformance):
    @pytest.fixture
    def gpu(self, there: RemoteStage) -> Iterator[RemoteGpu]:
        with RemoteGpu(there.uuids[0], socket=there.daemon.socket) as gpu:
            yield gpu


def test_without_a_daemon_the_error_says_where_none_answers(tmp_path: Path):
    path = tmp_path / "nobody.sock"
    for ask in (DaemonClient, lambda path: RemoteLease.take(["GPU-1"], LIMIT, socket=path)):
        with pytest.raises(NoDaemon, match=str(path)):
            ask(path)


def test_a_socket_may_lie_deeper_than_a_sockets_own_path_may_be_long(tmp_path: Path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    with spawn("sim:h200") as node, running_daemon(node, deep) as daemon, daemon.connect() as client:
        assert len(str(daemon.socket)) > 107
        assert client.hello["pid"] == os.getpid()


def test_the_daemon_says_who_we_are_as_the_kernel_does(there: RemoteStage):
    with there.daemon.connect() as client:
        assert (client.hello["uid"], client.hello["gid"], client.hello["pid"]) == (
            os.getuid(),
            os.getgid(),
            os.getpid(),
        )
        assert client.hello["gpus"] == list(there.uuids)


def test_no_knobs_means_all_that_the_gpus_have(there: RemoteStage):
    with RemoteLease.take(there.uuids, socket=there.daemon.socket) as lease:
        assert lease.knobs == {knob.name for knob in KNOBS}


def test_a_user_without_rights_gets_the_knobs_that_the_site_gives_as_far_as_it_does(tmp_path: Path):
    rule = """
    [[rule]]
    users = [12345]
    needs = "nothing"
    knobs = { power_limit_w = [400, 600], sm_mhz = "any", memory_mhz = "none" }
    """
    asks = (
        "import os, sys\nfrom pathlib import Path\nfrom joulewise.device.remote import RemoteLease\n"
        "os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)\n"
        "with RemoteLease.take(sys.argv[2:], socket=Path(sys.argv[1])) as lease: print(dict(lease.allowed))"
    )
    with (
        spawn("sim:h200*2") as node,
        running_daemon(node, tmp_path / "strict", site=rule) as daemon,
        node.client() as client,
    ):
        told = subprocess.run(
            [sys.executable, "-c", asks, str(daemon.socket), *client.uuids], capture_output=True, text=True, timeout=60
        )
    assert told.stdout == "{'power_limit_w': (400.0, 600.0), 'sm_mhz': (345.0, 1980.0)}\n", told.stderr


def test_an_unknown_gpu_is_none(there: RemoteStage):
    with pytest.raises(NoGpu, match="GPU-none"):
        RemoteLease.take(["GPU-none"], LIMIT, socket=there.daemon.socket)
    with pytest.raises(NoGpu, match="GPU-none"):
        RemoteGpu("GPU-none", socket=there.daemon.socket)


def test_a_conflict_names_owner_reason_and_expiry(there: RemoteStage):
    with (
        RemoteLease.take(there.uuids, LIMIT, reason="a sweep", ttl_s=77, socket=there.daemon.socket) as lease,
        pytest.raises(LeaseTaken) as caught,
    ):
        there.take(there.uuids[:1], LIMIT)
    said = str(caught.value)
    for part in (f"uid {os.getuid()}", f"pid {os.getpid()}", "a sweep", lease.name, there.uuids[0]):
        assert part in said
    assert "for 7" in said  # of 77 s


def test_a_lease_outlives_its_ttl_because_it_beats(there: RemoteStage):
    with RemoteLease.take(there.uuids, LIMIT, ttl_s=0.6, socket=there.daemon.socket) as lease:
        lease.apply(Setting(power_limit_w=400))
        with there.daemon.connect() as client:
            seen = set()
            deadline_s = time.monotonic() + 2.0
            while time.monotonic() < deadline_s:
                seen.add(client.leases()[0]["left_s"])
                time.sleep(0.05)
        assert lease.alive
        assert min(seen) > 0
        assert there.limit_w(there.uuids[0]) == 400


def test_a_lease_whose_owner_says_nothing_ends_and_says_so_later(there: RemoteStage):
    with there.daemon.connect() as silent:
        name = silent.ask("take", gpus=list(there.uuids), knobs=["power_limit_w"], ttl_s=0.3)["lease"]
        silent.ask("apply", lease=name, setting={"power_limit_w": 400})
        until(lambda: there.limit_w(there.uuids[0]) == 700, what="restored after the TTL")
        with pytest.raises(LeaseLost):
            silent.ask("apply", lease=name, setting={"power_limit_w": 300})
        events: list[dict[str, Any]] = []
        until(lambda: events.extend(silent.events()) or events)
        (event,) = events
        assert (event["event"], event["lease"]) == ("ended", name)
        assert {each["ending"] for each in event["restored"]} == {"restored"}
        assert there.limit_w(there.uuids[0]) == 700


def test_a_lease_that_an_administrator_ends_is_lost_with_a_notice(there: RemoteStage):
    lease = there.take(there.uuids[:1], LIMIT)
    lease.apply(Setting(power_limit_w=400))
    with there.daemon.connect() as root:
        (restored,) = root.end(lease.name, "maintenance")
    assert restored["after"] == 700
    until(lambda: not lease.alive)
    (notice,) = lease.notices()
    assert notice.kind == "ended"
    assert "maintenance" in notice.says
    with pytest.raises(LeaseLost, match="maintenance"):
        lease.apply(Setting(power_limit_w=300))
    ended = lease.release()
    assert [each.ending for each in ended.restored] == [Ending.RESTORED]
    assert there.limit_w(there.uuids[0]) == 700


def test_what_is_no_number_is_refused_before_it_is_sent(there: RemoteStage):
    with there.take(there.uuids[:1], LIMIT) as lease:
        for value in (math.nan, math.inf):
            with pytest.raises(OutOfRange):
                lease.apply(Setting(power_limit_w=value))
        assert lease.apply(Setting(power_limit_w=400)).effective


def test_a_request_that_cannot_travel_is_refused_here_and_the_connection_goes_on(there: RemoteStage):
    with there.daemon.connect() as client:
        for fields in ({"ttl_s": math.nan}, {"ttl_s": 1.0, "reason": "x" * 70_000}):
            with pytest.raises(BadMessage):
                client.ask("take", gpus=list(there.uuids), knobs=["power_limit_w"], **fields)
        assert client.ask("hello")["pid"] == os.getpid()


def test_whether_a_lease_lives_is_told_at_once_though_another_thread_waits_for_an_answer(there: RemoteStage):
    with there.take(there.uuids[:1], LIMIT) as lease:
        there.daemon.signal(signal.SIGSTOP)
        waiting = threading.Thread(target=lease.beat)
        waiting.start()
        begun_s = time.monotonic()
        assert lease.alive
        assert lease.notices() == ()
        assert time.monotonic() - begun_s < 5.0  # the other thread's patience is longer
        there.daemon.signal(signal.SIGCONT)
        waiting.join()


def test_a_forked_child_has_no_lease_and_leaves_its_parents_alone(there: RemoteStage):
    with there.take(there.uuids[:1], LIMIT) as lease:
        lease.apply(Setting(power_limit_w=400))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused = 0
                for act in (lease.apply, lease.beat, lease.release, lambda: lease.quiet(1), lease.notices):
                    try:
                        act()
                    except LeaseLost:
                        refused += 1
                lease.__exit__(None, None, None)
                code = 0 if refused == 5 and not lease.alive and lease._client._sock.fileno() == -1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.beat()
        assert there.limit_w(there.uuids[0]) == 400


def test_a_forked_child_reads_a_gpu_over_a_connection_of_its_own(there: RemoteStage):
    with RemoteGpu(there.uuids[0], socket=there.daemon.socket) as gpu:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if gpu.read().power_w else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert gpu.read().power_w


def test_a_lease_that_is_dropped_is_given_back(there: RemoteStage):
    lease = there.take(there.uuids[:1], LIMIT)
    lease.apply(Setting(power_limit_w=400))
    del lease
    gc.collect()
    until(lambda: there.limit_w(there.uuids[0]) == 700)


def test_threads_that_beat_end_with_their_leases(there: RemoteStage):
    before = threading.active_count()
    for _ in range(5):
        there.take(there.uuids, LIMIT).release()
    until(lambda: threading.active_count() <= before)


def test_when_the_daemon_dies_the_lease_is_lost_and_the_next_daemon_gives_back(there: RemoteStage):
    lease = there.take(there.uuids, LIMIT)
    lease.apply(Setting(power_limit_w=400))
    gpu = RemoteGpu(there.uuids[0], socket=there.daemon.socket)
    there.daemon.kill()
    assert not lease.alive
    (notice,) = lease.notices()
    assert notice.kind == "ended"
    with pytest.raises(LeaseLost, match="restore"):
        lease.apply(Setting(power_limit_w=300))
    with pytest.raises(GpuLost):
        gpu.read()
    assert "joulewise restore" in lease.release().why
    assert there.limit_w(there.uuids[0]) == 400
    there.daemon.start()
    until(lambda: [there.limit_w(uuid) for uuid in there.uuids] == [700, 700])
    gpu.close()


def test_an_answer_that_comes_too_late_breaks_the_connection_rather_than_be_taken_for_another(there: RemoteStage):
    with DaemonClient(there.daemon.socket, answer_s=0.2) as client:
        there.daemon.signal(signal.SIGSTOP)
        try:
            with pytest.raises(NoDaemon, match="does not answer"):
                client.ask("hello")
        finally:
            there.daemon.signal(signal.SIGCONT)
        with pytest.raises(NoDaemon):
            client.ask("hello")


def test_lists_longer_than_a_line_come_in_pages(tmp_path: Path):
    with (
        spawn("sim:h200*64") as node,
        running_daemon(node, tmp_path, site=SITE) as daemon,
        daemon.connect() as client,
        daemon.connect() as other,
    ):
        uuids = client.hello["gpus"]
        assert [gpu["uuid"] for gpu in client.gpus()] == uuids
        reason = "é" * 256  # six bytes each on the wire
        for uuid in uuids:
            client.ask("take", gpus=[uuid], knobs=["power_limit_w"], ttl_s=60, reason=reason)
        assert {gpu for lease in other.leases() for gpu in lease["gpus"]} == set(uuids)
        assert client.ask("leases")["more"]


def test_a_party_acts_when_it_is_complete_and_ends_as_one(there: RemoteStage):
    first, second = there.uuids
    one = RemoteLease.take([first], LIMIT, together=("job", 2), socket=there.daemon.socket)
    with pytest.raises(NotNow, match="1 of 2"):
        one.apply(Setting(power_limit_w=400))
    other = RemoteLease.take([second], LIMIT, together=("job", 2), socket=there.daemon.socket)
    one.apply(Setting(power_limit_w=400))
    other.apply(Setting(power_limit_w=400))
    one.release()
    until(lambda: not other.alive)
    assert there.limit_w(first) == there.limit_w(second) == 700
    assert "job" in other.release().why


def test_the_module_can_be_used_without_what_only_the_command_line_needs(there: RemoteStage):
    program = (
        "import sys; from pathlib import Path; from joulewise.device.remote import RemoteLease; "
        f"lease = RemoteLease.take({list(there.uuids)!r}, socket=Path({str(there.daemon.socket)!r})); lease.release(); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'typer', 'rich', 'pynvml')))"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0
