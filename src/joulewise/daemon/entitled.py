"""Who is entitled to what, now and still: ``rights`` asked with what the kernel, the grants and the GPUs say.

A right may rest on which processes run on a GPU. Finding out costs milliseconds, so it is done in the GPU's own
thread, only where the answer depends on it, and again from time to time while a lease rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from joulewise.core.errors import GpuStalled, JoulewiseError, NotNow, NotPermitted
from joulewise.daemon import rights
from joulewise.daemon.book import Book, Client, Held, Stage
from joulewise.daemon.gather import Gather
from joulewise.daemon.grants import Grants
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import Allowed, Asking, NeedsLook, Seen
from joulewise.daemon.station import Station
from joulewise.daemon.tenure import Tenure

_AFTER_S: Final = 0.001
"""So that a grant has ended for sure when it is looked at: clocks are read in microseconds."""


class Entitled:
    """Asks for rights, and ends leases whose right has gone. ``policy`` may be exchanged at any time."""

    def __init__(
        self,
        stations: Mapping[str, Station],
        book: Book,
        grants: Grants,
        policy: Policy,
        tenure: Tenure,
        later: Callable[[float, Callable[[], None]], object],
        unix: Callable[[], float],
    ) -> None:
        """``later`` does something in so many wall seconds; ``unix`` is the calendar's clock, which grants go by."""
        self.policy = policy
        self._stations = stations
        self._book = book
        self._grants = grants
        self._tenure = tenure
        self._later = later
        self._unix = unix
        self._ends: set[float] = set()
        """Ends of grants at which somebody will look."""

    def decide(
        self,
        client: Client,
        gpus: tuple[str, ...],
        knobs: frozenset[str],
        then: Callable[[dict[str, Allowed]], None],
        refuse: Callable[[Exception], None],
    ) -> None:
        """``then`` with what ``client`` may do with ``knobs`` on each of ``gpus``, at once or after a look at them.

        ``refuse`` with what stands against it, if that is found by a look; what can be told without one is raised:
        NotPermitted, Unsupported, and GpuStalled where nobody can look.
        """
        cgroups = client.cgroups()
        allowed: dict[str, Allowed] = {}
        to_see = []
        for gpu in gpus:
            try:
                allowed[gpu] = self._ask(client, cgroups, gpu, knobs, None)
            except NeedsLook:
                to_see.append(gpu)
        if not to_see:
            then(allowed)
            return

        def looked(seen: dict[str, Any], errors: dict[str, Exception]) -> None:
            try:
                if errors:
                    raise next(iter(errors.values()))
                found = {gpu: self._ask(client, cgroups, gpu, knobs, seen.get(gpu)) for gpu in gpus}
            except NeedsLook as error:  # a grant has gone just now
                refuse(NotNow(f"the rights on {error} have just changed; ask again", retry_s=0.1))
                return
            except Exception as error:
                refuse(error)
                return
            then(found)

        gather = Gather(to_see, looked)
        for gpu in to_see:
            station = self._stations[gpu]
            station.join("who", station.look_who, gather.slot(gpu))

    def perhaps(self, client: Client, gpus: tuple[str, ...]) -> frozenset[str]:
        """One knob that ``client`` may set on all of ``gpus``, as far as can be told without a look.

        NotPermitted if there is none.
        """
        cgroups = client.cgroups()
        common = frozenset.intersection(*(frozenset(self._stations[gpu].space.knobs) for gpu in gpus))
        refused: Exception = NotPermitted(f"{', '.join(gpus)} have no knob in common that could be set; name one GPU")
        for knob in sorted(common):
            try:
                for gpu in gpus:
                    self._ask(client, cgroups, gpu, frozenset({knob}), None)
            except NeedsLook:
                pass
            except NotPermitted as error:
                refused = error
                continue
            return frozenset({knob})
        raise refused

    def may(self, client: Client, gpus: tuple[str, ...], then: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        """``then`` with what ``client`` may set on each of ``gpus``, each knob by itself: ``knobs`` (knob → [lowest,
        highest]) and ``because``, or ``why`` there is none. By the same decision as ``decide``."""
        cgroups = client.cgroups()

        def told(seen: dict[str, Any], errors: dict[str, Exception]) -> None:
            then({gpu: self._may(client, cgroups, gpu, seen.get(gpu), errors.get(gpu)) for gpu in gpus})

        to_see = [gpu for gpu in gpus if self._depends(client, cgroups, gpu)]
        if not to_see:
            told({}, {})
            return
        gather = Gather(to_see, told)
        for gpu in to_see:
            station = self._stations[gpu]
            try:
                station.join("who", station.look_who, gather.slot(gpu))
            except GpuStalled as error:
                gather.slot(gpu)(None, error)

    def _depends(self, client: Client, cgroups: tuple[str, ...], gpu: str) -> bool:
        """Whether what ``client`` may set on ``gpu`` depends on who runs there."""
        for knob in self._stations[gpu].space.knobs:
            try:
                self._ask(client, cgroups, gpu, frozenset({knob}), None)
            except NeedsLook:
                return True
            except NotPermitted:
                continue
        return False

    def _may(
        self, client: Client, cgroups: tuple[str, ...], gpu: str, seen: Seen | None, error: Exception | None
    ) -> dict[str, Any]:
        knobs: dict[str, list[float]] = {}
        because: dict[str, None] = {}
        why: list[str] = []
        for knob in self._stations[gpu].space.knobs:
            try:
                allowed = self._ask(client, cgroups, gpu, frozenset({knob}), seen)
            except NotPermitted as refused:
                why.append(str(refused))
            except NeedsLook:
                why.append(str(error or "the rights have just changed; ask again"))
            else:
                knobs[knob] = list(allowed.ranges[knob])
                because[allowed.because] = None
        if knobs:
            return {"knobs": knobs, "because": ", ".join(because)}
        return {"why": why[0] if why else "it has no knob that could be set"}

    def watch(self, allowed: Mapping[str, Allowed]) -> None:
        """Look at the leases again when the first of the grants that ``allowed`` rests on ends."""
        ends = [each.until_unix_s for each in allowed.values() if each.until_unix_s is not None]
        if not ends or min(ends) in self._ends:
            return
        end = min(ends)
        self._ends.add(end)

        def over() -> None:
            self._ends.discard(end)
            self.review(look=False)

        self._later(max(0.0, end - self._unix()) + _AFTER_S, over)

    def review(self, *, look: bool) -> None:
        """End leases whose grants have gone; with ``look``, ask again for every one that does not rest on root's."""
        live = {grant.name for grant in self._grants.live()}
        for held in self._book:
            if held.stage is not Stage.HELD or held.owner.uid == rights.ROOT:
                continue
            if look or any(name not in live for each in held.allowed.values() for name in each.grants):
                self._review(held)

    def _review(self, held: Held, *, again: bool = False) -> None:
        def still(allowed: dict[str, Allowed]) -> None:
            held.allowed = allowed
            self.watch(allowed)
            self._tenure.check_still_allowed(held)

        def over(error: Exception) -> None:
            # A GPU that is stalled or lost says nothing about rights.
            if not isinstance(error, NotPermitted) or held.stage is not Stage.HELD:
                return
            if again:
                self._tenure.end(held, f"its right has ended: {error}")
            else:  # what was seen may have been a process that was just going
                self._review(held, again=True)

        try:
            self.decide(held.client, held.gpus, held.knobs, still, over)
        except JoulewiseError as error:
            over(error)

    def _ask(
        self, client: Client, cgroups: tuple[str, ...], gpu: str, knobs: frozenset[str], seen: Seen | None
    ) -> Allowed:
        station = self._stations[gpu]
        asking = Asking(client.uid, client.groups, cgroups, gpu, knobs)
        limit_w = station.controls.default_limit_w
        return rights.decide(asking, self.policy, self._grants.live(), seen, station.space, limit_w)
