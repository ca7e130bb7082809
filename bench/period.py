"""How well is a job's step time told from what a GPU's sensors show, and how often is one told that is not there?

Without ``--traces`` the traces are made (``bench.period_traces``): eight periods from 0.12 to 9 s, three sensors, six
jobs each, every job at four clocks, and 36 traces without a period. A case is right when at *every* clock the answer is
within 1 % of k steps, k ≤ 3, with the same k; "unknown" is a miss. Cases count whose step lasts at least twice the
sensor's update and window; the rest is below its reach and listed apart. GPOEO's detector and ODPP's get the same
samples of the first clock; what they say is right within 5 % of one step.

``--traces DIR`` scores recordings instead. For every recording DIR has two files, plain or gzipped:

    NAME.samples.csv   time_s,power_w[,average_power_w][,utilization][,energy_s,energy_j][,sm][,tensor][,dram]
    NAME.steps.csv     end_s[,kind]

one row a poll and one row a step's end, on one clock in seconds; an empty field is no reading. ``energy_j`` is a
counter and ``energy_s`` when it was read (``time_s`` if absent); sm, tensor and dram are shares of time or any activity
since the poll before. Rows of kind ``step`` (or without a kind) end a step; evaluation, checkpoint, stall, pause,
compile and shift interrupt the steps, and other kinds are parts of one. ``--update`` and ``--window`` say what the
power sensor is like. bench/results/h200/steps is such a DIR; recordings are cut into windows of ``--seconds``.

Figures: ``within_1pct_share`` of cases in reach; ``false_stable_share``, the worse of two shares: of traces without a
period that are called stable, and of traces in reach that are called stable with a wrong period; ``cpu_ratio_gpoeo``,
CPU time a call over GPOEO's; ``gpoeo_within_5pct_share`` and ``odpp_within_5pct_share`` from 0.25 s up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import period_recorded, period_traces
from bench.period_peers import Answer, gpoeo, odpp
from bench.period_traces import PERIODS_S, POLL_S, SENSORS, STRETCHES, Sensor, Trace
from joulewise.core.errors import BadSpec
from joulewise.monitor.period import Found, Period, Signal, find

NUMBERS = range(6)
PEERS_FROM_S = 0.25
MULTIPLES = (1, 2, 3)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judged:
    """One answer beside the truth."""

    trace: Trace
    stretch: float
    found: Found
    cpu_s: float

    @property
    def multiple(self) -> int | None:
        """How many steps the answer holds, if it is within 1 % of a whole few."""
        return multiple_of(self.found.period, self.trace.period_s)

    @property
    def false_stable(self) -> bool:
        """Whether a period is stated that is none."""
        return self.found.kind == "stable" and self.multiple is None

    def record(self) -> dict[str, Any]:
        """As one line of the decisions file."""
        period = self.found.period
        return {
            "trace": self.trace.name,
            "stretch": self.stretch,
            "true_period_s": self.trace.period_s,
            "reach_s": self.trace.sensor.reach_s,
            "kind": self.found.kind,
            "period_s": period.period_s if period else None,
            "error_s": period.error_s if period else None,
            "alias_s": period.alias_s if period else None,
            "multiple": self.multiple,
            "cpu_s": self.cpu_s,
            "says": self.found.says,
        }


@dataclass(frozen=True, slots=True)
class Case:
    """One job through one sensor, at all clocks, and what the peers say at the first."""

    nominal_s: float
    sensor: Sensor
    answers: tuple[Judged, ...]
    averaged: Judged
    """The first clock again, with the driver's 1 s average beside the sensor."""
    gpoeo: Answer | None
    gpoeo_cpu_s: float
    odpp: Answer | None

    @property
    def in_reach(self) -> bool:
        """Whether the sensor can be asked for it."""
        return self.nominal_s >= self.sensor.reach_s - 1e-9

    @property
    def right(self) -> bool:
        """Whether all clocks give the same whole few steps."""
        multiples = {answer.multiple for answer in self.answers}
        return len(multiples) == 1 and None not in multiples


def multiple_of(period: Period | None, true_s: float | None) -> int | None:
    """Which of 1, 2, 3 steps a period is within 1 % of, or None."""
    if period is None or true_s is None:
        return None
    return next((k for k in MULTIPLES if abs(period.period_s / (k * true_s) - 1.0) <= 0.01), None)


