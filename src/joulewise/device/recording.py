"""A run's readings as a file: JSON lines, written as they come, read back by ``ReplayGpu``.

The first line describes the GPUs, each further line is one reading, one look at the energy counter or one
window. Every line goes out in one write as soon as it is known, so that a killed run leaves a file that can
be read. Version 1; unknown keys are ignored, another version is refused.

::

    {"joulewise": "recording", "version": 1, "time_s": 12.5, "unix_s": 1700000000.0, "gpus": [{"uuid": …}, …]}
    {"gpu": 0, "time_s": 12.5, "power_w": 312.4, "sm_mhz": 1710, …}
    {"gpu": 0, "time_s": 12.5, "energy_j": 90210.5, "call_s": 0.0034}
    {"window": "epoch", …}
    {"end": true, "time_s": 99.1}

A value that was not read is left out. What this is not: the store of readings for good (see ``store/``).
"""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from joulewise.core import input_files
from joulewise.core.errors import BadRecording, BadSpec
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming, Throttle
from joulewise.core.parsing import json_value
from joulewise.device.gpu import Gpu, GpuInfo

VERSION: Final = 1

_log = logging.getLogger("joulewise")

_READING_NUMBERS = tuple(
    field.name for field in fields(Reading) if field.name not in ("time_s", "throttle", "memory_used_bytes")
)
_SENSOR_NAMES = frozenset(field.name for field in fields(SensorTiming))
_MAY_BE_UNKNOWN = frozenset({"average_window_s", "counter_update_s", "counter_window_s"})
_MAY_BE_ZERO = frozenset({"counter_call_s", "gain_error"})
# What reading a line that is JSON, or not, can end in: wrong types, missing keys, numbers and depths beyond bounds.
_MOST_BYTES = 4096 * input_files.MIB  # a day of 8 GPUs, read ten times a second, has about 1 GiB
_NONSENSE = (ValueError, KeyError, TypeError, ArithmeticError, RecursionError)


