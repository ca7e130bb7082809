"""The host's part of a node's power: counted (RAPL), declared by the site (a number of watts), or not known.

``drawn_j`` gives what was drawn since a time; ``power_w`` what is drawn now, as of the last call; ``why`` says, where
nothing is known, why not. RAPL counters wrap, so what was drawn while nobody looked is not known of them and left out;
declared watts are counted over such gaps, too.
"""

from __future__ import annotations

from typing import Final, Protocol

from joulewise.device.host import HostEnergy

MEAN_S: Final = 0.1
"""Power is a mean over at least so long: an agent may count twice within a few milliseconds."""


class Host(Protocol):
    """Where the host's joules come from."""

    @property
    def power_w(self) -> float | None:
        """Power lately, as of the last call of ``drawn_j``; None where that is not known."""
        ...

    @property
    def why(self) -> str:
        """Why it is not counted; empty if it is."""
        ...

    def drawn_j(self, since_s: float | None, now_s: float) -> float | None:
        """Joules from ``since_s`` (the last count; None: there was none) to now; None where that is not known."""
        ...


class DeclaredHost:
    """A host of which the site says that it draws so much; None: it says nothing, and there is nothing to count."""

    def __init__(self, power_w: float | None, why: str = "") -> None:
        self._power_w = power_w
        self._why = why

    @property
    def power_w(self) -> float | None:
        """As declared."""
        return self._power_w

    @property
    def why(self) -> str:
        """Why there is nothing."""
        return self._why

    def drawn_j(self, since_s: float | None, now_s: float) -> float | None:
        """Its watts over that time."""
        if self._power_w is None:
            return None
        return 0.0 if since_s is None else self._power_w * max(0.0, now_s - since_s)


class CountedHost:
    """A host with energy counters: packages and memory."""

    def __init__(self, energy: HostEnergy) -> None:
        self._energy = energy
        self._before = self._mean_from = energy.read()
        self._power_w: float | None = None

    @property
    def power_w(self) -> float | None:
        """Mean power since a call at least ``MEAN_S`` before the last: counters step, and calls may be close by."""
        return self._power_w

    @property
    def why(self) -> str:
        """It is counted."""
        return ""

    def drawn_j(self, since_s: float | None, now_s: float) -> float | None:  # noqa: ARG002 - its own clock counts
        """What its counters have counted since the last call."""
        after = self._energy.read()
        window = self._energy.between(self._before, after)
        self._before = after
        mean = self._energy.between(self._mean_from, after)
        if mean.duration_s >= MEAN_S:
            self._mean_from = after
            if mean.energy_j is not None:
                self._power_w = mean.energy_j / mean.duration_s
        return window.energy_j


def host_of(declared_w: float | None) -> Host:
    """The host of this machine: counted where it can be, else as declared, else not at all."""
    energy = HostEnergy()
    if any(zone.counts for zone in energy.zones):
        return CountedHost(energy)
    if declared_w is not None:
        return DeclaredHost(declared_w)
    missing = energy.missing[0] if energy.missing else "its zones count neither a package nor memory"
    return DeclaredHost(None, f"the host's energy is not counted: {missing}; --host-watts declares it")
