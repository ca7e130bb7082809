"""Recordings of jobs with known step ends, scored window by window, for ``bench.period --traces``.

What a recording is, ``bench.period`` says. Each window's truth is the mean of its steps that nothing interrupted; where
steps differ by a third, or the second half of a window goes at another pace than the first, there is no period to be
found. Every signal is asked alone and all are asked together; the peers see power.
"""

from __future__ import annotations

import csv
import gzip
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.period_peers import Answer, gpoeo, odpp
from joulewise.core.errors import BadSpec
from joulewise.monitor.period import Found, Period, Signal, find

Array = NDArray[np.float64]

INTERRUPTS = frozenset({"evaluation", "checkpoint", "stall", "pause", "compile", "shift"})
UNEVEN = 0.3
"""Steps whose lengths differ by more than this, as a share of their mean, are no period."""
PACES = 0.05
"""Nor are those whose two halves differ by more than this."""
LEAST_STEPS = 6
TOGETHER = "together"
FREE = "free"
"""Power and the driver's average of it: what one poll shows at no cost."""
PERIODS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Recording:
    """Signals of one job, and its steps' ends with what interrupted them."""

    name: str
    signals: tuple[Signal, ...]
    ends_s: Array
    clean: NDArray[np.bool_]
    """Whether nothing but a step lies between this end and the one before."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of a recording, what was said of it, and the truth."""

    name: str
    from_s: float
    steps: int
    step_s: float
    """Mean length of the steps that nothing interrupted."""
    periodic: bool
    reach_s: float
    found: dict[str, Found]
    """By signal, by those that are free, and by all together."""
    cpu_s: float
    gpoeo: Answer | None
    gpoeo_cpu_s: float
    odpp: Answer | None

    def multiple(self, period: Period | None) -> int | None:
        """Which of 1, 2, 3 steps a period is within 1 % of, or None."""
        if period is None or not self.periodic:
            return None
        return next((k for k in PERIODS if abs(period.period_s / (k * self.step_s) - 1.0) <= 0.01), None)

    def word(self, signal: str) -> str:
        """What a signal came to: right, wrong, unknown, aperiodic, or - where it is not there."""
        found = self.found.get(signal)
        if found is None:
            return "-"
        if found.period is None:
            return found.kind
        return "right" if self.multiple(found.period) is not None else "wrong"

    def record(self) -> dict[str, Any]:
        """As one line of the decisions file."""
        return {
            "recording": self.name,
            "from_s": self.from_s,
            "steps": self.steps,
            "true_period_s": self.step_s if self.periodic else None,
            "mean_step_s": self.step_s,
            "reach_s": self.reach_s,
            "found": {
                name: {
                    "kind": found.kind,
                    "period_s": found.period.period_s if found.period else None,
                    "error_s": found.period.error_s if found.period else None,
                    "multiple": self.multiple(found.period),
                    "says": found.says,
                }
                for name, found in self.found.items()
            },
            "cpu_s": self.cpu_s,
            "gpoeo_s": self.gpoeo.period_s if self.gpoeo else None,
            "odpp_s": self.odpp.period_s if self.odpp else None,
        }


def read(folder: Path, update_s: float, window_s: float) -> Iterator[Recording]:
    """Every recording of a folder; BadSpec, naming file and fault, for one that cannot be used."""
    steps = sorted([*folder.glob("*.steps.csv"), *folder.glob("*.steps.csv.gz")])
    if not steps:
        raise BadSpec(f"{folder} has no NAME.steps.csv or NAME.steps.csv.gz; see python -m bench.period --help")
    for path in steps:
        name, _, ending = path.name.partition(".steps.")
        samples = path.with_name(f"{name}.samples.{ending}")
        if not samples.exists():
            raise BadSpec(f"{path} has no {samples.name} beside it")
        kinds, columns = _table(path)
        ends_s = columns.get("end_s")
        if ends_s is None:
            raise BadSpec(f"{path} has no column 'end_s'")
        is_step = np.array([kind in ("", "step") for kind in kinds])
        broken = np.cumsum([kind in INTERRUPTS for kind in kinds])[is_step]
        clean = np.concatenate([[False], np.diff(broken) == 0]) if len(broken) else np.array([], dtype=bool)
        yield Recording(name, tuple(_signals(samples, update_s, window_s)), ends_s[is_step], clean)


def _signals(path: Path, update_s: float, window_s: float) -> Iterator[Signal]:
    _, columns = _table(path)
    for needed in ("time_s", "power_w"):
        if needed not in columns:
            raise BadSpec(f"{path} has no column {needed!r}")
    time_s = columns["time_s"]
    poll_s = float(np.median(np.diff(time_s)))
    yield Signal("power", time_s, columns["power_w"], update_s, window_s, "power_w")
    if "average_power_w" in columns:
        yield Signal("average", time_s, columns["average_power_w"], update_s, 1.0, "power_w")
    if "energy_j" in columns:
        read_s = columns.get("energy_s", time_s)
        power_w = np.diff(columns["energy_j"]) / np.maximum(np.diff(read_s), 1e-6)
        yield Signal("energy", read_s[1:], power_w, update_s, max(update_s, poll_s), "power_w")
    if "utilization" in columns:
        yield Signal("utilization", time_s, columns["utilization"], 0.2, 0.2)
    for name in ("sm", "tensor", "dram"):
        if name in columns:
            yield Signal(name, time_s, columns[name], poll_s, poll_s)


