"""Units: watts, joules, seconds and megahertz everywhere; the only conversions and the human formatting.

Vendor interfaces speak milliwatts and millijoules, bills speak kilowatt-hours. Those exist here and at the
edge that talks to the vendor, nowhere else.
"""

from __future__ import annotations

import math

J_PER_KWH = 3_600_000.0
J_PER_WH = 3_600.0

_SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def watts_from_milliwatts(power_mw: float) -> float:
    """Milliwatts, as NVML gives power, in W."""
    return power_mw / 1000.0


def milliwatts_from_watts(power_w: float) -> int:
    """W in whole milliwatts, as NVML takes limits."""
    return round(power_w * 1000.0)


def joules_from_millijoules(energy_mj: float) -> float:
    """Millijoules, as NVML's energy counter gives them, in J."""
    return energy_mj / 1000.0


def joules_from_microjoules(energy_uj: float) -> float:
    """Microjoules, as RAPL gives them, in J."""
    return energy_uj / 1e6


def hertz_from_megahertz(clock_mhz: float) -> float:
    """MHz in Hz, the base unit in which metrics give clocks."""
    return clock_mhz * 1e6


def kwh_from_joules(energy_j: float) -> float:
    """J in kWh."""
    return energy_j / J_PER_KWH


def _significant(value: float, digits: int) -> str:
    """``value`` with ``digits`` significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")  # 0.9997 counts its digits as the 1.00 that it becomes
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def si_prefix(value: float) -> tuple[float, str]:
    """The factor and prefix under which people write ``value``: ``si_prefix(2561)`` is ``(1000.0, "k")``."""
    return next(((factor, prefix) for factor, prefix in _SI if abs(value) >= factor * 0.9995), _SI[-1])


def format_si(value: float, unit: str, *, digits: int = 3) -> str:
    """A number with an SI prefix: ``format_si(2561, "J")`` is ``"2.56 kJ"``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    factor, prefix = si_prefix(value)
    return f"{_significant(value / factor, digits)} {prefix}{unit}"


def format_energy(energy_j: float, error_j: float | None = None) -> str:
    """Joules with their standard error in the same unit: ``"2.561 ± 0.031 kJ"``.

    The value shows as many decimals as two digits of its error justify.
    """
    if error_j is None or error_j <= 0 or not math.isfinite(error_j):
        return format_si(energy_j, "J", digits=4)
    scale = max(abs(energy_j), error_j)
    factor, prefix = next(((f, p) for f, p in _SI if scale >= f), _SI[-1])
    decimals = min(6, max(0, 1 - math.floor(math.log10(error_j / factor))))
    return f"{energy_j / factor:,.{decimals}f} ± {error_j / factor:,.{decimals}f} {prefix}J"


def format_power(power_w: float) -> str:
    """Watts as people read them: ``"312 W"``, ``"9.8 W"``."""
    return f"{_significant(power_w, 3)} W"


def format_duration(duration_s: float) -> str:
    """Seconds as people read them: ``"412 ms"``, ``"8.20 s"``, ``"3 min 20 s"``, ``"2 h 05 min"``."""
    if duration_s < 0:
        return "-" + format_duration(-duration_s)
    if duration_s < 1:
        return f"{_significant(duration_s * 1000, 3)} ms"
    if duration_s < 59.95:
        return f"{_significant(duration_s, 3)} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_percent(ratio: float, *, digits: int = 2) -> str:
    """A ratio as percent: ``format_percent(0.0123)`` is ``"1.2 %"``."""
    return f"{_significant(ratio * 100, digits)} %"
