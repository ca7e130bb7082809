"""Energy of the host's processors and memory, through Linux's powercap tree (Intel and AMD RAPL).

The GPU is most of a training node, not all of it. Each RAPL zone has a counter in microjoules that wraps at a
range of its own; ``HostEnergy`` turns it into joules that only grow, and says what it could not know instead
of guessing: a zone that wrapped unseen or could not be read has a *gap*, and energy across a gap is None.

Since CVE-2020-8694 the counters are readable by root only; without that right a zone is absent, with the reason.
Reading only: power limits of the host are not ours to set.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulewise.core.measurement import Source
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.core.units import joules_from_microjoules

POWERCAP_ROOT = Path("/sys/class/powercap")
ROOT_VARIABLE = "JOULEWISE_POWERCAP_ROOT"

# Above what any one RAPL zone draws (server sockets stay below 600 W). A counter left alone for longer than
# its range lasts at this power may have wrapped more than once, and nobody could tell.
MOST_ZONE_POWER_W = 1000.0
# The smallest range in use: 2³² steps of 15.3 µJ (DRAM zones of Intel servers). Stands in for an unreadable one.
SMALLEST_RANGE_J = 65_000.0

WAY_OUT = "run as root, or let a udev rule make energy_uj readable for your group (CVE-2020-8694)"


@dataclass(frozen=True, slots=True)
class Zone:
    """One RAPL zone that can be read."""

    name: str
    """"package-0", "dram-0", …: what it covers and of which socket."""
    path: Path
    range_j: float | None
    """Where its counter wraps; None where the kernel does not let us know."""

    @property
    def counts(self) -> bool:
        """Whether it is part of the host's total: packages and DRAM are.

        Cores are inside their package, and the platform zone (psys) contains the packages.
        """
        return self.name.startswith(("package", "dram"))


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """One zone at one time."""

    energy_j: float | None
    """Joules since HostEnergy was opened, gaps left out; None while the zone cannot be read."""
    gaps: int = 0
    """How many stretches before this moment are missing from ``energy_j``."""
    reason: str | None = None
    """Why the latest gap opened."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """All zones at one time."""

    time_s: float
    zones: Mapping[str, ZoneReading]


@dataclass(frozen=True, slots=True)
class HostWindow:
    """The host's energy between two readings."""

    duration_s: float
    zones: Mapping[str, float | None]
    """Joules by zone; None where part of the window is unknown."""
    energy_j: float | None
    """Packages and DRAM together; None as soon as one of them is unknown."""
    source: Source = Source.COUNTER
    notes: tuple[str, ...] = ()
    """For each unknown zone, why."""


class HostEnergy:
    """The host's energy counters: opened once, then read at least once a minute.

    ``zones`` is what can be read, ``missing`` says for everything else why not. Neither opening nor reading
    raises: a host without RAPL has no zones and one line in ``missing``. Safe with several threads.
    """

    def __init__(self, root: Path | None = None, *, time: TimeSource | None = None) -> None:
        self.root = root or Path(os.environ.get(ROOT_VARIABLE) or POWERCAP_ROOT)
        self._time = time or WallTime()
        self._lock = threading.Lock()
        self._counters: list[_Counter] = []
        self._left_out: list[str] = []
        self.missing: tuple[str, ...] = tuple(self._open())
        self.zones: tuple[Zone, ...] = tuple(counter.zone for counter in self._counters)

    def read(self) -> HostReading:
        """Joules of every zone since the start. Reads one small file a zone (tens of microseconds each)."""
        with self._lock:  # two at once would both count what was used since the reading before
            now_s = self._time.now_s()
            return HostReading(now_s, {counter.zone.name: counter.read(now_s) for counter in self._counters})

    def between(self, before: HostReading, after: HostReading) -> HostWindow:
        """The energy of the window between two readings of this host."""
        zones: dict[str, float | None] = {}
        notes: list[str] = list(self._left_out)
        for zone in self.zones:
            start, end = before.zones[zone.name], after.zones[zone.name]
            if start.energy_j is None or end.energy_j is None or start.gaps != end.gaps:
                zones[zone.name] = None
                notes.append(f"{zone.name}: {end.reason or start.reason}")
            else:
                zones[zone.name] = end.energy_j - start.energy_j
        counted = [zones[zone.name] for zone in self.zones if zone.counts]
        known = [energy_j for energy_j in counted if energy_j is not None]
        return HostWindow(
            duration_s=after.time_s - before.time_s,
            zones=zones,
            energy_j=sum(known) if known and len(known) == len(counted) and not self._left_out else None,
            notes=tuple(notes),
        )

    def _open(self) -> list[str]:
        try:
            paths = sorted(path for path in self.root.iterdir() if _is_zone(path.name))
        except FileNotFoundError:
            return [f"{self.root} does not exist (no RAPL in this kernel, machine or container)"]
        except PermissionError:
            return [f"permission denied on {self.root}; {WAY_OUT}"]
        except OSError as error:
            return [f"cannot list {self.root}: {error.strerror}; {ROOT_VARIABLE} names another tree"]
        if not paths:
            return [f"{self.root} has no RAPL zone (virtual machines and containers usually hide it)"]
        missing: list[str] = []
        for path in paths:
            zone = Zone(_zone_name(path), path, _range_j(path))
            try:
                self._counters.append(_Counter(zone, self._time.now_s()))
                continue
            except PermissionError:
                missing.append(f"{zone.name}: permission denied on {path / 'energy_uj'}; {WAY_OUT}")
            except (OSError, ValueError) as error:
                missing.append(f"{zone.name}: cannot read {path / 'energy_uj'}: {_brief(error)}")
            if zone.counts:  # the total would be short of it
                self._left_out.append(missing[-1])
        return missing


