"""The tuner of one job (one phase of it): which block to run next, and which setting to hold.

What it is: a deterministic fold of blocks. `JobTuner.ask` gives the next `Move`, `JobTuner.tell` takes the block that
came of it; the order of pairs and the times of proof windows are drawn from the seed. Why it exists: a job nobody
knows has to be tuned while it runs, so every second spent on learning is paid for by the job itself. What it is not:
a model (``model/dvfs`` believes), a test (``tune/guard`` judges), or a loop (``tune/online`` applies and measures).

The way of a job:

1. *baseline*: blocks with nothing set, until they are a good enough ruler for the bound.
2. *probe*: settings are probed as long as what one would teach is worth more than what it costs, by the belief's own
   account (``tune/choice``); one always, three at most.
3. *verify*: the setting of highest expected gain is compared with the baseline, in pairs of blocks of equal work whose
   order is drawn. It saves energy from its first block on. The belief learns from every pair, and a better setting may
   take its place: what was tried can be gone back to.
4. *hold*: the bound is one of the whole job. A setting that costs at most U in time, as far as is known, may be held
   for bound/U of the time, all of it if U is within the bound; the baseline blocks of the remainder are halves of
   further pairs, which make U smaller. Once the guard keeps it the setting is *verified*, and held with no more than
   the baseline windows that the proof draws; they notice a broken bound too. ``says`` tells which of the two it is.

A job that nothing helps is left alone: the default is held and nothing is tried. So is one whose pace is too unsteady
to judge, which goes on being measured, and is tuned when that changes. The time account (``tune/debt``) is in charge of
the whole job's slowdown: while it has no room left, the baseline runs every other block, and only what is likely within
the bound is tried; nothing new at all while the job is over its bound. A setting that is clearly over the bound is
given up after two windows. One under which nothing comparable can be measured, twice on end, is given up too; what was
waited for is charged.

When the law is refuted by what was measured, ``tune/search`` proposes neighbours of the best setting instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from joulewise.core.block import Block, Move, Role, Rung
from joulewise.core.decision import Decision, Expectation
from joulewise.core.event import Event, Seen, Shifted
from joulewise.core.frontier import Frontier
from joulewise.core.knob import DEFAULT, POWER_LIMIT_W, Setting
from joulewise.core.objective import MinEnergy, Objective, slowdown_bound
from joulewise.model.dvfs import Belief
from joulewise.tune.choice import LEAST_GAIN, Worth, best_probe
from joulewise.tune.coins import VOID, void_of
from joulewise.tune.guard import AlphaBudget, Debt, candidate_first, line_of
from joulewise.tune.hold import Hold
from joulewise.tune.lengths import LENGTHS, Length, Lengths, usual_s
from joulewise.tune.outlook import Outlook
from joulewise.tune.proof import PROOF_REASON, SHIFTS, Schedule
from joulewise.tune.trial import KNOWN_PAIRS, Ratio, Trial
from joulewise.tune.trials import Trials


class Stage(StrEnum):
    """How far a job's tuning is."""

    BASELINE = "baseline"
    PROBE = "probe"
    VERIFY = "verify"
    HOLD = "hold"
    ALONE = "left alone"


