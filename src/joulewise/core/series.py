"""What a recurring job is, and what is said of one run of it: the words that its tuner, store, server and CLI share.

A *recurrence* is one submission of the job, which must reach its target; a *trial* is one run inside it, perhaps
stopped early, after which the recurrence goes on with another. An *epoch* is one pass over the data. How many epochs a
batch size needs is luck and the batch size's own, on any GPU; what an epoch costs is the GPU's (Zeus §4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from joulewise.core.knob import DEFAULT, Setting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Recurring:
    """A job that returns: what may be chosen for it, and when a run has done its work."""

    name: str
    batch_sizes: tuple[int, ...]
    """Ascending."""
    default: int
    """What runs when nobody tunes: the first run, and the fall-back."""
    max_epochs: int
    """A run that has not reached its target by then has failed."""
    target: str = ""
    """In words: "val_acc>=0.84"."""
    objective: Mapping[str, Any] = field(default_factory=lambda: {"what": "zeus", "eta": 0.5})
    """What is to be small: ``{"what": "zeus", "eta": 0.5}``, ``{"what": "energy", "max_slowdown": 0.1}`` or with
    ``"deadline_s"``, ``{"what": "money", "gpu_hour_price": …, "kwh_price": …, "host_w": …}``."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a job's name has up to 100 letters, digits, '_', '.' and '-', not {self.name!r}")
        if not self.batch_sizes or list(self.batch_sizes) != sorted(set(self.batch_sizes)) or self.batch_sizes[0] < 1:
            raise ValueError(f"batch sizes are whole numbers from 1 on, ascending, not {self.batch_sizes}")
        if self.default not in self.batch_sizes:
            sizes = ", ".join(map(str, self.batch_sizes))
            raise ValueError(f"the default batch size {self.default} is none of {sizes}; add it, or choose another")
        if self.max_epochs < 1:
            raise ValueError(f"max_epochs must be 1 or more, not {self.max_epochs}")


@dataclass(frozen=True, slots=True)
class Platform:
    """What a run has to run on. Epochs are the same on all; what an epoch costs is each one's own."""

    gpu_name: str
    gpus: int = 1
    max_power_w: float = 0.0
    """The highest power limit, all its GPUs together; 0 where nobody knows."""

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.gpus}x {self.gpu_name}"


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What one epoch took under one setting, all GPUs together."""

    duration_s: float
    energy_j: float
    setting: Setting = DEFAULT
    error_s: float = 0.0
    error_j: float = 0.0
    """One standard error each."""

    def __post_init__(self) -> None:
        for name in ("duration_s", "energy_j", "error_s", "error_j"):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (value == 0 and name == "duration_s"):
                raise ValueError(f"{name} of an epoch must be a number above 0, not {value}")


class Purpose(StrEnum):
    """What a trial is for."""

    DEFAULT = "default"
    """The user's own batch size, for lack of anything that is known to be better."""
    EXPLORE = "explore"
    """Perhaps better than the best known; worth what finding out is expected to cost."""
    BEST = "best"
    """The best known."""
    FINISH = "finish"
    """A safe one, so that the recurrence reaches its target after a trial that did not."""
