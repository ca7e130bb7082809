"""What a saving is worth in money, once the rest of the node and the price of time are counted; joules as CO2e. Pure.

Everything follows from the claim, ± included: joules and seconds of the judged part of the run. The two err together as
if they were independent, which is on the safe side: who runs slower usually saves more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.units import format_duration, format_energy, kwh_from_joules
from joulewise.report.claim import Claim


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with half of its 95 % interval."""

    value: float
    half: float


@dataclass(frozen=True, slots=True)
class Worth:
    """In the prices' currency; positive is gained. None without the price."""

    node_j: Amount
    """Saved joules of the whole node: the rest of it ran longer, too."""
    longer_s: Amount
    """How much longer the job took."""
    electricity: Amount | None
    """What those joules cost."""
    gpu_time: Amount | None
    """What the change of time is worth in GPU hours; negative where it took longer."""
    net: Amount | None
    """What is left; None unless both prices are known."""

    def to_json(self) -> dict[str, Any]:
        """Each as ``value`` and ``half``, or null."""
        return asdict(self)


def worth(claim: Claim, facts: Mapping[str, Any]) -> Worth | None:
    """From the prices among ``facts``; None where there are none, or nothing is claimed."""
    host_w, kwh, hour = (facts.get(key) for key in ("host_w", "kwh_price", "gpu_hour_price"))
    if claim.saved_j is None or claim.extra_s is None or (host_w is None and kwh is None and hour is None):
        return None
    saved = Amount(claim.saved_j, claim.saved_half_j or 0.0)
    longer = Amount(claim.extra_s, claim.extra_half_s or 0.0)
    host_w = host_w or 0.0
    node = Amount(saved.value - host_w * longer.value, math.hypot(saved.half, host_w * longer.half))
    per_j = 0.0 if kwh is None else kwh * kwh_from_joules(1.0)
    per_s = 0.0 if hour is None else hour * _gpus(facts) / 3600.0
    # A second more costs its hour's share and what the host draws meanwhile.
    net = Amount(
        per_j * node.value - per_s * longer.value,
        math.hypot(per_j * saved.half, (per_j * host_w + per_s) * longer.half),
    )
    return Worth(
        node,
        longer,
        None if kwh is None else Amount(per_j * node.value, per_j * node.half),
        None if hour is None else Amount(-per_s * longer.value, per_s * longer.half),
        None if kwh is None or hour is None else net,
    )


def lines(found: Worth) -> list[str]:
    """What it is worth, a line each."""
    node = found.node_j
    said = [f"the whole node: {format_energy(abs(node.value), node.half)} {'saved' if node.value >= 0 else 'more'}"]
    if found.electricity is not None:
        said.append(f"electricity: {_money(found.electricity)}")
    if found.gpu_time is not None:
        longer = found.longer_s
        word = "longer" if longer.value >= 0 else "shorter"
        said.append(f"GPU time, {format_duration(abs(longer.value))} {word}: {_money(found.gpu_time)}")
    if found.net is not None:
        said.append(f"net: {_money(found.net)} in the currency of the prices")
    return said


@dataclass(frozen=True, slots=True)
class Carbon:
    """What a kilowatt hour emits, and who says so. There is no default: it differs tenfold between grids and hours.

    BadSpec for a figure that cannot be one.
    """

    g_per_kwh: float
    """Grams of CO2e."""
    source: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.g_per_kwh < math.inf:
            raise BadSpec(f"--carbon-g-per-kwh {self.g_per_kwh:g} makes no sense; it must be 0 or more grams")

    @classmethod
    def given(cls, g_per_kwh: float | None, source: str | None) -> Carbon | None:
        """As the flags say it, if they do. BadSpec for a source of nothing, too."""
        if g_per_kwh is None and source is not None:
            raise BadSpec("--carbon-source says where a figure is from, and there is none; add --carbon-g-per-kwh G")
        return None if g_per_kwh is None else cls(g_per_kwh, source)

    def of(self, energy_j: Amount) -> Amount:
        """Grams of CO2e of so many joules."""
        per_j = self.g_per_kwh * kwh_from_joules(1.0)
        return Amount(per_j * energy_j.value, per_j * energy_j.half)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> Carbon:
        """What ``to_json`` wrote; ValueError for anything else."""
        try:
            source = values["source"]  # type: ignore[index]
            return cls(float(values["g_per_kwh"]), None if source is None else str(source))  # type: ignore[index]
        except (TypeError, KeyError, ValueError, BadSpec) as error:
            raise ValueError(f"its carbon factor cannot be read: {error}") from error


def carbon_lines(carbon: Carbon, used_j: Amount | None, saved_j: Amount | None) -> list[str]:
    """What was emitted and what was not, a line each, then factor and source. Amounts of joules, None: not known."""
    said = [] if used_j is None else [f"used: {grams(carbon.of(used_j))}"]
    if saved_j is not None:
        saved = carbon.of(saved_j)
        word = "saved" if saved.value >= 0 else "more than by default"
        said.append(f"{word}: {grams(Amount(abs(saved.value), saved.half))}")
    source = f"source: {carbon.source}" if carbon.source else "no source was given"
    said.append(
        f"at {carbon.g_per_kwh:g} g of CO2e a kWh, {source}; of the GPUs’ energy alone, ± half of a 95 % interval"
    )
    return said


def grams(amount: Amount) -> str:
    """``"41.2 ± 0.3 g CO2e"``, in kg or t where that reads better."""
    scale = max(abs(amount.value), amount.half)
    factor, unit = next(((f, u) for f, u in ((1e6, "t"), (1e3, "kg")) if scale >= f), (1.0, "g"))
    value, half = amount.value / factor, amount.half / factor
    decimals = 3 if half <= 0 else min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:,.{decimals}f} ± {half:,.{decimals}f} {unit} CO2e"


def _money(amount: Amount) -> str:
    """``"+0.012 ± 0.004"``: as many decimals as two digits of the error justify, cents at least."""
    scale = amount.half if amount.half > 0 else abs(amount.value)
    decimals = 2 if scale <= 0 else min(8, max(2, 1 - math.floor(math.log10(scale))))
    value = f"{amount.value:+,.{decimals}f}".replace("-", "−")
    return f"{value} ± {amount.half:,.{decimals}f}"


def _gpus(facts: Mapping[str, Any]) -> int:
    named = facts.get("gpus", 1)
    return named if isinstance(named, int) else max(1, len(named))
