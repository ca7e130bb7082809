"""Slack: GPUs of one synchronous job that wait for the slowest, and so may be slower without costing it anything.

A synchronous job has one step time, set by its slowest GPU; every other one waits at the barrier, at full clocks. Once
a common setting is held, GPUs whose own work is clearly less get a lower clock, and whether the job pays for that is
tested like everything else: pairs of blocks with and without, in an order drawn at random, through the same guard. The
straggler is never touched. A fold of readings and pairs; what is applied is ``tune/subject``'s.

How much a GPU works is told by its power above idle relative to the busiest one's: a GPU that spins at a barrier shows
full utilisation, but draws less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from joulewise.core.block import Block
from joulewise.core.knob import SM_MHZ, Setting, Space
from joulewise.core.measurement import Reading
from joulewise.tune.guard import AlphaBudget, SlowdownTest, candidate_first, compare

SHARE = 0.85
"""A GPU that draws less than this of the busiest one's power above idle has slack; equal work differs by 10 %."""
LEAST_READINGS = 100
"""Ten seconds of them before anybody is called idle."""
GIVE = 0.5
"""Of the slack, the share that is taken: the rest is for steps that are not like the mean."""
LEAST_CLOCK = 0.6
"""Of the common clock; below lies the uncore knee of some chips."""
PART = 0.25
"""Of the user's bound, what slack may cost at most, and no more than the common setting has left of it …"""
LEAST_PART = 0.05
"""… which must be so much at least: less is not shown by any number of pairs that is worth it."""
_MOST_PAIRS = 24
_TRIAL = 1_000_000  # pair numbers of slack, far from those of any tuner's trials


class Slack:
    """Finds GPUs with slack and tests what they may give. ``uuids`` in the sampler's order; the error of its tests
    comes out of the job's one ``budget``."""

    def __init__(self, uuids: Sequence[str], bound: float, budget: AlphaBudget, *, seed: int = 0) -> None:
        self._uuids = tuple(uuids)
        self._part = PART * bound if math.isfinite(bound) else 0.005
        self._budget, self._seed = budget, seed
        self._tests = 0  # so far: each has coins of its own
        self._above_w = [0.0] * len(self._uuids)
        self._readings = 0
        self._proposed: Mapping[str, Setting] | None = None
        self._test: SlowdownTest | None = None
        self._savings: list[float] = []
        self.kept: dict[Setting, Mapping[str, Setting]] = {}
        """Common setting → what single GPUs get instead, as verified; empty where nothing was gained."""
        self.says = ""

    def read(self, readings: Sequence[Reading | None], idle_w: Sequence[float | None]) -> None:
        """One look at all GPUs at about the same time, while the job works under one common setting."""
        powers = [reading.power_w if reading is not None else None for reading in readings]
        if len(powers) != len(self._uuids) or any(power is None for power in powers):
            return
        for i, (power, idle) in enumerate(zip(powers, idle_w, strict=True)):
            self._above_w[i] += max(0.0, (power or 0.0) - (idle or 0.0))
        self._readings += 1

    def shares(self) -> list[float]:
        """How much each GPU works, relative to the busiest."""
        most = max(self._above_w, default=0.0)
        return [above / most if most > 0 else 1.0 for above in self._above_w]

    def wants(self, setting: Setting, space: Space, left: float = math.inf) -> bool:
        """Whether a pair should be run under this common setting, which leaves a slowdown of ``left`` to the bound."""
        if len(self._uuids) < 2 or setting in self.kept or self._readings < LEAST_READINGS:
            return False
        if self._proposed is None:
            part = min(self._part, left)
            if part < LEAST_PART * self._part / PART:
                return False
            self._savings = []
            self._proposed = self._propose(setting, space)
            if not self._proposed:
                self.kept[setting] = {}
                self._proposed = None
                return False
            self._test = SlowdownTest(part, self._budget.grant(), most_pairs=_MOST_PAIRS)
            self._tests += 1
        return True

    def pair(self) -> tuple[Mapping[str, Setting], bool]:
        """What single GPUs get in the next pair, and whether that half comes first."""
        pairs = self._test.pairs if self._test is not None else 0
        return self._proposed or {}, candidate_first(self._seed, _TRIAL + self._tests, pairs)

    def tell(self, setting: Setting, slack: Block, plain: Block) -> None:
        """One pair: the job with slack taken, and without."""
        if self._test is None or self._proposed is None:
            return
        self._test.add(*compare(slack, plain))
        self._savings.append(math.log(slack.unit_j / plain.unit_j))
        verdict = self._test.verdict
        if verdict.kept is None:
            return
        if verdict.kept:
            self._budget.kept(self._test.alpha)
        saved = -sum(self._savings) / len(self._savings)
        keep = bool(verdict.kept) and saved > 0
        self.kept[setting] = self._proposed if keep else {}
        names = ", ".join(uuid[:8] for uuid in self._proposed)
        self.says = (
            f"{names} wait for others and run slower: {saved:.1%} less energy, {verdict.reason}"
            if keep
            else f"{names} seem to wait for others, but {'save nothing' if verdict.kept else verdict.reason}"
        )
        self._proposed = self._test = None

    def forget(self) -> None:
        """The job changed: whoever had slack may have none."""
        self._above_w = [0.0] * len(self._uuids)
        self._readings = 0
        self._proposed = self._test = None
        self.kept.clear()

    def _propose(self, setting: Setting, space: Space) -> Mapping[str, Setting]:
        clocks = space.knobs.get(SM_MHZ.name)
        if clocks is None:
            return {}
        common_mhz = setting.get(SM_MHZ.name, clocks.high)
        found = {}
        for uuid, share in zip(self._uuids, self.shares(), strict=True):
            if share < SHARE:
                mhz = clocks.at_most(common_mhz * max(LEAST_CLOCK, 1.0 - GIVE * (1.0 - share)))
                if mhz < common_mhz:
                    found[uuid] = setting.with_(sm_mhz=mhz)
        return found
