"""What a window says when it is over: a Measurement per GPU, their total, and why a GPU is missing from it.

A Report is made in microseconds at the window's end and worked up when it is first read, in whatever thread that
happens; what it rests on does not change any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from joulewise.core.errors import NoReading
from joulewise.core.knob import Setting
from joulewise.core.measurement import Measurement, Outcome, total
from joulewise.core.units import format_duration, format_energy
from joulewise.monitor.estimate import Evidence, estimate
from joulewise.monitor.track import Extract, Reset, Track


@dataclass(frozen=True, slots=True)
class Witness:
    """What one GPU's track knew about a window when it ended."""

    uuid: str
    gain_error: float
    evidence: Callable[[], Evidence]
    resets: tuple[Reset, ...]
    missed: int
    lost: str | None
    seen_s: float | None

    @classmethod
    def of(cls, track: Track, from_s: float, to_s: float, head: Extract | None) -> Witness:
        """Gather it. Cheap: copies references, computes nothing."""
        info = track.gpu.info
        return cls(
            uuid=info.uuid,
            gain_error=info.sensors.gain_error,
            evidence=track.witness(from_s, to_s, head),
            resets=tuple(reset for reset in track.resets if reset.to_s > from_s and reset.from_s < to_s),
            missed=sum(1 for missed_s in track.missed_s if from_s <= missed_s <= to_s),
            lost=None if track.lost is None else str(track.lost),
            seen_s=track.seen_s,
        )


class Report:
    """One window: its times, and its energy on each GPU and in all."""

    def __init__(
        self,
        name: str,
        from_s: float,
        to_s: float,
        work: float,
        setting: Setting,
        outcome: Outcome,
        witnesses: tuple[Witness, ...],
    ) -> None:
        self.name = name
        self.from_s = from_s
        self.to_s = to_s
        self.work = work
        self.setting = setting
        self.outcome = outcome
        self._witnesses = witnesses

    @property
    def duration_s(self) -> float:
        """From begin to end."""
        return self.to_s - self.from_s

    @cached_property
    def _outcomes(self) -> dict[str, Measurement[Setting] | str]:
        found = {witness.uuid: self._measure(witness) for witness in self._witnesses}
        self._witnesses = ()  # what it rests on is large, and no longer needed
        return found

    @property
    def gpus(self) -> Mapping[str, Measurement[Setting]]:
        """UUID → what was measured on that GPU."""
        return {uuid: each for uuid, each in self._outcomes.items() if isinstance(each, Measurement)}

    @property
    def missing(self) -> Mapping[str, str]:
        """UUID → why nothing was measured on that GPU."""
        return {uuid: each for uuid, each in self._outcomes.items() if isinstance(each, str)}

    @property
    def total(self) -> Measurement[Setting]:
        """All GPUs together. NoReading, with the reasons, if none could be measured."""
        parts = list(self.gpus.values())
        if not parts:
            raise NoReading(f"window {self.name!r} measured nothing: {'; '.join(dict.fromkeys(self.missing.values()))}")
        return total(parts)

    @property
    def energy_j(self) -> float:
        """Joules on all GPUs."""
        return self.total.energy_j

    @property
    def error_j(self) -> float:
        """One standard error of ``energy_j``, from sampling and sensor timing."""
        return self.total.error_j

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, for a recording or a file."""
        values: dict[str, Any] = {
            "from_s": self.from_s,
            "to_s": self.to_s,
            "duration_s": self.duration_s,
            "work": self.work,
            "setting": dict(self.setting),
            "outcome": str(self.outcome),
            "gpus": {uuid: _plain(each) for uuid, each in self.gpus.items()},
            "missing": dict(self.missing),
        }
        return values | (_plain(self.total) if self.gpus else {})

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.name}: no reading ({'; '.join(dict.fromkeys(self.missing.values()))})"
        whole = self.total
        notes = "".join(f", {note}" for note in whole.notes)
        energy = format_energy(whole.energy_j, whole.error_j)
        return f"{self.name}: {energy} in {format_duration(self.duration_s)} ({whole.source}{notes})"

    def __repr__(self) -> str:
        return f"<Report {self}>"

    def _measure(self, witness: Witness) -> Measurement[Setting] | str:
        """A Measurement, or the reason why there is none."""
        to_s, outcome, notes = self.to_s, self.outcome, []
        if witness.lost is not None and (witness.seen_s or -math.inf) < to_s:
            if witness.seen_s is None or witness.seen_s <= self.from_s:
                return witness.lost
            to_s, outcome = witness.seen_s, Outcome.FAILED
            notes.append(f"GPU lost {format_duration(self.to_s - to_s)} before the end")
        try:
            found = estimate(self.from_s, to_s, witness.evidence())
        except NoReading as error:
            return str(error)
        notes += found.notes
        if witness.resets:
            notes.append("counter reset")
        if witness.missed:
            notes.append(f"{witness.missed} readings lost")
        return Measurement(
            setting=self.setting,
            duration_s=to_s - self.from_s,
            energy_j=found.energy_j,
            error_j=math.hypot(found.error_j, *(reset.error_j for reset in witness.resets)),
            gain_error=witness.gain_error,
            source=found.source,
            work=self.work,
            outcome=outcome,
            notes=tuple(notes),
        )


def _plain(measurement: Measurement[Setting]) -> dict[str, Any]:
    return {
        "energy_j": measurement.energy_j,
        "error_j": measurement.error_j,
        "gain_error": measurement.gain_error,
        "power_w": measurement.power_w if measurement.duration_s > 0 else None,
        "source": str(measurement.source),
        "notes": list(measurement.notes),
    }
