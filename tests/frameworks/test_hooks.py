"""What a job says inside its own process: marks in order, and never any trouble."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import joulewise
from joulewise.core.marks import ENVIRONMENT, Clock, Mark, MarkKind
from joulewise.core.timeline import WallTime
from joulewise.device import work
from joulewise.frameworks import hooks
from joulewise.frameworks.breaks import Breaks
from joulewise.frameworks.gpu_time import GpuTime
from joulewise.frameworks.hooks import CALLBACK, INJECTED
from joulewise.monitor.steps import MemoryFeed, StepFeed
from tests.frameworks.test_gpu_time import Machine


class Kept(list[Mark]):
    """A sink that keeps."""

    def write(self, mark: Mark) -> None:
        self.append(mark)

    @property
    def told(self) -> list[tuple[str, str, bool]]:
        return [(mark.kind.name, mark.name, mark.clean) for mark in self]


@pytest.fixture
def kept() -> Iterator[Kept]:
    sink = Kept()
    hooks.send_to(sink)
    yield sink
    hooks.send_to(None)


def test_without_anybody_who_asked_nothing_happens() -> None:
    assert hooks.marker() is None
    joulewise.step()
    with joulewise.phase("rollout"):
        hooks.pause("evaluation")
        hooks.resume()


def test_steps_and_phases_and_pauses_are_marked_in_order(kept: Kept) -> None:
    joulewise.step(32)
    with joulewise.phase("rollout"):
        joulewise.step()
    joulewise.step()
    hooks.pause("evaluation")
    hooks.pause("checkpoint")  # within another: no news
    hooks.resume()
    hooks.resume()
    joulewise.step()
    joulewise.step()
    assert kept.told == [
        ("HELLO", "joulewise.step", True),
        ("STEP", "", False),  # it follows none
        ("PHASE", "rollout", True),
        ("STEP", "rollout", False),
        ("PHASE", "", True),
        ("STEP", "", False),
        ("PAUSE", "evaluation", True),
        ("RESUME", "", True),
        ("STEP", "", False),
        ("STEP", "", True),
    ]
    assert kept[1].work == 32.0
    assert all(earlier.time_s <= later.time_s for earlier, later in pairwise(kept))


def test_a_step_within_a_pause_is_not_clean(kept: Kept) -> None:
    joulewise.step()
    hooks.pause("evaluation")
    joulewise.step()
    joulewise.step()
    hooks.resume()
    joulewise.step()
    joulewise.step()
    assert [mark.clean for mark in kept if mark.kind is MarkKind.STEP] == [False, False, False, False, True]


def test_who_knows_better_tells_the_steps(kept: Kept) -> None:
    marker = hooks.marker()
    assert marker is not None
    marker.step(1.0, "torch", INJECTED)
    marker.step(1.0, "torch", INJECTED)
    marker.step(512.0, "huggingface", CALLBACK)
    marker.step(1.0, "torch", INJECTED)
    marker.step(512.0, "huggingface", CALLBACK)
    joulewise.step()
    marker.step(512.0, "huggingface", CALLBACK)
    assert [(mark.kind.name, mark.name, mark.work) for mark in kept] == [
        ("HELLO", "torch", 0.0),
        ("STEP", "", 1.0),
        ("STEP", "", 1.0),
        ("HELLO", "huggingface", 0.0),
        ("STEP", "", 512.0),
        ("STEP", "", 512.0),
        ("HELLO", "joulewise.step", 0.0),
        ("STEP", "", 1.0),
    ]
    assert not kept[4].clean  # in another unit than the one before


@pytest.mark.parametrize("work", [math.nan, math.inf, -1.0, "much", None])
def test_work_that_is_no_amount_is_let_be(kept: Kept, work: object) -> None:
    joulewise.step(work)  # type: ignore[arg-type]
    joulewise.step(3.0)
    assert [(mark.kind, mark.work) for mark in kept] == [(MarkKind.HELLO, 0.0), (MarkKind.STEP, 3.0)]


def test_whatever_fails_in_marking_is_no_business_of_the_job() -> None:
    class Broken:
        calls = 0

        def write(self, mark: Mark) -> None:
            self.calls += 1
            raise OSError("no space left on device")

    sink = Broken()
    hooks.send_to(sink)
    for _ in range(3):
        joulewise.step()
        joulewise.phase("other")
    assert sink.calls == 1  # it is not tried again
    hooks.send_to(None)


def test_an_interrupt_goes_through() -> None:
    class Interrupted:
        def write(self, mark: Mark) -> None:
            raise KeyboardInterrupt

    hooks.send_to(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        joulewise.step()
    hooks.send_to(None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A stand-in for torch on a machine with a GPU; its time is its own."""
    machine = Machine()
    torch = types.ModuleType("torch")
    torch.cuda = machine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("time.monotonic", machine.now_s)
    monkeypatch.setattr(GpuTime.__init__, "__kwdefaults__", {"now_s": machine.now_s})
    return machine


