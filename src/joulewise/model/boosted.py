"""What a load is made of, guessed from activity counters by gradient boosting: a prior for the law, before any probe.

GPOEO (TPDS 2022) predicts time and energy at each clock from counters; here the counters predict the unknowns of the
law (``model/hypotheses``) with their spread, so that the first probe corrects the guess instead of competing with it.
Needs xgboost (the extra ``boosted``); without it there is no prior, and nothing else changes.

What it is: `train` on folders of measured sweeps with counters, `Boosted` with its file, `prior` from the fitted file
that is shipped. What it is not: a decision; a wrong guess costs a probe.

Counters are shares of time or of peak, 0 to 1, named as in NVML's GPM: sm, occupancy, tensor, dram, fp64, fp32, fp16.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core import input_files
from joulewise.core.errors import BadSpec, ModelError
from joulewise.core.input_files import MOST_BYTES
from joulewise.core.parsing import decompressed, json_value
from joulewise.model.hypotheses import LOAD
from joulewise.model.learnt import LoadPrior
from joulewise.model.training import Example, examples

Array = NDArray[Any]

FEATURES = ("sm", "occupancy", "tensor", "dram", "fp64", "fp32", "fp16", "power_share")
# What counters can say something about. Not the intensity: average power tells it, which a belief sees for itself, and
# training programs are busy all the time, so that a job waiting for its host would be taken for one that needs little.
TARGETS = ("sm_share", "memory_share")
_FORMAT = "joulewise boosted 1"
_LEAST_EXAMPLES = 30  # fewer cannot be cross-validated by benchmark
_LEAST_GROUPS = 5
_FOLDS = 5
# Shallow trees, many rows each: the examples are few, and other GPUs lie outside them.
_BOOSTING = {
    "max_depth": 3,
    "eta": 0.08,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 4.0,
    "lambda": 2.0,
    "objective": "reg:squarederror",
    "nthread": 1,
    "verbosity": 0,
}
_ROUNDS = 80
# Work unlike the examples errs more than cross-validation within them says.
_UNLIKE = 1.3

_log = logging.getLogger("joulewise")


@dataclass(frozen=True, slots=True)
class Target:
    """One unknown's predictor: the booster's bytes, and what cross-validation says of it (in logits or logarithms)."""

    booster: bytes
    error: float
    """Root mean square error on benchmarks that were not trained on."""
    spread: float
    """Standard deviation of the unknown over the examples: the error of knowing nothing."""


@dataclass(frozen=True, slots=True)
class Boosted:
    """Fitted predictors and where they come from."""

    targets: Mapping[str, Target]
    provenance: Mapping[str, Any]

    def prior(self, activity: Mapping[str, float], power_share: float | None) -> LoadPrior | None:
        """What counters say of a load; None where there is no xgboost, or no counter that it knows.

        `activity`: shares by name, missing ones are unknown; `power_share`: average power / default limit.
        """
        xgboost = _xgboost()
        if xgboost is None or not set(activity) & set(FEATURES):
            return None
        row = np.array([[*(activity.get(name, math.nan) for name in FEATURES[:-1]), _or_nan(power_share)]])
        dials = {dial.name: dial for dial in LOAD}
        mean, spread = {}, {}
        for name, target in self.targets.items():
            booster = xgboost.Booster({"nthread": 1})
            booster.load_model(bytearray(target.booster))
            z = float(booster.predict(xgboost.DMatrix(row))[0])
            mean[name] = float(dials[name].value(z))
            spread[name] = min(_UNLIKE * target.error, dials[name].spread)
        examples_said = self.provenance.get("examples", "?")
        return LoadPrior(mean, spread, f"activity counters, by {examples_said} measured programs")

    def save(self, path: Path) -> None:
        """Write the file; BadSpec if it cannot be written."""
        plain = {
            "format": _FORMAT,
            "provenance": dict(self.provenance),
            "features": list(FEATURES),
            "targets": {
                name: {**asdict(target), "booster": base64.b64encode(zlib.compress(target.booster, 9)).decode()}
                for name, target in self.targets.items()
            },
        }
        try:
            path.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise BadSpec(f"cannot write {path}: {error.strerror}; choose another file") from error


def parse(text: str, *, name: str) -> Boosted:
    """A fitted file; BadSpec, naming the fault, for anything else."""
    try:
        plain = json_value(text)
        if plain["format"] != _FORMAT or tuple(plain["features"]) != FEATURES:
            raise ValueError(f"format {plain['format']!r}")
        targets = {
            str(key): Target(
                decompressed(base64.b64decode(one["booster"]), MOST_BYTES), float(one["error"]), float(one["spread"])
            )
            for key, one in plain["targets"].items()
            if key in TARGETS
        }
        return Boosted(targets, dict(plain["provenance"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadSpec(f"{name} is no fitted predictor ({error}); make one with 'joulewise model train'") from error


def load(path: Path) -> Boosted:
    """A file that `Boosted.save` wrote; BadSpec if it cannot be read or understood."""
    return parse(input_files.read_text(path, way_out="make one with 'joulewise model train'"), name=str(path))


@cache
def shipped() -> Boosted:
    """The predictor that comes with the package; `provenance` says what it was fitted to."""
    text = resources.files(__package__).joinpath("boosted_data", "shipped.json").read_text("utf-8")
    return parse(text, name="the shipped predictor")


def prior(activity: Mapping[str, float], power_share: float | None) -> LoadPrior | None:
    """What the predictor in use says: the file that JOULEWISE_BOOSTED names, else the shipped one. None without
    xgboost or without counters. Never raises: what cannot be used is said in the log, and there is no prior."""
    try:
        return _in_use(os.environ.get("JOULEWISE_BOOSTED", "")).prior(activity, power_share)
    except Exception as error:  # xgboost's own, of a model that another version wrote; a guess is not worth a job
        said = str(error).partition("\n")[0]  # the rest is a trace through xgboost's insides
        _say_once(f"activity counters give no prior: {type(error).__name__}: {said[:200]}")
        return None


@cache
def _say_once(what: str) -> None:
    _log.warning("%s", what)


@cache
def _in_use(path: str) -> Boosted:
    if path:
        try:
            return load(Path(path))
        except BadSpec as error:
            _log.warning("JOULEWISE_BOOSTED: %s; the shipped predictor is used", error)
    return shipped()


def train(folder: Path, *, gpu: str | None = None, date: str = "", seed: int = 0) -> Boosted:
    """Fit predictors to every sweep with counters in `folder` (see ``model/training`` for the layouts).

    `gpu` names the catalogue's model that the sweeps ran on; None: taken from each file, else unknown. `date` goes
    into the provenance. Raises ModelError without xgboost or with too little to learn from, BadSpec for bad files.
    """
    xgboost = _xgboost()
    if xgboost is None:
        raise ModelError("training needs xgboost, which is not installed; try pip install 'joulewise[boosted]'")
    files, found = examples(folder, gpu=gpu)
    groups = sorted({example.group for example in found})
    if len(found) < _LEAST_EXAMPLES or len(groups) < _LEAST_GROUPS:
        raise ModelError(
            f"{folder} has {len(found)} programs of {len(groups)} benchmarks with counters; at least {_LEAST_EXAMPLES}"
            f" of {_LEAST_GROUPS} are needed to fit and to judge the fit"
        )
    rows = np.array([_row(example) for example in found])
    fold = np.array([groups.index(example.group) % _FOLDS for example in found])
    targets = {}
    for name in TARGETS:
        z = np.array([example.load[name][0] for example in found])
        # What a program's own points leave open weighs it down.
        weight = 1.0 / (0.25 + np.array([example.load[name][1] for example in found]) ** 2)
        missed = np.zeros(len(z))
        for turn in range(_FOLDS):
            out = fold == turn
            booster = _boosted(xgboost, rows[~out], z[~out], weight[~out], seed)
            missed[out] = booster.predict(xgboost.DMatrix(rows[out])) - z[out]
        error = math.sqrt(float(np.average(missed**2, weights=weight)))
        spread = math.sqrt(float(np.cov(z, aweights=weight)))
        if error < 0.9 * spread:  # else the counters say nothing of it
            booster = _boosted(xgboost, rows, z, weight, seed)
            targets[name] = Target(bytes(booster.save_raw("ubj")), round(error, 4), round(spread, 4))
    if not targets:
        raise ModelError(f"the counters in {folder} predict nothing better than its mean; nothing was fitted")
    return Boosted(
        targets,
        {
            "date": date,
            "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
            "gpus": sorted({example.gpu for example in found}),
            "examples": len(found),
            "benchmarks": len(groups),
            "points": sum(example.points for example in found),
            "xgboost": str(xgboost.__version__),
            "cross_validation": f"{_FOLDS} folds, benchmarks kept whole; errors in logits or logarithms",
        },
    )


def _boosted(xgboost: Any, rows: Array, z: Array, weight: Array, seed: int) -> Any:
    data = xgboost.DMatrix(rows, label=z, weight=weight)
    return xgboost.train({**_BOOSTING, "seed": seed}, data, num_boost_round=_ROUNDS)


def _row(example: Example) -> Sequence[float]:
    return [*(example.activity.get(name, math.nan) for name in FEATURES[:-1]), _or_nan(example.power_share)]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@cache
def _xgboost() -> Any:
    """xgboost, or None with one note in the log."""
    try:
        import xgboost
    except ImportError:
        _log.info("xgboost is not installed: activity counters give no prior; pip install 'joulewise[boosted]'")
        return None
    return xgboost
