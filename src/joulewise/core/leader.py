"""Which of several optimisers' steps are the iterations of a training loop.

A GAN steps two optimisers in turn; a model in parts has one for each. Only one of them may be counted. The first one
leads; where it has not been seen for long, or is gone, the next one does. Used wherever optimiser steps are followed:
in hooks, and in coupling with a virtual GPU, which must agree. Plain Python, standard library only: it runs in users'
programs.
"""

from __future__ import annotations

import weakref
from typing import Any

MOST_WITHOUT_LEADER = 20
"""An adversarial pair takes turns, up to five steps of one to one of the other; after this many steps without the
leader, it has been replaced."""


class Leader:
    """Follows steps, and says whose count. For one thread."""

    def __init__(self) -> None:
        self._leader: weakref.ref[Any] = weakref.ref(self)
        self._since_leader = MOST_WITHOUT_LEADER

    def leads(self, one: Any) -> bool:
        """Told of a step of ``one``: whether it is an iteration."""
        if self._leader() is not one:
            self._since_leader += 1
            if self._since_leader <= MOST_WITHOUT_LEADER and self._leader() is not None:
                return False
            self._leader = weakref.ref(one)
        self._since_leader = 0
        return True
