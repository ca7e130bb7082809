"""Measured applications as jobs: a table of settings is the truth, a window of it is noisy and costs what it costs.

What it is: `Table`, what was measured of one application; `Job`, that application run as one job of a stated length
on which a method may try settings, every second and joule of it charged; `tables`, a reader of the public files. All
methods of ``bench.online --sweep`` see the truth through `Job.window` alone: the same noise, the same cost.

A *method* is a function of a job and a slowdown bound that runs the job to its end: `Job.window(setting, length_s)` as
often as it likes, then `Job.hold(setting)`.

The noise, one relative standard error of a window of L seconds (`Noise`):

* unit time: 1 % / √L of independent jitter, and a slow wander of 0.5 % with a memory of 30 s that all settings feel
  alike (clocks, heat, a shared host). Adjacent blocks of 1 s then differ by 1.0 % and of 10 s by 0.4 % (one block's
  share of it); of the 15 programs recorded in bench/results/h200/steps the middle ones show 2.6 % and 0.9 %;
* power: 1 % / √L of jitter, and 2 % / L of sensor edges: counters that tick every 0.1 s err by 0.041 s of power in a
  window, half of it when the ticks are fitted.

A change of setting costs 25 ms at the old setting's speed, in which nothing is measured.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench import public_sweeps
from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.model.fit import Point, Series

__all__ = ["DEFAULT", "Job", "JobEnded", "Noise", "Stretch", "Table", "Window", "mean", "tables"]

COUNTERS = {  # columns of the sweeps (DCGM) → the names of activity shares
    "SMACT": "sm",
    "SMOCC": "occupancy",
    "TENSO": "tensor",
    "DRAMA": "dram",
    "FP64A": "fp64",
    "FP32A": "fp32",
    "FP16A": "fp16",
}
SWITCH_S = 0.025  # core/knob: one clock change
JOB_S = 2000.0
STEP_S = 0.25  # how long a step of every job is at default: the tables tell whole runs, not their steps


@dataclass(frozen=True, slots=True)
class Table:
    """One application under several settings. Settings name the knobs that the table varies; empty is the default,
    the highest clocks of the table."""

    name: str
    space: Space
    points: Mapping[Setting, tuple[float, float]]
    """Row → seconds a unit of work, watts."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """Counters at the default, where the file has them."""
    top: Setting = DEFAULT
    """The row that the default is."""

    def row(self, setting: Setting) -> Setting:
        """The row that a setting is: knobs not named as at the default; the nearest row if there is none."""
        full = Setting(**{**self.top, **setting})
        if full in self.points:
            return full
        return min(self.settings, key=lambda row: sum(abs(math.log(row[name] / full[name])) for name in row))

    def at(self, setting: Setting) -> tuple[float, float]:
        """Seconds a unit of work, and watts."""
        return self.points[self.row(setting)]

    def slowdown(self, setting: Setting) -> float:
        """More time than the default, as a share of it."""
        return self.at(setting)[0] / self.at(DEFAULT)[0] - 1.0

    def saving(self, setting: Setting) -> float:
        """Less energy than the default, as a share of it."""
        (time_s, power_w), (base_s, base_w) = self.at(setting), self.at(DEFAULT)
        return 1.0 - time_s * power_w / (base_s * base_w)

    def best(self, bound: float) -> Setting:
        """The setting of least energy within a slowdown bound: the oracle's."""
        allowed = [setting for setting in self.settings if self.slowdown(setting) <= bound]
        return max(allowed, key=self.saving)

    @property
    def number(self) -> int:
        """A number of its own, the same in every process: what draws for this application start from."""
        return zlib.crc32(self.name.encode())

    @property
    def settings(self) -> list[Setting]:
        """Every row, highest clocks first; the first is the default's."""
        return sorted(self.points, key=lambda s: tuple(-value for value in s.values()))


@dataclass(frozen=True, slots=True)
class Noise:
    """What a window of L seconds errs by; see the module."""

    time: float = 0.01
    power: float = 0.01
    edge_s: float = 0.02
    wander: float = 0.005
    wander_s: float = 30.0

    def time_error(self, length_s: float) -> float:
        """One relative standard error of unit time."""
        return math.hypot(self.time / math.sqrt(length_s), self.wander)

    def power_error(self, length_s: float) -> float:
        """One relative standard error of power."""
        return math.hypot(self.power / math.sqrt(length_s), self.edge_s / length_s)


NOISE = Noise()


@dataclass(frozen=True, slots=True)
class Window:
    """What a method is shown of one window."""

    setting: Setting
    length_s: float
    unit_s: float
    power_w: float

    @property
    def unit_j(self) -> float:
        """Joules a unit of work."""
        return self.unit_s * self.power_w


class JobEnded(Exception):
    """The job has done all its work."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a job's life: a row of the table, for how long, and what for ("probe", "hold" or "proof")."""

    row: Setting
    what: str
    seconds: float
    joules: float