# A setting gives way to a better one only for this much more of the baseline's cost, beyond what the change costs.
HYSTERESIS = 0.003
# Pairs that it takes to see that another setting is not better …
TRY_PAIRS = 4
# … and that a trial takes, more or less: a margin of one standard deviation of a pair is decided in nine.
USUAL_PAIRS = 9
MOST_BASELINES = 3
MOST_PROBES = 3
# How much longer a job is thought to go on: as long as it has run (nothing else is known), and this long at least.
LEAST_AHEAD_S = 300.0
# Most blocks of a pair's length that a setting which is not verified is held for between two of its first pairs.
MOST_GAP = 40.0
# Pairs come one after another as long as about a dozen more look like enough for a verdict, and the half of them that
# is spent at the baseline is a small share of what is thought to lie ahead.
VERDICT_PAIRS = 12
NEAR = 0.03
# A setting is put on trial if it is within the bound with this chance at least, or with the other while the time
# account has no room; and given up below the last.
LEAST_CHANCE = 0.12
FAIR_CHANCE = 0.5
HOPELESS = 0.03
# … or if, after the pairs of a trial, it may still cost so many bounds: then pairs alone, half of them baseline, would
# break the bound.
MOST_OVER = 2.0
# What costs so many bounds by one standard error of the belief is not put on trial.
RASH = 8.0
# Moves on end without a block after which a setting is given up.
MOST_IN_VAIN = 2
# How long an unsteady job is measured on before it is left alone for good.
PATIENCE_S = 1800.0
# A pair of the greatest length may err by so many bounds: nine times as many pairs as one bound takes.
MOST_COARSE = 3.0
# While the time account has no room, how long until something new is thought of again.
NO_ROOM_S = 30.0
# Trials before the choice is left to those, until the job changes.
MOST_TRIALS = 12
# Pairs after which another setting is thought of: each doubling of the evidence, roughly.
_THINK = frozenset({KNOWN_PAIRS, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256})


