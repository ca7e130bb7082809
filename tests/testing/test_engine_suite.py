"""The engine suite itself, on the engine in virtual time: what it asks of Slurm it asks of the simulator too."""

from __future__ import annotations

from itertools import count

import pytest

from joulewise.cluster.engine import JobState, Order
from joulewise.cluster.engines.simulated import SimulatedEngine, SimulatedSite
from joulewise.testing import EngineConformance
from tests.cluster.toys import TOY, toy_job


class Stage:
    longest_s = 3600.0

    def __init__(self) -> None:
        self._epochs = count(2)
        # A long job outlasts every test; one that ends does so in seconds.
        self._site = SimulatedSite(
            [TOY], known=lambda order: toy_job(order.name, 0.0, 10.0 if order.workload == "short" else 1e5, order.gpus)
        )
        self.engine = self.other()
        self.engine.take(self.next_epoch())

    def other(self) -> SimulatedEngine:
        return SimulatedEngine(self._site)

    def next_epoch(self) -> int:
        return next(self._epochs)

    def order(self, name: str, *, gpus: int, elastic: bool = True, ends: int | None = None) -> Order:
        workload = "" if ends is None else "short"
        return Order(name, ("train",), gpus, checkpoint="checkpoint" if elastic else None, workload=workload)


class TestSimulatedEngine(EngineConformance):
    @pytest.fixture
    def stage(self) -> Stage:
        return Stage()

    @pytest.mark.parametrize(("code", "state"), [(0, "ended")])  # nothing fails there
    def test_a_job_that_is_over_says_how(self, stage: Stage, code: int, state: JobState) -> None:
        super().test_a_job_that_is_over_says_how(stage, code, state)
