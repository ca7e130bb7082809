"""Slack: GPUs of one synchronous job that wait for the slowest, and so may be slower without costing it anything.

A synchronous job has one step time, set by its slowest GPU; every other one waits at the barrier, at full clocks. Once
a common setting is held, GPUs whose own work is clearly less get a lower clock, and whether the job pays for that is
tested like everything else: pairs of held blocks with and without, one after the other in an order drawn at random,
through the same guard. All of them are held blocks like any other, to the tuner and in the journal, where
``Block.slack`` tells them apart. The straggler is never touched. A fold of readings and blocks; what is applied is
``tune/subject``'s.

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
LEFT = 3
"""Blocks that another setting is held for, on end, after which the one whose slack is on test counts as left."""


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
        self._proposed: Mapping[str, Setting] = {}
        self._test: SlowdownTest | None = None
        self._setting: Setting | None = None  # whose slack is on test
        self._drawn = 0  # pairs of this test whose order was drawn
        self._elsewhere = 0  # blocks on end that another setting was held for
        self._half: Block | None = None
        self._asked = False  # whether the block that is under way is half of a pair
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

    def next(
        self, setting: Setting, space: Space, left: float = math.inf, *, long: bool = True
    ) -> Mapping[str, Setting]:
        """What single GPUs get instead in the next block that is held at ``setting``, which leaves a slowdown of
        ``left`` to the bound. ``long`` blocks may be halves of a pair, with slack and without."""
        if setting in self.kept:
            self.interrupted()
            return self.kept[setting]
        if not long or not self._tests_at(setting, space, left):
            self.interrupted()
            return {}
        if self._half is not None:
            takes = not self._half.slack
        else:
            takes = candidate_first(self._seed, _TRIAL + self._tests, self._drawn)
            self._drawn += 1
        self._asked = True
        return self._proposed if takes else {}

    def interrupted(self) -> None:
        """Something else comes between, or nothing came of a half: the pair that was under way is none."""
        self._half, self._asked = None, False

    def held(self, block: Block) -> tuple[Block, Block] | None:
        """A block was held as ``next`` said; (with slack, without) when it completes a pair."""
        if not self._asked or self._test is None:
            return None
        self._asked = False
        if self._half is None:
            self._half = block
            return None
        first, self._half = self._half, None
        slack, plain = (first, block) if first.slack else (block, first)
        self._judge(self._test, slack, plain)
        return slack, plain

    def _tests_at(self, setting: Setting, space: Space, left: float) -> bool:
        """Whether slack is on test under this common setting; a test is begun where there is something to be tested."""
        if len(self._uuids) < 2 or self._readings < LEAST_READINGS:
            return False
        if self._test is not None:
            self._elsewhere = 0 if setting == self._setting else self._elsewhere + 1
            if self._elsewhere < LEFT:
                return setting == self._setting
        part = min(self._part, left)
        if part < LEAST_PART * self._part / PART:
            return False
        self._proposed = self._propose(setting, space)
        if not self._proposed:
            self.kept[setting] = {}
            return False
        self._test = SlowdownTest(part, self._budget.grant(), most_pairs=_MOST_PAIRS)
        self._setting, self._savings, self._drawn, self._elsewhere = setting, [], 0, 0
        self._tests += 1
        return True

    def _judge(self, test: SlowdownTest, slack: Block, plain: Block) -> None:
        """One pair: the job with slack taken, and without."""
        test.add(*compare(slack, plain))
        self._savings.append(math.log(slack.unit_j / plain.unit_j))
        verdict = test.verdict
        if verdict.kept is None:
            return
        if verdict.kept:
            self._budget.kept(test.alpha)
        saved = -sum(self._savings) / len(self._savings)
        keep = bool(verdict.kept) and saved > 0
        self.kept[plain.setting] = self._proposed if keep else {}
        names = ", ".join(uuid[:8] for uuid in self._proposed)
        self.says = (
            f"{names} wait for others and run slower: {saved:.1%} less energy, {verdict.reason}"
            if keep
            else f"{names} seem to wait for others, but {'save nothing' if verdict.kept else verdict.reason}"
        )
        self._proposed, self._test = {}, None

    def forget(self) -> None:
        """The job changed: whoever had slack may have none."""
        self._above_w = [0.0] * len(self._uuids)
        self._readings = 0
        self._proposed, self._test = {}, None
        self.interrupted()
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