def test_a_step_on_a_gpu_is_marked_when_the_gpu_has_done_it(machine: Machine, kept: Kept) -> None:
    ends_s = []
    for _ in range(5):
        machine.launch("main 0", 0.3)
        ends_s.append(machine.busy_until_s["main 0"])
        joulewise.step()
        machine.time_s += 0.1
    told = [mark for mark in kept if mark.kind is MarkKind.STEP]
    assert [mark.clock for mark in told] == [Clock.GPU] * len(told)
    assert len(told) == 1  # the GPU is still at the second
    machine.time_s = ends_s[-1] + 0.01
    joulewise.step()
    told = [mark for mark in kept if mark.kind is MarkKind.STEP]
    assert [mark.time_s for mark in told[:5]] == pytest.approx(ends_s, abs=1e-4)
    assert [mark.clean for mark in told] == [False] + [True] * (len(told) - 1)


def test_what_else_is_marked_is_told_at_once_and_steps_under_way_before_it(machine: Machine, kept: Kept) -> None:
    for _ in range(3):
        machine.launch("main 0", 0.3)
        joulewise.step()
    machine.time_s += 0.35
    joulewise.phase("rollout")
    assert kept.told == [
        ("HELLO", "joulewise.step", True),
        ("STEP", "", False),
        ("STEP", "", False),  # not done yet: when it ended is not known
        ("STEP", "", False),
        ("PHASE", "rollout", True),
    ]
    assert [mark.clock for mark in kept[1:4]] == [Clock.GPU, Clock.HOST, Clock.HOST]
    assert kept[4].time_s == pytest.approx(machine.time_s, abs=1e-3)


def test_short_steps_on_a_gpu_are_taken_together(machine: Machine, kept: Kept) -> None:
    for _ in range(3000):
        machine.launch("main 0", 0.001)
        joulewise.step(2.0)
        machine.time_s = machine.busy_until_s["main 0"]
    joulewise.phase("end")
    told = [mark for mark in kept if mark.kind is MarkKind.STEP]
    assert sum(mark.work for mark in told) == 6000.0
    assert len(told) < 600
    clean = [(later.time_s - earlier.time_s) / later.work for earlier, later in pairwise(told) if later.clean]
    assert clean[10:] == pytest.approx([0.0005] * len(clean[10:]), rel=0.05)

    joulewise.phase("longer")
    before = len(kept)
    for _ in range(60):
        machine.launch("main 0", 0.1)
        joulewise.step(2.0)
        machine.time_s = machine.busy_until_s["main 0"]
    assert {mark.work for mark in kept[before:][-30:]} == {2.0}


def test_nothing_is_recorded_while_a_graph_is_captured(machine: Machine, kept: Kept) -> None:
    joulewise.step()
    machine.capturing = True  # the machine fails a test that records now
    joulewise.step()
    joulewise.phase("other")
    machine.capturing = False
    joulewise.step()
    joulewise.step()
    assert [mark.kind.name for mark in kept] == ["HELLO", "STEP", "PHASE", "STEP"]
    assert [mark.name for mark in kept if mark.kind is MarkKind.STEP] == ["", "other"]