class _Counter:
    """One zone's counter, followed from reading to reading."""

    def __init__(self, zone: Zone, now_s: float) -> None:
        self.zone = zone
        self._last_uj: int | None = _number(zone.path / "energy_uj")
        self._last_s = now_s
        self._energy_j = 0.0
        self._gaps = 0
        self._reason: str | None = None

    def read(self, now_s: float) -> ZoneReading:
        try:
            now_uj = _number(self.zone.path / "energy_uj")
        except (OSError, ValueError) as error:
            if self._last_uj is not None:
                self._gap(f"could not be read: {_brief(error)}")
            self._last_uj = None
            return ZoneReading(None, self._gaps, self._reason)
        if self._last_uj is not None:
            self._add(joules_from_microjoules(now_uj - self._last_uj), now_s - self._last_s)
        self._last_uj, self._last_s = now_uj, now_s
        return ZoneReading(self._energy_j, self._gaps, self._reason)

    def _add(self, used_j: float, waited_s: float) -> None:
        """Count ``used_j`` (negative after a wrap) over ``waited_s``, or open a gap where it cannot be known."""
        range_j = self.zone.range_j
        if waited_s * MOST_ZONE_POWER_W >= (range_j or SMALLEST_RANGE_J):
            self._gap(f"not read for {waited_s:.0f} s, in which its counter may have wrapped more than once")
            return
        if used_j < 0 and range_j is None:
            self._gap("its counter wrapped and max_energy_range_uj cannot be read")
            return
        if used_j < 0 and range_j is not None:
            used_j += range_j
            # One second of slack: the counter moves in steps of its own.
            if not 0 <= used_j <= (waited_s + 1.0) * MOST_ZONE_POWER_W:
                self._gap("its counter went back by something other than a wrap (suspend or reset)")
                return
        self._energy_j += used_j

    def _gap(self, reason: str) -> None:
        self._gaps += 1
        self._reason = reason


def _is_zone(name: str) -> bool:
    # intel-rapl-mmio repeats the package that intel-rapl already has: counting both would double it.
    return re.fullmatch(r"intel-rapl(:\d+)+", name) is not None


def _zone_name(path: Path) -> str:
    """ "package-0" for a package; "dram-0" for the DRAM of package 0, whose zone is only called "dram"."""
    try:
        name = (path / "name").read_text().strip()
    except OSError:
        return path.name
    socket = path.name.split(":")[1]
    return name if re.search(r"-\d+$", name) else f"{name}-{socket}"


def _range_j(path: Path) -> float | None:
    try:
        return joules_from_microjoules(_number(path / "max_energy_range_uj")) or None
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int:
    text = path.read_bytes()[:40].strip()
    if not text.isdigit():
        raise ValueError(f"it holds {text.decode(errors='replace')!r}, which is no number")
    return int(text)


def _brief(error: OSError | ValueError) -> str:
    """A fault in a few words, without the number and the path that belong to programmers."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
