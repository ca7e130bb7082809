"""The guardian: what a LocalLease's process leaves behind when it dies is given back by the process next to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import LeaseTaken
from joulewise.device.node import RunningNode, spawn
from joulewise.device.saved import Saved
from joulewise.device.vnvml_layout import VnvmlState

SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path
from joulewise.core.knob import Setting
from joulewise.device.local import LocalLease
from joulewise.device.nvml_controls import NvmlControls
lease = LocalLease.take(NvmlControls.all(), ["sm_mhz", "power_limit_w"], state=Path(sys.argv[1]))
lease.apply(Setting(sm_mhz=1200, power_limit_w=300))
child = 0
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        if lease.alive or lease.release().restored:
            os._exit(1)
        time.sleep(600)
print(json.dumps({"guardian": lease._guardian.pid, "child": child}), flush=True)
def attempt(act):
    try:
        act()
    except Exception as error:
        print(type(error).__name__, lease.alive, flush=True)
for line in sys.stdin:
    exec(line)
"""


@pytest.fixture(scope="module")
def node(virtual_nvml: None, may_set: None) -> Iterator[RunningNode]:
    with spawn("sim:h200*2") as node:
        yield node


@pytest.fixture
def seen(node: RunningNode) -> Iterator[VnvmlState]:
    with VnvmlState.open(node.directory) as state:
        for index in range(2):
            state.write_control(index, power_limit_mw=612_345, sm_lock_mhz=None)
        yield state


def shown(seen: VnvmlState) -> list[tuple[int, object]]:
    words = [seen.read_control(index) for index in range(2)]
    return [(each.power_limit_mw, each.sm_lock_mhz) for each in words]


BEFORE = [(612_345, None)] * 2
DURING = [(300_000, (345, 1200))] * 2


class Holder:
    """A process that holds a lease on both GPUs."""

    def __init__(self, node: RunningNode, state: Path, how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(state), how],
            env=node.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.guardian: int = told["guardian"]
        self.child: int = told["child"]

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextmanager
def holding(node: RunningNode, state: Path, how: str = "") -> Iterator[Holder]:
    holder = Holder(node, state, how)
    try:
        yield holder
    finally:
        holder.process.kill()
        if holder.child:
            os.kill(holder.child, signal.SIGKILL)  # or the pipe that it shares would stay open
        holder.process.communicate()


def wait(until: Callable[[], bool], within_s: float = 10.0) -> float:
    """How long it took."""
    start_s = time.monotonic()
    while not until():
        assert time.monotonic() < start_s + within_s, "it did not happen"
        time.sleep(0.001)
    return time.monotonic() - start_s


