# ruff: noqa: D102 (the names of the tests are their sentences)
"""What every ``Engine`` must do, as tests: inherit ``EngineConformance`` and give it a ``stage`` fixture.

The suite acts only through the protocol and lets time pass in ``wait`` alone, so that a simulated engine passes in
milliseconds and a real cluster in tens of seconds. Every test uses jobs of its own, and leaves none that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import pytest

from joulewise.cluster.engine import DONE, Engine, Happened, JobSeen, JobState, NodeState, Order, Place
from joulewise.core.errors import BadSpec, Fenced

_LOOK_S = 1.0

T = TypeVar("T")


class EngineStage(Protocol):
    """A cluster of at least two nodes with at least two GPUs each, up and free, and the ways to use it."""

    engine: Engine
    """Under test; it has taken the highest epoch so far."""
    longest_s: float
    """Any one thing comes true within this, in the engine's time."""

    def other(self) -> Engine:
        """Another scheduler's hand on the same cluster, which has taken no epoch yet."""
        ...

    def next_epoch(self) -> int:
        """Above every one taken before."""
        ...

    def order(self, name: str, *, gpus: int, elastic: bool = True, ends: int | None = None) -> Order:
        """A job under a name like this one (the order says which), that runs for long; with ``ends`` it soon exits
        with that code instead."""
        ...


class EngineConformance:
    """Inherit and override ``stage``."""

    @pytest.fixture
    def stage(self) -> EngineStage:
        """The cluster, and the way to use it."""
        raise NotImplementedError("override the fixture 'stage'")

    def test_the_same_order_twice_is_one_job_and_another_of_its_name_is_refused(self, stage: EngineStage) -> None:
        order = stage.order("twice", gpus=1)
        first = stage.engine.submit(order)
        assert stage.engine.submit(order) == first
        with pytest.raises(BadSpec, match=order.name):
            stage.engine.submit(replace(order, gpus=2))
        assert [job.id for job in stage.engine.jobs() if job.name == order.name] == [first]
        stage.engine.stop(order.name, "the test is over")
        assert _until(stage, order.name, "cancelled").id == first

    def test_a_job_waits_until_it_is_started_and_then_runs_where_it_was_told(self, stage: EngineStage) -> None:
        node = _names(stage)[1]
        order = stage.order("start", gpus=2)
        identity = stage.engine.submit(order)
        stage.engine.wait(_LOOK_S)
        held = _job(stage, order.name)
        assert (held.state, held.place, held.starts, held.id) == ("waiting", {}, 0, identity)
        assert (held.order.gpus, held.order.checkpoint, held.order.name) == (2, order.checkpoint, order.name)
        stage.engine.start(order.name, {node: 2})
        running = _until(stage, order.name, "running")
        assert (running.place, running.starts, running.id) == ({node: 2}, 1, identity)
        stage.engine.start(order.name, {node: 2})  # said again, as by a scheduler that was killed
        stage.engine.wait(_LOOK_S)
        again = _job(stage, order.name)
        assert (again.state, again.place, again.starts) == ("running", {node: 2}, 1)
        _end(stage, order.name)

    @pytest.mark.parametrize(("code", "state"), [(0, "ended"), (3, "failed")])
    def test_a_job_that_is_over_says_how(self, stage: EngineStage, code: int, state: JobState) -> None:
        order = stage.order(f"over-{code}", gpus=1, ends=code)
        stage.engine.wait(0.0)  # an engine tells what happens after its first look
        stage.engine.submit(order)
        stage.engine.start(order.name, {_names(stage)[0]: 1})
        happened: list[Happened] = []
        over = _until(stage, order.name, state, happened)
        assert (over.exit_code, over.place, over.starts) == (code, {}, 1)
        assert [each.about for each in happened if each.what == state] == [order.name]
        with pytest.raises(BadSpec):
            stage.engine.start(order.name, {_names(stage)[0]: 1})

    def test_a_resize_keeps_the_id_and_counts_as_a_start(self, stage: EngineStage) -> None:
        first, second = _names(stage)[:2]
        order = stage.order("resize", gpus=1)
        identity = stage.engine.submit(order)
        stage.engine.start(order.name, {first: 1})
        _until(stage, order.name, "running")
        stage.engine.resize(order.name, {second: 2})
        moved = _until(stage, order.name, "running", place={second: 2})
        assert (moved.id, moved.starts) == (identity, 2)
        stage.engine.resize(order.name, {second: 2})  # nothing is left to do
        stage.engine.wait(_LOOK_S)
        assert _job(stage, order.name).starts == 2
        _end(stage, order.name)

    def test_a_preempted_job_waits_under_its_id_and_can_be_started_again(self, stage: EngineStage) -> None:
        node = _names(stage)[0]
        order = stage.order("preempt", gpus=1)
        identity = stage.engine.submit(order)
        stage.engine.start(order.name, {node: 1})
        _until(stage, order.name, "running")
        stage.engine.preempt(order.name)
        waiting = _until(stage, order.name, "waiting")
        assert (waiting.id, waiting.place, waiting.starts) == (identity, {}, 1)
        stage.engine.preempt(order.name)
        stage.engine.start(order.name, {node: 1})
        assert _until(stage, order.name, "running").starts == 2
        _end(stage, order.name)

    def test_a_job_that_was_stopped_is_cancelled_for_good(self, stage: EngineStage) -> None:
        order = stage.order("stop", gpus=1)
        stage.engine.submit(order)
        stage.engine.start(order.name, {_names(stage)[0]: 1})
        _until(stage, order.name, "running")
        stage.engine.stop(order.name, "its user asked for it")
        stopped = _until(stage, order.name, "cancelled")
        assert "its user asked for it" in stopped.why
        stage.engine.stop(order.name, "again")
        assert _job(stage, order.name).state == "cancelled"
        with pytest.raises(BadSpec):
            stage.engine.start(order.name, {_names(stage)[0]: 1})

    def test_a_rigid_job_is_not_resized(self, stage: EngineStage) -> None:
        first, second = _names(stage)[:2]
        order = stage.order("rigid", gpus=1, elastic=False)
        stage.engine.submit(order)
        stage.engine.start(order.name, {first: 1})
        _until(stage, order.name, "running")
        with pytest.raises(BadSpec, match="checkpoint"):
            stage.engine.resize(order.name, {second: 2})
        stage.engine.wait(_LOOK_S)
        job = _job(stage, order.name)
        assert (job.state, job.place, job.starts) == ("running", {first: 1}, 1)
        _end(stage, order.name)

    def test_what_is_not_there_cannot_be_used(self, stage: EngineStage) -> None:
        acts: tuple[Callable[[], None], ...] = (
            lambda: stage.engine.start("nobody", {_names(stage)[0]: 1}),
            lambda: stage.engine.preempt("nobody"),
            lambda: stage.engine.stop("nobody", "why"),
            lambda: stage.engine.power("nowhere", on=True),
        )
        for act in acts:
            with pytest.raises(BadSpec):
                act()

    def test_a_node_is_switched_but_not_under_a_job(self, stage: EngineStage) -> None:
        last, first = _names(stage)[-1], _names(stage)[0]
        order = stage.order("power", gpus=1)
        stage.engine.submit(order)
        stage.engine.start(order.name, {first: 1})
        _until(stage, order.name, "running")
        with pytest.raises(BadSpec, match=first):
            stage.engine.power(first, on=False)
        stage.engine.power(last, on=False)
        _until_node(stage, last, "off")
        stage.engine.power(last, on=False)
        stage.engine.power(last, on=True)
        _until_node(stage, last, "up")
        _end(stage, order.name)

    def test_a_later_scheduler_goes_on_and_the_earlier_one_may_only_look(self, stage: EngineStage) -> None:
        first, second = _names(stage)[:2]
        order = stage.order("fence", gpus=1)
        identity = stage.engine.submit(order)
        stage.engine.start(order.name, {first: 1})
        _until(stage, order.name, "running")
        stage.engine.resize(order.name, {second: 1})  # and then it is killed
        later = stage.other()
        later.take(stage.next_epoch())
        acts: tuple[Callable[[], None], ...] = (
            lambda: stage.engine.resize(order.name, {first: 1}),
            lambda: stage.engine.stop(order.name, "too late"),
            lambda: stage.engine.account(order.name, 1.0),
        )
        for act in acts:
            with pytest.raises(Fenced):
                act()
        with pytest.raises(Fenced):
            stage.other().take(1)
        assert order.name in {job.name for job in stage.engine.jobs()}
        stage.engine = later
        later.resize(order.name, {second: 1})  # its successor says the last word again
        job = _until(stage, order.name, "running", place={second: 1})
        assert (job.id, job.starts) == (identity, 2)
        _end(stage, order.name)

    def test_energy_can_be_written_again_and_again(self, stage: EngineStage) -> None:
        order = stage.order("energy", gpus=1)
        stage.engine.submit(order)
        for energy_j in (1.5, 2.5, 2.5):
            stage.engine.account(order.name, energy_j)
        _end(stage, order.name)
        stage.engine.account(order.name, 3.5)

    def test_energy_of_a_job_whose_name_another_has_now_is_written_by_its_id(self, stage: EngineStage) -> None:
        order = stage.order("heir", gpus=1)
        first = stage.engine.submit(order)
        _end(stage, order.name)
        second = stage.engine.submit(replace(order, weight=2.0))
        assert second != first
        for identity in (first, second):
            stage.engine.account(order.name, 1.5, identity)
        with pytest.raises(BadSpec):
            stage.engine.account(order.name, 1.5, "999999")
        _end(stage, order.name)


