"""The daemon as a process: what it listens to, whom it hangs up on, how it starts and ends. Users are in test_users."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import LeaseLost, NoDaemon, NotNow, NotPermitted
from joulewise.core.knob import Setting
from joulewise.daemon.peer import ANCILLARY_BYTES, sender_of
from joulewise.daemon.server import MOST_IN_FLIGHT, MOST_UNFINISHED_S, MOST_UNREAD_BYTES, listen
from joulewise.device import wire
from joulewise.device.node import RunningNode, spawn
from joulewise.device.remote import DaemonClient, RemoteLease
from tests.daemon.running import RunningDaemon, Words, running_daemon, until

LIMIT = ["power_limit_w"]
SITE = "[pace]\nwrites_per_s = 100000\nburst = 100000\n"


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with spawn("sim:h200*2") as node:
        yield node


@pytest.fixture(scope="module")
def daemon(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(node, tmp_path_factory.mktemp("daemon"), site=SITE) as daemon:
        yield daemon


@pytest.fixture
def alone(daemon: RunningDaemon) -> Iterator[None]:
    """The GPUs without the daemon that all share: a second one on them would be refused."""
    daemon.stop()
    yield
    daemon.start()


@pytest.fixture
def words(node: RunningNode) -> Iterator[Words]:
    words = Words(node)
    yield words
    words.close()


@pytest.fixture
def uuids(node: RunningNode) -> tuple[str, ...]:
    with node.client() as client:
        return client.uuids


class Bare:
    """A connection without a client: bytes as they are."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(daemon.socket))
        self.sock.settimeout(20)
        self._file = self.sock.makefile("rb")

    def send(self, raw: bytes) -> None:
        self.sock.sendall(raw)

    def answer(self) -> dict[str, Any]:
        """The next line; an empty object if the daemon has hung up."""
        line = self._file.readline()
        return json.loads(line) if line else {}  # type: ignore[no-any-return]

    def close(self) -> None:
        self._file.close()
        self.sock.close()


@pytest.fixture
def bare(daemon: RunningDaemon) -> Iterator[Bare]:
    bare = Bare(daemon)
    yield bare
    bare.close()


# -- lines


def test_a_line_may_come_in_any_pieces(bare: Bare):
    line = b'{"id": 1, "op": "hello"}\n'
    for byte in line:
        bare.send(bytes([byte]))
    assert bare.answer()["id"] == 1
    bare.send(line + line[:10])
    assert bare.answer()["id"] == 1
    bare.send(line[10:] + line * 3)
    assert [bare.answer()["id"] for _ in range(4)] == [1] * 4


def test_nonsense_is_answered_and_the_connection_goes_on(bare: Bare):
    bare.send(b'nonsense\n{"id": 5, "op": "nonsense"}\n\n{"id": 6, "op": "hello"}\n')
    said = [bare.answer() for _ in range(4)]
    assert [each.get("error") for each in said] == ["BadMessage", "BadMessage", "BadMessage", None]
    assert [each["id"] for each in said] == [None, 5, None, 6]


def test_the_longest_line_is_served_and_one_byte_more_is_the_end(bare: Bare):
    longest = b'{"id": 1, "op": "hello"' + b" " * (wire.MOST_BYTES - 25) + b"}\n"
    bare.send(longest)
    assert bare.answer()["ok"]["pid"] == os.getpid()
    bare.send(b"x" * wire.MOST_BYTES)
    assert bare.answer()["error"] == "BadMessage"
    assert bare.answer() == {}


def test_many_requests_at_once_are_all_answered_in_their_order(bare: Bare, uuids: tuple[str, ...]):
    count = 20 * MOST_IN_FLIGHT
    lines = [wire.line({"id": number, "op": "read", "gpu": uuids[0]}) for number in range(count)]
    bare.send(b"".join(lines))
    assert sorted(bare.answer()["id"] for _ in range(count)) == list(range(count))


def test_a_line_that_is_begun_and_not_ended_is_the_end_of_the_connection(bare: Bare):
    begun_s = time.monotonic()
    bare.send(b'{"id": 1, ')
    assert "not ended" in bare.answer()["message"]
    assert bare.answer() == {}
    assert time.monotonic() - begun_s >= MOST_UNFINISHED_S


