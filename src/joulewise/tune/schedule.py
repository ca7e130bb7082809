"""When baseline windows fall due: drawn from a seed that was journalled before, so that nobody chose where.

Held time is cut into stretches, each just long enough that one window is the promised share of it, and one window
begins at a uniformly drawn place of every stretch: each part of the job's life has some. Each phase has its own
schedule. What it is not: the comparison of windows with what was held around them (tune/proof).
"""

from __future__ import annotations

import random

from joulewise.core.block import Block, Role
from joulewise.core.knob import DEFAULT

PROOF_REASON = "a baseline window at a time drawn beforehand"
"""How the reason of every PROOF move begins: it is how ``verify`` knows that one was decided on and not seen."""


class Schedule:
    """When baseline windows fall due in one phase. A fold of held and proven blocks; the draws come from the seed.

    ``share`` of the held time at most goes into windows; ``window_s`` is how long the first is expected to be, later
    ones are as long as the last one was. ``due`` says that the next move is a PROOF; where the guard's coin wants the
    held half of the pair first, one HOLD block may come before it. Whatever else a tuner compares while it holds is a
    REFERENCE and a CANDIDATE, not a PROOF: only drawn windows prove. It is told every block; a PROOF that came to
    nothing is ``missed``.
    """

    def __init__(self, seed: int, share: float = 0.02, *, window_s: float = 2.0, phase: str = "") -> None:
        if not 0 < share < 1:
            raise ValueError(f"the share of baseline windows must be between 0 and 1, not {share}")
        if not window_s > 0:
            raise ValueError(f"a window must last, not {window_s} s")
        self.seed = seed
        self.share = share
        self.phase = phase
        self.held_s = 0.0
        """Seconds of clean work held or proven so far."""
        self.windows = 0
        """Windows drawn so far, missed ones included."""
        self.spent_s = 0.0
        """Seconds of clean work in windows."""
        self._last_s = window_s
        self._draw(0.0)

    def tell(self, role: Role, block: Block) -> None:
        """A block of this phase was seen; only HOLD of a setting and PROOF matter."""
        if role is Role.HOLD and block.setting != DEFAULT:
            self.held_s += block.duration_s
        elif role is Role.PROOF:
            self.held_s += block.duration_s
            self.spent_s += block.duration_s
            self._last_s = block.duration_s
            self._next()

    def missed(self) -> None:
        """The window that was due came to nothing; the next stretch begins."""
        self._next()

    def _next(self) -> None:
        self.windows += 1
        self._draw(max(self.held_s, self._end_s))

    def _draw(self, begin_s: float) -> None:
        # A stretch ends where all windows, the coming one included, are just ``share`` of the held time.
        self._end_s = max((self.spent_s + self._last_s) / self.share, begin_s + self._last_s)
        place = random.Random(f"proof {self.seed} {self.phase} {self.windows}").random()
        self.due_s = begin_s + place * (self._end_s - begin_s)

    @property
    def due(self) -> bool:
        """Whether a window is due now."""
        return self.held_s >= self.due_s

    @property
    def wait_s(self) -> float:
        """Seconds of holding until the next window is due; 0 when it is."""
        return max(0.0, self.due_s - self.held_s)