def _names(stage: EngineStage) -> list[str]:
    return [node.name for node in stage.engine.nodes() if node.state == "up"]


def _job(stage: EngineStage, name: str) -> JobSeen:
    return next(job for job in stage.engine.jobs() if job.name == name)


def _until(
    stage: EngineStage,
    name: str,
    state: JobState,
    happened: list[Happened] | None = None,
    place: Place | None = None,
) -> JobSeen:
    """Let time pass until a job is so."""

    def so() -> JobSeen | None:
        job = _job(stage, name)
        assert job.state not in DONE or job.state == state, f"{job} instead of {state}"
        return job if job.state == state and (place is None or dict(job.place) == dict(place)) else None

    found = _passing(stage, so, happened)
    assert found is not None, f"not {state} {place or ''} after {stage.longest_s} s: {_job(stage, name)}"
    return found


def _until_node(stage: EngineStage, name: str, state: NodeState) -> None:
    def so() -> bool | None:
        return next(node for node in stage.engine.nodes() if node.name == name).state == state or None

    assert _passing(stage, so, None), f"{name} is not {state} after {stage.longest_s} s: {stage.engine.nodes()}"


def _passing(stage: EngineStage, so: Callable[[], T | None], happened: list[Happened] | None) -> T | None:
    """What ``so`` gives, as soon as it gives something; None if it never does."""
    for _ in range(max(1, round(stage.longest_s / _LOOK_S))):
        if (found := so()) is not None:
            if happened is not None:  # a look may see what the engine has not told yet
                happened += stage.engine.wait(_LOOK_S)
            return found
        news = stage.engine.wait(_LOOK_S)
        if happened is not None:
            happened += news
    return so()


def _end(stage: EngineStage, name: str) -> None:
    stage.engine.stop(name, "the test is over")
    _until(stage, name, "cancelled")