def _table(path: Path) -> tuple[list[str], dict[str, Array]]:
    """A file's kinds ("" without that column) and its columns of numbers; what is empty is NaN."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise BadSpec(f"{path} has no rows")
    columns = {}
    for name in rows[0]:
        try:
            columns[name] = np.array([float(row[name]) if row[name] else np.nan for row in rows])
        except (TypeError, ValueError):
            if name not in ("kind", "throttle"):
                raise BadSpec(f"{path}: column {name!r} holds something that is not a number") from None
    return [row.get("kind") or "" for row in rows], columns


def run(folder: Path, seconds: float, update_s: float, window_s: float, *, peers: bool) -> list[Window]:
    """All windows of all recordings."""
    return [
        window
        for recording in read(folder, update_s, window_s)
        for window in windows_of(recording, seconds, update_s, window_s, peers=peers)
    ]


def windows_of(
    recording: Recording, seconds: float, update_s: float, window_s: float, *, peers: bool
) -> Iterator[Window]:
    """One recording, cut into windows between its first and its last step; a short rest is left out."""
    ends_s = recording.ends_s
    if len(ends_s) < LEAST_STEPS:
        return
    from_s = float(ends_s[0])
    while from_s + min(seconds, 15.0) <= ends_s[-1]:
        to_s = min(from_s + seconds, float(ends_s[-1]))
        inside = np.flatnonzero((ends_s > from_s) & (ends_s <= to_s) & recording.clean)
        lengths_s = ends_s[inside] - ends_s[inside - 1] if len(inside) else np.array([])
        if len(lengths_s) >= LEAST_STEPS:
            yield _window(recording, from_s, to_s, lengths_s, 2.0 * max(update_s, window_s), peers=peers)
        from_s = to_s


def _window(
    recording: Recording, from_s: float, to_s: float, lengths_s: Array, reach_s: float, *, peers: bool
) -> Window:
    signals = [_cut(signal, from_s, to_s) for signal in recording.signals]
    begun_s = time.process_time()
    together = find(signals)
    cpu_s = time.process_time() - begun_s
    found = {signal.name: find([signal]) for signal in signals}
    found |= {FREE: find([signal for signal in signals if signal.name in ("power", "average")]), TOGETHER: together}
    power_w = signals[0].values[np.isfinite(signals[0].values)]
    poll_s = float(np.median(np.diff(signals[0].times_s)))
    begun_s = time.process_time()
    theirs = gpoeo(power_w, poll_s) if peers else None
    gpoeo_cpu_s = time.process_time() - begun_s
    half = len(lengths_s) // 2
    mean_s = float(lengths_s.mean())
    steady = abs(lengths_s[:half].mean() - lengths_s[half:].mean()) <= PACES * mean_s
    return Window(
        name=recording.name,
        from_s=from_s,
        steps=len(lengths_s),
        step_s=mean_s,
        periodic=bool(lengths_s.std() <= UNEVEN * mean_s and steady),
        reach_s=reach_s,
        found=found,
        cpu_s=cpu_s,
        gpoeo=theirs,
        gpoeo_cpu_s=gpoeo_cpu_s,
        odpp=odpp(power_w, poll_s) if peers else None,
    )


def _cut(signal: Signal, from_s: float, to_s: float) -> Signal:
    inside = (signal.times_s >= from_s) & (signal.times_s <= to_s)
    return Signal(
        signal.name, signal.times_s[inside], signal.values[inside], signal.update_s, signal.window_s, signal.quantity
    )


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def figures(windows: Sequence[Window]) -> dict[str, float | None]:
    """The bench's figures over recorded windows; None where no window asks the question."""
    reached = [window for window in windows if window.periodic and window.step_s >= window.reach_s]
    peered = [window for window in windows if window.gpoeo is not None and window.periodic and window.step_s >= 0.25]

    def near(answer: Answer | None, window: Window) -> bool:
        return answer is not None and answer.period_s is not None and abs(answer.period_s / window.step_s - 1.0) <= 0.05

    theirs_s = sum(window.gpoeo_cpu_s for window in windows if window.gpoeo is not None)
    return {
        "within_1pct_share": _share([window.word(TOGETHER) == "right" for window in reached]),
        "false_stable_share": _share([window.word(TOGETHER) == "wrong" for window in windows]),
        "false_stable_share_free": _share([window.word(FREE) == "wrong" for window in windows]),
        "false_stable_share_power_alone": _share([window.word("power") == "wrong" for window in windows]),
        "cpu_ratio_gpoeo": sum(window.cpu_s for window in windows) / theirs_s if theirs_s else None,
        "gpoeo_within_5pct_share": _share([near(window.gpoeo, window) for window in peered]),
        "odpp_within_5pct_share": _share([near(window.odpp, window) for window in peered]),
        "windows": float(len(windows)),
        "windows_in_reach": float(len(reached)),
    }


def show(windows: Sequence[Window]) -> None:
    """One line a window: what every signal came to, and the period that all together gave."""
    names = list(dict.fromkeys(name for window in windows for name in window.found))
    print(
        f"{'recording':<18}{'step s':>9}{'steps':>7} "
        + "".join(f"{name:>12}" for name in names)
        + "   period s (steps)"
    )
    for window in windows:
        words = "".join(f"{window.word(name):>12}" for name in names)
        period = window.found[TOGETHER].period
        said = (
            f"{period.period_s:.4g} ± {100 * period.error:.2f} % ({period.period_s / window.step_s:.3f})"
            if period
            else ""
        )
        mark = " " if window.periodic and window.step_s >= window.reach_s else "*" if window.periodic else "~"
        print(f"{window.name:<18}{window.step_s:>8.4f}{mark}{window.steps:>7} {words}   {said}")
    print("free: power and its average, which one poll shows; together: all")
    print("* below the power sensor's reach   ~ no period: steps differ by a third, or change their pace\n")
