"""The GPU models that joulewise knows: one TOML file each, with parameters, their sources and the fit's error.

What it is: typed reading and writing of those files, shipped with the package (``catalog_data/``) or made by
``joulewise model fit``. Parameters that were not fitted on that GPU's own measurements are listed in `borrowed`
with where they come from. What it is not: a place for code that differs between GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from joulewise.core import input_files
from joulewise.core.errors import BadSpec, ModelError
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import SensorTiming
from joulewise.core.parsing import toml_tables
from joulewise.model.physics import Chip, Heat

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Switching:
    """How changes of the settings take hold."""

    # V100, 19 k transitions of a public benchmark: 25 ms median, 32–37 ms at p99, hence ln(35/25)/2.33.
    clock_switch_s: float = 0.025  # median from the request until the clock is there
    clock_switch_spread: float = 0.145  # σ of its logarithm (lognormal)
    # B300 under a 500 W cap: 500 ms bursts reach 717 W while the 1 s average stays below 498 W.
    limiter_window_s: float = 0.5  # the limiter acts on an average over about this long


@dataclass(frozen=True, slots=True)
class FitRecord:
    """Where the law's parameters come from and how well they fit. Errors in percent; None: not fitted."""

    source: str
    points: int = 0
    series: int = 0
    time_mape: float | None = None
    power_mape: float | None = None


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model: what NVML would say, the law's parameters, the sensors' habits."""

    key: str  # the short name: "h200" in "sim:h200"; also the file's
    name: str  # as NVML says it
    architecture: int  # NVML_DEVICE_ARCH_*: 4 Pascal, 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell
    compute_capability: tuple[int, int]
    memory_gib: float
    sm_mhz: Choices
    memory_mhz: Choices
    power_limit_w: Choices
    default_limit_w: float
    chip: Chip
    sensors: SensorTiming
    switching: Switching
    fit: FitRecord
    aliases: tuple[str, ...] = ()
    borrowed: tuple[str, ...] = field(default=())  # "law.volt_knee: a100", one line a parameter or group

    @property
    def space(self) -> Space:
        """What can be set on this model."""
        return Space({"sm_mhz": self.sm_mhz, "memory_mhz": self.memory_mhz, "power_limit_w": self.power_limit_w})


def names() -> tuple[str, ...]:
    """The keys of the shipped models, in order."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in _shipped()))


def load(name: str) -> GpuModel:
    """A shipped model by key, alias or NVML name (case and punctuation aside), or from a ``.toml`` path.

    Raises BadSpec, naming the models there are, if none matches, or if a file cannot be understood.
    """
    if name.endswith(".toml"):
        path = Path(name)
        return parse(input_files.read_text(path), key=path.stem)
    wanted = _plain(name)
    for key in names():
        text = resources.files(__package__).joinpath("catalog_data", f"{key}.toml").read_text("utf-8")
        head = toml_tables(text)
        if wanted in {_plain(key), _plain(head["name"]), *map(_plain, head.get("aliases", []))}:
            return parse(text, key=key)
    raise BadSpec(f"no GPU model is called {name!r}; there are {', '.join(names())}, or give the path of a .toml file")


def parse(text: str, *, key: str) -> GpuModel:
    """A model from the text of its file. Raises BadSpec with the first thing that is wrong."""
    try:
        data = toml_tables(text)
    except ValueError as error:
        raise BadSpec(f"GPU model {key} is not TOML: {error}") from error
    try:
        knobs = data["knobs"]
        limit = knobs["power_limit_w"]
        major, minor = (int(part) for part in str(data["compute_capability"]).split("."))
        model = GpuModel(
            key=key,
            name=str(data["name"]),
            aliases=tuple(data.get("aliases", ())),
            architecture=int(data["architecture"]),
            compute_capability=(major, minor),
            memory_gib=float(data["memory_gib"]),
            sm_mhz=_choices(knobs["sm_mhz"]),
            memory_mhz=_choices(knobs["memory_mhz"]),
            power_limit_w=Choices(float(limit["low"]), float(limit["high"])),
            default_limit_w=float(limit["default"]),
            chip=_record(Chip, data["law"], key, "law", heat=_record(Heat, data.get("heat", {}), key, "heat")),
            sensors=_record(SensorTiming, _unknowns(data.get("sensors", {})), key, "sensors"),
            switching=_record(Switching, data.get("switching", {}), key, "switching"),
            fit=_record(FitRecord, data["fit"], key, "fit"),
            borrowed=tuple(data.get("borrowed", ())),
        )
    except KeyError as error:
        raise BadSpec(f"GPU model {key} lacks {error.args[0]!r}; see 'joulewise model show h200'") from error
    except (TypeError, ValueError) as error:
        raise BadSpec(f"GPU model {key} has a bad value: {error}; see 'joulewise model show h200'") from error
    check(model.chip, key)
    return model


def save(model: GpuModel, path: Path) -> None:
    """Write `model` as TOML that `load` reads back to an equal model. Raises BadSpec if it cannot be written."""
    try:
        path.write_text(dump(model), encoding="utf-8")
    except OSError as error:
        raise BadSpec(f"cannot write {path}: {error.strerror}; choose another file") from error


