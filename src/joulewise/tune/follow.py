"""Playing plans in a running pipeline: the ranks measure themselves, agree on a plan, play it and check its promise.

Every rank has one ``Session``. At iterations that all know beforehand each says what it has to say and hears what all
have said (``turn``); what follows is computed from that alone, so all ranks do the same, or nothing. In order:

    join      who is here; is a given plan for them; take the leases
    time      how long is an iteration
    measure   a few iterations at each of a few clocks, nothing set at both ends
    report    each rank works out what its operations cost (on a thread)
    plan      rank 0 plans (on a thread); a plan that was given comes here at once
    vote      may every rank set what the plan asks of it
    compare   iterations with the plan, without, and with it again: the verdict on its promise
    play      now and then a look whether operations take as long as planned; if not, it is made anew
    off       nothing is set any more, and why

Whatever goes wrong, on any rank, ends with nothing set on all; the job itself is never disturbed. What it is not: a way
to run operations (``frameworks/pipelining``), or to plan (``plan``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.core.knob import DEFAULT, SM_MHZ, Setting
from joulewise.device.lease import Lease
from joulewise.plan import plan_files
from joulewise.plan.plan import Plan, PlanPoint
from joulewise.plan.plan_identity import Identity
from joulewise.plan.schedules import Schedule
from joulewise.tune import follow_making
from joulewise.tune.follow_agenda import Stretch, at, enough, in_turn
from joulewise.tune.follow_making import Measured
from joulewise.tune.follow_measuring import Measuring
from joulewise.tune.follow_promise import BAND, Iterations, Verdict, verify
from joulewise.tune.follow_rank import Iteration, Rank

WARM_UP = 2
"""Iterations before anything is measured: the first one allocates, compiles and connects."""
CALM = 32
"""Iterations between two looks while the plan is played."""
DRIFT = 0.02
"""Operations that take so much longer, or shorter, than planned make the plan another one."""
REPLANS = 2
"""Plans made anew in a row before it is given up: each starts from what was seen of the one before."""
COMPARED_S = 4.0
"""Of GPU time in each stretch of a comparison: forty updates of a counter, so that its edges hardly count."""

Message = dict[str, Any]
Exchange = Callable[[Message], Sequence[Message]]
"""Says something to all ranks and hears what each of them says, in order of rank."""


class Doing(StrEnum):
    """What goes on; see the module."""

    JOIN = "join"
    TIME = "time"
    MEASURE = "measure"
    REPORT = "report"
    PLAN = "plan"
    VOTE = "vote"
    COMPARE = "compare"
    PLAY = "play"
    OFF = "off"


class Session:
    """One rank's part. ``take`` takes a lease on its GPU, as one of a party (name, size) where that can be.

    ``facts`` are ``host``, ``gpu``, ``driver`` and ``model`` of this rank. Without a ``plan``, which rank 0 gives to
    all, one is found by measuring; with ``only_measure`` it ends there.
    """

    def __init__(
        self,
        rank: Rank,
        number: int,
        schedule: Schedule,
        facts: Mapping[str, Any],
        *,
        take: Callable[[tuple[str, int]], Lease],
        job: str,
        plan: Plan | None = None,
        only_measure: bool = False,
        max_slowdown: float = 0.0,
        gpus_per_rank: int = 1,
        model: str | None = None,
    ) -> None:
        self.rank = rank
        self.schedule = schedule
        self.doing = Doing.JOIN
        self.why = ""
        """Why it is off."""
        self.plan: Plan | None = plan
        self.point: PlanPoint | None = None
        """What is played of the plan."""
        self.measured: Measured | None = None
        self.verdict: Verdict | None = None
        self.identity: Identity | None = None
        """What is here."""
        self.played = self.replanned = 0
        """Iterations with the plan; plans made anew in a row."""
        self._number, self._facts, self._take, self._job, self._model = number, dict(facts), take, job, model
        self._only_measure, self._max_slowdown, self._gpus_per_rank = only_measure, max_slowdown, gpus_per_rank
        self._measuring = Measuring(rank)
        self._trouble = ""
        self._lease: Lease | None = None
        self._talk_at = self._since = 0
        self._iteration_s = 1.0
        self._probes: list[Setting] = []
        self._stretches: list[Stretch] = []
        self._settings: list[Setting] = []
        self._worked: Message = {}

    @property
    def off(self) -> bool:
        """Whether nothing is set any more."""
        return self.doing is Doing.OFF

    # Once an iteration.

    def turn(self, iteration: int, exchange: Exchange) -> bool:
        """Iteration ``iteration`` (from 0) is about to begin; whether it is followed. Never raises: what goes wrong
        ends the following."""
        if self.off:
            return False
        try:
            if iteration >= self._talk_at:
                self._talk_at = iteration + 1
                self._hear(exchange(self._say(iteration)), iteration)
            if self.doing is Doing.MEASURE:
                self._measuring.look(self._stretches, iteration - 1)
            if not self.off:
                self.played += self._plays(iteration)
                self.rank.iteration(iteration, self._of(iteration), self._of(iteration + 1))
        except Exception as error:  # the job goes on, whatever we have got wrong
            self.end(f"the ranks could not go on together: {type(error).__name__}: {error}")
        return not self.off

    def end(self, why: str) -> None:
        """Set nothing any more. Idempotent; the first reason stands."""
        if not self.off:
            self.doing, self.why = Doing.OFF, why
        self.rank.disarm()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.release()
            except JoulewiseError as error:  # its guardian gives back what we cannot
                self.why = f"{self.why}; {error}"

    def _plays(self, iteration: int) -> bool:
        """Whether an iteration has the plan: as the agenda says, and where that says nothing, once there was one."""
        if self.point is None:
            return False
        covered = bool(self._stretches) and self._stretches[0].first <= iteration <= self._stretches[-1].last
        return at(self._stretches, iteration).planned if covered else True

    def _of(self, iteration: int) -> list[Setting]:
        """What every operation of an iteration shall have, as far as is known now."""
        if self._plays(iteration):
            return self._settings
        return [at(self._stretches, iteration).setting or DEFAULT] * len(self.rank.order)

    # What is said and heard.

    def _say(self, iteration: int) -> Message:
        said: Message = {"switch_s": self.rank.switch_s}
        if self.doing is Doing.JOIN:
            said |= {**self._facts, "job": self._job, "plan": None}
            if self.plan is not None:
                said["plan"] = plan_files.to_json(self.plan)
        elif self.doing is Doing.TIME:
            said |= {"time_s": self.rank.iteration_s(iteration - 1), "probes": self._find_probes()}
        elif self.doing in (Doing.REPORT, Doing.PLAN):
            said |= self._worked
        elif self.doing is Doing.COMPARE:
            said["windows"] = [self._window(stretch) for stretch in self._stretches]
            said["drift"] = self._drift([stretch for stretch in self._stretches if stretch.planned])
        elif self.doing is Doing.PLAY:
            said["drift"] = self._drift([Stretch(self._since, iteration - 1, None)])
        said["trouble"] = self._trouble or self.rank.trouble or self._noticed()
        return said

    def _noticed(self) -> str:
        """What happened to our lease without our doing; empty where nothing did."""
        notices = () if self._lease is None else self._lease.notices()
        return next((each.says for each in notices if each.kind in ("ended", "foreign", "reload")), "")

    def _hear(self, heard: Sequence[Message], iteration: int) -> None:
        troubles = [f"rank {number}: {each['trouble']}" for number, each in enumerate(heard) if each["trouble"]]
        if troubles:
            self.end(troubles[0] + (f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""))
            return
        {
            Doing.JOIN: self._joined,
            Doing.TIME: self._timed,
            Doing.MEASURE: self._was_measured,
            Doing.REPORT: self._reported,
            Doing.PLAN: self._was_planned,
            Doing.VOTE: self._voted,
            Doing.COMPARE: self._compared,
            Doing.PLAY: self._decide,
        }[self.doing](heard, iteration)

    def _joined(self, heard: Sequence[Message], iteration: int) -> None:
        self.identity = follow_making.identity(heard, self.schedule, self._gpus_per_rank, self._model)
        given = heard[0]["plan"]
        if given is not None:
            self.plan = plan_files.from_json(given)
            if refused := self.plan.identity.refuse(self.identity) or follow_making.unplayable(self.plan):
                self.end(refused)
                return
        here = sum(each["host"] == self._facts["host"] for each in heard)
        try:
            self._lease = self._take((str(heard[0]["job"]), here))
        except JoulewiseError as error:
            self._trouble = str(error)
        self.doing, self._talk_at = Doing.TIME, iteration + WARM_UP

    def _find_probes(self) -> int:
        """How many settings are to be measured here: none where a plan was given."""
        try:
            self._probes = self._measuring.probes() if self.plan is None else []
        except BadSpec as error:
            self._trouble = self._trouble or str(error)
        return len(self._probes)

    def _timed(self, heard: Sequence[Message], iteration: int) -> None:
        if not all(each["time_s"] for each in heard):
            return  # a GPU is far behind its host; it is asked again
        if len({each["probes"] for each in heard}) > 1:
            self.end("the ranks' GPUs differ too much in their clocks to be measured together")
            return
        assert self._lease is not None  # else there was trouble
        self.rank.arm(self._lease)
        self._iteration_s = max(float(each["time_s"]) for each in heard)
        if self.plan is not None:
            self._adopt(self.plan)
            return
        self._stretches = in_turn(iteration, enough(self._iteration_s), self._probes)
        self.doing, self._talk_at = Doing.MEASURE, self._stretches[-1].last + 1

    def _was_measured(self, _: Sequence[Message], iteration: int) -> None:
        self._measuring.look(self._stretches, iteration)
        self.doing, self._stretches = Doing.REPORT, []
        self._work(self._measuring.report)

    def _reported(self, heard: Sequence[Message], _: int) -> None:
        if not all("options" in each for each in heard):
            return
        self.measured = measured = Measured.heard(heard, self._switch_s(heard))
        if self._only_measure:
            self.end("none was wanted")
            return
        here, gpus, slower = self.identity, self._gpus_per_rank, self._max_slowdown
        assert here is not None
        self.doing = Doing.PLAN
        self._plan_with(lambda: follow_making.made(self.schedule, measured, here, gpus, slower))

    def _was_planned(self, heard: Sequence[Message], _: int) -> None:
        if "made" in heard[0]:
            self._worked = {}
            self._adopt(plan_files.from_json(heard[0]["made"]))

    def _adopt(self, plan: Plan) -> None:
        """Vote on a plan at the next turn."""
        assert self._lease is not None
        self.plan, self.doing = plan, Doing.VOTE
        try:
            point = follow_making.playable(plan, self._max_slowdown, 0.0)
            follow_making.check(plan, point, self._number, self.rank.gpu.info.space, self._lease.allowed)
        except JoulewiseError as error:
            self._trouble = str(error)

    def _voted(self, heard: Sequence[Message], iteration: int) -> None:
        assert self.plan is not None
        self.point = follow_making.playable(self.plan, self._max_slowdown, self._switch_s(heard))
        row = self.plan.steps(self.point)[self._number]
        self._settings = [step.setting for step in row]
        self.rank.expect({((step.stage, step.kind), step.setting): step.time_s for step in row})
        count = enough(self._iteration_s, least_s=COMPARED_S, fewest=3)
        self._stretches = in_turn(iteration, count, [None, DEFAULT, None])
        self.doing, self._talk_at = Doing.COMPARE, self._stretches[-1].last + 1

    def _compared(self, heard: Sequence[Message], iteration: int) -> None:
        assert self.plan is not None
        assert self.point is not None
        windows = [each["windows"] for each in heard]
        if not all(window is not None for each in windows for window in each):
            self.end("the energy of the iterations could not be measured")
            return
        with_, without, again = (Iterations.of([each[which] for each in windows]) for which in range(3))
        waiting_w = self.measured.waiting_w if self.measured is not None else None
        self.verdict = verify(self.plan, self.point, without, with_.and_(again), waiting_w)
        self._decide(heard, iteration)

    def _decide(self, heard: Sequence[Message], iteration: int) -> None:
        """Go on as it is, make the plan anew, or let it be."""
        assert self.plan is not None
        assert self.verdict is not None
        drift = {(int(stage), str(kind)): float(ratio) for each in heard for stage, kind, ratio in each["drift"]}
        pays = self.verdict.saving > 0 and self.verdict.slowdown <= self._max_slowdown + BAND
        if drift and self.replanned < REPLANS:
            self.replanned += 1
            self.doing, plan, switch_s = Doing.PLAN, self.plan, self._switch_s(heard)
            self._plan_with(lambda: follow_making.mended(plan, drift, self._max_slowdown, switch_s))
        elif drift:
            (stage, kind), ratio = max(drift.items(), key=lambda item: abs(item[1] - 1.0))
            self.end(
                f"the {kind} of stage {stage} takes {100 * (ratio - 1):+.1f} % of time more than planned, and making "
                f"the plan anew {self.replanned} times did not answer that"
            )
        elif not pays:
            self.end("the plan does not pay here")
        else:
            self.replanned = 0
            self.doing, self._stretches, self._since = Doing.PLAY, [], iteration
            self._talk_at = iteration + CALM

    # What was seen.

    def _window(self, stretch: Stretch) -> list[Iteration] | None:
        """Whole iterations of a stretch, the one with the change left out; of the last one the end is not known yet."""
        return self.rank.window(stretch.first + 1, stretch.last - (stretch is self._stretches[-1]))

    def _drift(self, stretches: Sequence[Stretch]) -> list[tuple[int, str, float]]:
        """Kinds of this rank that take another time than planned, by more than DRIFT and three standard errors."""
        iterations = {number for stretch in stretches for number in range(stretch.first + 1, stretch.last + 1)}
        found = self.rank.drift(iterations).items()
        return [(*kind, ratio) for kind, (ratio, error) in found if abs(ratio - 1.0) > max(DRIFT, 3.0 * error)]

    def _switch_s(self, heard: Sequence[Message]) -> float:
        """What a change takes on the slowest rank."""
        return max((each["switch_s"] for each in heard if each["switch_s"] is not None), default=SM_MHZ.switch_s)

    def _plan_with(self, make: Callable[[], Plan]) -> None:
        """Rank 0 plans, for all."""
        self._worked = {}
        if self._number == 0:
            self._work(lambda: {"made": plan_files.to_json(make())})

    def _work(self, work: Callable[[], Message]) -> None:
        """Do something on a thread, to be said when it is done."""

        def run() -> None:
            try:
                self._worked = work()
            except JoulewiseError as error:
                self._trouble = str(error)
            except Exception as error:
                self._trouble = f"a fault of joulewise itself: {type(error).__name__}: {error}"

        threading.Thread(target=run, name="joulewise planner", daemon=True).start()
