"""A pipeline of virtual GPUs that no belief can represent, in one process and in virtual time, each rank followed.

Ranks run their operations as their schedule says, each as soon as what it needs is there; they agree with each other
through a barrier of threads, while time stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from joulewise.core.knob import Setting
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.lease import Lease
from joulewise.device.local import LocalLease
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from joulewise.model.physics import Load
from joulewise.model.truth import RichLaw
from joulewise.monitor.sampler import Sampler
from joulewise.plan.plan import Plan
from joulewise.plan.schedules import Schedule
from joulewise.plan.schedules_named import named
from joulewise.tune.follow import Doing, Message, Session
from joulewise.tune.follow_rank import Rank

UNEQUAL = (1.0, 0.8, 0.9, 1.15)
LOADS = {
    "forward": Load(0.15, 0.75, 400.0, dram_share=0.15),
    "backward": Load(0.30, 0.60, 360.0, dram_share=0.25),
}
POLL_S = 0.002
"""How often a rank looks whether what it waits for is there."""
FACTS = {"host": "here", "gpu": "NVIDIA H200", "driver": "580.1", "model": "a model"}


class Stamp:
    """An operation as it runs."""

    def __init__(self, now_s: float) -> None:
        self.began, self.ended = now_s, None

    def began_s(self) -> float | None:
        return self.began

    def ended_s(self) -> float | None:
        return self.ended


class Pipeline:
    """``ranks`` ranks of 1F1B, one stage each; ``facts`` of single ranks differ from FACTS where they are given."""

    def __init__(
        self,
        *,
        ranks: int = 3,
        microbatches: int = 4,
        plan: Plan | None = None,
        facts: Sequence[dict[str, Any]] = (),
        **session: Any,
    ) -> None:
        self.time = VirtualTime()
        self.schedule: Schedule = named("1f1b", stages=ranks, microbatches=microbatches, ask=False)
        model = catalog.load("h200")
        laws = [RichLaw(model.chip, seed=11 + rank) for rank in range(ranks)]
        self.gpus = [
            VirtualGpu(replace(model, chip=law.card), time=self.time, index=rank, law=law, gain=law.gain)
            for rank, law in enumerate(laws)
        ]
        self.slower: dict[int, float] = {}
        """Stage → how many times longer its operations take from now on."""
        self.ran: dict[int, list[tuple[int, str, int]]] = {}
        """Rank → what it runs from now on, whatever its schedule says."""
        self.leases: list[Lease | None] = [None] * ranks
        self.sessions = [
            self._session(rank, plan if rank == 0 else None, facts[rank] if facts else {}, session)
            for rank in range(ranks)
        ]
        self.iteration = 0
        self.took: list[tuple[str, float, float]] = []
        """Of each iteration what the first rank did, its seconds, and its joules on all GPUs: in truth."""

    def _session(self, number: int, plan: Plan | None, facts: dict[str, Any], more: dict[str, Any]) -> Session:
        gpu = self.gpus[number]
        sampler = Sampler([gpu], seed=number)
        order = [(op.stage, op.kind, op.microbatch) for op in self.schedule.dag.operations if op.rank == number]

        def take(_: tuple[str, int]) -> Lease:
            lease = LocalLease.take([VirtualControls.of(gpu)], ["sm_mhz"], state=None)
            self.leases[number] = lease
            return lease

        rank = Rank(order, gpu, sampler)
        sampler.start()
        sampler.opened()
        return Session(rank, number, self.schedule, {**FACTS, **facts}, take=take, job="a job", plan=plan, **more)

    @property
    def doing(self) -> set[Doing]:
        return {session.doing for session in self.sessions}

    @property
    def locked_mhz(self) -> list[float | None]:
        """What each GPU was last asked for at most."""
        asked = [gpu.board.state.asked.sm_mhz for gpu in self.gpus]
        return [None if each is None else each[1] for each in asked]

    def until(self, true: Callable[[], bool], *, most: int = 80) -> None:
        """Run iterations until something is so."""
        for _ in range(most):
            if true():
                return
            self.run()
        raise AssertionError(f"not so after {most} iterations: {self.doing}, {[s.why for s in self.sessions]}")

    def run(self) -> None:
        """One iteration: all ranks agree, then work."""
        self._turn()
        before_s, before_j = self.time.now_s(), self._energy_j()
        left = [0] * len(self.sessions)
        done: dict[tuple[int, str, int], float] = {}
        for rank in range(len(self.sessions)):
            self.time.spawn(self._work(rank, done, left))
        while sum(left) < len(left):
            self.time.sleep(POLL_S)
        took_s, took_j = self.time.now_s() - before_s, self._energy_j() - before_j
        self.took.append((str(self.sessions[0].doing), took_s, took_j))
        self.iteration += 1
        for thread in threading.enumerate():
            if thread.name == "joulewise planner":
                thread.join()  # in life, iterations go on meanwhile

    def _turn(self) -> None:
        together = threading.Barrier(len(self.sessions))
        said: list[Message] = [{} for _ in self.sessions]

        def turn(number: int) -> None:
            def exchange(message: Message) -> list[Message]:
                said[number] = message
                together.wait(30.0)
                heard = list(said)
                together.wait(30.0)
                return heard

            self.sessions[number].turn(self.iteration, exchange)

        threads = [threading.Thread(target=turn, args=(number,)) for number in range(len(self.sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)

    def _work(self, number: int, done: dict[tuple[int, str, int], float], left: list[int]) -> Loop[None]:
        rank, gpu, last = self.sessions[number].rank, self.gpus[number], len(self.sessions) - 1
        for stage, kind, microbatch in self.ran.get(number, rank.order):
            needs = (stage - 1, "forward", microbatch) if kind == "forward" else (stage + 1, "backward", microbatch)
            while 0 <= needs[0] <= last and needs not in done:
                yield POLL_S
            stamp = Stamp(self.time.now_s())
            rank.begin((stage, kind, microbatch), stamp)
            seconds = LOADS[kind].gpu_s * UNEQUAL[stage % len(UNEQUAL)] * self.slower.get(stage, 1.0)
            job = gpu.submit(replace(LOADS[kind], gpu_s=seconds), pid=1)
            stamp.ended = yield from gpu.finish(job)
            rank.end()
            done[stage, kind, microbatch] = self.time.now_s()
        left[number] = 1

    def _energy_j(self) -> float:
        return sum(gpu.truth().energy_j for gpu in self.gpus)

    def close(self) -> None:
        for session in self.sessions:
            session.end("the test is over")


def asked_for(session: Session) -> list[Setting]:
    """What the plan that is played asks of a rank."""
    assert session.plan is not None
    assert session.point is not None
    return [step.setting for step in session.plan.steps(session.point)[session._number]]