def dump(model: GpuModel) -> str:
    """The text of the model's file."""
    chip = asdict(model.chip)
    heat = chip.pop("heat")
    limit = model.power_limit_w
    blocks: list[tuple[str, Mapping[str, Any]]] = [
        (
            "",
            {
                "name": model.name,
                "aliases": list(model.aliases),
                "architecture": model.architecture,
                "compute_capability": "{}.{}".format(*model.compute_capability),
                "memory_gib": model.memory_gib,
                "borrowed": list(model.borrowed),
            },
        ),
        (
            "knobs",
            {
                "sm_mhz": _plain_choices(model.sm_mhz),
                "memory_mhz": _plain_choices(model.memory_mhz),
                "power_limit_w": {"low": limit.low, "default": model.default_limit_w, "high": limit.high},
            },
        ),
        ("law", chip),
        ("heat", heat),
        ("sensors", {k: "none" if v is None else v for k, v in asdict(model.sensors).items()}),
        ("switching", asdict(model.switching)),
        ("fit", {k: v for k, v in asdict(model.fit).items() if v is not None}),
    ]
    parts = []
    for title, block in blocks:
        lines = [f"[{title}]"] if title else []
        lines += [f"{key} = {_toml(value)}" for key, value in block.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def check(chip: Chip, name: str) -> None:
    """Raise ModelError if `chip` is outside what the law can mean."""
    rules = {
        "sm_max_mhz": chip.sm_max_mhz > 0,
        "memory_max_mhz": chip.memory_max_mhz > 0,
        "sm_floor": 0 < chip.sm_floor <= 1,
        "static_w": chip.static_w >= 0,
        "deep_idle_w": 0 <= chip.deep_idle_w <= chip.idle_w,
        "volt_knee": 0 <= chip.volt_knee < 1,
        "volt_floor": 0 < chip.volt_floor <= 1,
        "limiter_gain": 0.5 < chip.limiter_gain < 1.5,
        "overlap": 1 <= chip.overlap <= 50,
        "memory_share": 0 <= chip.memory_share <= 1,
        "memory_w": 0 <= chip.memory_w <= chip.static_w,
        "idle_sm_share": 0 <= chip.idle_sm_share <= 1,
    }
    for rule, kept in rules.items():
        if not kept:
            raise ModelError(f"GPU model {name}: law.{rule}={getattr(chip, rule):g} is outside what it can mean")


def rounded(chip: Chip, digits: int = 5) -> Chip:
    """Parameters with as many digits as go into a file: finer than any fit can tell."""
    short: dict[str, Any] = {
        item.name: float(f"{getattr(chip, item.name):.{digits}g}") for item in fields(Chip) if item.name != "heat"
    }
    return replace(chip, **short)


def key_of(name: str) -> str:
    """A short name for a model: "NVIDIA RTX 5090" → "rtx-5090"."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return "-".join(word for word in words if word != "nvidia") or "gpu"


def _shipped() -> list[Any]:
    folder = resources.files(__package__).joinpath("catalog_data")
    return [path for path in folder.iterdir() if path.name.endswith(".toml")]


def _plain(name: str) -> str:
    """A name without case, vendor and punctuation: "NVIDIA A100-SXM4-80GB" → "a100sxm480gb"."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return letters.removeprefix("nvidia")


def _choices(value: Any) -> Choices:
    """A list of values, or {low, high, step}. NVML shows whole MHz, so a fractional step becomes a list."""
    if isinstance(value, list):
        return Choices.of([float(item) for item in value])
    low, high, step = float(value["low"]), float(value["high"]), float(value["step"])
    if step == int(step):
        return Choices(low, high, step)
    count = math.floor((high - low) / step + 0.5)
    return Choices.of([*(float(math.floor(low + i * step)) for i in range(count)), high])


def _plain_choices(choices: Choices) -> Any:
    """The shortest form that `_choices` reads back as the same."""
    if len(choices.values) > 12:
        step = round(2.0 * (choices.high - choices.low) / (len(choices.values) - 1)) / 2.0
        short = {"low": choices.low, "high": choices.high, "step": step}
        if _choices(short) == choices:
            return short
    if choices.values:
        return list(choices.values)
    return {"low": choices.low, "high": choices.high, "step": choices.step}


def _unknowns(block: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: the word "none" stands for it."""
    return {key: None if value == "none" else value for key, value in block.items()}


def _record(kind: type[T], block: Mapping[str, Any], key: str, where: str, **more: Any) -> T:
    """A dataclass from a TOML table: numbers become floats where floats are meant; no unknown keys."""
    types = {item.name: str(item.type) for item in fields(kind)}  # type: ignore[arg-type]
    values = dict(more)
    for name, value in block.items():
        if name not in types or name in more:
            raise BadSpec(f"GPU model {key}: unknown parameter {where}.{name}; see 'joulewise model show h200'")
        wants_float = "float" in types[name] and value is not None
        if wants_float and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise BadSpec(f"GPU model {key}: {where}.{name}={value!r} is not a number")
        values[name] = float(value) if wants_float else value
    missing = [
        item.name
        for item in fields(kind)  # type: ignore[arg-type]
        if item.name not in values and item.default is item.default_factory
    ]
    if missing:
        raise BadSpec(f"GPU model {key} lacks {where}.{missing[0]}; see 'joulewise model show h200'")
    return kind(**values)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) + ".0" if value == int(value) else repr(value)
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if len(value) > 3 and isinstance(value[0], str):
        return "[\n" + "".join(f"    {_toml(item)},\n" for item in value) + "]"
    return "[" + ", ".join(_toml(item) for item in value) + "]"