class JobTuner:
    """Tunes one phase of one job. ``debt`` and ``budget`` are the whole job's, shared by the tuners of its phases.

    ``start`` is what an earlier run of the same work was best at: it is confirmed instead of probing.
    """

    def __init__(
        self,
        belief: Belief,
        objective: Objective | None = None,
        *,
        seed: int = 0,
        alpha: float = 0.05,
        proof_share: float = 0.02,
        proof_window_s: float = 2.0,
        phase: str = "",
        start: Setting | None = None,
        debt: Debt | None = None,
        budget: AlphaBudget | None = None,
        lengths: Lengths = LENGTHS,
    ) -> None:
        self.objective: Objective = objective if objective is not None else MinEnergy()
        self.bound = slowdown_bound(self.objective)
        self.phase = phase
        self.debt = debt or Debt(self.bound)
        self.stage = Stage.BASELINE
        self.chosen: Setting = DEFAULT
        """What the job runs at, measurements aside."""
        self.says = "measuring the baseline"
        self._seed = seed
        self.trials = Trials(self.objective, budget or AlphaBudget(alpha))
        self._start = start
        self._lengths = lengths
        schedule = Schedule(seed, proof_share, window_s=proof_window_s, phase=phase)
        self._hold = Hold(schedule, seed=seed, window=(lengths.pair[0], proof_window_s), chunk=lengths.hold)
        self._outlook = Outlook(belief, self.objective, seed=seed)
        self._probed: list[Setting] = []
        self._trial: Trial | None = None
        self._half: Block | None = None
        self._pending: Move | None = None
        self._worth: Worth | None = None
        self._clock_s = 0.0
        self._think_at_s = math.inf
        self._pair_at_s = math.inf  # when, while something unverified is held, the next pair falls due
        self._in_vain = 0  # moves on end, at one setting, that came to nothing
        self._unmeasured: set[str] = set()  # knobs under which nothing could be measured
        self._coarse = False  # left alone only until its pace can be judged
        self._renewing = False  # what was held is verified again after a small shift
        self.lost_thread = 0
        """Blocks of a replayed journal that another than the move asked for had led to."""

    @property
    def kept(self) -> Setting | None:
        """The best setting that the guard has kept; None before there is one."""
        return best.setting if (best := self.trials.best_kept(self._clock_s)) is not None else None

    @property
    def answer(self) -> Setting | None:
        """What the job runs best at, and a later run of the same work should begin with: what is held; while another
        setting is being compared, what one would go back to. None before there is one, or where nothing helps."""
        if self.holds:
            return self.chosen
        if self.stage is Stage.ALONE:
            return None
        return best.setting if (best := self.trials.fallback(self._clock_s)) is not None else None

    @property
    def belief(self) -> Belief:
        """What is believed of this job."""
        return self._outlook.belief

    @property
    def answer_verified(self) -> bool:
        """Whether the guard has kept that."""
        trial = self.trials.going(self.answer) if self.answer is not None else None
        return trial is not None and bool(trial.verdict.kept)

    @property
    def verified(self) -> bool:
        """Whether what is held was kept by the guard."""
        return self._trial is not None and bool(self._trial.verdict.kept)

    # Asking

    def ask(self) -> Move:
        """What to run next; the same until something is told."""
        if self._pending is None:
            self._pending = self._next()
        return self._pending

    def _next(self) -> Move:
        match self.stage:
            case Stage.BASELINE:
                return self._move(DEFAULT, Role.BASELINE, self._lengths.baseline, "the job as it runs by itself")
            case Stage.PROBE:
                return self._move(self.chosen, Role.PROBE, self._lengths.probe, self.says)
            case Stage.ALONE:
                return self._move(DEFAULT, Role.HOLD, self._lengths.hold, self.says)
            case Stage.HOLD if not self._pair_is_due:
                role, length = self._hold.next(self._outlook.unit_s)
                if role is Role.PROOF:
                    return self._move(DEFAULT, role, length, PROOF_REASON)
                return self._move(self.chosen, role, length, self.says)
            case _:
                return self._half_pair()

    def _half_pair(self) -> Move:
        trial = self._current
        if self._half is None:
            line = line_of(self.phase, self._outlook.baseline[-1].rung)
            candidate = candidate_first(self._seed, trial.number, trial.drawn, line)
        else:
            candidate = self._half.setting != trial.setting
        if candidate:
            return self._move(trial.setting, Role.CANDIDATE, self._pair_length, self.says)
        reason = f"the baseline, to compare {_named(trial.setting)} with"
        return self._move(DEFAULT, Role.REFERENCE, self._pair_length, reason)

    def _move(self, setting: Setting, role: Role, length: Length, reason: str) -> Move:
        work, least_s = length
        expected = Expectation()
        if self._worth is not None and setting in self._worth.settings:
            expected = Expectation(*self._worth.expected(self._worth.index(setting)))
        # Three times as long as a calm job needs, and a minute for evaluations and the like.
        usual_s = self._usual_s(length) if self._outlook.baseline else least_s
        return Move(Decision(setting, reason, expected), role, self.phase, work, least_s, 60.0 + 3.0 * usual_s)

    # Telling

    def tell(self, block: Block | None, *, waited_s: float = 0.0) -> None:
        """What came of the last move. None (nothing comparable was measured, in ``waited_s``) voids the pair that was
        under way."""
        move = self.ask()
        self._pending = None
        if block is None:
            self._missed(move, waited_s)
            return
        self._in_vain = 0
        self._account(block)
        self._clock_s += block.duration_s
        match move.role:
            case Role.BASELINE:
                self._outlook.add_baseline(block)
                self._after_baseline()
            case Role.PROBE:
                self._outlook.add_probe(block)
                self._probed.append(block.setting)
                self._look_around()
            case Role.CANDIDATE | Role.REFERENCE:
                self._half_told(block)
            case Role.HOLD | Role.PROOF:
                self._held(move.role, block)

    def _missed(self, move: Move, waited_s: float) -> None:
        setting = move.setting
        self._clock_s += waited_s
        if move.role in (Role.CANDIDATE, Role.REFERENCE):
            self._void_pair()
        elif move.role is Role.PROOF:
            self._hold.missed()
        else:
            self._hold.interrupted()
        if setting == DEFAULT:
            return
        slower = self._expected_slowdown(setting)
        self.debt.charge(waited_s * slower / (1.0 + slower))
        self._in_vain += 1
        if self._in_vain >= MOST_IN_VAIN:
            self._in_vain = 0
            self._unmeasured |= {POWER_LIMIT_W.name} & set(setting)  # slow to settle: its kind fails as a whole
            until_s = self.trials.shun(setting, self._clock_s)
            self._leave_alone(f"nothing comparable could be measured under {_named(setting)}")
            self._think_at_s = until_s

    def _void_pair(self) -> None:
        """The pair that is under way is no pair; its coin is used up."""
        self._half = None
        if self._trial is not None:
            self._trial.drawn += 1

    def _expected_slowdown(self, setting: Setting) -> float:
        """By its pairs, else as believed; the bound where nothing is known."""
        known = self.slowdown_of(setting)
        if known is None and self._worth is not None and setting in self._worth.settings:
            known = self._worth.expected(self._worth.index(setting))[0]
        if known is None:
            known = self.bound if math.isfinite(self.bound) else 0.0
        return max(0.0, known)

    def _account(self, block: Block) -> None:
        trial = self.trials.measured(block.setting)
        if trial is None:
            self.debt.tell(block)
        else:
            trial.spent(block.duration_s)
            slowdown, upper = trial.cost
            self.debt.tell(block, slowdown=slowdown, upper=upper)

    def _half_told(self, block: Block) -> None:
        trial = self._current
        if self._half is None:
            self._half = block
            return
        other, self._half = self._half, None
        trial.drawn += 1
        if self.stage is Stage.HOLD:
            self._hold.interrupted()
        self._pair_told(*((block, other) if block.setting == trial.setting else (other, block)))

    def _held(self, role: Role, block: Block) -> None:
        if self.stage is Stage.HOLD and (pair := self._hold.tell(role, block)) is not None:
            return self._pair_told(*pair)
        if self._coarse:
            return self._measured_on(block)
        if self._clock_s >= self._think_at_s and role is Role.HOLD:
            self._think_at_s = 1.5 * self._clock_s
            if self.stage is Stage.HOLD:
                self._gave_way(self._current)
                return None
            if self.trials.fallback(self._clock_s) is not None:
                return self._fall_back("to be held again")
            return self._choose(self.says) if self._probed or self.trials else self._look_around()
        return None

    def _pair_told(self, candidate: Block, reference: Block) -> None:
        trial = self._current
        trial.add(candidate, reference)
        self._outlook.add_pair(candidate, reference)
        self._after_pair(trial)

    # Deciding

    def _after_baseline(self) -> None:
        blocks, error = self._outlook.baseline, self._outlook.time_error
        if blocks[-1].rung is Rung.UNKNOWN:
            return self._leave_alone("nothing tells how fast this job goes, so no bound could be kept")
        wanted = 0.4 * self.bound if math.isfinite(self.bound) else 0.01
        if error > wanted and len(blocks) < MOST_BASELINES:
            return None
        if error > self.bound:
            return self._too_coarse()
        return self._begin()

    def _begin(self) -> None:
        if self._start:
            return self._try(self._start, "what this job was best at before, to be confirmed")
        return self._look_around()

    def _too_coarse(self) -> None:
        error, length_s = self._outlook.time_error, sum(block.duration_s for block in self._outlook.baseline)
        goes_on = length_s < PATIENCE_S
        on = "; measuring on" if goes_on else ""
        self._leave_alone(f"unit time errs by {error:.1%} over {length_s:.0f} s, too coarse for the bound{on}")
        self._coarse = goes_on

    def _measured_on(self, block: Block) -> None:
        """One more block of an unsteady job, nothing set: it costs nothing, and the job may have calmed down."""
        self._outlook.add_baseline(block)
        longest_s = 4.0 * self._usual_s(self._lengths.pair)
        pair_error = block.time_error * math.sqrt(2.0 * block.duration_s / longest_s)
        if self._outlook.time_error <= 0.5 * self.bound and pair_error <= MOST_COARSE * self.bound:
            self._coarse = False
            return self._begin()
        return self._too_coarse()

    def _look_around(self) -> None:
        """Probe once more, or choose."""
        worth = self._weigh()
        if worth is None:
            return self._leave_alone("there is nothing that could be set")
        if len(self._probed) < MOST_PROBES:
            probe = best_probe(
                worth,
                self._outlook.baseline[-1],
                self.bound,
                probed=[*self._probed, *self._out(worth)],
                probe_s=self._usual_s(self._lengths.probe),
                ahead_s=self._ahead_s,
            )
            if probe is not None:
                self.stage, self.chosen = Stage.PROBE, worth.settings[probe]
                self.says = f"{_named(self.chosen)} teaches most about the settings still open"
                return None
        return self._choose("no setting is expected to save anything worth having")

    def _choose(self, otherwise: str) -> None:
        """Put the best setting on trial; where none is worth it fall back, for the reason ``otherwise``."""
        worth = self._weigh()
        if worth is None or len(self.trials) >= MOST_TRIALS:
            return self._fall_back(otherwise)
        best = worth.best(without=self._out(worth), least_chance=self._least_chance)
        if best is not None and not self.debt.over:
            return self._try(worth.settings[best], self._promise(worth, best))
        if self.debt.room_s < 0:
            self._fall_back(f"{otherwise}; nothing new while the whole job is this close to its bound")
            self._think_at_s = min(self._think_at_s, self._clock_s + NO_ROOM_S)
            return None
        return self._fall_back(otherwise)

    @property
    def _least_chance(self) -> float:
        """Of being within the bound, for a setting that is to be tried."""
        return FAIR_CHANCE if self.debt.room_s < 0 else LEAST_CHANCE

    def _promise(self, worth: Worth, index: int) -> str:
        time, energy = worth.expected(index)
        bound = f", bound {self.bound:+.1%}, met with {worth.chance[index]:.0%}" if math.isfinite(self.bound) else ""
        return f"{energy:+.1%} energy at {time:+.1%} time expected{bound}"

    def _try(self, setting: Setting, why: str) -> None:
        self._half = None
        self._hold.interrupted()
        trial = self.trials.going(setting) or self.trials.begin(setting, self._believed(setting))
        return self._take(trial, why) if self._gap_s(trial) > 0 else self._verify(trial, why)

    def _believed(self, setting: Setting) -> tuple[Ratio, Ratio] | None:
        worth = self._worth
        return worth.believed(worth.index(setting)) if worth is not None and setting in worth.settings else None

    def _verify(self, trial: Trial, why: str) -> None:
        self._trial, self.chosen, self.stage, self.says = trial, trial.setting, Stage.VERIFY, why

    def _take(self, trial: Trial, why: str) -> None:
        if self.stage is not Stage.HOLD or trial is not self._trial:
            self._think_at_s = max(60.0, 1.5 * self._clock_s)
        self._trial, self.chosen, self.stage, self.says = trial, trial.setting, Stage.HOLD, why
        self._pair_at_s = self._clock_s + self._gap_s(trial)

    def _gap_s(self, trial: Trial) -> float:
        """How long to hold until the next pair, so that the baseline runs for what the bound does not leave to this
        setting. Not at all while its pairs are few, or a verdict near; for ever once it is verified."""
        if trial.verdict.kept:
            return math.inf
        if self._near_verdict(trial) or not trial.known_well:
            return 0.0
        baseline = 1.0 - self._share(trial)
        # Of a pair and ``gap`` blocks of its length one block is the baseline's.
        gap = 1.0 / baseline - 2.0 if baseline > 0 else math.inf
        # The more pairs there are, the less one more tells.
        return trial.pair_s * min(MOST_GAP * max(1.0, (trial.pairs / USUAL_PAIRS) ** 2), max(0.0, gap))

    def _near_verdict(self, trial: Trial) -> bool:
        to_go = trial.test.pairs_to_go()
        return to_go <= VERDICT_PAIRS and to_go * trial.pair_s <= NEAR * self._ahead_s

    def _share(self, trial: Trial) -> float:
        """How much of the time a setting may be held, as far as it is known."""
        return min(1.0, self.bound / trial.upper) if trial.upper > 0 else 1.0

    def _after_pair(self, trial: Trial) -> None:
        verdict = trial.verdict
        if verdict.kept is False:
            return self._refuse(trial, verdict.reason)
        if verdict.kept:
            if self.stage is Stage.VERIFY or not trial.settled:
                self._renewing = False
                self.trials.kept(trial)
                self._take(trial, f"verified: {verdict.reason}")
            return None
        hopeless = trial.pairs >= 6 and trial.chance < HOPELESS
        if hopeless or (trial.pairs >= VERDICT_PAIRS and trial.upper > MOST_OVER * self.bound):
            return self._refuse(trial, verdict.reason)
        if trial.pairs in _THINK and not self._near_verdict(trial) and self._gave_way(trial):
            return None
        if self.stage is Stage.HOLD or self._gap_s(trial) > 0:
            self._renewing = False
            share = self._share(trial)
            how = "held" if share >= 1 else f"held {share:.0%} of the time, which keeps the bound"
            self._take(trial, f"{how}, not verified: {trial.test.so_far}")
        return None

    def _gave_way(self, trial: Trial) -> bool:
        """Whether another setting took the place of the one on trial or held."""
        if trial.pairs >= 6 and trial.gain < 0.5 * LEAST_GAIN:
            self._refuse(trial, f"saves nothing: {trial.gain:+.1%} after {trial.pairs} pairs")
            return True
        worth = self._weigh()
        better = self._better(worth, trial) if worth is not None else None
        if worth is None or better is None:
            return False
        self._try(worth.settings[better], self._promise(worth, better))
        return True

    def _better(self, worth: Worth, trial: Trial) -> int | None:
        """The setting that should take the place of ``trial``'s, or None. One that is not known yet is worth what it
        may add, less what it costs to see whether it does."""
        here, value, more = worth.index(trial.setting), worth.value, worth.upside(worth.index(trial.setting))
        # Half of a trial's time is spent at the baseline, where nothing is saved.
        more -= float(value[here]) * TRY_PAIRS * self._usual_s(self._pair_length) / self._ahead_s
        known, out = self.trials.known(), self._out(worth)
        # Whoever leaves each setting before it is known chases noise.
        settled = trial.pairs >= VERDICT_PAIRS or trial.known[0][1] <= 0.5 * self.bound
        explores = settled and len(self.trials) < MOST_TRIALS
        for index, setting in enumerate(worth.settings):
            if setting in out or (setting not in known and not explores):
                more[index] = -math.inf
            elif setting in known:
                more[index] = value[index] - value[here]
        more[worth.chance < self._least_chance] = -math.inf
        best = int(more.argmax())
        return best if more[best] > HYSTERESIS else None

    def _refuse(self, trial: Trial, why: str) -> None:
        """Give a setting up, until there is twice as much to judge it by. One that was held until the job changed a
        little, and is not kept now, shows that it changed more than that: all is measured anew."""
        self.trials.give_up(trial, self._clock_s)
        why = f"{_named(trial.setting)} given up, {why}"
        if self._renewing:
            return self._anew(f"{why}; measuring the baseline anew")
        self._choose(why)
        if why not in self.says:  # the journal tells why it was left, then what comes instead
            self.says = f"{why}; {self.says}"
        return None

    def _fall_back(self, why: str) -> None:
        """To the best setting so far, or to the default."""
        best = self.trials.fallback(self._clock_s)
        if best is None:
            return self._leave_alone(why)
        return self._take(best, f"{best.verdict.reason}; {why}")

    def _leave_alone(self, why: str) -> None:
        said = why if why.startswith("left alone") else f"left alone: {why}"
        self._hold.interrupted()
        self._half, self._coarse = None, False
        self._trial, self.chosen, self.stage, self.says = None, DEFAULT, Stage.ALONE, said
        self._think_at_s = max(60.0, 2.0 * self._clock_s) if self._probed or self.trials else math.inf

    def refuse(self, setting: Setting, why: str) -> None:
        """Give ``setting`` up for something that its blocks do not show, if it is the one in use."""
        if self._trial is not None and self._trial.setting == setting:
            self._pending = self._half = None
            self._refuse(self._trial, why)

    @property
    def refused(self) -> list[Setting]:
        """Settings that were on trial and not kept, or no longer."""
        return self.trials.refused()

    def left_by(self, setting: Setting) -> float:
        """How much slower ``setting`` may still become: by the bound, as long as the time account, which is charged for
        it, has room; 0 where nothing is known of it."""
        return self.bound if self.trials.measured(setting) is not None and self.debt.room_s > 0 else 0.0

    @property
    def holds(self) -> bool:
        """Whether a setting is held, verified or not, rather than compared all the time."""
        return self.stage is Stage.HOLD

    def slowdown_of(self, setting: Setting) -> float | None:
        """What ``setting`` costs in time by its pairs; None before there are two."""
        trial = self.trials.measured(setting)
        return trial.slowdown[0] if trial is not None else None

    # Knowing

    @property
    def _current(self) -> Trial:
        if self._trial is None:
            raise RuntimeError(f"nothing is on trial: {self.says}")
        return self._trial

    def _usual_s(self, length: Length) -> float:
        return usual_s(length, self._outlook.unit_s)

    @property
    def _ahead_s(self) -> float:
        return max(self._clock_s, LEAST_AHEAD_S)

    @property
    def _pair_is_due(self) -> bool:
        """Whether, while holding, a pair comes next: one is under way, or, no window being near, the time account has
        no room left, or what is held waits to be verified."""
        if self._half is not None:
            return True
        return self._hold.calm and (self.debt.room_s < 0 or self._clock_s >= self._pair_at_s)

    @property
    def _pair_length(self) -> Length:
        """Long enough that a pair errs by half the bound at most, up to four times the least."""
        if not 0 < self.bound < math.inf:
            return self._lengths.pair
        return self._lengths.pair_for(self._pair_error, 0.5 * self.bound)

    @property
    def _pair_error(self) -> float:
        """What a pair of the least length errs by: as the pairs of this trial scatter, or as blocks claim, which is
        too much where they wander together."""
        pair_s = self._usual_s(self._lengths.pair)
        if self._trial is not None and self._trial.known_well:
            return self._trial.spread * math.sqrt(self._trial.pair_s / pair_s)
        base = self._outlook.baseline[-1]
        return min(base.time_error * math.sqrt(2.0 * base.duration_s / pair_s), 0.7 * self.bound)

    def _out(self, worth: Worth) -> set[Setting]:
        """Settings that are not to be tried."""
        blind = {setting for setting in worth.settings if self._unmeasured & set(setting)}
        rash = worth.settings_over(RASH * self.bound) - set(self.trials.known())
        return self.trials.out(worth, self._clock_s) | blind | rash

    def _weigh(self) -> Worth | None:
        tried = [trial.setting for trial in self.trials]
        also = [*tried, *self.trials.between(self.belief.space, self._clock_s)]
        self._worth = self._outlook.weigh(also, known=self.trials.known(), margin=self._margin)
        return self._worth

    @property
    def _margin(self) -> float:
        """How well a slowdown will be known, after the pairs of a trial and of some time of holding."""
        if not 0 < self.bound < math.inf:
            return 0.0
        pairs = USUAL_PAIRS + self._ahead_s / (MOST_GAP * self._usual_s(self._lengths.pair))
        return self._pair_error / math.sqrt(pairs)

    def frontier(self) -> Frontier[Setting]:
        """Time and energy of a unit of work under every setting worth considering, as believed now. ValueError before
        the first baseline block."""
        return self._outlook.frontier()

    # Changes and restarts

    def shift(self, kind: str) -> None:
        """The job changed: "small" has the chosen setting verified anew, anything else has the job tuned anew, with
        what is known of the card, and the load as it was for a hint."""
        self.debt.settle(self.phase)
        chosen = self.chosen
        self.interrupted()
        if kind == "small" and self._trial is not None:
            self._forget()
            self._renewing = True
            return self._try(chosen, "the job changed a little: to be verified again")
        if kind == "small" and self.stage is Stage.ALONE:
            self._forget()
            self._think_at_s = self._clock_s
            return None
        return self._anew("the job changed: measuring the baseline anew")

    def _forget(self) -> None:
        self.trials.forget()
        self._unmeasured.clear()

    def _anew(self, why: str) -> None:
        """Tune from the start, with what is known of the card, and the load as it was for a hint."""
        self._forget()
        self._outlook.renew()
        self._probed.clear()
        self._half, self._coarse, self._renewing = None, False, False
        self._trial, self._worth, self._start, self._think_at_s = None, None, None, math.inf
        self.chosen, self.stage, self.says = DEFAULT, Stage.BASELINE, why

    def interrupted(self) -> None:
        """Something else came between: what is under way is void, and the next block is nobody's neighbour."""
        self._pending = None
        if self._half is not None:
            self._void_pair()
        self._hold.interrupted()

    def replay(self, events: Iterable[Event]) -> Self:
        """Bring a fresh tuner to where the one was that ``events`` of its phase come from; the tuner itself."""
        for event in events:
            if isinstance(event, Seen) and event.block.phase == self.phase:
                self._replay(event)
            elif isinstance(event, Shifted) and event.phase == self.phase:
                if event.what in SHIFTS:
                    self.shift(event.what)
                elif event.what == VOID:
                    role, waited_s = void_of(event.says)
                    if role == self.ask().role:  # else of another ruler's tuner
                        self.tell(None, waited_s=waited_s)
        return self

    def _replay(self, seen: Seen) -> None:
        move = self.ask()
        if (move.role, move.setting) != (seen.role, seen.block.setting):
            if seen.role in (Role.CANDIDATE, Role.REFERENCE) and self._half is not None:
                self.interrupted()  # half of a pair whose other half came to nothing, and nothing told of that
                move = self.ask()
            if (move.role, move.setting) != (seen.role, seen.block.setting) and not self._follow(seen):
                self._account(seen.block)
                self._clock_s += seen.block.duration_s
                return
        self.tell(seen.block)

    def _follow(self, seen: Seen) -> bool:
        """Go where the journal went, though nothing that is known here leads there (another version wrote it, or what
        it knew beforehand is no longer known). Whether that is possible."""
        self.lost_thread += 1
        role, setting, why = seen.role, seen.block.setting, "as before the restart"
        self._pending = None
        if not self._outlook.baseline and role is not Role.BASELINE:
            return False
        match role:
            case Role.BASELINE:
                if self.stage is not Stage.BASELINE:
                    return False
            case Role.PROBE:
                self.chosen, self.stage, self.says = setting, Stage.PROBE, why
            case Role.CANDIDATE if self._trial is None or self._trial.setting != setting:
                self._try(setting, why)
            case Role.HOLD if setting == DEFAULT:
                self._leave_alone(why)
            case Role.HOLD if self.stage is not Stage.HOLD or self.chosen != setting:
                self._try(setting, why)
                self._take(self._current, why)
            case Role.REFERENCE | Role.PROOF if self._trial is None:
                return False
        length = self._lengths.pair
        self._pending = self._move(setting, role, length, why)
        return True


def _named(setting: Setting) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in setting.items()) or "the default"