class Recorder:
    """Writes one recording. Only opening it can fail; after that, trouble is logged once and recording stops.

    A measured job must not die because a disk is full. May be used from several threads.
    """

    def __init__(self, path: Path | str, gpus: Sequence[Gpu]) -> None:
        """Open ``path`` (an existing file is replaced) and write the header; BadSpec if that is impossible."""
        self.path = Path(path)
        self.failed: str | None = None
        """Why recording stopped early, or None."""
        self._lock = threading.Lock()
        self._good_bytes = 0
        header = {
            "joulewise": "recording",
            "version": VERSION,
            "time_s": gpus[0].time.now_s() if gpus else 0.0,
            "unix_s": time.time(),
            "gpus": [_info_out(gpu.info) for gpu in gpus],
        }
        self._file: io.FileIO | None = None
        try:
            # Unbuffered: one line is one write, so that a kill cannot cut a line in two.
            self._file = io.FileIO(self.path, "w")
            self._write(self._file, header)
        except OSError as error:
            if self._file is not None:
                self._file.close()
            reason = f"{error.strerror}; name a file in a directory that is writable and not full"
            raise BadSpec(f"cannot record to {self.path}: {reason}") from None

    def reading(self, index: int, reading: Reading) -> None:
        """Record one reading of GPU number ``index`` (its place in ``gpus``)."""
        line: dict[str, Any] = {"gpu": index, "time_s": reading.time_s}
        line |= {name: getattr(reading, name) for name in (*_READING_NUMBERS, "memory_used_bytes")}
        line["throttle"] = None if reading.throttle is None else sorted(reading.throttle)
        self._append({name: value for name, value in _finite(line).items() if value is not None})

    def energy(self, index: int, energy: EnergyReading) -> None:
        """Record one look at the energy counter of GPU number ``index``."""
        self._append({"gpu": index, "time_s": energy.time_s, "energy_j": energy.energy_j, "call_s": energy.call_s})

    def window(self, name: str, values: Mapping[str, Any]) -> None:
        """Record a finished window: its name and whatever JSON can hold of it. Infinity and NaN become null."""
        self._append({"window": name, **_finite(values)})

    def close(self, time_s: float | None = None) -> None:
        """Mark the end and close the file. A second call does nothing."""
        self._append({"end": True} if time_s is None else {"end": True, "time_s": time_s})
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._lock:
            if self._file is None:
                return
            try:
                self._write(self._file, line)
            except (OSError, ValueError, TypeError) as error:
                self.failed = f"recording to {self.path} stopped: {error}; the run goes on"
                self._file.close()
                self._file = None
        if self.failed is not None:
            _log.warning(self.failed)

    def _write(self, file: io.FileIO, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        if file.write(data) != len(data):  # the disk filled up in mid-line: leave whole lines only
            with suppress(OSError):
                file.truncate(self._good_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._good_bytes += len(data)


def _finite(value: Any) -> Any:
    """``value`` with None for every number that JSON cannot hold, to any depth."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory. ``readings[i]`` and ``energies[i]`` belong to ``gpus[i]``, in order of time."""

    path: Path
    gpus: tuple[GpuInfo, ...]
    readings: tuple[tuple[Reading, ...], ...]
    energies: tuple[tuple[EnergyReading, ...], ...]
    windows: tuple[tuple[str, Mapping[str, Any]], ...]
    start_s: float
    """The recorder's clock when it was opened."""
    unix_s: float | None
    """The same moment on the calendar, or None where unknown."""
    complete: bool
    """Whether the recorder was closed in order; a killed run's recording is not complete."""


def load(path: Path | str, *, strict: bool = True) -> Recording:
    """Read a recording. Raise BadRecording, naming the line, if it is corrupt or of another version.

    A last line without its end is not corruption but a write in progress, or one that was cut off, and is
    left out. With ``strict=False`` a corrupt line ends the recording instead: what precedes it is returned.
    A bad header is always an error, since nothing precedes it.
    """
    path = Path(path)
    try:
        text = input_files.read_bytes(path, _MOST_BYTES, way_out="make a recording with 'joulewise run --record'")
    except BadSpec as error:
        raise BadRecording(str(error)) from None
    lines = text.split(b"\n")[:-1]
    header = _header(path, lines)
    loader = _Loader(tuple(_info_in(path, info) for info in header["gpus"]))
    for number, line in enumerate(lines[1:], start=2):
        try:
            loader.take(_object(line))
        except _NONSENSE as error:
            if strict:
                raise BadRecording(
                    f"line {number} of {path} is corrupt ({_brief(error)}); "
                    f"'head -n {number - 1}' keeps what precedes it"
                ) from None
            break
    return loader.recording(path, _number(header, "time_s"), header.get("unix_s"))


class _Loader:
    """Sorts lines into a Recording; raises one of ``_NONSENSE`` on one that makes no sense."""

    def __init__(self, gpus: tuple[GpuInfo, ...]) -> None:
        self._gpus = gpus
        self._readings: list[list[Reading]] = [[] for _ in gpus]
        self._energies: list[list[EnergyReading]] = [[] for _ in gpus]
        self._windows: list[tuple[str, Mapping[str, Any]]] = []
        self._complete = False

    def take(self, line: dict[str, Any]) -> None:
        if "gpu" in line:
            index = line["gpu"]
            if not isinstance(index, int) or not 0 <= index < len(self._gpus):
                raise ValueError(f"gpu {index!r} is not in the header")
            if "energy_j" in line:
                energy = EnergyReading(
                    _number(line, "time_s"), _number(line, "energy_j"), _number({"call_s": 0.0, **line}, "call_s")
                )
                _append_in_order(self._energies[index], energy)
            else:
                _append_in_order(self._readings[index], _reading_in(line))
        elif "window" in line:
            self._windows.append((str(line["window"]), {k: v for k, v in line.items() if k != "window"}))
        elif "end" in line:
            self._complete = True

    def recording(self, path: Path, start_s: float, unix_s: object) -> Recording:
        return Recording(
            path=path,
            gpus=self._gpus,
            readings=tuple(map(tuple, self._readings)),
            energies=tuple(map(tuple, self._energies)),
            windows=tuple(self._windows),
            start_s=start_s,
            unix_s=float(unix_s) if isinstance(unix_s, (int, float)) else None,
            complete=self._complete,
        )


def _append_in_order(series: list[Any], item: Reading | EnergyReading) -> None:
    if series and item.time_s < series[-1].time_s:
        raise ValueError(f"time goes back from {series[-1].time_s} to {item.time_s}")
    series.append(item)


def _header(path: Path, lines: Sequence[bytes]) -> dict[str, Any]:
    """The first line, checked; BadRecording in one sentence otherwise."""
    try:
        header = _object(lines[0])
    except (IndexError, *_NONSENSE):
        header = {}
    if header.get("joulewise") != "recording":
        raise BadRecording(f"line 1 of {path} is not the header of a recording; make one with 'joulewise run --record'")
    if header.get("version") != VERSION:
        raise BadRecording(
            f"{path} is a recording of version {header.get('version')!r}, this joulewise reads version {VERSION}; "
            "record again, or read it with the joulewise that wrote it"
        )
    gpus = header.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise BadRecording(f"line 1 of {path} lists no GPUs; the header is corrupt")
    try:
        _number(header, "time_s")
    except _NONSENSE:
        raise BadRecording(f"line 1 of {path} has no time_s; the header is corrupt") from None
    return header


def _object(line: bytes) -> dict[str, Any]:
    value = json_value(line, parse_constant=_no_constant)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} is no number")
    return float(value)


def _known(line: Mapping[str, Any], name: str) -> float | None:
    return None if line.get(name) is None else _number(line, name)


def _reading_in(line: Mapping[str, Any]) -> Reading:
    throttle = line.get("throttle")
    memory = _known(line, "memory_used_bytes")
    values = {name: _known(line, name) for name in _READING_NUMBERS}
    return Reading(
        _number(line, "time_s"),
        memory_used_bytes=None if memory is None else int(memory),
        throttle=None if throttle is None else frozenset(map(Throttle, throttle)),
        **values,
    )


def _info_out(info: GpuInfo) -> dict[str, Any]:
    """GpuInfo as JSON; what is None is left out."""
    plain = {field.name: getattr(info, field.name) for field in fields(info) if field.name not in ("space", "sensors")}
    plain["notes"] = list(info.notes)
    plain["sensors"] = {field.name: getattr(info.sensors, field.name) for field in fields(info.sensors)}
    plain["space"] = {
        name: {"low": c.low, "high": c.high, "step": c.step, "values": list(c.values)}
        for name, c in info.space.knobs.items()
    }
    return {name: value for name, value in plain.items() if value is not None}


def _info_in(path: Path, plain: Mapping[str, Any]) -> GpuInfo:
    try:
        knobs = {
            name: Choices(
                _number(c, "low"), _number(c, "high"), _known(c, "step"), tuple(map(float, c.get("values", ())))
            )
            for name, c in plain.get("space", {}).items()
        }
        memory = _known(plain, "memory_bytes")
        info = GpuInfo(
            uuid=str(plain["uuid"]), name=str(plain["name"]), index=int(plain["index"]), backend=str(plain["backend"])
        )
        return replace(
            info,
            space=Space(knobs),
            sensors=_sensors_in(plain.get("sensors", {})),
            idle_power_w=_known(plain, "idle_power_w"),
            default_limit_w=_known(plain, "default_limit_w"),
            memory_bytes=None if memory is None else int(memory),
            pci_bus_id=plain.get("pci_bus_id"),
            driver=plain.get("driver"),
            notes=tuple(map(str, plain.get("notes", ()))),
        )
    except (AttributeError, *_NONSENSE) as error:
        raise BadRecording(f"line 1 of {path} describes a GPU badly ({_brief(error)}); the header is corrupt") from None


def _sensors_in(plain: Mapping[str, Any]) -> SensorTiming:
    values: dict[str, Any] = {}
    for name in _SENSOR_NAMES & set(plain):
        value = _known(plain, name)
        missing, nothing = value is None, value is not None and value <= 0
        if (missing and name not in _MAY_BE_UNKNOWN) or (nothing and not (value == 0 and name in _MAY_BE_ZERO)):
            raise ValueError(f"{name}={plain[name]!r} is no time or share")
        values[name] = value
    return SensorTiming(**values)


def _brief(error: Exception) -> str:
    """An error in a few words, on one line."""
    words = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(words.split())[:100]
