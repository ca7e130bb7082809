"""What the user wants, in a user's words: the flags of ``run --tune`` made into an Objective, and back into a sentence.

Pure. A slowdown is written as a share (0.02) or with a percent sign (2%); a bare number above 1 is refused, since "2"
could mean either. The bound of 2 % belongs to the objective ``energy``; the others weigh time themselves and have a
bound only where one is written. A budget alone means: as fast as it allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.errors import BadSpec
from joulewise.core.objective import Budget, Ed2p, Edp, MinEnergy, Money, Objective, Weighted, Within
from joulewise.core.units import format_percent
from joulewise.device.gpu import GpuInfo

DEFAULT_SLOWDOWN = 0.02
DEFAULT_ETA = 0.5
"""Zeus's own default: energy and time count alike (Zeus §3.1)."""
NAMES = ("energy", "money", "edp", "ed2p", "zeus")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags said, checked as far as it can be without knowing the GPUs. None: not said."""

    name: str | None = None
    """One of NAMES."""
    max_slowdown: float | None = None
    eta: float | None = None
    gpu_hour_price: float | None = None
    kwh_price: float | None = None
    host_w: float | None = None
    power_budget_w: float | None = None
    energy_budget_j: float | None = None
    """Joules a step (or whatever unit of work can be told), all GPUs together."""

    @classmethod
    def of(
        cls,
        objective: str | None,
        max_slowdown: str | None,
        *,
        eta: float | None = None,
        gpu_hour_price: float | None = None,
        kwh_price: float | None = None,
        host_watts: float | None = None,
        power_budget: float | None = None,
        energy_budget: float | None = None,
    ) -> Wanted:
        """From the flags as they were written. BadSpec, with the way out, for what makes no sense."""
        name, written_eta = _named(objective)
        if written_eta is not None and eta is not None:
            raise BadSpec(f"--objective {objective} and --eta {eta:g} both name eta; say it once")
        eta = written_eta if written_eta is not None else eta
        if eta is not None and name != "zeus":
            raise BadSpec(f"--eta belongs to --objective zeus, not to {name or 'energy'}; leave it out")
        if eta is not None and not 0 <= eta <= 1:
            raise BadSpec(f"eta {eta:g} is outside 0 (time alone) to 1 (energy alone)")
        for flag, value in (
            ("--gpu-hour-price", gpu_hour_price),
            ("--kwh-price", kwh_price),
            ("--host-watts", host_watts),
        ):
            if value is not None and not 0 <= value < math.inf:
                raise BadSpec(f"{flag} {value:g} is no price or power; give a number of 0 or more")
        for flag, value in (("--power-budget", power_budget), ("--energy-budget", energy_budget)):
            if value is not None and not 0 < value < math.inf:
                raise BadSpec(f"{flag} {value:g} is no budget; give a number above 0")
        if name == "money" and (gpu_hour_price is None or kwh_price is None):
            raise BadSpec("--objective money needs --gpu-hour-price and --kwh-price, in any one currency")
        bound = None if max_slowdown is None else slowdown(max_slowdown)
        return cls(name, bound, eta, gpu_hour_price, kwh_price, host_watts, power_budget, energy_budget)

    def objective(self, gpus: Sequence[GpuInfo]) -> Objective:
        """For a job on these GPUs. BadSpec for a power budget that none of them could keep to even when idle."""
        idle_w = min((gpu.idle_power_w for gpu in gpus if gpu.idle_power_w is not None), default=0.0)
        if self.power_budget_w is not None and self.power_budget_w <= idle_w:
            raise BadSpec(
                f"--power-budget {self.power_budget_w:g} is no more than an idle GPU draws here ({idle_w:.0f} W); "
                "no setting can keep to it"
            )
        budget = Budget(energy_j=self.energy_budget_j, power_w=self.power_budget_w)
        bound = math.inf if self.max_slowdown is None else self.max_slowdown
        inner = self._inner(gpus, bare=budget == Budget())
        if budget == Budget() and (isinstance(inner, MinEnergy) or math.isinf(bound)):
            return inner
        return Within(inner, budget, bound)

    def _inner(self, gpus: Sequence[GpuInfo], *, bare: bool) -> Objective:
        match self.name:
            case None if not bare:
                return Weighted(0.0, _most_w(gpus))  # time alone
            case None | "energy":
                bound = self.max_slowdown
                return MinEnergy(bound if bound is not None else DEFAULT_SLOWDOWN if bare else math.inf)
            case "edp":
                return Edp()
            case "ed2p":
                return Ed2p()
            case "zeus":
                return Weighted(DEFAULT_ETA if self.eta is None else self.eta, _most_w(gpus))
            case _:
                assert self.gpu_hour_price is not None
                assert self.kwh_price is not None
                return Money(self.gpu_hour_price, self.kwh_price, self.host_w or 0.0, max(1, len(gpus)))

    def facts(self) -> dict[str, float | str]:
        """What was said, as plain values for the journal and the report."""
        values = {
            "objective": self.name,
            "eta": self.eta,
            "gpu_hour_price": self.gpu_hour_price,
            "kwh_price": self.kwh_price,
            "host_w": self.host_w,
            "power_budget_w": self.power_budget_w,
            "energy_budget_j": self.energy_budget_j,
        }
        return {key: value for key, value in values.items() if value is not None}

    def says(self) -> str:
        """In words: ``"least energy, at most 2.0 % slower"``."""
        budgets = [
            f"at most {value:g} {unit}"
            for value, unit in ((self.power_budget_w, "W"), (self.energy_budget_j, "J a step"))
            if value is not None
        ]
        names = {
            "money": "least money",
            "edp": "least energy × time",
            "ed2p": "least energy × time²",
            "zeus": f"Zeus's cost with η = {DEFAULT_ETA if self.eta is None else self.eta:g}",
            "energy": "least energy",
        }
        what = names[self.name] if self.name else "fastest" if budgets else "least energy"
        bound = self.max_slowdown
        if bound is None and not budgets and self.name in (None, "energy"):
            bound = DEFAULT_SLOWDOWN
        slower = [] if bound is None else [f"at most {format_percent(bound)} slower"]
        return ", ".join((what, *budgets, *slower))


def slowdown(text: str) -> float:
    """``"2%"`` or ``"0.02"`` as 0.02. BadSpec for anything else, and outside 0 to 100 %."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100.0 if percent else 1.0)
        if rest.strip() or not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise BadSpec(f"--max-slowdown {text!r} is no slowdown; write 2% or 0.02") from None
    if 1 < value <= 100 and not percent:
        raise BadSpec(f"--max-slowdown {text} would be {value:.0%}; for {value:g} percent write {value:g}%")
    if not 0 <= value <= 1:
        raise BadSpec(f"--max-slowdown {text} is outside 0 to 100%; write 2% or 0.02")
    return value


def _named(text: str | None) -> tuple[str | None, float | None]:
    """``"zeus:0.7"`` as its name and eta."""
    if text is None:
        return None, None
    name, colon, eta = text.strip().lower().partition(":")
    if name not in NAMES or (colon and name != "zeus"):
        raise BadSpec(f"--objective {text} is none of {', '.join(NAMES)} (zeus takes its eta as zeus:0.7)")
    try:
        return name, float(eta) if colon else None
    except ValueError:
        raise BadSpec(f"--objective {text}: {eta!r} is no number; write zeus:0.7") from None


def _most_w(gpus: Sequence[GpuInfo]) -> float:
    """The most that all GPUs together may draw."""
    limits_w = [limit for gpu in gpus if (limit := _limit_w(gpu)) is not None]
    if len(limits_w) < len(gpus) or not limits_w:
        raise BadSpec("this objective needs the GPUs' power limits, which cannot be read here; use --objective energy")
    return sum(limits_w)


def _limit_w(gpu: GpuInfo) -> float | None:
    choices = gpu.space.knobs.get("power_limit_w")
    return gpu.default_limit_w if gpu.default_limit_w is not None else choices.high if choices else None
