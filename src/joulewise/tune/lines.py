"""The lines of a job: one tuner for each of its phases, on one time account and one error budget.

A line is made when its phase is first seen: with what the GPU's counters say about the phase, what earlier runs have
taught about it, and, after a restart, what the journal says it had learnt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from joulewise.core.block import Block, Rung
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from joulewise.core.objective import Objective, slowdown_bound
from joulewise.device.gpu import Gpu
from joulewise.model import boosted, catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief
from joulewise.model.learnt import LoadPrior
from joulewise.monitor.ruler import Ruler
from joulewise.tune.change import ChangeDetector, Shift
from joulewise.tune.guard import AlphaBudget, Debt
from joulewise.tune.job import JobTuner
from joulewise.tune.recall import Recall
from joulewise.tune.record import Record
from joulewise.tune.stalls import Stalls
from joulewise.tune.subject import JobSubject, Observation

JUMP = 0.25
"""Joules a unit, as a logarithm, that no drift or warmth explains from one block to the next of the same setting."""
MOST_DOUBTED = 0.5
"""… however little a short block is sure of: no sensor errs by two thirds, twice on end."""
_FINEST = (Rung.STEPS, Rung.PERIOD, Rung.ACTIVITY, Rung.UNKNOWN)


@dataclass(slots=True)
class Line:
    """One phase: its tuner, what is being observed for it, and what watches its pace."""

    phase: str
    tuner: JobTuner
    observation: Observation | None = None
    pace: ChangeDetector = field(default_factory=ChangeDetector)
    joules: ChangeDetector = field(default_factory=ChangeDetector)
    told_until_s: float = -math.inf
    """End of the last step that its pace was watched on."""
    over: int = 0
    """Blocks in a row whose clock was above the ceiling asked for."""
    stalls: Stalls = field(default_factory=Stalls)
    rung: Rung = Rung.UNKNOWN
    """What its work is counted in."""
    told: int = 0
    """Blocks that its tuner was told."""
    _unit_j: dict[Setting, float] = field(default_factory=dict)
    _jumps: Counter[Setting] = field(default_factory=Counter)

    def changed(self, cried: ChangeDetector | None = None) -> None:
        """What was under way is void, and the pace is learnt anew; ``cried`` has begun anew by itself."""
        self.observation = None
        self._unit_j.clear()
        self._jumps.clear()
        self.stalls.restart()
        for each in (self.pace, self.joules):
            if each is not cried:
                each.restart()

    def jump(self, block: Block) -> Shift | None:
        """Joules a unit far from what they were under the same setting, in two of its blocks on end: the job changed,
        though its pace may hardly show it, and blocks are too few for a detector."""
        before_j = self._unit_j.get(block.setting)
        size = math.log(block.unit_j / before_j) if before_j is not None else 0.0
        doubt = min(MOST_DOUBTED, 6.0 * math.hypot(block.power_error, block.time_error))
        if before_j is None or abs(size) <= max(JUMP, doubt):
            self._jumps[block.setting] = 0
            self._unit_j[block.setting] = block.unit_j
            return None
        self._jumps[block.setting] += 1
        again = self._jumps[block.setting] >= 2
        return Shift("large", "energy", math.expm1(size), math.ceil(block.work)) if again else None


class Lines:
    """Makes lines and keeps them."""

    def __init__(
        self,
        subject: JobSubject,
        objective: Objective,
        record: Record,
        recall: Recall,
        *,
        seed: int,
        alpha: float,
        proof_share: float,
        proof_window_s: float,
    ) -> None:
        bound = slowdown_bound(objective)
        self.objective = objective
        # A job without a bound may be as slow as its objective likes.
        self.debt = Debt(bound if math.isfinite(bound) else 1e9)
        self.budget = AlphaBudget(alpha)
        self._subject, self._record, self._recall = subject, record, recall
        self._seed, self._alpha = seed, alpha
        self._share, self._window_s = proof_share, proof_window_s
        self._lines: dict[str, Line] = {}
        self._before: list[Line] = []  # under other rulers

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def find(self, phase: str) -> Line | None:
        """The line of a phase, if there is one."""
        return self._lines.get(phase)

    def of(self, phase: str) -> Line:
        """The line of a phase, made if it is new."""
        line = self._lines.get(phase)
        if line is None:
            rung = self._subject.ruler.rung_in(phase)
            line = self._lines[phase] = Line(phase, self._tuner(phase, rung), rung=rung)
        return line

    def clear(self) -> None:
        """Begin anew: the ruler is another, and what was lost until now is no longer reckoned in its units. A ruler
        that comes back finds the setting that was best under it."""
        self._before = [line for line in (*self._before, *self._lines.values()) if line.told]
        self._lines.clear()
        self.debt.settle()

    def finest(self) -> list[Line]:
        """Of every phase the line under the finest ruler that it had: what the job is known by."""
        found: dict[str, Line] = {}
        for line in (*self._before, *self._lines.values()):
            best = found.get(line.phase)
            if best is None or (line.told and _FINEST.index(line.rung) <= _FINEST.index(best.rung)) or not best.told:
                found[line.phase] = line
        return list(found.values())

    def belief(self, phase: str) -> Belief:
        """What is believed of a phase before its first block."""
        ruler = self._subject.ruler
        prior = self._record.prior(phase)
        if prior is None:
            prior = _prior(ruler)
            if prior is not None:
                self._record.expected(prior, phase)
        gpus = [track.gpu for track in ruler.sampler.tracks]
        return Belief(
            self._subject.space,
            model=model_of(gpus[0]),
            default_limit_w=gpus[0].info.default_limit_w,
            gpus=len(gpus),
            prior=prior,
            learnt=self._recall.learnt(phase),
            seed=self._seed,
        )

    def _tuner(self, phase: str, rung: Rung) -> JobTuner:
        before = [line.tuner for line in self._before if (line.phase, line.rung) == (phase, rung)]
        start = before[-1].answer if before else None
        tuner = JobTuner(
            self.belief(phase),
            self.objective,
            seed=self._seed,
            alpha=self._alpha,
            proof_share=self._share,
            proof_window_s=self._window_s,
            phase=phase,
            start=start or self._recall.start(phase, self._subject.space),
            debt=self.debt,
            budget=self.budget,
        )
        if before or not self._record.past:
            return tuner
        tuner.replay(self._record.lessons(rung)).interrupted()
        if tuner.lost_thread:
            self._record.note(
                f"{tuner.lost_thread} blocks of the interrupted run were followed without knowing what led to them"
            )
        return tuner


def model_of(gpu: Gpu) -> GpuModel | None:
    """The catalogue's entry for a GPU, or None where it has none."""
    try:
        return catalog.load(gpu.info.name)
    except BadSpec:
        return None


def _prior(ruler: Ruler) -> LoadPrior | None:
    """What the activity counters say about the load; None without them."""
    activity = ruler.activity()
    track = ruler.sampler.tracks[0]
    latest, limit_w = track.latest, track.gpu.info.default_limit_w
    if not activity:
        return None
    share = latest.power_w / limit_w if latest is not None and latest.power_w is not None and limit_w else None
    return boosted.prior(activity, share)