class Job:
    """A table's application as one job: `job_s` seconds of work at the default, less or more under other settings."""

    def __init__(self, table: Table, *, seed: int, noise: Noise = NOISE, job_s: float = JOB_S) -> None:
        self.table = table
        self.noise = noise
        self.step_s = STEP_S
        self.elapsed_s = 0.0
        self.life: list[Stretch] = []
        # Of the application too: jobs that share their noise are one job many times over.
        self._rng = np.random.default_rng([seed, table.number])
        self._place = float(self._rng.normal())  # where the wander stands, in its standard deviations
        self._job_s = job_s
        self._left_s = job_s  # work left, in seconds of the default's pace
        self._setting = DEFAULT

    def window(self, setting: Setting, length_s: float, what: str = "probe") -> Window:
        """Run `length_s` seconds at `setting` and say what was seen; JobEnded when the work is done before that."""
        if setting != self._setting:
            self._run(self._setting, SWITCH_S, what)
            self._setting = setting
        self._run(setting, length_s, what)
        time_s, power_w = self.table.at(setting)
        noise = self.noise
        keep = math.exp(-length_s / noise.wander_s)
        self._place = keep * self._place + math.sqrt(1.0 - keep * keep) * float(self._rng.normal())
        jitter = noise.time / math.sqrt(length_s) * float(self._rng.normal()) + noise.wander * self._place
        sensor = noise.power_error(length_s) * float(self._rng.normal())
        unit_s = self.step_s * time_s / self.table.at(DEFAULT)[0]
        return Window(setting, length_s, unit_s * math.exp(jitter), power_w * math.exp(sensor))

    def hold(self, setting: Setting) -> None:
        """Run what is left at `setting`."""
        with contextlib.suppress(JobEnded):
            self.window(setting, math.inf, "hold")

    @property
    def ended(self) -> bool:
        """Whether all work is done."""
        return self._left_s <= 0.0

    @property
    def slowdown(self) -> float:
        """More time than the default so far, as a share of the default's time for the same work."""
        return self.elapsed_s / (self._job_s - self._left_s) - 1.0

    @property
    def saving(self) -> float:
        """Less energy than the default so far, as a share of the default's energy for the same work."""
        used_j = sum(stretch.joules for stretch in self.life)
        return 1.0 - used_j / (self.table.at(DEFAULT)[1] * (self._job_s - self._left_s))

    @property
    def held(self) -> Setting:
        """The row of the job's last stretch that was no window of its method's."""
        return next((s.row for s in reversed(self.life) if s.what == "hold"), self.table.top)

    @property
    def candidates(self) -> int:
        """How many settings were visited besides the default."""
        return len({stretch.row for stretch in self.life} - {self.table.top})

    @property
    def probe_j(self) -> float:
        """Joules spent on probing: in windows, away from what was held in the end."""
        return sum(s.joules for s in self.life if s.what == "probe" and s.row != self.held)

    def _run(self, setting: Setting, length_s: float, what: str) -> None:
        if self.ended:
            raise JobEnded
        row = self.table.row(setting)
        pace = 1.0 + self.table.slowdown(row)
        run_s = min(length_s, self._left_s * pace)
        self.elapsed_s += run_s
        self.life.append(Stretch(row, what, run_s, run_s * self.table.at(row)[1]))
        self._left_s -= run_s / pace
        if run_s < length_s:
            self._left_s = 0.0
            raise JobEnded


def tables(path: Path) -> list[Table]:
    """The applications of one file, whichever of the known layouts it has; BadSpec if none."""
    columns = path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
    if "coreF" in columns:
        series = public_sweeps.caffe(path, base_sm_mhz=1809.0, base_memory_mhz=4500.0)  # see bench/fit_catalog
        named = [Series(path.stem, tuple(Point(p.time_s, p.power_w, p.sm_mhz, p.memory_mhz) for p in series[0].points))]
        return [_table(one, {}) for one in named]
    counters = _counters(path)
    return [_table(one, counters.get(one.name, {})) for one in public_sweeps.sweep([path])]


def _table(series: Series, activity: Mapping[str, float]) -> Table:
    memories = {point.memory_mhz for point in series.points}
    points = {}
    for point in series.points:
        if point.lock_mhz is None:
            raise BadSpec(f"{series.name} has a row without a core clock")
        memory = {"memory_mhz": point.memory_mhz} if len(memories) > 1 and point.memory_mhz is not None else {}
        points[Setting(sm_mhz=point.lock_mhz, **memory)] = (point.time_s, point.power_w)
    top = max(points, key=lambda s: tuple(s.values()))
    knobs = {name: Choices.of([row[name] for row in points]) for name in top}
    return Table(series.name, Space(knobs), points, dict(activity), top)


def _counters(path: Path) -> dict[str, dict[str, float]]:
    """Activity shares at the highest clock of each application, where the file has them."""
    rows = public_sweeps.rows_of(path, "benchmark", "core_frequency")
    if not COUNTERS.keys() <= rows[0].keys():
        return {}
    best: dict[str, tuple[float, dict[str, float]]] = {}
    for row in rows:
        name = "/".join(row.get(part) or "" for part in ("benchmark", "kernel", "argNo"))
        clock = float(row["core_frequency"])
        if name not in best or clock > best[name][0]:
            best[name] = (clock, {ours: float(row[theirs]) for theirs, ours in COUNTERS.items()})
    return {name: shares for name, (_, shares) in best.items()}


def mean(values: Iterable[float]) -> float:
    """The mean of some values; NaN of none."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan
