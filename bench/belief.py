"""How well does the belief of ``model/dvfs`` tell settings that a job was never run at, and is it honest about it?

Each case is one piece of work on one GPU with a truth that the belief does not share: measured tables (SM clock
sweeps, core × memory clock tables, power-limit series, pipeline stages, a clock × limit grid) and the richer law of
``model/truth`` running drawn workloads. The default and then up to three settings are seen in noisy windows; the rest
is predicted, relative to the default, and compared. Errors are mean absolute percentages; coverage is the share of
true ratios inside the belief's central 90 % interval.

Where the GPU of a measured table is in the catalogue, its chip may have been fitted to the same file: the columns
"stranger" take the GPU as unknown instead.

    python -m bench.belief [--json] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench import online_table, public_sweeps
from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.model import boosted, catalog, workloads
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief
from joulewise.model.fit import Point
from joulewise.model.truth import RichLaw

TIME_NOISE = 0.004  # relative, of one window: 20 steps with 1.5 % jitter, a little correlated
POWER_NOISE = 0.006  # relative: unaligned 100 ms ticks over 5 to 10 s
FAR = 1.35  # settings slower than this against the default are not asked about
PROBES = (0.87, 0.70, 0.79)  # of the default's clock (or as shares of the limits' range), in this order


@dataclass(frozen=True, slots=True)
class State:
    """The truth of one setting."""

    time_s: float
    power_w: float
    sm_mhz: float | None = None
    capped: bool | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work: the truth of its settings, the default among them, and what may be set."""

    group: str
    name: str
    states: Mapping[Setting, State]
    space: Space
    model: GpuModel | None
    limit_w: float | None
    noise: tuple[float, float] = (0.0, 0.0)
    """Of the table itself, in time and power: two measurements of one setting differ by so much."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """Counters at the default, where the table has them."""


def cases(folder: Path, *, drawn: int) -> Iterator[Case]:
    """Everything that there is a truth of."""
    dvfs = folder / "dvfs"
    counters = {table.name: table.activity for table in online_table.tables(dvfs / "rtx8000-dvfs-real.csv")}
    for series in public_sweeps.sweep([dvfs / "rtx8000-dvfs-real.csv"]):
        yield replace(_clocks("rtx8000", series.name, series.points, "rtx8000"), activity=counters[series.name])
    for file in ("googlenet", "vgg"):
        for series in public_sweeps.caffe(
            dvfs / f"titanX-caffe-{file}.csv", base_sm_mhz=1809.0, base_memory_mhz=4500.0
        ):
            yield _clocks("titanx", series.name, series.points, "titanx")
    for gpu in ("a40", "v100"):
        for series in public_sweeps.zeus(folder / "zeus" / f"summary_power_{gpu}.csv"):
            yield _limits(f"zeus-{gpu}", series.name, series.points, gpu)
    for gpu, file in (("a100-sxm", "a100"), ("a40", "a40")):
        for path in sorted((folder / "perseus" / "stage_profile").glob(f"*{file}*.csv")):
            for series in public_sweeps.stages(path):
                # Clocks are those asked for; the A40 stages run into their power limit.
                yield _clocks(f"stages-{file}", f"{path.stem}/{series.name}", series.points, gpu, seen=False)
    for series in public_sweeps.grid(dvfs / "a100_clock_powerlimit_grid.csv"):
        yield _grid("a100-grid", series.name, series.points, "a100")
    for key in ("h200", "a100-sxm", "v100", "rtxpro6000"):
        yield from _rich(key, drawn)


def _clocks(group: str, name: str, points: Sequence[Point], key: str, *, seen: bool = True) -> Case:
    """A table over clocks: the default is the highest of them all. `seen`: whether the clocks are known to be held."""
    model = catalog.load(key)

    def at(point: Point) -> tuple[float, float]:
        return point.lock_mhz or point.sm_mhz or 0.0, point.memory_mhz or 0.0

    best = max(points, key=at)
    states: dict[Setting, State] = {}
    for point in points:
        sm_mhz, memory_mhz = at(point)
        values = {"sm_mhz": sm_mhz} if sm_mhz < at(best)[0] else {}
        if memory_mhz < at(best)[1]:
            values["memory_mhz"] = memory_mhz
        states[Setting(**values)] = State(
            point.time_s, point.power_w, sm_mhz if seen else None, False if seen else None
        )
    knobs = {"sm_mhz": Choices.of([at(p)[0] for p in points])}
    if len({at(p)[1] for p in points}) > 1:
        knobs["memory_mhz"] = Choices.of([at(p)[1] for p in points])
    return Case(group, name, states, Space(knobs), model, model.default_limit_w)


def _limits(group: str, name: str, points: Sequence[Point], key: str) -> Case:
    """A series over power limits: the default is the highest of them."""
    highest = max(point.limit_w or 0.0 for point in points)
    states = {
        Setting(power_limit_w=point.limit_w) if point.limit_w != highest else DEFAULT: State(
            point.time_s, point.power_w
        )
        for point in points
        if point.limit_w is not None
    }
    low = min(point.limit_w or highest for point in points)
    # Epochs of real runs: where the limit is far above what the job takes, times still differ by 2–4 %, power by 2 %.
    noise = (0.03, 0.02)
    return Case(group, name, states, Space({"power_limit_w": Choices(low, highest)}), catalog.load(key), highest, noise)


def _grid(group: str, name: str, points: Sequence[Point], key: str) -> Case:
    """A grid over clock and limit: the default is the highest of both."""
    top = max(point.lock_mhz or 0.0 for point in points), max(point.limit_w or 0.0 for point in points)
    states: dict[Setting, State] = {}
    for point in points:
        values = {}
        if point.lock_mhz and point.lock_mhz < top[0]:
            values["sm_mhz"] = point.lock_mhz
        if point.limit_w and point.limit_w < top[1]:
            values["power_limit_w"] = point.limit_w
        states[Setting(**values)] = State(point.time_s, point.power_w)
    space = Space(
        {
            "sm_mhz": Choices.of([p.lock_mhz for p in points if p.lock_mhz]),
            "power_limit_w": Choices(min(p.limit_w for p in points if p.limit_w), top[1]),
        }
    )
    return Case(group, name, states, space, catalog.load(key), top[1])


def _rich(key: str, drawn: int) -> Iterator[Case]:
    """Workloads of the library on cards that the law cannot represent."""
    model = catalog.load(key)
    for number, work in enumerate(workloads.draw(drawn, gpu=model, seed=7)):
        card = RichLaw(model.chip, seed=number)
        fractions = (0.95, 0.9, 0.87, 0.83, 0.79, 0.75, 0.70, 0.65, 0.6)
        settings = [DEFAULT, *(Setting(sm_mhz=model.sm_mhz.snap(f * model.sm_mhz.high)) for f in fractions)]
        memory = [v for v in model.memory_mhz.all() if 0.5 * model.memory_mhz.high <= v < model.memory_mhz.high]
        settings += [Setting(memory_mhz=v) for v in memory[-1:]]
        settings += [s.with_(memory_mhz=memory[-1]) for s in settings[2:8:2] if memory]
        settings += [Setting(power_limit_w=f * model.default_limit_w) for f in (0.9, 0.75, 0.6)]
        states = {setting: _settled(card, model, work, setting) for setting in settings}
        yield Case(f"rich-{key}", f"{work.name}-{number}", states, model.space, model, model.default_limit_w)


def _settled(card: RichLaw, model: GpuModel, work: workloads.Workload, setting: Setting) -> State:
    """One step of a workload at a setting: phases one after another."""
    parts = [
        card.operate(
            model.chip,
            phase.load,
            lock_mhz=setting.get("sm_mhz"),
            memory_mhz=setting.get("memory_mhz"),
            limit_w=setting.get("power_limit_w", model.default_limit_w),
        )
        for phase in work.step()
    ]
    time_s = sum(part.step_s for part in parts)
    busy_s = sum(part.busy_s for part in parts)
    capped_s = sum(part.busy_s for part in parts if part.limited_by in ("power", "floor"))
    return State(
        time_s,
        card.gain * sum(part.energy_j for part in parts) / time_s,
        sum(part.sm_mhz * part.busy_s for part in parts) / busy_s,
        capped_s > 0.3 * busy_s,
    )


def window(setting: Setting, case: Case, random: np.random.Generator) -> Block:
    """A noisy window of one setting, as uncertain as the table it comes from."""
    state = case.states[setting]
    unit_s = state.time_s * math.exp(TIME_NOISE * random.normal())
    power_w = state.power_w * math.exp(POWER_NOISE * random.normal())
    work = max(1.0, 8.0 / unit_s)
    energy_j = work * unit_s * power_w
    return Block(
        setting, 0.0, work * unit_s, work, work * unit_s, energy_j,
        math.hypot(POWER_NOISE, case.noise[1]) * energy_j, math.hypot(TIME_NOISE, case.noise[0]),
        sm_mhz=state.sm_mhz, power_capped=state.capped,
    )  # fmt: skip


def probes(case: Case) -> list[Setting]:
    """What is seen after the default, in this order: the nearest that there is to `PROBES`."""
    plain = [s for s in case.states if set(s) == {"sm_mhz"}] or [s for s in case.states if set(s) == {"power_limit_w"}]
    (knob,) = {name for s in plain for name in s}
    default = case.states[DEFAULT]
    high = default.sm_mhz or case.space.knobs[knob].high
    if knob == "power_limit_w":
        high = default.power_w
    picked: list[Setting] = []
    for share in PROBES:
        left = [s for s in plain if s not in picked]
        if len(left) > 1:  # something must be left to predict
            picked.append(min(left, key=lambda s: abs(s[knob] - share * high)))
    memory = [s for s in case.states if "memory_mhz" in s]
    if memory and len(picked) > 2:  # the third shows what the memory clock does
        picked[2] = max(memory, key=lambda s: (s["memory_mhz"], s.get("sm_mhz", math.inf)))
    return picked


@dataclass(frozen=True, slots=True)
class Miss:
    """One prediction against the truth."""

    group: str
    told: int
    knows: str
    time: float  # ratio predicted / true − 1
    power: float
    energy: float
    time_inside: bool
    energy_inside: bool


def judge(case: Case, *, knows: str, seed: int) -> Iterator[Miss]:
    """Every prediction of one case: after the default alone, then after each probe.

    `knows`: "known", the GPU's model; "stranger", nothing of the GPU; "counters", its model and the shipped predictor.
    """
    random = np.random.default_rng([seed, *case.name.encode()])
    default = case.states[DEFAULT]
    prior = boosted.prior(case.activity, default.power_w / (case.limit_w or 300.0)) if knows == "counters" else None
    belief = Belief(
        case.space,
        model=None if knows == "stranger" else case.model,
        default_limit_w=case.limit_w,
        prior=prior,
        seed=seed,
    )
    belief.tell(window(DEFAULT, case, random))
    seen = {DEFAULT}
    for told, probe in enumerate([None, *probes(case)]):
        if probe is not None:
            belief.tell(window(probe, case, random))
            seen.add(probe)
        # Nobody goes there.
        rest = [s for s, state in case.states.items() if s not in seen and state.time_s < FAR * default.time_s]
        if not rest:
            return
        said = belief.predict(rest)
        blur = random.normal(size=(2, *said.time_draws.shape))
        time_draws = said.time_draws * np.exp(case.noise[0] * blur[0])
        energy_draws = said.energy_draws * np.exp(case.noise[0] * blur[0] + case.noise[1] * blur[1])
        low_t, high_t = np.quantile(time_draws, [0.05, 0.95], axis=0)
        low_e, high_e = np.quantile(energy_draws, [0.05, 0.95], axis=0)
        for i, setting in enumerate(rest):
            state = case.states[setting]
            time_ratio = state.time_s / default.time_s
            power_ratio = state.power_w / default.power_w
            energy_ratio = time_ratio * power_ratio
            yield Miss(
                case.group, told, knows, said.time[i] / time_ratio - 1.0,
                said.energy[i] / said.time[i] / power_ratio - 1.0, said.energy[i] / energy_ratio - 1.0,
                bool(low_t[i] <= time_ratio <= high_t[i]), bool(low_e[i] <= energy_ratio <= high_e[i]),
            )  # fmt: skip


def figures(misses: Sequence[Miss]) -> dict[str, float]:
    """Errors in percent and coverage, over all groups alike (each group counts once)."""
    found: dict[str, float] = {}
    for knows, told in sorted({(miss.knows, miss.told) for miss in misses}):
        chosen: dict[str, list[Miss]] = defaultdict(list)
        for miss in misses:
            if (miss.knows, miss.told) == (knows, told):
                chosen[miss.group].append(miss)
        end = f"{told}_probes" + (f"_{knows}" if knows != "known" else "")
        for name, pick in (("time_pct", "time"), ("power_pct", "power"), ("energy_pct", "energy")):
            found[f"{name}_{end}"] = 100.0 * float(
                np.mean([np.mean([abs(getattr(m, pick)) for m in group]) for group in chosen.values()])
            )
        for name in ("time_inside", "energy_inside"):
            found[f"{name}_{end}"] = float(
                np.mean([np.mean([getattr(m, name) for m in group]) for group in chosen.values()])
            )
    return found


def table(misses: Sequence[Miss]) -> str:
    """One line a group, knowledge of the GPU and number of probes."""
    head = ("group", "GPU", "probes", "n", "time %", "power %", "energy %", "in t", "in e")
    lines = ["{:<16}{:<10}{:>6}{:>6}{:>8}{:>9}{:>10}{:>7}{:>7}".format(*head)]
    groups: dict[tuple[str, str, int], list[Miss]] = defaultdict(list)
    for miss in misses:
        groups[(miss.group, miss.knows, miss.told)].append(miss)
    for (group, knows, told), part in groups.items():
        errors = [100.0 * np.mean([abs(getattr(m, pick)) for m in part]) for pick in ("time", "power", "energy")]
        inside = [np.mean([getattr(m, pick) for m in part]) for pick in ("time_inside", "energy_inside")]
        lines.append(
            f"{group:<16}{knows:<10}{told:>6}{len(part):>6}"
            f"{errors[0]:>8.2f}{errors[1]:>9.2f}{errors[2]:>10.2f}{inside[0]:>7.2f}{inside[1]:>7.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--seeds", type=int, default=1, help="noise draws for each case")
    parser.add_argument("--drawn", type=int, default=28, help="workloads of the library on each GPU")
    parser.add_argument("--most", type=int, default=40, help="cases of each measured group at most")
    parser.add_argument("--only", default="", help="groups whose name has this in it")
    options = parser.parse_args()
    began_s = time.process_time()
    grouped: dict[str, list[Case]] = defaultdict(list)
    for case in cases(public_sweeps.data_folder(), drawn=options.drawn):
        if options.only in case.group and len(case.states) > 4:
            grouped[case.group].append(case)
    misses: list[Miss] = []
    for group in grouped.values():
        for case in group[:: max(1, math.ceil(len(group) / options.most))]:
            for seed in range(options.seeds):
                for knows in ("known", "stranger", *(("counters",) if case.activity else ())):
                    misses += judge(case, knows=knows, seed=seed)
    print(table(misses))
    found = figures(misses)
    found["cpu_s"] = time.process_time() - began_s
    print(json.dumps({"figures": found}) if options.json else "\n".join(f"{k} {v:.3g}" for k, v in found.items()))


if __name__ == "__main__":
    main()
