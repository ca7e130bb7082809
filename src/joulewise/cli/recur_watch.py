"""How a trial stands, by the metrics that it has told so far. Pure: a fold of metrics, and what follows at the end."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.cli.recur_terms import Target
from joulewise.core.metric import Metric

_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED|\bMemoryError\b|bad_alloc"
    r"|[Cc]annot allocate memory"
)
_ALIKE = 0.7
"""Names this alike (difflib's ratio) are one name and a slip of the pen, as val_acc and val_accuracy (0.74) or valacc;
val_acc and train_acc (0.63) are two metrics."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The target was met."""

    epochs: int
    value: float


class Watch:
    """Follows one trial."""

    def __init__(self, target: Target, max_epochs: int) -> None:
        self.target, self.max_epochs = target, max_epochs
        self.reached: Reached | None = None
        self.best: float | None = None
        """The value nearest to the target; None while there is no number."""
        self.names: dict[str, None] = {}
        """Every metric that was told, in the order of their first telling."""
        self.epoch = 0.0
        self.told = 0
        """How often the target's metric was told, a number or not."""
        self._numbers = 0
        self._named_until = math.inf

    def take(self, metric: Metric) -> None:
        """Fold one telling."""
        self.epoch = max(self.epoch, metric.epoch)
        if metric.values and not self.names:
            self._named_until = max(1.0, metric.epoch)
        self.names.update(dict.fromkeys(metric.values))
        value = metric.values.get(self.target.name)
        if value is None or metric.epoch <= 0:
            return
        self.told += 1
        if math.isnan(value):
            return
        self._numbers += 1
        if self.best is None or self.target.better(value, self.best):
            self.best = value
        epochs = math.ceil(metric.epoch)
        if self.reached is None and self.target.met(value) and epochs <= self.max_epochs:
            self.reached = Reached(epochs, value)

    @property
    def epochs(self) -> int:
        """Whole epochs done."""
        return math.floor(self.epoch)

    @property
    def never_a_number(self) -> bool:
        """Whether the metric was told, and was never a number."""
        return self.told > 0 and self._numbers == 0

    @property
    def not_numbers(self) -> int:
        """How often it was told and was none."""
        return self.told - self._numbers

    def misspelt(self, *, over: bool) -> str | None:
        """What to say if no metric has the target's name while others are told; None as long as one may come.

        A name much like it is a slip, at once. Else the whole first epoch is waited for, as a script may tell its
        training loss before it validates; ``over``: nothing more will come.
        """
        if self.target.name in self.names or not self.names or self.epoch < 1:
            return None
        others = [name for name in self.names if _letters(name) != _letters(self.target.name)]  # top1_acc, top5_acc
        near = difflib.get_close_matches(self.target.name, others, n=1, cutoff=_ALIKE)
        if not near and not over and self.epoch <= self._named_until:
            return None
        seen = ", ".join(self.names)
        name = self.target.name
        hint = f"write --target '{near[0]}{self.target.sign}{self.target.value:g}'" if near else "name one of them"
        return f"no metric is called {name!r}, told are: {seen}; {hint}, or tell {name} with them"


def _letters(name: str) -> str:
    return re.sub(r"\d", "", name)


def ran_out_of_memory(lines: Sequence[str]) -> bool:
    """Whether the last lines of a command that failed say so."""
    return any(_OUT_OF_MEMORY.search(line) for line in lines)