def within(answer: Answer | None, true_s: float | None, share: float = 0.05) -> bool:
    """Whether a peer's period is one step, to a share of it."""
    return (
        answer is not None
        and answer.period_s is not None
        and true_s is not None
        and abs(answer.period_s / true_s - 1.0) <= share
    )


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns and the CPU seconds that it took."""
    begun_s = time.process_time()
    result = call()
    return result, time.process_time() - begun_s


def power_of(trace: Trace) -> Signal:
    """The sensor's power as a signal."""
    sensor = trace.sensor
    return Signal("power", trace.time_s, trace.power_w, sensor.update_s, sensor.window_s, "power_w")


def judge(trace: Trace, stretch: float, near: Period | None, *, average: bool = False) -> Judged:
    """Ask ours."""
    signals = [power_of(trace)]
    if average:
        wide = period_traces.AVERAGE
        signals.append(Signal("average", trace.time_s, trace.average_w, wide.update_s, wide.window_s, "power_w"))
    found, cpu_s = timed(lambda: find(signals, near=near))
    return Judged(trace, stretch, found, cpu_s)


def run_case(seed: int, number: int, period_s: float, sensor: Sensor, *, peers: bool) -> Case:
    """One job through one sensor. The first clock's period is what the others are looked for near."""
    job = period_traces.training(seed, number, period_s)
    first = period_traces.record(job, sensor, seed)
    answers = [judge(first, 1.0, None)]
    for stretch in STRETCHES[1:]:
        trace = period_traces.record(job.at(stretch), sensor, seed)
        answers.append(judge(trace, stretch, answers[0].found.period))
    theirs, gpoeo_cpu_s = timed(lambda: gpoeo(first.power_w, POLL_S)) if peers else (None, 0.0)
    averaged = judge(first, 1.0, None, average=True)
    simple = odpp(first.power_w, POLL_S) if peers else None
    return Case(period_s, sensor, tuple(answers), averaged, theirs, gpoeo_cpu_s, simple)


def run_aperiodic(seed: int) -> list[Judged]:
    """The traces without a period: each kind through each sensor, twice."""
    return [
        judge(period_traces.aperiodic(kind, seed, number, SENSORS[number % len(SENSORS)]), 1.0, None)
        for kind in period_traces.APERIODIC
        for number in NUMBERS
    ]


def share(flags: Iterable[bool]) -> float | None:
    """The share that is true; None of nothing."""
    listed = list(flags)
    return sum(listed) / len(listed) if listed else None


def figures(cases: Sequence[Case], aperiodic: Sequence[Judged]) -> dict[str, float | None]:
    """The bench's figures."""
    reached = [case for case in cases if case.in_reach]
    below = [case for case in cases if not case.in_reach]
    long = [case for case in cases if case.nominal_s >= PEERS_FROM_S and case.gpoeo is not None]
    answers = [answer for case in reached for answer in case.answers]
    wrong, phantom = share(answer.false_stable for answer in answers), share(each.false_stable for each in aperiodic)
    ours_s = [case.answers[0].cpu_s for case in cases if case.gpoeo is not None]
    theirs_s = [case.gpoeo_cpu_s for case in cases if case.gpoeo is not None]
    errors = [
        (answer.found.period.period_s / (answer.multiple * answer.trace.period_s) - 1.0) / answer.found.period.error
        for answer in answers
        if answer.found.period is not None and answer.multiple is not None and answer.trace.period_s is not None
    ]
    return {
        "within_1pct_share": share(case.right for case in reached),
        "false_stable_share": max((each for each in (wrong, phantom) if each is not None), default=None),
        "cpu_ratio_gpoeo": statistics.mean(ours_s) / statistics.mean(theirs_s) if ours_s else None,
        "gpoeo_within_5pct_share": share(within(case.gpoeo, case.answers[0].trace.period_s) for case in long),
        "odpp_within_5pct_share": share(within(case.odpp, case.answers[0].trace.period_s) for case in long),
        "within_1pct_share_per_trace": share(answer.multiple is not None for answer in answers),
        "false_stable_share_in_reach": wrong,
        "false_stable_share_aperiodic": phantom,
        "false_stable_share_below_reach": share(case.answers[0].false_stable for case in below),
        "false_stable_share_below_reach_with_average": share(case.averaged.false_stable for case in below),
        "covered_2se": share(abs(error) <= 2.0 for error in errors),
        "cpu_ms": 1e3 * statistics.mean(ours_s) if ours_s else None,
        "gpoeo_cpu_ms": 1e3 * statistics.mean(theirs_s) if theirs_s else None,
    }


