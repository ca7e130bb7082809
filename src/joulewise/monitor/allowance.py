"""A budget that fills up with time, so that measuring cannot cost more than a share of a core however it is used."""

from __future__ import annotations


class Allowance:
    """A budget that refills with time: ``share`` seconds a second, at most ``most_s``."""

    def __init__(self, share: float, most_s: float, *, left_s: float, now_s: float) -> None:
        self._share, self._most_s, self._left_s, self._then_s = share, most_s, left_s, now_s

    def take(self, cost_s: float, now_s: float, *, leave: float = 0.0) -> bool:
        """Spend ``cost_s`` if the share ``leave`` of the whole remains; whether it was granted.

        What costs more than there can ever be is granted when the budget is full, and owed: a call that was late once
        on a loaded machine must not look too dear for good.
        """
        self._left_s = min(self._most_s, self._left_s + self._share * max(0.0, now_s - self._then_s))
        self._then_s = now_s
        if self._left_s < min(cost_s + leave * self._most_s, self._most_s):
            return False
        self._left_s -= cost_s
        return True
