"""What the flags of ``joulewise recur run`` say: batch sizes, the target, the learning rate, the command to fill in.

Pure. Everything that makes no sense is BadSpec with the way out, before anything is started.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulewise.cli.objectives import Wanted
from joulewise.core.errors import BadSpec

MOST_SIZES = 64
"""More than anybody can tell apart; a range written wrongly has thousands."""
PLACES = ("batch_size", "learning_rate", "epochs")
"""What a command may have filled in, in braces."""
RULES = ("sqrt", "linear", "none")

_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\*(\d+))?")
_TARGET = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*(>=|<=|>|<|≥|≤)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")
_COMPARE = {
    ">=": operator.ge,
    "≥": operator.ge,
    "<=": operator.le,
    "≤": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_PLACE = re.compile(r"(?<!\$)\{(\{?)([a-z_]+)\}(\}?)")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def batch_sizes(text: str) -> tuple[int, ...]:
    """``"8..256"`` (each twice the last), ``"8..256*4"``, ``"8,16,24"``, or both: ``"8..64,96"``; ascending."""
    sizes: set[int] = set()
    for part in text.split(","):
        part = part.strip()
        if (found := _RANGE.fullmatch(part)) is not None:
            size, last, factor = int(found[1]), int(found[2]), int(found[3] or 2)
            if not 1 <= size <= last or factor < 2:
                raise BadSpec(f"--batch-sizes {part}: from a size to one that is not smaller, times 2 or more: 8..256")
            while size <= last:
                sizes.add(size)
                size *= factor
        elif part.isascii() and part.isdigit() and int(part) > 0:
            sizes.add(int(part))
        else:
            raise BadSpec(f"--batch-sizes {text!r}: {part!r} is no batch size; write 8..256 or 8,16,32")
    if len(sizes) > MOST_SIZES:
        raise BadSpec(f"--batch-sizes {text} are {len(sizes)} sizes; {MOST_SIZES} is the most, 8..256*2 doubles each")
    return tuple(sorted(sizes))


@dataclass(frozen=True, slots=True)
class Target:
    """When a run has done its work: a metric, and what it must reach."""

    name: str
    sign: str
    value: float

    @classmethod
    def of(cls, text: str) -> Target:
        """``"val_acc>=0.84"``."""
        found = _TARGET.fullmatch(text)
        try:
            value = float(found[3]) if found is not None else math.nan
        except ValueError:
            value = math.nan
        if found is None or not math.isfinite(value):
            raise BadSpec(f"--target {text!r} is no target; write a metric and its bound: 'val_acc>=0.84', 'loss<=2.1'")
        return cls(found[1], {"≥": ">=", "≤": "<="}.get(found[2], found[2]), value)

    def met(self, value: float) -> bool:
        """Whether ``value`` will do; what is no number never does."""
        return bool(_COMPARE[self.sign](value, self.value))

    def better(self, one: float, other: float) -> bool:
        """Whether ``one`` is nearer to it than ``other``."""
        return one > other if self.sign.startswith(">") else one < other

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value:g}"


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate of each batch size. Square root of the ratio to the default size for optimisers of Adam's kind,
    the ratio itself for SGD (Zeus §5, and whom it cites)."""

    base: float
    default: int
    rule: str = "sqrt"

    @classmethod
    def of(cls, base: float | None, rule: str | None, default: int) -> Rate | None:
        """From ``--lr`` and ``--lr-rule``; None where the command keeps its own."""
        if base is None:
            if rule is not None:
                raise BadSpec(f"--lr-rule {rule} needs the learning rate of the default batch size: --lr 0.001")
            return None
        if not 0 < base < math.inf:
            raise BadSpec(f"--lr {base:g} is no learning rate; give a number above 0")
        if rule is not None and rule not in RULES:
            raise BadSpec(f"--lr-rule {rule} is none of {', '.join(RULES)}; sqrt for Adam and its kind, linear for SGD")
        return cls(base, default, rule or RULES[0])

    def at(self, batch_size: int) -> float:
        """For this size."""
        ratio = batch_size / self.default
        return self.base * {"sqrt": math.sqrt(ratio), "linear": ratio, "none": 1.0}[self.rule]


