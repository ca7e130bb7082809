"""What a tuned run claims to have saved: the one place from which every figure of it is taken.

Pure. Headline, report, JSON, history and memory show these numbers and no others. ± is half of a 95 % interval
throughout, since a claim is meant to be relied on (readings elsewhere carry one standard error). Joules and seconds are
the percentages of the judged part of the run, so they can never say another thing. Where nothing was held, nothing is
claimed. Not the proof itself: that is ``tune.proof``'s, from whose answer a claim is made; nor the headline's words
where there is no saving to tell (``report.outcome``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from joulewise.core.block import Role
from joulewise.core.knob import DEFAULT
from joulewise.core.units import format_duration, format_energy
from joulewise.report.story import Story

INTERVAL = "± is half of a 95 % interval"
STANDARD_ERRORS = 1.96
"""In half of a 95 % interval, where an error is known and not estimated from a few windows."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Changes are relative to default (−0.08 is 8 % less); None where nothing can be claimed."""

    watched_s: float
    """For how long the tuner watched the run."""
    judged_s: float = 0.0
    """Seconds of clean work in it that were measured: what the changes are about."""
    energy_change: float | None = None
    energy_half: float | None = None
    """Half of its 95 % interval."""
    time_change: float | None = None
    time_half: float | None = None
    saved_j: float | None = None
    """Joules of the judged part; negative if it used more."""
    saved_half_j: float | None = None
    baseline_share: float | None = None
    """The share of the held time that was spent on baseline windows for the proof."""
    unjudged: tuple[str, ...] = ()
    """What could not be judged, a sentence each."""
    held: bool = True
    """Whether anything but default was ever held."""
    windows: int = 0
    """Baseline windows at drawn times that count."""
    pairs: int = 0
    """Pairs, compared with default in a drawn order, that count beside them."""

    @classmethod
    def of(cls, story: Story) -> Claim:
        """What the blocks of a run prove."""
        from joulewise.report.words import plainly
        from joulewise.tune.proof import prove

        held = any(each.role is Role.HOLD and each.block.setting != DEFAULT for each in story.seen)
        proof = prove(story.seen, story.shifted)
        unjudged = tuple(map(plainly, proof.unjudged))
        if not held or proof.energy is None or proof.time is None or proof.saved_j is None:
            share = proof.baseline_share if held else None
            return cls(story.watched_s, story.judged_s, baseline_share=share, unjudged=unjudged, held=held)
        energy, time = proof.energy, proof.time
        # Joules are the percentage of what the judged part would have used, and err in the same proportion.
        if energy.value:
            half_j = abs(proof.saved_j / energy.value) * energy.half
        else:
            half_j = energy.half * sum(each.block.energy_j for each in story.seen)
        return cls(
            story.watched_s,
            story.judged_s,
            energy.value,
            energy.half,
            time.value,
            time.half,
            proof.saved_j,
            half_j,
            proof.baseline_share,
            unjudged,
            held,
            proof.windows,
            proof.pairs,
        )

    @property
    def saves(self) -> bool:
        """Whether there is a saving, or a loss, that can be told from nothing."""
        return self.energy_change is not None and abs(self.energy_change) > (self.energy_half or 0.0)

    @property
    def extra_s(self) -> float | None:
        """How much longer the judged part took than it would have by default; negative if shorter."""
        return None if self.time_change is None else self.judged_s * self.time_change / (1 + self.time_change)

    @property
    def extra_half_s(self) -> float | None:
        """Half of its 95 % interval."""
        if self.time_change is None or self.time_half is None:
            return None
        return self.judged_s * self.time_half / (1 + self.time_change) ** 2

    @property
    def about(self) -> str:
        """Which part of the run the figures are of: ``"in the 16 min 17 s that were judged, probing included"``."""
        return f"in the {format_duration(self.judged_s)} that were judged, probing included"

    def says(self) -> str:
        """``"saved 8.1 % ± 0.6 % energy, +0.8 % ± 0.3 % time, 412 ± 31 kJ"``."""
        if self.energy_change is None:
            return "no saving can be claimed" + (f": {self.unjudged[0]}" if self.unjudged else "")
        half = self.energy_half or 0.0
        if not self.saves:
            first = f"no saving that could be told from nothing ({percent(self.energy_change, half, sign=True)} energy)"
        elif self.energy_change < 0:
            first = f"saved {percent(-self.energy_change, half)} energy"
        else:
            first = f"used {percent(self.energy_change, half)} energy more"
        parts = [first]
        if self.time_change is not None:
            parts.append(f"{percent(self.time_change, self.time_half or 0.0, sign=True)} time")
        if self.saved_j is not None and self.saves:
            parts.append(format_energy(abs(self.saved_j), self.saved_half_j))
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON has no infinity, so what is not finite is null."""
        plain = asdict(self)
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in plain.items()} | {
            "unjudged": list(self.unjudged)
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Claim:
        """What ``to_json`` wrote; ValueError for anything else."""
        known = {each.name for each in fields(cls)}
        try:
            picked = {key: value for key, value in values.items() if key in known}
            return cls(**{**picked, "unjudged": tuple(picked.get("unjudged", ()))})
        except TypeError as error:
            raise ValueError(str(error)) from error


def percent(change: float, half: float, *, sign: bool = False) -> str:
    """``"8.1 % ± 0.6 %"``: as many decimals as two digits of the error justify, one or two."""
    decimals = 1 if half * 100 >= 0.1 or half == 0 else 2
    value = f"{change * 100:{'+' if sign else ''}.{decimals}f}".replace("-", "−")
    return f"{value} % ± {half * 100:.{decimals}f} %"
