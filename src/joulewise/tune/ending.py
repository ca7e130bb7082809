"""The end of a tuned run: what was held last, the proof, the summary, what is kept for the next run.

Each part is written whatever becomes of the others: a run whose memory cannot be written still has its proof, and one
whose proof fails still says how it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from joulewise.core.block import Role
from joulewise.core.event import Finished, Seen
from joulewise.core.knob import DEFAULT, Setting
from joulewise.monitor.ruler import WATCHING
from joulewise.tune.job import JobTuner
from joulewise.tune.lines import Lines
from joulewise.tune.proof import Proof
from joulewise.tune.recall import Recall
from joulewise.tune.record import Record
from joulewise.tune.status import Advice, Summary
from joulewise.tune.subject import JobSubject

_log = logging.getLogger("joulewise")
T = TypeVar("T")


class Ending:
    """Ends one run."""

    def __init__(self, subject: JobSubject, lines: Lines, record: Record, recall: Recall) -> None:
        self._subject, self._lines, self._record, self._recall = subject, lines, record, recall
        self._ruler = subject.ruler
        self.on_measured: Callable[[], None] = lambda: None
        """Called once nothing more will be set or measured, before anything is written: the GPU may be given back."""

    def finish(self, why: str, advice: Iterable[Advice]) -> Summary:
        """The end, for the reason ``why``, written whatever fails on the way to it."""
        last = self._safely("what was held last", self._last_blocks) or []
        self.on_measured()
        for seen in last:
            self._record.saw(seen)
        now_s = self._ruler.sampler.time.now_s()
        proof = self._safely("the proof", self._record.prove)
        proven = proof.event(now_s) if proof is not None else None
        if proven is not None:
            self._record.write(proven)
        summary = self._safely("the summary", lambda: self._summary(why, proof, tuple(advice)))
        if summary is None:
            summary = Summary(why, self._ruler.rung, self._pace(), proof=proof, notes=tuple(self._record.notes))
        self._record.write(Finished(now_s, why, {**_facts(summary), "seal": self._record.seal.facts}))
        self._safely("what was learnt", lambda: self._keep(proof))
        return summary

    def _safely(self, what: str, do: Callable[[], T]) -> T | None:
        """What ``do`` gives; None, noted, where it fails."""
        try:
            return do()
        except Exception as error:
            _log.debug("%s is lost", what, exc_info=True)
            self._record.note(f"{what} is lost: {type(error).__name__}: {error}")
            return None

    def _last_blocks(self) -> list[Seen]:
        """What was held last counts too, though nobody asked for so little of it."""
        blocks = []
        for line in self._lines:
            observation, line.observation = line.observation, None
            if observation is not None and observation.move.role is Role.HOLD:
                block = self._subject.block(observation)
                if block is not None:
                    now_s = self._ruler.sampler.time.now_s()
                    blocks.append(Seen(now_s, Role.HOLD, block, line.tuner.says))
        return blocks

    def _summary(self, why: str, proof: Proof | None, advice: tuple[Advice, ...]) -> Summary:
        lines = self._lines.finest()
        return Summary(
            why=why,
            rung=self._ruler.rung,
            ruler=self._pace(),
            chosen={line.phase: self._chosen(line.tuner) for line in lines},
            verified={line.phase: line.tuner.answer_verified for line in lines},
            reasons={line.phase: line.tuner.says for line in lines},
            proof=proof,
            frontiers={line.phase: line.tuner.frontier() for line in lines if line.tuner.chosen},
            advice=advice,
            notes=(*self._record.notes, *(proof.unjudged if proof is not None else ())),
            slowdown=self._lines.debt.slowdown,
            switches=self._subject.switches,
        )

    def _pace(self) -> str:
        """How the job was measured, or that it was over before anything could be."""
        return "it ended too soon" if self._ruler.says == WATCHING else self._ruler.says

    def _chosen(self, tuner: JobTuner) -> Setting:
        """What a phase ended at. A setting that the tuner was about to ask for when the job ended was never run."""
        setting = tuner.answer or tuner.chosen
        return setting if setting in self._record.decided else DEFAULT

    def _keep(self, proof: Proof | None) -> None:
        tuners = {line.phase: line.tuner for line in self._lines.finest()}
        learnt = {phase: tuner.belief.learnt() for phase, tuner in tuners.items() if tuner.chosen or tuner.refused}
        chosen = {phase: tuner.answer or DEFAULT for phase, tuner in tuners.items()}
        # Of that setting: another one that was kept before says nothing of what was held in the end.
        verified = {phase: tuner.answer_verified for phase, tuner in tuners.items()}
        refused = {phase: tuner.refused for phase, tuner in tuners.items()}
        self._recall.keep(learnt, chosen, verified, proof, refused)


def _facts(summary: Summary) -> dict[str, Any]:
    return {
        "chosen": {phase: dict(setting) for phase, setting in summary.chosen.items()},
        "verified": dict(summary.verified),
        "rung": str(summary.rung),
        "ruler": summary.ruler,
        "notes": list(summary.notes),
        "switches": summary.switches,
    }