def refuse_unfit(command: Sequence[str], rate: Rate | None) -> None:
    """BadSpec where the command would not hear of what is chosen for it, or wants what nobody knows."""
    wanted = {found[2] for word in command for found in _PLACE.finditer(word) if not (found[1] and found[3])}
    for name in sorted(wanted - set(PLACES)):
        known = ", ".join(f"{{{place}}}" for place in PLACES)
        raise BadSpec(f"{{{name}}} in the command is none of {known}; a brace that is meant is written {{{{{name}}}}}")
    if "batch_size" not in wanted:
        raise BadSpec("the command has no {batch_size}, so nothing could be chosen; write --batch-size {batch_size}")
    if "learning_rate" in wanted and rate is None:
        raise BadSpec("{learning_rate} in the command needs --lr, the learning rate of the default batch size")
    if "learning_rate" not in wanted and rate is not None:
        raise BadSpec("--lr is given, and the command has no {learning_rate}; write --lr {learning_rate} in it")


def filled(command: Sequence[str], batch_size: int, epochs: int, rate: Rate | None) -> list[str]:
    """The command of one trial."""
    values = {"batch_size": str(batch_size), "epochs": str(epochs)}
    if rate is not None:
        values["learning_rate"] = f"{rate.at(batch_size):.6g}"

    def put(found: re.Match[str]) -> str:
        if found[1] and found[3]:
            return f"{{{found[2]}}}"
        return f"{found[1]}{values[found[2]]}{found[3]}"

    return [_PLACE.sub(put, word) for word in command]


def objective(
    name: str | None,
    max_slowdown: str | None,
    deadline: str | None,
    *,
    eta: float | None,
    gpu_hour_price: float | None,
    kwh_price: float | None,
    host_watts: float | None,
) -> tuple[dict[str, Any], Wanted]:
    """What whole runs are chosen by, as ``Recurring.objective`` has it, and what clocks are tuned for within one."""
    if name is None:
        name = "energy" if max_slowdown is not None or deadline is not None else "zeus"
    if max_slowdown is not None and deadline is not None:
        raise BadSpec("--max-slowdown and --deadline both bound the time; say one of them")
    within = Wanted.of(
        name,
        max_slowdown,
        eta=eta,
        gpu_hour_price=gpu_hour_price,
        kwh_price=kwh_price,
        host_watts=host_watts,
    )
    if within.name not in ("zeus", "energy", "money"):
        raise BadSpec(f"--objective {name}: a recurring job is tuned for zeus[:ETA], energy or money")
    if within.name != "energy" and (max_slowdown is not None or deadline is not None):
        flag = "--max-slowdown" if max_slowdown is not None else "--deadline"
        raise BadSpec(f"{flag} goes with --objective energy; {within.name} weighs time by itself")
    if within.name == "zeus":
        return {"what": "zeus", "eta": 0.5 if within.eta is None else within.eta}, within
    if within.name == "money":
        prices = {"gpu_hour_price": gpu_hour_price, "kwh_price": kwh_price, "host_w": host_watts or 0.0}
        return {"what": "money", **prices}, within
    if deadline is not None:
        return {"what": "energy", "deadline_s": seconds("--deadline", deadline)}, within
    if within.max_slowdown is not None:
        return {"what": "energy", "max_slowdown": within.max_slowdown}, within
    return {"what": "energy"}, within


def seconds(flag: str, text: str) -> float:
    """``"90s"``, ``"30m"``, ``"2h"``, ``"1d"``, or a bare number of seconds."""
    found = _TIME.fullmatch(text.strip().lower())
    value = float(found[1]) * _SECONDS[found[2]] if found is not None else 0.0
    if not value > 0:
        raise BadSpec(f"{flag} {text!r} is no time; write 90s, 30m, 2h or 1d")
    return value
