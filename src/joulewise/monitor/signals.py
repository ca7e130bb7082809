"""What a track has kept, as signals that a period may be looked for in: power, its slow average, utilisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulewise.core.measurement import Reading
from joulewise.monitor.period import Signal
from joulewise.monitor.track import Track

_POWER = "power_w"  # the quantity that power and its average share: what only one of them shows is an alias
_AVERAGE_UPDATE_S = 0.1
_FEWEST = 8  # readings that make a signal


def signals(tracks: Sequence[Track], from_s: float, to_s: float) -> list[Signal]:
    """The signals of the GPU whose power moves most, between two moments."""
    track = max(tracks, key=_liveliness)
    timing = track.gpu.info.sensors
    readings = [reading for reading in track.readings(from_s) if reading.time_s <= to_s]
    averages = [r.average_power_w for r in readings]
    averaged = timing.average_window_s is not None and any(value is not None for value in averages)
    found = [
        _signal(
            "power",
            readings,
            [r.power_w for r in readings],
            timing.power_update_s,
            timing.power_window_s,
            _POWER if averaged else "",
        ),
        _signal("utilization", readings, [r.utilization for r in readings], timing.utilization_update_s),
    ]
    if averaged:
        found.append(_signal("average power", readings, averages, _AVERAGE_UPDATE_S, timing.average_window_s, _POWER))
    return [signal for signal in found if signal is not None]


def _liveliness(track: Track) -> float:
    powers = [reading.power_w for reading in track.readings()[-100:] if reading.power_w is not None]
    return float(np.std(powers)) if len(powers) > 1 else 0.0


def _signal(
    name: str,
    readings: Sequence[Reading],
    values: Sequence[float | None],
    update_s: float,
    window_s: float | None = None,
    quantity: str = "",
) -> Signal | None:
    pairs = [(reading.time_s, value) for reading, value in zip(readings, values, strict=True) if value is not None]
    if len(pairs) < _FEWEST:
        return None
    times_s, shown = np.array(pairs, dtype=np.float64).T
    return Signal(name, times_s, shown, update_s, update_s if window_s is None else window_s, quantity)
