"""What a scheduler has before its eyes: jobs that nobody can understand, and engines that will not do something."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.engine import Happened, JobSeen, Order
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.cluster.life import Belief
from joulewise.core.errors import BadSpec
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, first_come, toy_job


class Hostile(SimulatedEngine):
    """An engine whose job ``evil`` has an order with something else in it than belongs there."""

    odd: dict[str, Any] = {}  # noqa: RUF012 (never changed in place)

    def jobs(self) -> tuple[JobSeen, ...]:
        return tuple(
            replace(job, order=replace(job.order, **self.odd)) if job.name == "evil" else job for job in super().jobs()
        )


@pytest.mark.parametrize("odd", [{"least_gpus": "x"}, {"most_gpus": "x"}, {"most_gpus": [1]}], ids=str)
def test_an_order_with_nonsense_in_it_waits_and_keeps_nobody_else_from_running(odd: dict[str, Any]) -> None:
    rig = Rig([TOY], [toy_job("evil", 0.0, 500.0, 8), toy_job("good", 0.0, 500.0, 8)], priced(), period_s=5.0)
    engine = Hostile(rig.site)
    engine.odd = odd
    rig.scheduler._sight.engine = engine
    rig.scheduler.lead()
    for _ in range(300):
        rig.look()
    assert rig.site.jobs["good"].state == "ended"
    assert rig.site.jobs["evil"].state == "waiting"
    assert "job evil cannot be scheduled: TypeError" in rig.scheduler.explain("evil")


@pytest.mark.parametrize("fault", [OverflowError("too large"), AttributeError("no points"), RecursionError()], ids=repr)
def test_whatever_goes_wrong_in_a_belief_is_that_jobs_own_trouble(fault: Exception) -> None:
    rig = Rig([TOY], [toy_job("evil", 0.0, 500.0, 8), toy_job("good", 0.0, 500.0, 8)], first_come, period_s=5.0)
    believe = rig.believe

    def strict(order: Order) -> Belief:
        if order.name == "evil":
            raise fault
        return believe(order)

    rig.believe = strict  # type: ignore[method-assign]
    rig.fresh().lead()
    for _ in range(300):
        rig.look()
    assert rig.site.jobs["good"].state == "ended"
    assert type(fault).__name__ in rig.scheduler.explain("evil")


class Refusing(SimulatedEngine):
    """An engine that will not do something, and says so where it carries things on."""

    says = ""

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        news = super().wait(longest_s)
        if self.says:
            raise BadSpec(self.says)
        return news


def test_an_engine_that_refuses_something_while_it_waits_is_a_trouble_and_no_end() -> None:
    rig = Rig([TOY], [toy_job("a", 0.0, 500.0, 8)], first_come, period_s=5.0)
    engine = Refusing(rig.site)
    rig.scheduler._sight.engine = engine
    rig.scheduler.lead()
    engine.says = "n3 cannot be switched"
    for _ in range(20):
        rig.look()
    assert rig.site.jobs["a"].state == "running"
    assert "n3 cannot be switched" in rig.scheduler.status().troubles
    engine.says = ""
    rig.play()
    assert rig.scheduler.status().troubles == ()


class Paused(threading.Event):
    """A stop that notes how long it was waited for, and is set after the third time."""

    waits: tuple[float | None, ...] = ()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits = (*self.waits, timeout)
        if len(self.waits) == 3:
            self.set()
        return self.is_set()


def test_an_engine_that_refuses_at_once_every_time_is_not_asked_without_a_pause() -> None:
    rig = Rig([TOY], [], first_come)
    engine = Refusing(rig.site)
    engine.says = "no"
    rig.scheduler._sight.engine = engine
    rig.scheduler.lead()
    stop = Paused()
    rig.scheduler.run(stop)
    assert stop.waits == (1.0, 1.0, 1.0)