def show(cases: Sequence[Case], aperiodic: Sequence[Judged]) -> None:
    """The table, by period and sensor and then by kind."""
    heads = ("step s", "sensor", "cases", "right", "k", "unknown", "wrong", "GPOEO", "ODPP", "error %")
    print(f"{heads[0]:>7} {heads[1]:<14}" + "".join(f"{head:>9}" for head in heads[2:]))
    for period_s in dict.fromkeys(case.nominal_s for case in cases):
        for sensor in dict.fromkeys(case.sensor for case in cases):
            cell = [case for case in cases if case.nominal_s == period_s and case.sensor == sensor]
            answers = [answer for case in cell for answer in case.answers]
            multiples = sorted({answer.multiple for answer in answers if answer.multiple is not None})
            errors = [
                abs(answer.found.period.period_s / (answer.multiple * answer.trace.period_s) - 1.0)
                for answer in answers
                if answer.found.period and answer.multiple and answer.trace.period_s
            ]
            row = (
                len(cell),
                sum(case.right for case in cell),
                ",".join(map(str, multiples)) or "-",
                sum(answer.found.kind != "stable" for answer in answers),
                sum(answer.false_stable for answer in answers),
                sum(within(case.gpoeo, case.answers[0].trace.period_s) for case in cell),
                sum(within(case.odpp, case.answers[0].trace.period_s) for case in cell),
                f"{100 * statistics.median(errors):.2f}" if errors else "-",
            )
            name = sensor.name + ("" if cell and cell[0].in_reach else " *")
            print(f"{period_s:7g} {name:<16}" + "".join(f"{value!s:>9}" for value in row)[2:])
    print("* below the sensor's reach. unknown and wrong count traces, of all clocks; the peers are within 5 %\n")
    for kind in period_traces.APERIODIC:
        kinds = [each.found.kind for each in aperiodic if each.trace.name.startswith(kind)]
        counts = ", ".join(f"{kinds.count(word)} {word}" for word in ("aperiodic", "unknown", "stable"))
        print(f"no period, {kind:<14} {counts}")
    print()


def run(seed: int, periods_s: Sequence[float], *, peers: bool) -> tuple[list[Case], list[Judged]]:
    """All cases of a seed; progress on stderr."""
    cases = []
    for period_s in periods_s:
        for sensor in SENSORS:
            cases += [run_case(seed, number, period_s, sensor, peers=peers) for number in NUMBERS]
        print(f"{period_s:g} s: {len(cases)} cases so far, {time.process_time():.0f} CPU s", file=sys.stderr)
    return cases, run_aperiodic(seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="draws jobs, jitter, noise and phases")
    parser.add_argument("--periods", metavar="S,S,…", help="step times instead of the eight committed ones")
    parser.add_argument("--traces", metavar="DIR", type=Path, help="score recordings instead")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a recording's windows")
    parser.add_argument("--update", type=float, default=0.1, help="the recorded power sensor's update time, s")
    parser.add_argument("--window", type=float, default=0.025, help="what it averages over, s")
    parser.add_argument("--no-peers", action="store_true", help="leave out GPOEO and ODPP: most of the time is theirs")
    parser.add_argument("--decisions", metavar="FILE", type=Path, help="write every answer as one JSON line")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    try:
        if options.traces:
            windows = period_recorded.run(
                options.traces, options.seconds, options.update, options.window, peers=not options.no_peers
            )
            lines = [window.record() for window in windows]
            result = period_recorded.figures(windows)
            if not options.json:
                period_recorded.show(windows)
        else:
            periods_s = [float(each) for each in options.periods.split(",")] if options.periods else PERIODS_S
            cases, aperiodic = run(options.seed, periods_s, peers=not options.no_peers)
            lines = [answer.record() for case in cases for answer in (*case.answers, case.averaged)]
            lines += [answer.record() for answer in aperiodic]
            result = figures(cases, aperiodic)
            if not options.json:
                show(cases, aperiodic)
    except (BadSpec, ValueError) as fault:
        print(f"bench.period: {fault}", file=sys.stderr)
        return 2
    if options.decisions:
        options.decisions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if options.json:
        print(json.dumps({"figures": result}))
    else:
        for name, value in result.items():
            print(f"{name:<46}{'-' if value is None else format(value, '.4g')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