def test_who_does_not_read_answers_is_hung_up_on_and_others_are_served(
    daemon: RunningDaemon, bare: Bare, uuids: tuple[str, ...]
):
    with daemon.connect() as honest:
        before = honest.status()["memory_bytes"]
        bare.sock.settimeout(0.2)
        sent = 0
        try:
            while sent < 1 << 20:
                sent += bare.sock.send(b'{"id": 1, "op": "gpus"}\n' * 100)
        except (TimeoutError, ConnectionError):
            pass
        until(lambda: honest.status()["connections"] == 1, 20)
        assert honest.status()["memory_bytes"] < before + 4 * MOST_UNREAD_BYTES


def test_descriptors_sent_along_are_not_kept(daemon: RunningDaemon, bare: Bare):
    with daemon.connect() as root:
        before = root.status()["descriptors"]
        for _ in range(20):
            socket.send_fds(bare.sock, [b'{"id": 1, "op": "hello"}\n'], [0, 1, 2])
            assert "ok" in bare.answer()
        assert root.status()["descriptors"] == before


def test_a_child_that_writes_on_its_parents_connection_is_refused(daemon: RunningDaemon, bare: Bare):
    bare.send(b'{"id": 1, "op": "hello"}\n')
    assert "ok" in bare.answer()
    child = os.fork()
    if child == 0:
        bare.sock.send(b'{"id": 2, "op": "hello"}\n')
        os._exit(0)
    os.waitpid(child, 0)
    assert bare.answer()["error"] == "NotPermitted"
    assert bare.answer() == {}
    assert f"pid {child}" in daemon.audited(op="connection", pid=os.getpid())[-1]["why"]


def test_whoever_connects_the_moment_it_listens_is_named_with_every_message(tmp_path: Path):
    tmp_path.chmod(0o700)
    with (
        listen(tmp_path / "s", 0o600) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as early,
    ):
        early.connect(str(tmp_path / "s"))  # the daemon may be far from accepting
        early.sendall(b"{}\n")
        connection, _ = listener.accept()
        with connection:
            _, ancillary, _, _ = connection.recvmsg(100, ANCILLARY_BYTES)
    assert sender_of(ancillary) == (os.getpid(), os.getuid())


