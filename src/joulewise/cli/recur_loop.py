"""One recurrence of a job: trials, each asked for and told, until one reaches the target.

The tuner says which batch size comes next, and falls back to a safe one by itself after a trial that did not get there.
Here is only when to give up: a target that no metric has, a command that cannot run, a default that does not converge.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from joulewise.cli.recur_terms import Rate, filled
from joulewise.cli.recur_trial import Ended, Terms, tried
from joulewise.cli.recur_views import counted
from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Asked
from joulewise.core.measurement import Outcome
from joulewise.core.series import Platform
from joulewise.device.gpu import Gpu
from joulewise.tune.desk import SeriesDesk
from joulewise.tune.series import CRASHED

MOST_TRIALS = 5
"""In one recurrence. The second is a safe one as a rule; more are crashes and bad luck."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was asked for, what ran, how it ended."""

    asked: Asked
    command: tuple[str, ...]
    ended: Ended


@dataclass(slots=True)
class Recurrence:
    """What became of one submission of the job."""

    name: str
    trials: list[Trial] = field(default_factory=list)
    error: str | None = None
    """Why the target was not reached, in one line; None where it was."""
    exit_code: int = 0
    unkept: str | None = None
    """Why something that was learnt is not kept."""

    @property
    def reached(self) -> Trial | None:
        """The trial that reached the target."""
        return next((trial for trial in self.trials if trial.ended.outcome is Outcome.REACHED), None)

    @property
    def duration_s(self) -> float:
        """Of all trials."""
        return sum(trial.ended.duration_s for trial in self.trials)

    @property
    def energy_j(self) -> float:
        """Of all trials, as far as it could be read."""
        return sum(trial.ended.energy_j or 0.0 for trial in self.trials)


def platform_of(gpus: Sequence[Gpu]) -> Platform:
    """What a job that uses all of ``gpus`` runs on."""
    names = dict.fromkeys(gpu.info.name for gpu in gpus)
    limits = []
    for gpu in gpus:
        knob = gpu.info.space.knobs.get("power_limit_w")
        limits.append(knob.high if knob is not None else gpu.info.default_limit_w)
    known = [limit for limit in limits if limit is not None]
    return Platform(" + ".join(names), len(gpus), sum(known) if len(known) == len(gpus) else 0.0)


def recurred(
    name: str,
    command: Sequence[str],
    rate: Rate | None,
    terms: Terms,
    desk: SeriesDesk,
    platform: Platform,
    say: Callable[[str], None],
) -> Recurrence:
    """Run trials of the registered job until one reaches its target. OSError where the command cannot be started;
    NotKept or BadSpec where no first trial can be had. ``desk`` must not raise while one runs (``Steady``)."""
    recurrence, job = Recurrence(name), terms.job
    owner = f"{socket.gethostname()}:{os.getpid()}"
    mine = secrets.token_hex(4)  # a key is this process's own: asking anew under it, over a wire, gives the same trial
    for number in range(MOST_TRIALS):
        try:
            asked = desk.ask(name, platform, owner, f"{name}/{mine}/{number}")
        except (BadSpec, NotKept) as error:
            if not recurrence.trials:
                raise
            recurrence.error = str(error)
            recurrence.exit_code = recurrence.trials[-1].ended.exit_code or 1
            break
        if recurrence.trials:
            before = recurrence.trials[-1]
            say(f"{job.name}: {in_short(before.asked, before.ended)}; another trial follows")
        filled_in = filled(command, asked.batch_size, job.max_epochs, rate)
        ended = _ran(asked, filled_in, terms, desk)
        recurrence.trials.append(Trial(asked, tuple(filled_in), ended))
        desk.tell(
            asked.trial,
            outcome=ended.outcome,
            epochs=ended.epochs,
            duration_s=ended.duration_s,
            energy_j=ended.energy_j or 0.0,
            profile=ended.profile,
            notes=ended.notes,
        )
        recurrence.unkept = desk.trouble
        if _over(recurrence, terms, desk):
            break
    else:
        recurrence.error = f"the target {terms.target} was not reached in {MOST_TRIALS} trials"
        recurrence.exit_code = 1
    return recurrence


def _ran(asked: Asked, command: list[str], terms: Terms, desk: SeriesDesk) -> Ended:
    try:
        return tried(asked, command, terms, desk)
    except BaseException:
        # It never ran: what was handed out is handed back.
        desk.tell(asked.trial, outcome=Outcome.PREEMPTED, epochs=0, duration_s=0.0, energy_j=0.0, notes=("never ran",))
        raise


def _over(recurrence: Recurrence, terms: Terms, desk: SeriesDesk) -> bool:
    """Whether the recurrence ends with its last trial; says why and how, unless the target was reached."""
    trial = recurrence.trials[-1]
    asked, ended = trial.asked, trial.ended
    if ended.outcome is Outcome.REACHED:
        return True
    if ended.hopeless is not None:
        recurrence.error = ended.hopeless
        recurrence.exit_code = ended.exit_code if CRASHED in ended.notes and ended.exit_code else 2
        return True
    if ended.outcome is Outcome.PREEMPTED and ended.exit_code:
        recurrence.error = "it was stopped before it had reached its target"
        recurrence.exit_code = ended.exit_code
        return True
    if ended.outcome is Outcome.FAILED and CRASHED not in ended.notes and asked.batch_size == terms.job.default:
        if any(each.told is not None and each.told.outcome is Outcome.REACHED for each in desk.history()):
            return False  # bad luck: it, or another, has got there before
        best = "was never a number" if ended.value is None else f"came to {ended.value:g} at best"
        recurrence.error = (
            f"{terms.target.name} {best} in {ended.epochs} epochs at the default batch size {asked.batch_size}, the "
            f"target is {terms.target}; no batch size has reached it yet: lower it, or raise --max-epochs"
        )
        recurrence.exit_code = 1
        return True
    return False


_WORDS = {
    Outcome.STOPPED_EARLY: "stopped",
    Outcome.FAILED: "failed",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.PREEMPTED: "was killed",
    Outcome.REACHED: "reached the target",
}


def in_short(asked: Asked, ended: Ended) -> str:
    """``"batch size 256 stopped after 3 epochs (it cannot win any more: another batch size is cheaper)"``."""
    what = f"{CRASHED} with exit code {ended.exit_code}" if CRASHED in ended.notes else _WORDS[ended.outcome]
    why = "; ".join(note for note in ended.notes if note != CRASHED)
    return f"batch size {asked.batch_size} {what} after {counted(ended.epochs, 'epoch')}" + (f" ({why})" if why else "")
