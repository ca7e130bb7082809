"""The candidates of one job so far: which were kept, which were given up and for how long, what to fall back on.

What it is: a list with an error budget. What it is not: a choice of the next one (``tune/job``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from joulewise.core.knob import Setting, Space
from joulewise.core.objective import Objective
from joulewise.tune.choice import LEAST_GAIN, Worth
from joulewise.tune.guard import AlphaBudget
from joulewise.tune.trial import Ratio, Trial

# How long a setting that was given up is not thought of again, at least; else until there is twice as much to judge by.
LEAST_SHUNNED_S = 60.0


class Trials:
    """The trials of one job, in the order of their beginning; ``budget`` shares its error out among them."""

    def __init__(self, objective: Objective, budget: AlphaBudget) -> None:
        self._objective = objective
        self._budget = budget
        self._each: list[Trial] = []
        self._until_s: dict[Setting, float] = {}
        self._begun = 0  # those before a shift included

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._each)

    def __len__(self) -> int:
        return len(self._each)

    def __getitem__(self, index: int) -> Trial:
        return self._each[index]

    def begin(self, setting: Setting, prior: tuple[Ratio, Ratio] | None) -> Trial:
        """A new trial, of what is believed (``prior``: ln of time and of energy, with errors)."""
        trial = Trial(setting, self._begun, self._budget.grant(), self._objective, prior)
        self._begun += 1
        self._each.append(trial)
        return trial

    def kept(self, trial: Trial) -> None:
        """The guard has kept it: its error may be granted again, once."""
        if not trial.settled:
            trial.settled = True
            self._budget.kept(trial.alpha)

    def going(self, setting: Setting) -> Trial | None:
        """The trial of a setting that is kept, or not decided yet."""
        return next((t for t in self._each if t.setting == setting and t.verdict.kept is not False), None)

    def measured(self, setting: Setting) -> Trial | None:
        """The last trial of a setting that has two pairs at least."""
        return next((t for t in reversed(self._each) if t.setting == setting and t.pairs >= 2), None)

    def give_up(self, trial: Trial, clock_s: float) -> None:
        """Until there is twice as much to judge it by."""
        trial.given_up = True
        self.shun(trial.setting, clock_s)

    def shun(self, setting: Setting, clock_s: float) -> float:
        """Not to think of a setting for a while; until when."""
        until_s = self._until_s[setting] = max(LEAST_SHUNNED_S, 2.0 * clock_s)
        return until_s

    def best_kept(self, clock_s: float) -> Trial | None:
        """Of those that the guard has kept, the one that gains most."""
        kept = (t for t in self._each if t.verdict.kept and self._until_s.get(t.setting, 0.0) <= clock_s)
        return max(kept, key=lambda trial: trial.gain, default=None)

    def fallback(self, clock_s: float) -> Trial | None:
        """What to go back to: the best that is kept, else the best of those that nothing speaks against."""
        open_ = (t for t in self._each if t.verdict.kept is None and t.known_well and t.gain > 0.5 * LEAST_GAIN)
        return self.best_kept(clock_s) or max(open_, key=lambda trial: trial.gain, default=None)

    def known(self) -> dict[Setting, tuple[Ratio, Ratio]]:
        """What pairs say of settings that there are enough of: it overrules what is believed of them."""
        return {trial.setting: trial.known for trial in self._each if trial.known_well}

    def out(self, worth: Worth, clock_s: float) -> set[Setting]:
        """Settings that are not to be tried: those given up, and what is believed to be slower than they."""
        shunned = {setting for setting, until_s in self._until_s.items() if until_s > clock_s}
        slowdown = dict(zip(worth.settings, worth.slowdown.tolist(), strict=True))
        limit = min((slowdown[setting] for setting in shunned if setting in slowdown), default=math.inf)
        return shunned | {setting for setting in worth.settings if slowdown[setting] >= limit}

    def between(self, space: Space, clock_s: float) -> list[Setting]:
        """Half way from the setting that is held or kept best to the others: beliefs propose in coarser notches."""
        best = self.fallback(clock_s)
        if best is None:
            return []
        others = [
            trial.setting for trial in self._each if trial is not best and set(trial.setting) == set(best.setting)
        ]
        return [
            space.snap(Setting(**{name: 0.5 * (value + other[name]) for name, value in best.setting.items()}))
            for other in others
        ]

    def refused(self) -> list[Setting]:
        """Settings that were on trial and not kept, or no longer."""
        return [trial.setting for trial in self._each if trial.verdict.kept is False]

    def forget(self) -> None:
        """The job changed: nothing of this is true any more."""
        self._each.clear()
        self._until_s.clear()