def test_one_user_cannot_take_all_connections_and_root_still_gets_in(daemon: RunningDaemon):
    program = (
        "import contextlib, os, socket, sys\n"
        "os.setuid(12345)\n"
        "held = []\n"
        "for _ in range(300):\n"
        "    sock = socket.socket(socket.AF_UNIX); sock.settimeout(20); sock.connect(sys.argv[1])\n"
        "    with contextlib.suppress(BrokenPipeError):  # who is shut out may be so before they have spoken\n"
        '        sock.send(b\'{"id": 1, "op": "hello"}\\n\')\n'
        "    held.append((sock, sock.recv(4096)))\n"
        "print(sum(b'NotNow' in said for _, said in held), flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "44\n"
        with daemon.connect() as root:
            assert root.status()["connections"] == 257
        crowd.kill()
    with daemon.connect() as root:
        until(lambda: root.status()["connections"] == 1)


def test_descriptors_and_threads_do_not_grow_with_clients(daemon: RunningDaemon, uuids: tuple[str, ...]):
    with daemon.connect() as root:
        before = root.status()["descriptors"]
        for _ in range(50):
            with daemon.connect() as client:
                name = client.ask("take", gpus=list(uuids), knobs=LIMIT, ttl_s=60)["lease"]
                client.ask("apply", lease=name, setting={"power_limit_w": 400})
            until(lambda: not root.leases())
        assert root.status()["descriptors"] == before
        assert len(list(Path(f"/proc/{daemon.pid}/task").iterdir())) <= 1 + len(uuids)


# -- life


def test_a_running_daemon_has_loaded_nothing_but_the_standard_library_and_the_binding(daemon: RunningDaemon):
    with daemon.connect() as root:
        modules = set(root.status()["modules"])
    # What an editable installation puts into every process, not ours to choose.
    installed = {name for name in modules if name.startswith(("_editable", "__editable", "_distutils_hack"))}
    foreign = modules - sys.stdlib_module_names - installed
    assert foreign == {"joulewise", "pynvml", "__main__"}
    assert not modules & {"numpy", "typer", "rich"}


def test_the_socket_is_for_everyone_and_its_folder_is_not(daemon: RunningDaemon):
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(daemon.state.stat().st_mode) == 0o700


@pytest.mark.usefixtures("alone")
def test_a_socket_in_a_folder_that_others_can_write_is_refused(node: RunningNode, tmp_path: Path):
    with running_daemon(node, tmp_path / "d", start=False) as daemon:
        daemon.socket.parent.chmod(0o777)
        with pytest.raises(AssertionError, match="not trusted"):
            daemon.start()


def test_a_second_daemon_on_the_same_state_is_refused_and_the_first_goes_on(daemon: RunningDaemon):
    ended = subprocess.run(
        daemon.command(), env=daemon.node.environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert f"is in the hands of pid {daemon.pid} " in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    with daemon.connect() as client:
        assert client.hello["pid"] == os.getpid()


@pytest.mark.usefixtures("alone")
def test_a_bad_site_file_is_told_in_one_line(node: RunningNode, tmp_path: Path):
    with (
        running_daemon(node, tmp_path / "d", site="no_such_key = 1\n", start=False) as daemon,
        pytest.raises(AssertionError, match="no_such_key") as caught,
    ):
        daemon.start()
    assert "Traceback" not in str(caught.value)


@pytest.mark.usefixtures("alone")
def test_a_dead_daemons_socket_is_replaced_and_its_debts_are_paid(
    node: RunningNode, tmp_path: Path, words: Words, uuids: tuple[str, ...]
):
    with running_daemon(node, tmp_path / "d") as daemon:
        lease = RemoteLease.take(uuids, socket=daemon.socket)
        lease.apply(Setting(power_limit_w=444, sm_mhz=1200))
        daemon.kill()
        assert daemon.socket.exists()
        assert words.limit_w(1) == 444
        with pytest.raises(NoDaemon):
            DaemonClient(daemon.socket)
        daemon.start()
        until(lambda: (words.limit_w(0), words.limit_w(1), words.sm_lock(0)) == (700, 700, None))
        assert len(daemon.audited(op="replay")) == 6
        lease.release()


@pytest.mark.usefixtures("alone")
def test_sigterm_gives_everything_back_and_exits_with_0(
    node: RunningNode, tmp_path: Path, words: Words, uuids: tuple[str, ...]
):
    with running_daemon(node, tmp_path / "d") as daemon:
        lease = RemoteLease.take(uuids, socket=daemon.socket)
        lease.apply(Setting(power_limit_w=444, sm_mhz=1200))
        assert daemon.stop() == 0
        assert (words.limit_w(0), words.limit_w(1), words.sm_lock(0)) == (700, 700, None)
        assert not daemon.socket.exists()
        assert list(daemon.state.glob("*.jsonl")) == []
        with pytest.raises(LeaseLost, match="the daemon stops"):
            lease.beat()
        assert len(lease.release().restored) == 6


@pytest.mark.usefixtures("alone")
def test_sighup_puts_other_rules_in_force_and_bad_ones_change_nothing(node: RunningNode, tmp_path: Path):
    with running_daemon(node, tmp_path / "d", site=f"ttl_most_s = 100\n{SITE}") as daemon, daemon.connect() as client:
        uuid = client.hello["gpus"][0]

        def ttl_s() -> float:
            taken = client.ask("take", gpus=[uuid], knobs=LIMIT, ttl_s=1000)
            client.ask("release", lease=taken["lease"])
            return float(taken["ttl_s"])

        assert ttl_s() == 100
        daemon.write_site(f"ttl_most_s = 200\n{SITE}")
        daemon.hang_up()
        until(lambda: ttl_s() == 200)
        daemon.write_site("nonsense = 1\n")
        daemon.hang_up()
        until(lambda: "nonsense" in daemon.stderr())
        assert ttl_s() == 200


@pytest.mark.usefixtures("alone")
def test_a_gpu_that_hangs_when_the_daemon_starts_joins_when_it_answers(
    node: RunningNode, tmp_path: Path, uuids: tuple[str, ...], words: Words
):
    with node.client() as faults, running_daemon(node, tmp_path / "d") as daemon:
        lease = RemoteLease.take(uuids, LIMIT, socket=daemon.socket)
        lease.apply(Setting(power_limit_w=444))
        daemon.kill()
        lease.release()
        faults.fault(0, "hung")
        try:
            daemon.start()
            with daemon.connect() as client:
                assert client.hello["gpus"] == [uuids[1]]
                assert client.ask("read", gpu=uuids[1])["power_w"] > 0
            assert (words.limit_w(0), words.limit_w(1)) == (444, 700)
            assert "GPU 0" in daemon.stderr()
        finally:
            faults.clear(0)
        until(lambda: words.limit_w(0) == 700)
        with daemon.connect() as client:
            assert client.hello["gpus"] == list(uuids)


@pytest.mark.usefixtures("alone")
def test_a_gpu_that_is_lost_when_the_daemon_starts_joins_when_it_is_back(
    node: RunningNode, tmp_path: Path, uuids: tuple[str, ...]
):
    with node.client() as faults, running_daemon(node, tmp_path / "d", start=False) as daemon:
        faults.fault(0, "lost")
        try:
            daemon.start()
            with daemon.connect() as client:
                assert client.hello["gpus"] == [uuids[1]]
            assert "GPU 0 is left out" in daemon.stderr()
        finally:
            faults.clear(0)
        with daemon.connect() as client:
            until(lambda: client.ask("hello")["gpus"] == list(uuids), 20)


@pytest.mark.usefixtures("alone")
def test_a_driver_that_hangs_stalls_its_gpu_only_and_what_it_did_late_is_undone(
    node: RunningNode, tmp_path: Path, words: Words, uuids: tuple[str, ...]
):
    with (
        node.client() as faults,
        running_daemon(node, tmp_path / "d", site=SITE) as daemon,
        daemon.connect() as hung,
        daemon.connect() as fine,
    ):
        lease = hung.ask("take", gpus=[uuids[0]], knobs=LIMIT, ttl_s=60)["lease"]
        other = fine.ask("take", gpus=[uuids[1]], knobs=LIMIT, ttl_s=60)["lease"]
        hung.ask("apply", lease=lease, setting={"power_limit_w": 500})
        faults.fault(0, "slow", seconds=6.5, groups=["limit_set"])
        hung._sock.sendall(wire.line({"id": 99, "op": "apply", "lease": lease, "setting": {"power_limit_w": 400}}))
        worst_s = 0.0
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 5.0:
            asked_s = time.monotonic()
            fine.ask("apply", lease=other, setting={"power_limit_w": 400 + int(10 * asked_s) % 50})
            worst_s = max(worst_s, time.monotonic() - asked_s)
            time.sleep(0.01)
        assert worst_s < 4.0  # who waits for the hung one, waits for 5 s
        answer = hung._next_line()
        assert (answer["id"], answer["error"]) == (99, "GpuStalled")
        with daemon.connect() as root:
            assert root.status()["health"] == {uuids[0]: "stalled", uuids[1]: "ok"}
            faults.clear(0)
            until(lambda: root.status()["health"][uuids[0]] == "ok", 20)
        until(lambda: words.limit_w(0) == 500, 20)


def test_a_lease_is_of_its_connection_alone(daemon: RunningDaemon, uuids: tuple[str, ...]):
    with daemon.connect() as client, daemon.connect() as other:
        name = client.ask("take", gpus=[uuids[0]], knobs=LIMIT, ttl_s=60)["lease"]
        with pytest.raises(NotPermitted, match="another connection"):
            other.ask("release", lease=name)
        assert client.ask("beat", lease=name)


@pytest.mark.usefixtures("alone")
def test_pace_is_kept_across_connections(node: RunningNode, tmp_path: Path, uuids: tuple[str, ...]):
    site = "[pace]\nwrites_per_s = 0.1\nburst = 3\n"
    with running_daemon(node, tmp_path / "d", site=site) as daemon:
        for _ in range(3):
            with daemon.connect() as client:
                name = client.ask("take", gpus=[uuids[0]], knobs=LIMIT, ttl_s=60)["lease"]
                client.ask("release", lease=name)
        with daemon.connect() as client, pytest.raises(NotNow) as caught:
            client.ask("take", gpus=[uuids[0]], knobs=LIMIT, ttl_s=60)
        assert 0 < caught.value.retry_s <= 10


def test_a_stopped_daemon_that_goes_on_serves_again(daemon: RunningDaemon):
    with daemon.connect() as client:
        daemon.signal(signal.SIGSTOP)
        client._sock.sendall(wire.line({"id": 77, "op": "hello"}))
        daemon.signal(signal.SIGCONT)
        assert client._next_line()["id"] == 77


# -- fair shares

FLOOD = r"""
import os, resource, socket, sys
path, line = sys.argv[1:]
if line == "long":
    line = '{"id":1,"op":"x","a":[' + "1," * 30000 + "1]}"
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
os.setgroups([]); os.setgid(12345); os.setuid(12345)
crowd = [socket.socket(socket.AF_UNIX) for _ in range(200)]
for sock in crowd:
    sock.connect(path)
while True:
    for sock in crowd:
        sock.sendall(line.encode() + b"\n")
    print("go", flush=True)
    for sock in crowd:
        while not sock.recv(65536).endswith(b"\n"):
            pass
"""


@pytest.mark.parametrize("line", ["long", '{"id":1,"op":"gpus"}'], ids=["long lines", "valid questions"])
def test_one_users_flood_leaves_others_their_share(
    daemon: RunningDaemon, words: Words, uuids: tuple[str, ...], line: str
):
    with (
        subprocess.Popen(
            [sys.executable, "-c", FLOOD, str(daemon.socket), line], stdout=subprocess.PIPE, text=True
        ) as crowd,
        daemon.connect() as fair,
    ):
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "go\n"
            name = fair.ask("take", gpus=[uuids[0]], knobs=LIMIT, ttl_s=60)["lease"]
            fair.ask("apply", lease=name, setting={"power_limit_w": 400})
            took_s = []
            for _ in range(21):
                asked_s = time.monotonic()
                fair.ask("beat", lease=name)
                took_s.append(time.monotonic() - asked_s)
            # A round of the whole crowd's long lines takes more than half a second.
            assert sorted(took_s)[10] < 0.1
            assert crowd.poll() is None
        finally:
            crowd.kill()
    until(lambda: words.limit_w(0) == 700)


@pytest.mark.usefixtures("alone")
def test_a_file_that_is_no_socket_is_not_removed_for_one(node: RunningNode, tmp_path: Path):
    with running_daemon(node, tmp_path / "d", start=False) as daemon:
        daemon.socket.write_text("precious")
        with pytest.raises(AssertionError, match=r"ended with 2: .*is no socket"):
            daemon.start()
        assert daemon.socket.read_text() == "precious"


@pytest.mark.usefixtures("alone")
def test_a_daemon_that_is_told_nonsense_exits_with_2(node: RunningNode, tmp_path: Path):
    with (
        running_daemon(node, tmp_path / "d", site="no_such_key = 1\n", start=False) as daemon,
        pytest.raises(AssertionError, match="ended with 2"),
    ):
        daemon.start()


@pytest.mark.usefixtures("alone")
def test_a_fault_in_a_file_of_the_site_ends_no_lease(node: RunningNode, tmp_path: Path, words: Words):
    with running_daemon(node, tmp_path / "d", site=f"poll_s = 0.1\n{SITE}") as daemon, daemon.connect() as client:
        uuid = client.hello["gpus"][0]
        name = client.ask("take", gpus=[uuid], knobs=LIMIT, ttl_s=60)["lease"]
        client.ask("apply", lease=name, setting={"power_limit_w": 400})
        long = "9" * 400
        grant = daemon.grants / "one.json"
        grant.write_text(f'{{"name": "one", "uid": 1, "gpus": ["{uuid}"], "expires_unix_s": {long}}}')
        grant.chmod(0o600)
        until(lambda: len(client.status()["problems"]) == 1)
        for site in (f"poll_s = {long}\n", "rule = " + "[" * 100_000):
            said = len(daemon.stderr())
            daemon.write_site(site)
            daemon.hang_up()
            until(lambda said=said: "the rules of before stay" in daemon.stderr()[said:])  # type: ignore[misc]
        assert "ttl_s" in client.ask("beat", lease=name)
        assert words.limit_w(0) == 400


@pytest.mark.usefixtures("alone")
def test_a_daemon_that_could_not_give_all_back_lists_it_and_says_so_at_its_end(
    node: RunningNode, tmp_path: Path, words: Words, uuids: tuple[str, ...]
):
    with node.client() as faults, running_daemon(node, tmp_path / "d") as daemon:
        lease = RemoteLease.take(uuids, LIMIT, socket=daemon.socket)
        lease.apply(Setting(power_limit_w=444))
        daemon.kill()
        lease.release()
        faults.fault(0, "unsupported", groups=["LIMIT_SET"])
        faults.fault(1, "lost")
        try:
            daemon.start()
            with daemon.connect() as root:
                assert root.hello["gpus"] == [uuids[0]]
                (owed,) = root.leases()
                assert (owed["stage"], owed["lease"], sorted(owed["gpus"])) == ("owed", lease.name, sorted(uuids))
                assert root.status()["owed"] == 2
            assert daemon.stop() == 1
            assert daemon.stderr().count("could not be given back") == 2
            faults.clear(0)
            faults.clear(1)
            daemon.start()
            assert daemon.stop() == 0
        finally:
            faults.clear(0)
            faults.clear(1)
        assert (words.limit_w(0), words.limit_w(1)) == (700, 700)
