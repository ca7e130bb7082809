"""What an allocator works out from a job's ways, kept while the ways stay the same object.

Why it exists: a simulator decides a million times, a job's ways change a few times in its life. A belief returns the
same tuple while nothing changed, so identity is the key. It is a memory of pure work: it changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from joulewise.cluster.state import Kind, Way

T = TypeVar("T")

# As many jobs as a large cluster has at once; beyond it everything is worked out anew, which costs a second at most.
_MOST = 20_000


class ByWays(Generic[T]):
    """``make(ways, kinds)``, remembered by the identity of ``ways``; forgotten as a whole when the kinds change."""

    def __init__(self, make: Callable[[tuple[Way, ...], tuple[Kind, ...]], T]) -> None:
        self._make = make
        self._kinds: tuple[Kind, ...] = ()
        self._known: dict[int, tuple[tuple[Way, ...], T]] = {}

    def of(self, ways: tuple[Way, ...], kinds: tuple[Kind, ...]) -> T:
        """What ``make`` says of them."""
        if kinds is not self._kinds:
            if kinds != self._kinds or len(self._known) > _MOST:
                self._known.clear()
            self._kinds = kinds
        # The tuple is kept beside the result: while it lives here no other object can have its id.
        known = self._known.get(id(ways))
        if known is None:
            if len(self._known) > _MOST:
                self._known.clear()
            known = self._known[id(ways)] = (ways, self._make(ways, kinds))
        return known[1]
