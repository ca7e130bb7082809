"""What processes before this daemon still owe: given back when it starts, and listed for as long as that fails.

A lease that ends while we live is ``tenure``'s; this is about those whose process died without us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from joulewise.core.errors import LeaseTaken, NotSaved
from joulewise.daemon.audit import Audit
from joulewise.daemon.book import Book, Owed
from joulewise.daemon.gather import Gather
from joulewise.daemon.station import Station
from joulewise.daemon.tenure import RETRY_FIRST_S, RETRY_MOST_S
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Restored
from joulewise.device.saved_lines import Entry

Given: TypeAlias = tuple[Restored, ...]
_Replayed: TypeAlias = tuple[Given, tuple[Entry, ...]]
"""How everything came back, and what is still owed."""


class Debts:
    """Gives back. ``later`` does something in so many wall seconds."""

    def __init__(
        self,
        stations: Mapping[str, Station],
        book: Book,
        audit: Audit,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._stations = stations
        self._book = book
        self._audit = audit
        self._later = later

    def owe(self, gpu: str, entries: Iterable[Entry], why: str) -> None:
        """This is left on ``gpu``; listed until it is given back."""
        self._book.owed[gpu] = Owed(tuple(entries), why)

    def settle(self, gpu: str, retry_s: float = RETRY_FIRST_S) -> None:
        """Give back what is owed on one GPU; tried again for as long as that fails."""

        def tried(given: Given | None) -> None:
            if given is None or any(each.ending is Ending.FAILED for each in given):
                self._later(retry_s, lambda: self.settle(gpu, min(2 * retry_s, RETRY_MOST_S)))

        self._try(gpu, tried)

    def try_all(self) -> None:
        """Try once more, now."""
        for gpu in tuple(self._book.owed):
            self._try(gpu, lambda _: None)

    def try_lease(self, name: str, then: Callable[[Given], None]) -> None:
        """Try once more, now, where a lease of before has left something; ``then`` with how that went."""
        gpus = [gpu for gpu, owed in self._book.owed.items() if name in owed.listed(gpu)]
        if not gpus:
            then(())
            return

        def tried(results: dict[str, Any], _: object) -> None:
            then(tuple(each for given in results.values() for each in given))

        gather = Gather(gpus, tried)
        for gpu in gpus:
            slot = gather.slot(gpu)
            self._try(gpu, lambda given, gpu=gpu, slot=slot: slot(self._failed(gpu) if given is None else given, None))  # type: ignore[misc]

    def _try(self, gpu: str, then: Callable[[Given | None], None]) -> None:
        """``then`` with how it went, None if the GPU could not be asked or has not answered in time.

        What comes back later is noted all the same, but ``then`` has been told once, and that is all it is told.
        """

        def noted(result: _Replayed | None, error: Exception | None) -> Given | None:
            if result is None:
                if isinstance(error, LeaseTaken):  # it is in the hands of a living process, which gives it back
                    self._book.owed.pop(gpu, None)
                elif isinstance(error, NotSaved) and error.owed:
                    before = self._book.owed.get(gpu)
                    self.owe(gpu, () if before is None else before.entries, str(error))
                    if before is None or before.why != str(error):
                        self._audit.write(op="replay", gpu=gpu, result=Ending.FAILED.value, why=str(error))
                return None
            given, entries = result
            why = next((each.why for each in given if each.ending is Ending.FAILED), None)
            before = self._book.owed.pop(gpu, None)
            if why is not None:
                self.owe(gpu, entries, why)
            if why is None or before is None or before.why != why:  # the same failure again is no news
                for each in given:
                    self._audit.write(
                        op="replay", gpu=each.gpu, knob=each.knob, before=each.wrote, after=each.after,
                        result=each.ending.value, why=each.why or "a process before this one still owed it",
                    )  # fmt: skip
            return given

        def tried(result: _Replayed | None, error: Exception | None) -> None:
            then(noted(result, error))

        def late(result: _Replayed | None, error: Exception | None) -> None:
            noted(result, error)

        station = self._stations.get(gpu)
        if station is None or station.health == "stalled":
            then(None)
        else:
            station.call(_replay, tried, late=late)

    def _failed(self, gpu: str) -> Given:
        owed = self._book.owed.get(gpu)
        if owed is not None and not owed.entries:
            return (Restored(gpu, "*", Ending.FAILED, None, None, None, owed.why),)
        return () if owed is None else tuple(
            Restored(gpu, each.knob, Ending.FAILED, each.before, each.wrote[-1] if each.wrote else None, None, owed.why)
            for each in owed.entries
        )  # fmt: skip


def _replay(keeper: Keeper) -> _Replayed:
    """In a worker: how everything came back, and what is still owed."""
    given = keeper.replay()
    owed = (keeper.saved.entries.get(each.knob) for each in given if each.ending is Ending.FAILED)
    return given, tuple(entry for entry in owed if entry is not None)
