"""Advice for whoever may not set anything: the baseline is measured, and what would be set is said.

What it is: the loop of a dry run, nothing applied. What it is not: the choice (tune/advise), nor the tuner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from joulewise.core.block import Move, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.event import Decided, Seen
from joulewise.core.knob import DEFAULT
from joulewise.core.timeline import Loop
from joulewise.model.dvfs import Belief
from joulewise.tune.advise import advise
from joulewise.tune.lines import Lines
from joulewise.tune.record import Record
from joulewise.tune.status import Advice
from joulewise.tune.subject import JobSubject, Observation

LEAST_WORK, LEAST_S = 10.0, 5.0
"""Of a block: steps and seconds."""


class DryRun:
    """Watches one job and says what it would set; ``advice`` by phase."""

    def __init__(self, subject: JobSubject, lines: Lines, record: Record) -> None:
        self._subject, self._lines, self._record = subject, lines, record
        self.advice: dict[str, Advice] = {}

    def loop(self, stopped: Callable[[], bool], looks: Callable[[Rung], None]) -> Loop[None]:
        """Measure the baseline, and say what would be set: better the longer the job is watched. ``looks`` is called
        before each block, with the ruler in use."""
        ruler, time = self._subject.ruler, self._subject.ruler.sampler.time
        beliefs: dict[str, Belief] = {}
        blocks: Counter[str] = Counter()
        rung = ruler.rung
        while not stopped():
            if ruler.rung is not rung:
                rung = ruler.rung
                beliefs.clear()
                blocks.clear()
            phase = ruler.phase
            decision = Decision(DEFAULT, "the job as it runs by itself")
            self._record.write(Decided(time.now_s(), decision))
            observation = Observation(Move(decision, Role.BASELINE, phase, LEAST_WORK, LEAST_S))
            looks(rung)
            yield from self._subject.gather(observation)
            block = self._subject.block(observation) if observation.done else None
            if block is None:
                continue
            if phase not in beliefs:
                beliefs[phase] = self._lines.belief(phase)
            beliefs[phase].tell(block)
            self._record.saw(Seen(time.now_s(), Role.BASELINE, block))
            blocks[phase] += 1
            # Thinking costs CPU, and more of the same changes little: at each doubling of what was seen.
            if blocks[phase].bit_count() == 1:
                self.advice[phase] = advise(beliefs[phase], self._lines.objective, block)