def gone(pid: int) -> bool:
    """Whether a process that is not our child has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP])
def test_a_process_that_is_killed_leaves_the_gpus_as_they_were(
    node: RunningNode, seen: VnvmlState, tmp_path: Path, number: signal.Signals
) -> None:
    with holding(node, tmp_path) as holder:
        assert shown(seen) == DURING
        holder.process.send_signal(number)
        wait(lambda: shown(seen) == BEFORE)
        wait(lambda: gone(holder.guardian))
    assert Saved.known(tmp_path) == ()


def test_forked_children_that_live_on_change_nothing(node: RunningNode, seen: VnvmlState, tmp_path: Path) -> None:
    with holding(node, tmp_path, "fork") as holder:
        holder.process.kill()
        wait(lambda: shown(seen) == BEFORE)
        assert not gone(holder.child)


def test_a_process_that_ends_without_releasing_leaves_nothing(
    node: RunningNode, seen: VnvmlState, tmp_path: Path
) -> None:
    for line in ("raise SystemExit(0)", "os._exit(3)", "os.execv('/bin/true', ['true'])"):
        with holding(node, tmp_path) as holder:
            assert shown(seen) == DURING
            holder.do(line)
            wait(lambda: shown(seen) == BEFORE)


def test_after_a_release_the_guardian_goes_too(node: RunningNode, seen: VnvmlState, tmp_path: Path) -> None:
    with holding(node, tmp_path) as holder:
        holder.do("lease.release()")
        wait(lambda: shown(seen) == BEFORE)
        wait(lambda: gone(holder.guardian))
        assert holder.process.poll() is None
        # What others set from now on is theirs, although that process dies after all.
        seen.write_control(0, power_limit_mw=300_000)
        holder.process.kill()
        holder.process.wait()
        time.sleep(0.1)
        assert shown(seen)[0] == (300_000, None)


def test_signals_that_end_a_job_do_not_end_its_guardian(node: RunningNode, seen: VnvmlState, tmp_path: Path) -> None:
    with holding(node, tmp_path) as holder:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(holder.guardian, number)
        assert not gone(holder.guardian)
        holder.process.kill()
        wait(lambda: shown(seen) == BEFORE)


def test_without_its_guardian_the_next_lease_gives_back_first(
    node: RunningNode, seen: VnvmlState, tmp_path: Path
) -> None:
    with holding(node, tmp_path) as holder:
        os.kill(holder.guardian, signal.SIGKILL)
        holder.process.kill()
        holder.process.wait()
    assert shown(seen) == DURING
    with holding(node, tmp_path) as holder:
        assert shown(seen) == DURING
        holder.do("lease.release()")
        wait(lambda: shown(seen) == BEFORE)  # not what the dead one had set


def test_what_could_not_be_given_back_the_guardian_goes_on_with(
    node: RunningNode, seen: VnvmlState, tmp_path: Path
) -> None:
    with holding(node, tmp_path) as holder, node.client() as client:
        client.fault(1, "no_permission")
        holder.do("print([each.ending for each in lease.release().restored], flush=True)")
        assert holder.process.stdout is not None
        assert holder.process.stdout.readline().count("failed") == 2
        wait(lambda: shown(seen)[0] == BEFORE[0])
        assert shown(seen)[1] == DURING[1]
        client.clear(1)
        wait(lambda: shown(seen) == BEFORE)
        wait(lambda: gone(holder.guardian))


def test_what_an_earlier_lease_could_not_give_back_the_last_ones_guardian_does(
    node: RunningNode, seen: VnvmlState, tmp_path: Path
) -> None:
    with holding(node, tmp_path) as holder, node.client() as client:
        holder.do("lease.release(); gpus = NvmlControls.all()")
        wait(lambda: shown(seen) == BEFORE)
        for name, knob, value in (("one", "power_limit_w", 300), ("other", "sm_mhz", 1200)):
            holder.do(f"{name} = LocalLease.take(gpus, ['{knob}'], state=Path(sys.argv[1]))")
            holder.do(f"{name}.apply(Setting({knob}={value}))")
        wait(lambda: shown(seen) == DURING)
        client.fault(1, "unsupported", groups=["LIMIT_SET"])
        holder.do("os.kill(one._guardian.pid, 9)")  # as if it had given up: its GPUs were in this process's hands
        holder.do("print(one.release().clean, other.release().clean, flush=True)")
        assert holder.process.stdout is not None
        assert holder.process.stdout.readline() == "False True\n"
        assert shown(seen) == [BEFORE[0], (DURING[1][0], None)]
        client.clear(1)
        wait(lambda: shown(seen) == BEFORE)
    wait(lambda: Saved.known(tmp_path) == ())


def test_an_apply_that_a_lost_gpu_cut_off_is_undone_when_it_is_back(
    node: RunningNode, seen: VnvmlState, tmp_path: Path
) -> None:
    with holding(node, tmp_path) as holder, node.client() as client:
        client.fault(1, "slow", seconds=1.0, groups=["LIMIT_SET"])
        holder.do("attempt(lambda: lease.apply(Setting(sm_mhz=900, power_limit_w=400)))")
        wait(lambda: shown(seen)[1][1] == (345, 900))
        client.fault(1, "lost")
        assert holder.process.stdout is not None
        assert holder.process.stdout.readline() == "GpuLost False\n"
        client.clear(1)
        wait(lambda: shown(seen) == BEFORE)
        assert holder.process.poll() is None


def test_while_it_lives_nobody_else_gets_the_gpus(node: RunningNode, seen: VnvmlState, tmp_path: Path) -> None:
    with holding(node, tmp_path) as holder:
        for uuid in Saved.known(tmp_path):
            with pytest.raises(LeaseTaken, match=f"pid {holder.process.pid}"):
                Saved.open(tmp_path, uuid)
        assert len(Saved.known(tmp_path)) == 2
        assert shown(seen) == DURING
