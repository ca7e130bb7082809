"""Jobs whose truth is known and which the tuner's belief cannot represent: what ``bench.online --virtual`` runs.

Two kinds. *Library*: a workload of the phase library on a card of ``model/truth`` (mixtures of kernels, bent voltage,
an uncore knee, ±10–20 % between cards, heavy-tailed autocorrelated steps, evaluations, checkpoints, stalls).
*Measured*: a public series (Zeus's power limits, Perseus's pipeline stages, clock sweeps of an RTX 8000 and an A100),
interpolated between its points, as the law of the virtual board; the points tell times and powers, noise and all.

Everything is drawn from one seed. A ``Case`` can be made afresh as often as wanted: each time the same job.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bench import public_sweeps
from joulewise.core.knob import Choices, Setting
from joulewise.core.timeline import TimeSource, VirtualTime
from joulewise.device.operating import Law
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, physics, workloads
from joulewise.model.catalog import GpuModel
from joulewise.model.fit import fit_load
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Chip, Load, Operation
from joulewise.model.sweep import Point, Series
from joulewise.model.truth import RichLaw
from joulewise.model.workloads import Phase, stretched

ALL_KNOBS = ("sm_mhz", "memory_mhz", "power_limit_w")
SHORTEST_STEP_S = 0.1
"""Library families of shorter steps are drawn with this, so that simulating half an hour of them stays cheap."""
_LIVED = 60  # settings that an oracle tries on the board
LIBRARY_GPUS = ("h200", "a100-sxm", "rtx6000")
LIBRARY, ZEUS, STAGES, SWEEP = 28, 20, 4, 22  # jobs of each kind


@dataclass(frozen=True)
class Case:
    """One job: a card, what runs on it, and the truth of both."""

    name: str
    kind: str
    model: GpuModel
    law: Law
    order: tuple[Load, ...]
    """The loads of one step, without jitter: what the oracle sees."""
    play: Callable[[], Iterator[Phase]]
    """The phases as they come, the same each time."""
    step_s: float
    """One step at default."""
    knobs: tuple[str, ...] = ALL_KNOBS
    gain: float | None = None
    seed: int = 0
    _lived: dict[Setting, tuple[float, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def gpu(self, time: TimeSource) -> VirtualGpu:
        """The card, new."""
        return VirtualGpu(self.model, time=time, law=self.law, gain=self.gain, seed=self.seed)

    def truth(self, setting: Setting, order: Sequence[Load] | None = None) -> tuple[float, float]:
        """Seconds and joules of one step under ``setting``, at the temperature that it settles on."""
        temperature_c = 50.0
        time_s = energy_j = 0.0
        for _ in range(4):
            done = [self._operate(load, setting, temperature_c) for load in order or self.order]
            time_s, energy_j = sum(each.step_s for each in done), sum(each.energy_j for each in done)
            temperature_c = physics.settled_c(self.model.chip, energy_j / time_s)
        return time_s, energy_j

    def _operate(self, load: Load, setting: Setting, temperature_c: float) -> Operation:
        return self.law.operate(
            self.model.chip,
            load,
            lock_mhz=setting.get("sm_mhz"),
            memory_mhz=setting.get("memory_mhz"),
            limit_w=setting.get("power_limit_w", self.model.default_limit_w),
            temperature_c=temperature_c,
        )

    @cached_property
    def grid(self) -> list[tuple[Setting, float, float]]:
        """Every setting that an oracle may choose, with slowdown and saving where each load settles for itself."""
        base_s, base_j = self.truth(Setting())
        return [
            (setting, time_s / base_s - 1.0, 1.0 - energy_j / base_j)
            for setting in self.settings()
            for time_s, energy_j in [self.truth(setting)]
        ]

    def lived(self, setting: Setting) -> tuple[float, float]:
        """Seconds and joules of one step on the board itself, steps without jitter, warm: the limiter's average runs
        over the loads of a step, which no load by itself can tell."""
        known = self._lived.get(setting)
        if known is not None:
            return known
        time = VirtualTime()
        gpu = self.gpu(time)
        step_s, step_j = self.truth(setting)
        gpu.board.state.temperature_c = physics.settled_c(self.model.chip, step_j / step_s)
        gpu.apply(setting)
        ends: list[tuple[float, float]] = []
        last = len(self.order) - 1

        def steps() -> Iterator[Phase]:
            while True:
                for i, load in enumerate(self.order):
                    yield Phase("work", load, i == last)

        gpu.board.play(
            steps(), time.now_s(), on_step=lambda end_s: ends.append((end_s, gpu.board.trace.energy_j(end_s)))
        )
        count = max(4, math.ceil(10.0 / step_s))
        while len(ends) < 2 * count:  # the first half lets the limiter's average settle
            time.sleep(step_s)
            gpu.advance()
        (from_s, from_j), (to_s, to_j) = ends[count - 1], ends[2 * count - 1]
        self._lived[setting] = found = ((to_s - from_s) / count, (to_j - from_j) / count)
        return found

    def change(self, setting: Setting) -> tuple[float, float]:
        """Slowdown and saving of a setting against the default, as lived."""
        (base_s, base_j), (time_s, energy_j) = self.lived(Setting()), self.lived(setting)
        return time_s / base_s - 1.0, 1.0 - energy_j / base_j

    def settings(self) -> list[Setting]:
        """Clocks × memory clocks × power limits; memory clocks of idle boards (below half) left out as hopeless."""
        model = self.model
        clocks: list[float | None] = [None]
        memories: list[float | None] = [None]
        limits: list[float | None] = [None]
        if "sm_mhz" in self.knobs:
            all_mhz = model.sm_mhz.all()
            clocks += [mhz for mhz in all_mhz if mhz >= 0.35 * all_mhz[-1]][:: 1 if len(all_mhz) < 150 else 2]
        if "memory_mhz" in self.knobs:
            memories += [mhz for mhz in model.memory_mhz.all()[:-1] if mhz >= 0.5 * model.memory_mhz.high]
        if "power_limit_w" in self.knobs:
            low, high = model.power_limit_w.low, model.default_limit_w
            steps = 12 if "sm_mhz" in self.knobs else 60
            limits += sorted({model.power_limit_w.snap(low + (high - low) * i / steps) for i in range(steps)})
        return [
            Setting(**{k: v for k, v in zip(ALL_KNOBS, (clock, memory, limit), strict=True) if v is not None})
            for limit in limits
            for memory in memories
            for clock in clocks
        ]

    def oracle(self, bound: float) -> tuple[Setting, float, float]:
        """The setting that saves most within ``bound``, with its slowdown and saving: the most hopeful of the whole
        space, each lived on the board."""
        hopeful = sorted((each for each in self.grid if each[1] <= bound + 0.015), key=lambda each: -each[2])
        alike = len(self.order) == 1  # one load settles where it settles, alone or in a step
        lived = [(each[0], *(each[1:] if alike else self.change(each[0]))) for each in _thinned(hopeful, _LIVED)]
        return max(
            (each for each in lived if each[1] <= bound), key=lambda each: each[2], default=(Setting(), 0.0, 0.0)
        )


def _thinned(hopeful: list[tuple[Setting, float, float]], most: int) -> list[tuple[Setting, float, float]]:
    """All of the best, and some of the rest: the slowest may all turn out to be over the bound."""
    if len(hopeful) <= most:
        return hopeful
    best, rest = hopeful[: most // 2], hopeful[most // 2 :]
    return best + rest[:: max(1, len(rest) // (most - most // 2))]


@dataclass(frozen=True)
class Table:
    """One measured series as functions of clock or limit: seconds (relative to the first column's) and watts."""

    clocks_mhz: tuple[float, ...]
    limits_w: tuple[float, ...]
    time: np.ndarray = field(repr=False)
    """clocks × limits; a series over one of them has one column or row."""
    power_w: np.ndarray = field(repr=False)


class Remembered:
    """A law asked once per situation: steps that jitter share their answers, in proportion to their length.

    The truth is then this law: host time per busy time in steps of 0.5 %, temperature in steps of half a kelvin.
    """

    def __init__(self, law: Law) -> None:
        self._law = law
        self._known: dict[tuple[object, ...], Operation] = {}

    def operate(
        self,
        chip: Chip,
        load: Load,
        *,
        lock_mhz: float | None = None,
        memory_mhz: float | None = None,
        limit_w: float | None = None,
        temperature_c: float | None = None,
    ) -> Operation:
        """As the law says, to within the steps."""
        if not load.gpu_s > 0:
            return self._law.operate(chip, load, lock_mhz=lock_mhz, memory_mhz=memory_mhz, limit_w=limit_w)
        host = math.exp(round(200.0 * math.log(load.host_s / load.gpu_s)) / 200.0) if load.host_s > 0 else 0.0
        warm_c = None if temperature_c is None else round(2.0 * temperature_c) / 2.0
        kind = (load.sm_share, load.dynamic_w, load.dram_share, load.sharpness, load.static_part, host)
        key = (*kind, lock_mhz, memory_mhz, limit_w, warm_c)
        unit = self._known.get(key)
        if unit is None:
            unit = self._known[key] = self._law.operate(
                chip,
                replace(load, gpu_s=1.0, host_s=host),
                lock_mhz=lock_mhz,
                memory_mhz=memory_mhz,
                limit_w=limit_w,
                temperature_c=warm_c,
            )
        return Operation(
            unit.sm_mhz,
            unit.memory_mhz,
            unit.busy_s * load.gpu_s,
            unit.step_s * load.gpu_s,
            unit.busy_power_w,
            unit.average_power_w,
            unit.energy_j * load.gpu_s,
            unit.limited_by,
        )


class TableLaw:
    """Measured tables as the law of a board; ``Load.static_part`` says which table a load belongs to."""

    def __init__(self, tables: Sequence[Table], clock_mhz: Callable[[float, Load], float] | None = None) -> None:
        self._tables = tuple(tables)
        self._clock_mhz = clock_mhz

    def operate(
        self,
        chip: Chip,
        load: Load,
        *,
        lock_mhz: float | None = None,
        memory_mhz: float | None = None,
        limit_w: float | None = None,
        temperature_c: float | None = None,  # noqa: ARG002 (measured as it was)
    ) -> Operation:
        """Where a load settles, read off its table."""
        table = self._tables[table_of(load)]
        clocks, limits = table.clocks_mhz, table.limits_w
        mhz = min(max(lock_mhz if lock_mhz is not None else clocks[-1], clocks[0]), clocks[-1])
        cap_w = math.inf if limit_w is None else limit_w
        limited_by = "clock"
        if len(limits) > 1:
            at_w = min(max(cap_w, limits[0]), limits[-1])
            if len(clocks) == 1 and self._clock_mhz is not None:
                mhz = self._clock_mhz(at_w, load)
            ratio, power_w = _bilinear(table, mhz, at_w, table.time), _bilinear(table, mhz, at_w, table.power_w)
            if power_w > 0.96 * at_w:
                limited_by = "power"
        else:
            ratio, power_w = _linear(clocks, table.time[:, 0], mhz), _linear(clocks, table.power_w[:, 0], mhz)
            if power_w > cap_w:  # the limiter: the highest clock whose power is within the limit
                mhz, limited_by = self._held_mhz(table, mhz, cap_w), "power"
                ratio, power_w = _linear(clocks, table.time[:, 0], mhz), _linear(clocks, table.power_w[:, 0], mhz)
                if power_w > cap_w:
                    limited_by = "floor"
        step_s = load.gpu_s * ratio + load.host_s
        return Operation(
            sm_mhz=mhz,
            memory_mhz=chip.memory_max_mhz if memory_mhz is None else memory_mhz,
            busy_s=step_s,
            step_s=step_s,
            busy_power_w=power_w,
            average_power_w=power_w,
            energy_j=power_w * step_s,
            limited_by=limited_by,
        )

    @staticmethod
    def _held_mhz(table: Table, mhz: float, cap_w: float) -> float:
        clocks, powers = table.clocks_mhz, table.power_w[:, 0]
        best = clocks[0]
        for low, high, low_w, high_w in zip(clocks, clocks[1:], powers, powers[1:], strict=False):
            if low > mhz:
                break
            if high_w <= cap_w:
                best = min(high, mhz)
            elif low_w <= cap_w:
                best = min(mhz, low + (high - low) * (cap_w - low_w) / (high_w - low_w))
        return float(best)


def table_load(number: int, gpu_s: float, fitted: Load | None = None) -> Load:
    """A load of ``gpu_s`` seconds at default that follows table ``number``."""
    kappa = fitted.sm_share if fitted else 0.6
    return Load(gpu_s=gpu_s, sm_share=kappa, dynamic_w=100.0, static_part=float(number))


def table_of(load: Load) -> int:
    """Which table a load follows."""
    return round(load.static_part)


def cases(data: Path, seed: int = 0) -> list[Case]:
    """All jobs that ``seed`` draws."""
    draw = random.Random(f"virtual jobs {seed}")
    return [
        *_library(draw, LIBRARY),
        *_zeus(draw, data, ZEUS),
        *_stages(draw, data, STAGES),
        *_sweeps(draw, data, SWEEP),
    ]


def _library(draw: random.Random, count: int) -> list[Case]:
    found = []
    families = list(workloads.library())
    for number in range(count):
        model = catalog.load(LIBRARY_GPUS[number % len(LIBRARY_GPUS)])
        if number % len(families) == 0:
            draw.shuffle(families)
        family, seed = families[number % len(families)], draw.getrandbits(31)
        work = workloads.get(family, gpu=model, seed=seed)
        if work.nominal_step_s < SHORTEST_STEP_S:
            work = workloads.get(family, gpu=model, seed=seed, step_s=SHORTEST_STEP_S)
        law = RichLaw(model.chip, seed)
        found.append(library_case(f"{family}-{model.key}-{number}", model, law, work, seed))
    return found


def library_case(name: str, model: GpuModel, law: RichLaw, work: workloads.Workload, seed: int) -> Case:
    """A library workload on a rich card."""
    return Case(
        name=name,
        kind="library",
        model=replace(model, chip=law.card),
        law=Remembered(law),
        order=tuple(work.loads[part] for part in work.order),
        play=lambda: law.disturbed(work.phases(), seed=seed),
        step_s=work.nominal_step_s,
        gain=law.gain,
        seed=seed,
    )


def _zeus(draw: random.Random, data: Path, count: int) -> list[Case]:
    """Training series over power limits; the limit is the only knob there, as it was in the measurement."""
    found = []
    for key, file in (("v100", "summary_power_v100.csv"), ("a40", "summary_power_a40.csv")):
        model = catalog.load(key)
        series = [one for one in public_sweeps.zeus(data / "zeus" / file) if len(one.points) >= 5 and _sane(one)]
        for one in draw.sample(series, count // 2):
            points = sorted(one.points, key=lambda point: point.limit_w or 0.0)
            limits = tuple(float(point.limit_w or 0.0) for point in points)
            table = Table(
                (model.chip.sm_max_mhz,),
                limits,
                np.array([[point.time_s / points[-1].time_s for point in points]]),
                np.array([[point.power_w for point in points]]),
            )
            fitted = fit_load(model.chip, points).load

            def clock_mhz(limit_w: float, load: Load, fitted: Load = fitted, chip: Chip = model.chip) -> float:  # noqa: ARG001
                return float(physics.limited_x(chip, fitted, 1.0, limit_w)) * chip.sm_max_mhz

            limited = replace(
                model,
                power_limit_w=Choices(limits[0], limits[-1], 1.0),
                default_limit_w=limits[-1],
                sensors=model.sensors,
            )
            found.append(
                _measured(draw, f"zeus-{key}-{one.name}", limited, TableLaw([table], clock_mhz), [(0, 1.0, fitted)])
            )
    return [replace(case, knobs=("power_limit_w",)) for case in found]


def _sane(one: Series) -> bool:
    """Whether a series can be the truth for bounds of some percent: less power made no epoch 3 % faster."""
    points = sorted(one.points, key=lambda point: point.limit_w or 0.0)
    return min(point.time_s for point in points) > 0.97 * points[-1].time_s


def _stages(draw: random.Random, data: Path, count: int) -> list[Case]:
    """Pipeline stages of GPT-3 175B: forward and backward, several micro-batches a step."""
    found = []
    for key, file in (("a100-sxm", "gpt3-175b+a100_sxm_bf16.csv"), ("a40", "gpt3-175b+a40_bf16.csv")):
        model = catalog.load(key)
        series = public_sweeps.stages(data / "perseus" / "stage_profile" / file)
        by_stage: dict[str, list[Series]] = {}
        for one in series:
            by_stage.setdefault(one.name.split("/")[0], []).append(one)
        # Most stages of a pipeline are copies of each other.
        distinct = {tuple(one.points for one in both): stage for stage, both in sorted(by_stage.items())}
        for stage in draw.sample(sorted(distinct.values()), min(count // 2, len(distinct))):
            both = by_stage[stage]
            tables = [_clock_table(one) for one in both]
            shares = [one.points[0].time_s for one in both]
            parts = [(i, share / sum(shares), None) for i, share in enumerate(shares)]
            narrowed = _narrowed(model, tables)
            found.append(
                _measured(draw, f"stage-{key}-{stage}", narrowed, TableLaw(tables), parts * draw.choice((1, 4)))
            )
    return [replace(case, knobs=("sm_mhz", "power_limit_w")) for case in found]


def _sweeps(draw: random.Random, data: Path, count: int) -> list[Case]:
    """Applications over SM clocks on an RTX 8000, and over clocks and limits on an A100."""
    found = []
    grids = public_sweeps.grid(data / "dvfs" / "a100_clock_powerlimit_grid.csv")
    a100 = catalog.load("a100")
    for one in grids:
        clocks = tuple(sorted({float(p.lock_mhz or 0.0) for p in one.points}))
        limits = tuple(sorted({float(p.limit_w or 0.0) for p in one.points}))
        cells = {(p.lock_mhz, p.limit_w): p for p in one.points}
        if len(cells) < len(clocks) * len(limits):
            continue
        base = cells[clocks[-1], limits[-1]]
        time = np.array([[cells[c, w].time_s / base.time_s for w in limits] for c in clocks])
        power = np.array([[cells[c, w].power_w for w in limits] for c in clocks])
        table = Table(clocks, limits, time, power)
        narrowed = replace(
            a100,
            sm_mhz=Choices(clocks[0], clocks[-1], 15.0),
            power_limit_w=Choices(limits[0], limits[-1], 1.0),
            default_limit_w=limits[-1],
        )
        found.append(_measured(draw, f"grid-a100-{one.name}", narrowed, TableLaw([table]), [(0, 1.0, None)]))
    rtx = catalog.load("rtx8000")
    series = public_sweeps.sweep([data / "dvfs" / "rtx8000-dvfs-real.csv"])
    for one in draw.sample(series, min(len(series), count - len(found))):
        table = _clock_table(one)
        model = _narrowed(rtx, [table])
        found.append(_measured(draw, f"sweep-rtx8000-{one.name}", model, TableLaw([table]), [(0, 1.0, None)]))
    return [replace(case, knobs=("sm_mhz", "power_limit_w")) for case in found]


def _measured(
    draw: random.Random, name: str, model: GpuModel, law: Law, parts: Sequence[tuple[int, float, Load | None]]
) -> Case:
    """A measured series as a job of steps: their length and jitter are drawn, as the tables tell whole runs only."""
    step_s = math.exp(draw.uniform(math.log(0.08), math.log(1.2)))  # [pollux] training steps on one GPU
    jitter = Jitter(spread=draw.uniform(0.004, 0.03), correlation=0.6, tail=3.0)
    seed = draw.getrandbits(31)
    whole = sum(share for _, share, _ in parts)
    order = tuple(table_load(number, step_s * share / whole, fitted) for number, share, fitted in parts)

    def play() -> Iterator[Phase]:
        last = len(order) - 1
        for factor in jitter.factors(f"{name} {seed}"):
            for i, load in enumerate(order):
                yield Phase("work", stretched(load, factor, factor), i == last)

    return Case(name=name, kind="measured", model=model, law=law, order=order, play=play, step_s=step_s, seed=seed)


def _clock_table(one: Series) -> Table:
    points: dict[float, list[Point]] = {}
    for point in one.points:
        points.setdefault(float(point.lock_mhz or 0.0), []).append(point)
    clocks = tuple(sorted(points))
    top_s = float(np.mean([p.time_s for p in points[clocks[-1]]]))
    time = np.array([[float(np.mean([p.time_s for p in points[c]])) / top_s] for c in clocks])
    power = np.array([[float(np.mean([p.power_w for p in points[c]]))] for c in clocks])
    return Table(clocks, (math.inf,), time, power)


def _narrowed(model: GpuModel, tables: Sequence[Table]) -> GpuModel:
    """The model with the clocks that were measured, and every 15 MHz between."""
    low = max(table.clocks_mhz[0] for table in tables)
    high = min(table.clocks_mhz[-1] for table in tables)
    return replace(model, sm_mhz=Choices(low, high, 15.0), chip=replace(model.chip, sm_max_mhz=high))


def _linear(xs: Sequence[float], ys: np.ndarray, x: float) -> float:
    return float(np.interp(x, xs, ys))


def _bilinear(table: Table, mhz: float, limit_w: float, values: np.ndarray) -> float:
    xs, ws = table.clocks_mhz, table.limits_w
    j = min(max(bisect_right(ws, limit_w) - 1, 0), len(ws) - 2)
    share = (limit_w - ws[j]) / (ws[j + 1] - ws[j])
    columns = (1 - share) * values[:, j] + share * values[:, j + 1]
    return float(columns[0]) if len(xs) == 1 else _linear(xs, columns, mhz)


@dataclass(frozen=True)
class Rl:
    """RL post-training: generation, then training, over and over, each a case of its own on the same card."""

    generation: Case
    training: Case
    generation_steps: int
    training_steps: int

    def play(self) -> Iterator[Phase]:
        """Phases named after the kind of work that they belong to."""
        generation, training = self.generation.play(), self.training.play()
        while True:
            yield from _some(generation, self.generation_steps, "generation")
            yield from _some(training, self.training_steps, "training")


def rl(seed: int = 0) -> Rl:
    """An RL job on an H200: decoding is bound by memory, training by arithmetic; about a minute of each in turn."""
    draw = random.Random(f"rl {seed}")
    model = catalog.load("h200")
    law = RichLaw(model.chip, seed)
    room_w = model.default_limit_w - model.chip.static_w
    # Decoding streams weights and caches: babelstream and copies (model/families [a100], [h200]), launch gaps between.
    decode = Load(0.3, draw.uniform(0.1, 0.25), draw.uniform(0.5, 0.7) * room_w, host_s=0.05, dram_share=0.6)
    train = workloads.get("transformer", gpu=model, seed=seed, step_s=0.8)
    jitter = Jitter(spread=0.02, correlation=0.5, tail=4.0)

    def decoding() -> Iterator[Phase]:
        for factor in jitter.factors(f"decode {seed}"):
            yield Phase("decode", stretched(decode, factor, factor), ends_step=True)

    training = library_case("training", model, law, replace(train, events=workloads.Events()), seed)
    generation = replace(training, name="generation", order=(decode,), play=decoding, step_s=0.35)
    return Rl(generation, training, generation_steps=170, training_steps=70)


def _some(phases: Iterator[Phase], steps: int, name: str) -> Iterator[Phase]:
    for phase in phases:
        yield Phase(name, phase.load, phase.ends_step)
        steps -= phase.ends_step
        if steps == 0:
            return
