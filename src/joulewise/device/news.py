"""Things that happen to a virtual GPU, some of them known only later.

A process wrote a limit 3 ms ago, or came back with its next work 2 ms ago, and the simulator wakes only now. Then the
board takes its last moments back, lets the news happen when it happened, and lives them again: a late wake-up
loses neither time nor energy. What instruments have shown meanwhile stays shown.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from joulewise.device.state import State

if TYPE_CHECKING:
    from joulewise.device.board import Board

_CHECKPOINTS = 64  # within the time that may be taken back, so that little is lived again without need


class News:
    """Changes of one board, in the order in which they happened.

    ``rewind_s`` is how far back news may happen; what is older happens at the earliest moment that is remembered,
    and with 0 everything happens at the board's present.
    """

    def __init__(self, board: Board, rewind_s: float) -> None:
        self._board = board
        self._rewind_s = rewind_s
        self._order = itertools.count()
        self._log: list[tuple[float, int, Callable[[State], None]]] = []
        self._checkpoints: list[State] = []
        self.start_over()

    def start_over(self) -> None:
        """Nothing before the present can be taken back any more."""
        self._log.clear()
        self._checkpoints = [replace(self._board.state)]

    def happen(self, at_s: float, change: Callable[[State], None], *, unfelt: bool = False) -> None:
        """Let ``change`` happen at ``at_s``, be that now, soon or a moment ago.

        ``unfelt`` says that everything up to the present is the same with it and without it, as with work that queues
        behind work: then nothing is lived again, which on a busy machine would cost more and more.
        """
        board = self._board
        now_s = board.time_s
        late = at_s < now_s and self._rewind_s > 0
        if not late or unfelt:
            self._apply(at_s, change)
        if self._rewind_s > 0:
            at_s = max(at_s, self._checkpoints[0].time_s)
            insort(self._log, (at_s, next(self._order), change), key=lambda news: news[:2])
        if late and unfelt:
            self._forget_after(at_s)
        elif late:
            self._live_again(at_s, now_s)

    def boundary(self) -> None:
        """The board stands between two stretches: time for a checkpoint, and to forget what is too old."""
        state = self._board.state
        if self._rewind_s <= 0:
            self._board.forget_before(state)
            return
        # News of this very moment would be lived twice if the checkpoint already held it.
        fresh = not self._log or self._log[-1][0] < state.time_s
        if not fresh or state.time_s - self._checkpoints[-1].time_s < self._rewind_s / _CHECKPOINTS:
            return
        self._checkpoints.append(replace(state))
        while len(self._checkpoints) > 1 and self._checkpoints[1].time_s <= state.time_s - self._rewind_s:
            del self._checkpoints[0]
        oldest = self._checkpoints[0]
        while self._log and self._log[0][0] < oldest.time_s:
            del self._log[0]
        self._board.forget_before(oldest)

    def _apply(self, at_s: float, change: Callable[[State], None]) -> None:
        self._board.advance(at_s)
        change(self._board.state)

    def _live_again(self, from_s: float, until_s: float) -> None:
        """Go back to the last checkpoint before ``from_s``, and live from there with all the news."""
        self._forget_after(from_s)
        since = self._checkpoints[-1]
        self._board.restore(since)
        for at_s, _, change in [news for news in self._log if news[0] >= since.time_s]:
            self._apply(at_s, change)
        self._board.advance(until_s)

    def _forget_after(self, time_s: float) -> None:
        """Checkpoints after ``time_s`` know nothing of what happened then."""
        while self._checkpoints[-1].time_s > time_s:
            self._checkpoints.pop()