def test_on_a_virtual_gpu_a_step_ends_when_its_work_does(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[work.Sent] = []
    monkeypatch.setattr(work, "last_sent", lambda: sent[-1] if sent else None)
    for number in range(3):  # one step ahead, as coupling is
        sent.append(work.Sent())
        if number:
            sent[-2].done = work.Done(0.0, 100.0 + number, 1.0)
        joulewise.step()
    told = [(mark.time_s, mark.clock) for mark in kept if mark.kind is MarkKind.STEP]
    assert told == [(101.0, Clock.SIMULATED), (102.0, Clock.SIMULATED)]


def test_hooks_and_feed_in_one_process() -> None:
    feed = MemoryFeed(WallTime())
    hooks.send_to(feed)
    joulewise.step(2.0)
    hooks.send_to(None)
    assert [(mark.kind, mark.work, mark.rank, mark.pid) for mark in feed.read()] == [
        (MarkKind.HELLO, 0.0, 0, os.getpid()),
        (MarkKind.STEP, 2.0, 0, os.getpid()),
    ]


def test_what_comes_in_most_iterations_is_part_of_them(kept: Kept) -> None:
    marker, breaks = hooks.marker(), Breaks()
    assert marker is not None

    def iteration(evaluates: bool) -> bool:
        before = len(kept)
        if evaluates:
            breaks.begin("evaluation")
            breaks.end("evaluation")
        breaks.step()
        marker.step(1.0, "torch", INJECTED)
        return any(mark.kind is MarkKind.PAUSE for mark in kept[before:])

    assert not iteration(evaluates=True)  # before the first step nothing is of interest
    rare = [iteration(evaluates=number % 10 == 0) for number in range(50)]
    assert sum(rare) == 5
    common = [iteration(evaluates=True) for _ in range(40)]
    assert common[0]
    assert not any(common[-20:])
    rare = [iteration(evaluates=number % 10 == 9) for number in range(60)]
    assert rare[-1]


def test_a_break_without_an_end_ends_with_the_next_step(kept: Kept) -> None:
    marker, breaks = hooks.marker(), Breaks()
    assert marker is not None
    for _ in range(2):
        breaks.step()
        marker.step(1.0, "torch", INJECTED)
    breaks.begin("evaluation")
    breaks.begin("checkpoint")
    breaks.end("checkpoint")  # the outer one goes on
    assert marker.paused == "evaluation"
    breaks.step()
    marker.step(1.0, "torch", INJECTED)
    assert kept.told[-3:] == [("PAUSE", "evaluation", True), ("RESUME", "", True), ("STEP", "", False)]


def python(code: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, ENVIRONMENT: str(home), **environ}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_every_process_of_a_job_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = """if True:
        import os, joulewise
        joulewise.step()
        joulewise.step()
        if os.fork() == 0:
            joulewise.step()
            os._exit(0)
        os.wait()
        if os.fork() == 0:  # one that takes no step
            os._exit(0)
        os.wait()
        joulewise.step()
    """
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    feed = StepFeed(tmp_path, WallTime())
    by_pid: dict[int, list[str]] = {}
    for mark in feed.read():
        by_pid.setdefault(mark.pid, []).append(mark.kind.name)
    assert sorted(by_pid.values()) == [["HELLO", "STEP"], ["HELLO", "STEP", "STEP", "STEP", "BYE"]]
    feed.close()


def test_ranks_are_told_from_the_environment(tmp_path: Path) -> None:
    python("import joulewise; joulewise.step()", tmp_path, RANK="5", LOCAL_RANK="1", WORLD_SIZE="8")
    feed = StepFeed(tmp_path, WallTime())
    hello = feed.read()[0]
    assert (hello.rank, hello.work) == (5, 8.0)
    assert [(process.rank, process.local_rank, process.world) for process in feed.processes] == [(5, 1, 8)]
    feed.close()


@pytest.mark.parametrize("place", ["/nowhere/at/all", "/dev/null", "/proc"])
def test_a_directory_that_cannot_be_written_costs_the_marks_alone(place: str) -> None:
    done = python("import joulewise; joulewise.step(); joulewise.step(); print('trained')", Path(place))
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_the_job_goes_on_when_the_directory_goes(tmp_path: Path) -> None:
    code = f"""if True:
        import shutil, joulewise
        joulewise.step()
        shutil.rmtree({str(tmp_path)!r})
        for _ in range(10_000):
            joulewise.step()
        print("trained")
    """
    done = python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_importing_the_hooks_loads_nothing_outside_the_standard_library() -> None:
    probe = (
        "import sys; before = set(sys.modules); import joulewise.frameworks.iterations, joulewise.frameworks.torch,"
        "joulewise.frameworks.huggingface, joulewise.frameworks.lightning;"
        "print(*sorted({n.split('.')[0] for n in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert {name for name in out.split() if name not in sys.stdlib_module_names} == {"joulewise"}
