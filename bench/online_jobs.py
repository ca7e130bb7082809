"""Jobs of known truth, run on virtual time: tuned by the objects of ``joulewise run --tune``, untuned, or held.

What ``bench/online_virtual`` and ``bench/online_end_to_end`` score. Marks are left as hooks would leave them; the ends
of steps and the true joules up to each are kept, so that two runs of the same work can be compared step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.online_truths import Case
from joulewise.core.event import Event
from joulewise.core.knob import Setting
from joulewise.core.marks import MarkKind
from joulewise.core.objective import MinEnergy
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.hold import hold
from joulewise.device.virtual import VirtualGpu
from joulewise.model.workloads import Phase
from joulewise.monitor.steps import MemoryFeed
from joulewise.store.journal import MemoryJournal
from joulewise.tune.online import build
from joulewise.tune.status import Summary

JOB_S = 1800.0
PID = 4242
_PAUSES = ("evaluation", "checkpoint", "compile")


@dataclass
class Job:
    """A case playing on its card, with marks as hooks would leave them."""

    case: Case
    time: VirtualTime = field(default_factory=VirtualTime)
    ends_s: list[float] = field(default_factory=list)
    ends_j: list[float] = field(default_factory=list)
    source: Callable[[], Iterator[Phase]] | None = None
    """Where work comes from instead of the case's own; its phases' names are marked."""
    entered: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpu: VirtualGpu = self.case.gpu(self.time)
        self.feed = MemoryFeed(self.time)
        self.start_j = 0.0

    def joules(self, steps: int) -> float:
        """True joules of the first ``steps`` steps and all between them."""
        return self.ends_j[steps - 1] - self.start_j

    def start(self) -> None:
        """Begin to work."""
        self.feed.mark(MarkKind.HELLO, name="bench")
        self.start_j = self.gpu.truth().energy_j
        self.gpu.play(self, pid=PID, on_step=self._step)

    def phases(self) -> Iterator[Phase]:
        """The case's phases; pauses and phases are marked as they begin."""
        paused, name = False, ""
        for phase in self.source() if self.source is not None else self.case.play():
            if self.source is not None and phase.name != name:
                name = phase.name
                self._mark(MarkKind.PHASE, name)
                self.entered.append((self.gpu.board.time_s, name))
            pauses = phase.name in _PAUSES
            if pauses and not paused:
                self._mark(MarkKind.PAUSE, phase.name)
            elif paused and not pauses:
                self._mark(MarkKind.RESUME)
            paused = pauses
            yield phase

    def _mark(self, kind: MarkKind, name: str = "") -> None:
        self.feed.mark(kind, name=name, time_s=self.gpu.board.time_s)

    def _step(self, end_s: float) -> None:
        self.ends_s.append(end_s)
        self.ends_j.append(self.gpu.board.trace.energy_j(end_s))
        self.feed.mark(MarkKind.STEP, time_s=end_s)


@dataclass(frozen=True)
class Tuned:
    """A job that was tuned, what the tuner said at its end, and its journal."""

    job: Job
    summary: Summary
    events: list[Event]


def tuned(job: Job, bound: float, *, seed: int = 0, job_s: float = JOB_S) -> Tuned:
    """Run a job under the tuner that ``joulewise run --tune`` builds."""
    journal = MemoryJournal()
    lease = hold([job.gpu], job.case.knobs)
    online = build(
        [job.gpu], lease=lease, feed=job.feed, objective=MinEnergy(bound), seed=seed, journal=journal, run=job.case.name
    )
    job.start()

    def end() -> Loop[None]:
        yield job_s
        online.stop()

    job.time.spawn(end())
    summary = job.time.run(online.loop())
    job.gpu.advance()
    lease.release()
    return Tuned(job, summary, [event for _, event in journal.read()])


def untuned(job: Job, job_s: float = JOB_S) -> Job:
    """Run a job with nothing set, as long as it would take and a little longer: a tuned one may be faster."""
    job.start()
    job.time.sleep(1.2 * job_s)
    job.gpu.advance()
    return job


def held(case: Case, setting: Setting, plain: Job, job_s: float = 600.0) -> tuple[float, float]:
    """Slowdown and saving of a job that has ``setting`` from its first moment: what an oracle would do.

    Ten minutes of it where evaluations, checkpoints and stalls dilute what steps save; else steps tell all.
    """
    if case.kind != "library":
        return case.change(setting)
    job = Job(case)
    job.gpu.apply(setting)
    job.start()
    job.time.sleep(job_s)
    job.gpu.advance()
    steps = len(job.ends_s)
    return job.ends_s[-1] / plain.ends_s[steps - 1] - 1.0, 1.0 - job.joules(steps) / plain.joules(steps)
