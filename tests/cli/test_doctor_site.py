"""The site's truths, as ``joulewise doctor`` tells them: on a real virtual node, with a real daemon and real users."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joulewise.cli import control
from joulewise.cli.truths import shared
from joulewise.daemon import grants
from joulewise.daemon.grants import Grant
from joulewise.daemon.rights import Seen
from joulewise.device.lease import Owner
from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.saved import Entry, Saved
from tests import preloaded
from tests.daemon.running import RunningDaemon, running_daemon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the site, and become somebody else")

ANYONE, OTHER = 12345, 12346
SIX = "sim:h200*6"

WORK = """
import os, sys
from joulewise.device.work import Link
os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
link = Link(os.environ["JOULEWISE_VNVML"])
link.work((0.001, 0.5, 100.0), {gpu})
print("working", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def node(virtual_nvml: None) -> Iterator[RunningNode]:
    with spawn(SIX) as running:
        yield running


@pytest.fixture
def breaker(node: RunningNode) -> Iterator[NodeClient]:
    """A connection to break GPUs with; all is well again afterwards."""
    with node.client() as client:
        yield client
        for index in range(6):
            client.clear(index)
            client.fault(index, "persistence", on=True)
        client.fault(0, "reload")


@pytest.fixture(scope="module")
def daemon(node: RunningNode) -> Iterator[RunningDaemon]:
    # Not in pytest's folder, which every session that begins closes to other users again.
    with (
        tempfile.TemporaryDirectory(prefix="joulewise-site-") as folder,
        running_daemon(node, Path(folder)) as running,
    ):
        yield running


def examined(
    node: RunningNode, *, uid: int = 0, daemon: Path | str = "/nowhere/daemon.sock", state: Path | str = "/nowhere",
    mine: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    """What a user's doctor says in a process of its own that works on its GPUs ``mine``."""
    environ = {**node.environment(), "JOULEWISE_SOCKET": str(daemon)}
    done = preloaded.run(str(uid), state, *map(str, mine), module="tests.cli.examined", env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def working(node: RunningNode, uid: int, gpu: int) -> Iterator[None]:
    """Somebody's process on a GPU."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK.format(uid=uid, gpu=gpu)],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        yield
        process.kill()


def told(answer: Any, gpu: int, what: str) -> list[dict[str, Any]]:
    return [each for each in answer["gpus"][gpu]["findings"] if each["what"] == what]


def said(answer: Any, what: str) -> list[dict[str, Any]]:
    return [each for each in answer["control"] if each["what"] == what]


def test_what_is_as_it_should_be_needs_no_word(node: RunningNode) -> None:
    answer = examined(node)
    for what in ("persistence", "power cap", "clock lock", "shared"):
        assert told(answer, 0, what) == []
    assert answer["gpus"][0]["settable"]


def test_persistence_off_a_cap_of_somebodys_and_a_board_controllers_limit_each_say_what_to_do(
    node: RunningNode, breaker: NodeClient
) -> None:
    breaker.fault(0, "persistence", on=False)
    breaker.fault(1, "foreign", power_limit_w=300.0)
    breaker.fault(2, "bmc", limit_w=500.0)
    answer = examined(node)
    (persistence,) = told(answer, 0, "persistence")
    assert (persistence["ok"], "vanish" in persistence["says"]) == (None, True)
    assert "nvidia-smi -pm 1" in persistence["do"]
    (cap,) = told(answer, 1, "power cap")
    assert cap["says"] == "limited to 300 W of its usual 700 W, perhaps by joulewise: no daemon answers"
    assert cap["do"] == "as root: first 'joulewise restore'; if it stays, 'nvidia-smi -i 1 -pl 700'"
    (held,) = told(answer, 2, "power cap")
    assert "500 W are in force, below the 700 W asked for" in held["says"]
    assert "BMC" in held["do"]
    assert all(told(answer, 3, what) == [] for what in ("persistence", "power cap"))


def test_a_lock_is_inferred_while_the_gpu_works_and_a_cap_or_heat_is_not_taken_for_one(breaker: NodeClient) -> None:
    with spawn("sim:h200*3", load="transformer") as busy, busy.client() as client:
        client.fault(0, "foreign", sm_mhz=990.0)
        client.fault(1, "foreign", power_limit_w=300.0)
        deadline_s = time.monotonic() + 120.0
        while not told(answer := examined(busy), 0, "clock lock"):  # utilisation is an average of a second
            assert time.monotonic() < deadline_s
    (lock,) = told(answer, 0, "clock lock")
    assert lock["says"].startswith("990 of 1980 MHz under load")
    assert "inferred" in lock["says"]
    assert lock["do"] == "as root: first 'joulewise restore'; if it stays, 'nvidia-smi -i 0 -rgc'"
    assert told(answer, 1, "clock lock") == told(answer, 2, "clock lock") == []


def test_a_cap_of_nobodys_is_called_so_where_daemon_and_files_know_nothing_of_it(
    node: RunningNode, daemon: RunningDaemon, breaker: NodeClient
) -> None:
    breaker.fault(3, "foreign", power_limit_w=300.0)
    (cap,) = told(examined(node, daemon=daemon.socket, state=daemon.state), 3, "power cap")
    assert cap["says"].startswith("limited to 300 W of its usual 700 W, and no lease")
    assert cap["do"] == "if it is nobody's, as root: 'nvidia-smi -i 3 -pl 700'"
    (user,) = told(examined(node, uid=ANYONE, daemon=daemon.socket, state=daemon.state), 3, "power cap")
    assert user["says"].endswith("perhaps by joulewise: its files are root's to read")
    assert "first 'joulewise restore'" in user["do"]


def test_a_lock_that_stands_is_known_for_what_it_is(tmp_path: Path) -> None:
    with spawn("sim:h200", load="transformer") as busy, running_daemon(busy, tmp_path) as daemon:
        with daemon.connect() as root:
            root.stand(list(root.hello["gpus"]), {"sm_mhz": 990.0})
        deadline_s = time.monotonic() + 120.0
        while not told(answer := examined(busy, daemon=daemon.socket, state=daemon.state), 0, "clock lock"):
            assert time.monotonic() < deadline_s
    (lock,) = told(answer, 0, "clock lock")
    assert lock["ok"] is True
    assert "the lock of 990 MHz that 'joulewise stand' keeps" in lock["says"]
    assert said(answer, "left behind") == []


def test_mig_is_roots_alone_and_root_is_told_whom_it_hits(
    node: RunningNode, daemon: RunningDaemon, breaker: NodeClient
) -> None:
    breaker.fault(0, "mig", on=True)
    answer = examined(node, daemon=daemon.socket)
    assert answer["gpus"][0]["settable"]
    (hits,) = told(answer, 0, "MIG")
    assert "hits all instances" in hits["says"]
    user = examined(node, uid=ANYONE, daemon=daemon.socket, mine=(0,))
    assert not user["gpus"][0]["settable"]
    (why,) = told(user, 0, "rights")
    assert "MIG" in why["says"]


def test_two_users_on_one_gpu_make_it_read_only(node: RunningNode, daemon: RunningDaemon) -> None:
    with working(node, OTHER, 0), working(node, OTHER, 1):
        answer = examined(node, uid=ANYONE, daemon=daemon.socket, mine=(0, 2))
    (mixed,) = told(answer, 0, "shared")
    assert f"uid {OTHER}" in mixed["says"]
    assert "read only" in mixed["says"]
    assert [answer["gpus"][gpu]["settable"] for gpu in (0, 1, 2, 3)] == [False, False, True, False]
    (why,) = told(answer, 0, "rights")
    assert f"shared with uid {OTHER}" in why["says"]
    (why,) = told(answer, 3, "rights")
    assert "no process of yours" in why["says"]
    assert "joulewise grant add" in why["do"]


def test_root_calls_shared_what_two_users_share_and_not_what_one_has() -> None:
    assert shared(Seen(((10, ANYONE), (11, ANYONE)), False), uid=0) == []
    assert shared(Seen((), False), uid=ANYONE) == shared(Seen(None, False), uid=ANYONE) == []
    assert shared(Seen(((10, ANYONE),), False), uid=ANYONE) == []
    (both,) = shared(Seen(((10, ANYONE), (11, OTHER)), False), uid=0)
    assert both.says == f"root may set it, but it hits uid {ANYONE}, uid {OTHER}"
    (hidden,) = shared(Seen(((10, -1),), False), uid=ANYONE)
    assert "cannot be seen from here" in hidden.says


def test_through_the_daemon_a_user_may_set_what_the_rules_give_on_the_gpu_that_is_theirs(
    node: RunningNode, daemon: RunningDaemon
) -> None:
    without = examined(node, uid=ANYONE, mine=(0,))
    assert not any(gpu["settable"] for gpu in without["gpus"])
    (none,) = said(without, "daemon")
    assert (none["ok"], "no daemon answers" in none["says"]) == (None, True)
    answer = examined(node, uid=ANYONE, daemon=daemon.socket, mine=(0,))
    (found,) = said(answer, "daemon")
    assert found["ok"] is True
    assert found["says"].startswith("version ")
    assert [gpu["settable"] for gpu in answer["gpus"]] == [True, False, False, False, False, False]
    (limit,) = told(answer, 0, "power_limit_w")
    assert limit["says"] == "can be set to 350–700, of 200–700, through the daemon"
    (clock,) = told(answer, 0, "sm_mhz")
    assert clock["says"] == "can be set to 345–1980 step 15 through the daemon"


def test_a_cap_that_a_lease_holds_names_its_holder_and_is_no_fault(
    node: RunningNode, daemon: RunningDaemon, breaker: NodeClient
) -> None:
    with daemon.connect() as talk:
        uuid = breaker.uuids[4]
        lease = talk.ask("take", gpus=[uuid], knobs=["power_limit_w"], ttl_s=60.0)["lease"]
        talk.ask("apply", lease=lease, setting={"power_limit_w": 400.0})
        answer = examined(node, daemon=daemon.socket)
        talk.ask("release", lease=lease)  # answered when all is as before: another test takes this GPU, too
    (cap,) = told(answer, 4, "power cap")
    assert cap["ok"] is True
    assert f"by a lease of uid 0 pid {os.getpid()}" in cap["says"]
    assert said(answer, "left behind") == []


def test_a_limit_that_somebody_has_changed_under_a_lease_shows_what_was_set_and_what_is_there(
    node: RunningNode, daemon: RunningDaemon, breaker: NodeClient
) -> None:
    with daemon.connect() as talk:
        lease = talk.ask("take", gpus=[breaker.uuids[4]], knobs=["power_limit_w"], ttl_s=60.0)["lease"]
        talk.ask("apply", lease=lease, setting={"power_limit_w": 500.0})
        breaker.fault(4, "foreign", power_limit_w=600.0)
        answer = examined(node, daemon=daemon.socket)
    (cap,) = told(answer, 4, "power cap")
    assert cap["ok"] is None
    assert cap["says"].startswith(f"limited to 600 W of its usual 700 W, where a lease of uid 0 pid {os.getpid()}")
    assert "has set 500 W: somebody else has changed it" in cap["says"]


def test_a_grant_counts_for_what_a_user_may_set(node: RunningNode, daemon: RunningDaemon, breaker: NodeClient) -> None:
    uuid = breaker.uuids[5]
    made = Grant("one", ANYONE, (uuid,), None, {"power_limit_w": (400.0, 600.0)}, time.time() + 600)
    grants.add(daemon.grants, made)
    try:
        answer = examined(node, uid=ANYONE, daemon=daemon.socket)
    finally:
        grants.remove(daemon.grants, name="one")
    assert [gpu["settable"] for gpu in answer["gpus"]] == [False] * 5 + [True]
    (limit,) = told(answer, 5, "power_limit_w")
    assert limit["says"] == "can be set to 400–600, of 200–700, through the daemon"
    (clock,) = told(answer, 5, "sm_mhz")
    assert clock["says"].endswith("but neither a grant nor a rule lets you")


def test_rules_of_another_site_file_count_as_the_daemon_has_them(tmp_path: Path) -> None:
    rules = "[[rule]]\nusers = '*'\nneeds = 'nothing'\nknobs = { sm_mhz = 'any' }\n"
    with spawn("sim:h200") as node, running_daemon(node, tmp_path, site=rules) as daemon:
        answer = examined(node, uid=ANYONE, daemon=daemon.socket)
    assert all(gpu["settable"] for gpu in answer["gpus"])


def test_a_socket_that_is_closed_to_us_is_called_so(node: RunningNode, tmp_path: Path) -> None:
    for each in (tmp_path, *tmp_path.parents[:-1]):
        if each.stat().st_uid == 0:
            each.chmod(each.stat().st_mode | 0o055)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (daemon,) = said(examined(node, uid=ANYONE, daemon=closed / "daemon.sock"), "daemon")
    assert daemon["says"].startswith(f"uid {ANYONE} may not reach the daemon's socket {closed / 'daemon.sock'}")
    assert "ask who runs this machine" in daemon["do"]


def test_what_is_kept_of_a_gpu_that_is_gone_can_be_forgotten(node: RunningNode, tmp_path: Path) -> None:
    gone = "GPU-deadbeef-0000-4000-8000-000000000001"
    saved = Saved.open(tmp_path, gone)
    saved.save(Entry.new("power_limit_w", 700.0, Owner("lease-1", 1000, 42), 5.0))
    saved.close()
    (left,) = said(examined(node, state=tmp_path), "left behind")
    assert f"{gone}, which is not there" in left["says"]
    assert f"'joulewise restore --forget {gone}'" in left["do"]


def test_virtual_gpus_of_somebody_else_have_a_way_out(node: RunningNode) -> None:
    (why,) = told(examined(node, uid=ANYONE), 0, "rights")
    assert "another user's" in why["says"]
    assert "joulewise sim" in why["do"]


def test_what_a_dead_daemon_left_behind_is_for_restore(tmp_path: Path) -> None:
    with spawn("sim:h200*2") as node, running_daemon(node, tmp_path) as daemon:
        talk = daemon.connect()
        uuid = talk.hello["gpus"][1]
        lease = talk.ask("take", gpus=[uuid], knobs=["power_limit_w"], ttl_s=60.0)["lease"]
        talk.ask("apply", lease=lease, setting={"power_limit_w": 400.0})
        living = control.look({"JOULEWISE_SOCKET": "/nowhere/daemon.sock"}, daemon.state)
        assert (living.owed, living.kept[uuid].keeper) == (frozenset(), daemon.pid)
        held = living.holder(uuid, "power_limit_w")
        assert held is not None
        assert held.wrote == 400.0
        daemon.kill()
        talk.close()
        answer = examined(node, daemon=daemon.socket, state=daemon.state)
    (left,) = said(answer, "left behind")
    assert "1 GPU" in left["says"]
    assert "joulewise restore" in left["do"]
    (cap,) = told(answer, 1, "power cap")
    assert "joulewise restore" in cap["do"]
    assert told(answer, 0, "power cap") == []


def test_what_answers_but_is_no_daemon_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rude.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\n")

        rude = threading.Thread(target=answer)
        rude.start()
        found = control.look({"JOULEWISE_SOCKET": str(path)}, tmp_path)
        rude.join()
    assert found.daemon is None
    assert found.findings[0].ok is None
    assert "no daemon of ours" in found.findings[0].says
    assert "joulewise daemon" in (found.findings[0].do or "")


def test_the_page_has_a_chapter_on_control_and_fits_eighty_columns(
    in_terminal: Any, node: RunningNode, breaker: NodeClient, daemon: RunningDaemon
) -> None:
    breaker.fault(0, "persistence", on=False)
    breaker.fault(1, "foreign", power_limit_w=300.0)
    environ = {**node.environment(), "JOULEWISE_SOCKET": str(daemon.socket)}
    terminal = in_terminal([sys.executable, "-m", "joulewise", "doctor"], **environ)
    assert terminal.finish() == 0
    shown = terminal.plain()
    assert max(map(len, shown.splitlines())) <= 80
    chapter = shown.partition("\ncontrol\n")[2]
    assert chapter.lstrip().startswith("✓ daemon")
    assert "! persistence" in shown
    assert "! power cap" in shown
