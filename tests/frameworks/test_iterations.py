"""Iterations that no optimiser's hook tells of: replays of a CUDA graph, and steps that a scaler skips."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from joulewise.core.marks import MarkKind
from joulewise.frameworks import hooks
from joulewise.frameworks.gpu_time import GpuTime
from joulewise.frameworks.iterations import Iterations
from tests.frameworks.test_gpu_time import Machine
from tests.frameworks.test_hooks import Kept


class Graph:
    """As much of ``torch.cuda.CUDAGraph`` as hooks touch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def capture_begin(self, pool: object = None) -> None:
        self._machine.capturing = True

    def capture_end(self) -> None:
        self._machine.capturing = False

    def replay(self) -> str:
        self._machine.launch("main 0", 0.05)
        return "replayed"


class Optimizer:
    """One whose steps are told by hand."""


@pytest.fixture
def kept() -> Iterator[Kept]:
    sink = Kept()
    hooks.send_to(sink)
    yield sink
    hooks.send_to(None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    torch = types.ModuleType("torch")
    machine.CUDAGraph = type("CUDAGraph", (Graph,), {})  # type: ignore[attr-defined]
    torch.cuda = machine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("time.monotonic", machine.now_s)
    monkeypatch.setattr(GpuTime.__init__, "__kwdefaults__", {"now_s": machine.now_s})
    return machine


def work(kept: Kept) -> float:
    hooks.phase("end")  # so that all that is under way is told
    return sum(mark.work for mark in kept if mark.kind is MarkKind.STEP)


def test_replays_of_a_graph_that_holds_a_step_are_steps(machine: Machine, kept: Kept) -> None:
    iterations, optimizer = Iterations(), Optimizer()
    for _ in range(3):
        iterations.after_step(optimizer)
    graph, other = machine.CUDAGraph(machine), machine.CUDAGraph(machine)  # type: ignore[attr-defined]
    graph.capture_begin(pool=None)
    iterations.after_step(optimizer)  # into the graph: not done yet
    graph.capture_end()
    for _ in range(50):
        assert graph.replay() == "replayed"
        assert other.replay() == "replayed"  # holds none
        machine.time_s = machine.busy_until_s["main 0"]
    assert work(kept) == 53.0


def test_a_graph_whose_optimiser_is_gone_is_replayed_as_ever(machine: Machine, kept: Kept) -> None:
    iterations, optimizer = Iterations(), Optimizer()
    iterations.after_step(optimizer)
    graph = machine.CUDAGraph(machine)  # type: ignore[attr-defined]
    graph.capture_begin()
    iterations.after_step(optimizer)
    graph.capture_end()
    del optimizer
    assert graph.replay() == "replayed"
    assert work(kept) == 1.0


def test_a_step_that_a_scaler_skips_is_an_iteration(
    machine: Machine, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations, optimizer, other = Iterations(), Optimizer(), Optimizer()

    class GradScaler:
        def step(self, optimizer: Optimizer, skip: bool) -> str:
            if not skip:
                iterations.after_step(optimizer)
            return "scaled"

    scaling = types.ModuleType("torch.amp.grad_scaler")
    scaling.GradScaler = GradScaler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.amp.grad_scaler", scaling)
    iterations.after_step(optimizer)
    scaler = GradScaler()
    for skip in (False, True, True, False):
        assert scaler.step(optimizer, skip=skip) == "scaled"
        assert scaler.step(other, skip=skip) == "scaled"  # of two, one leads
    assert work(kept) == 5.0


def test_whatever_an_optimiser_is_it_gets_no_trouble(machine: Machine, kept: Kept) -> None:
    class Odd:
        __slots__ = ()  # cannot be referred to weakly

    iterations = Iterations()
    for _ in range(3):
        iterations.after_step(Odd())
    assert work(kept) == 0.0
