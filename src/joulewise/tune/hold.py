"""Holding a setting: long blocks, and the baseline windows that the proof's schedule draws, paired with a neighbour.

What it is: a fold of HOLD and PROOF blocks that says which comes next, and hands out a pair (held, baseline) for the
guard whenever a window has been seen. Why the pairs are as good as those of a trial: a window's place is uniform in
its stretch, blocks of its own length are held right before and right after it, and a fair coin says which of the two it
is compared with. Of any two adjacent places, "window first, compared with the one after" and "window second, compared
with the one before" are thus equally likely, whatever the noise there: the order within the pair is a fair draw. Where
either neighbour is missing there is no pair, whatever the coin says; so that this is rare, a window that falls due in
the middle of a long block waits for one short one.
What it is not: the estimate of the saving (``tune/proof``), which uses the same windows.
"""

from __future__ import annotations

import random

from joulewise.core.block import Block, Role
from joulewise.tune.lengths import Length
from joulewise.tune.proof import Schedule


class Hold:
    """Says how to go on holding. ``chunk`` is how long blocks are that nothing is compared with."""

    def __init__(self, schedule: Schedule, *, seed: int, window: Length, chunk: Length) -> None:
        self.schedule = schedule
        self.window = window
        self.chunk = chunk
        self._seed = seed
        self._before: Block | None = None
        self._window: Block | None = None
        self._short = False

    def next(self, unit_s: float) -> tuple[Role, Length]:
        """What to run next, HOLD or PROOF, for a job whose unit of work takes about ``unit_s``."""
        window_s = max(self.window[1], self.window[0] * unit_s)
        wait_s = self.schedule.wait_s
        self._short = False
        if self.schedule.due and self._window is None and self._before is not None:
            return Role.PROOF, self.window
        if self._window is not None or wait_s <= 1.5 * window_s:
            self._short = True
            return Role.HOLD, self.window
        left_s = wait_s - window_s
        work, least_s = self.chunk
        if left_s < max(least_s, work * unit_s):
            return Role.HOLD, (1.0, left_s)
        return Role.HOLD, self.chunk

    def tell(self, role: Role, block: Block) -> tuple[Block, Block] | None:
        """A block was seen; (held, baseline) when it completes a pair."""
        self.schedule.tell(role, block)
        if role is Role.PROOF:
            self._window = block
            return None
        pair = None
        if self._window is not None:
            if self._before is not None:
                pair = (self._before if self._coin() else block, self._window)
            self._window = None
        self._before = block if self._short else None
        return pair

    @property
    def calm(self) -> bool:
        """Whether no window is due or waits for its second neighbour: something else may come between."""
        return self._window is None and not self.schedule.due

    def missed(self) -> None:
        """The window that was due came to nothing."""
        self.schedule.missed()

    def interrupted(self) -> None:
        """Another setting was tried in between: blocks on the two sides are no neighbours."""
        self._window = self._before = None

    def _coin(self) -> bool:
        schedule = self.schedule
        return random.Random(f"side {self._seed} {schedule.phase} {schedule.windows}").random() < 0.5
