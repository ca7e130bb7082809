"""How soon change detection finds a shift, and how often it cries for nothing. A part of ``bench.guarantee``."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np

from bench.recorded_steps import load
from joulewise.core.knob import DEFAULT
from joulewise.model.jitter import Jitter
from joulewise.tune.change import ChangeDetector

NOISES = {
    "normal": Jitter(0.01, 0.0, math.inf),
    "heavy": Jitter(0.01, 0.0, 4.0),
    "heavy_ar3": Jitter(0.01, 0.3, 4.0),
    "heavy_ar6": Jitter(0.01, 0.6, 4.0),
}
_BEFORE = 300
_PATIENCE = 200


def false_alarms(jitter: Jitter, steps: int, seed: str) -> int:
    """Alarms on steps that never shift."""
    detector = ChangeDetector()
    factors = itertools.islice(jitter.factors(seed), steps)
    return sum(detector.tell(DEFAULT, factor) is not None for factor in factors)


def delay(jitter: Jitter, sigmas: float, seed: str) -> int | None:
    """Steps until a shift is found, None if it is not; a job that cried before it is not counted as found.

    ``sigmas`` counts standard deviations of what is left of a step once its neighbours are known: of a shift that
    stays, an autoregression passes on the share 1 − ρ, and its residual spreads by √(1 − ρ²).
    """
    rho = jitter.correlation
    size = sigmas * jitter.spread * math.sqrt(1 - rho**2) / (1 - rho)
    detector = ChangeDetector()
    for index, factor in enumerate(itertools.islice(jitter.factors(seed), _BEFORE + _PATIENCE)):
        found = detector.tell(DEFAULT, factor * (math.exp(size) if index >= _BEFORE else 1.0))
        if found is not None:
            return index - _BEFORE + 1 if index >= _BEFORE else None
    return None


def figures(folder: Path, *, replays: int = 100) -> dict[str, float]:
    """Median and 90th percentile of delays by noise and size, false alarms in 70,000 steps, alarms on recordings."""
    found: dict[str, float] = {}
    for name, jitter in NOISES.items():
        # Whole jobs, beginnings included; as many steps as four times 70,000 where there are a hundred replays.
        rounds, steps = (4, 700 * replays) if replays < 100 else (4 * replays // 100, 70_000)
        alarms = sum(false_alarms(jitter, steps, f"{name} {index}") for index in range(rounds))
        found[f"alarms_70k_{name}"] = alarms * 70_000 / (rounds * steps)
        for sigmas in (1, 2, 3):
            delays = [delay(jitter, sigmas, f"{name} {sigmas} {index}") for index in range(replays)]
            taken = [_PATIENCE if each is None else each for each in delays]
            found[f"delay_{sigmas}sd_{name}"] = float(np.median(taken))
            found[f"delay_{sigmas}sd_{name}_p90"] = float(np.percentile(taken, 90))
    for recording in load(folder):
        detector = ChangeDetector()
        cries = [detector.tell(DEFAULT, step_s) is not None for step_s in recording.together().tolist()]
        found[f"alarms_{recording.name}"] = float(sum(cries))
    return found
