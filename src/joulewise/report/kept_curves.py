"""A run's kept readings in the form that reports draw: bins of equal length, in the time of the run's journal."""

from __future__ import annotations

from joulewise.report.history import Bin, Series
from joulewise.store import Curve, Store

_MOST_GPUS = 64
_POINTS = 600


def series_of(store: Store, run: str, began_s: float, story_s: float) -> list[Series]:
    """One for each GPU of ``run`` that has readings, in order of UUID.

    ``began_s`` is when it began in seconds since 1970, ``story_s`` the same moment by the clock of its journal. NotKept
    when the store cannot be read.
    """
    kept = store.readings()
    found = []
    for uuid in kept.gpus(run)[:_MOST_GPUS]:
        curve = kept.read(run, uuid, None, None, _POINTS)
        if len(curve.time_s) < 2:
            continue
        width_s = (curve.time_s[-1] - curve.time_s[0]) / (len(curve.time_s) - 1)
        series = Series(capacity=2 * _POINTS, width_s=width_s)
        series.start_s = story_s + curve.time_s[0] - began_s
        for place, time_s in enumerate(curve.time_s):
            at = round((time_s - curve.time_s[0]) / width_s)
            while len(series.bins) <= at:
                series.bins.append(Bin())
            series.bins[at] = series.bins[at].merged(_bin(curve, place))
        found.append(series)
    return found


def _bin(curve: Curve, place: int) -> Bin:
    power_w, sm_mhz = curve.power_w[place], curve.sm_mhz[place]
    made = Bin(limit_w=curve.limit_w[place])
    if power_w is not None:
        low_w, high_w = curve.low_w[place], curve.high_w[place]
        made.samples, made.power_w_sum = 1, power_w
        made.low_w = power_w if low_w is None else low_w
        made.high_w = power_w if high_w is None else high_w
    if sm_mhz is not None:
        made.clock_samples, made.sm_mhz_sum = 1, sm_mhz
    return made
