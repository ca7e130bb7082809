"""Jobs whose true saving is known, watched as a fleet's monitoring does: what ``bench.estimate`` asks about.

The truth is never what the estimate believes in. *Library*: workloads on rich cards of ``model/truth`` (mixtures of
kernels, bent voltage, cards apart), played on a virtual board with evaluations, checkpoints and stalls, and read as
DCGM reads: power, clocks and utilisation at instants, means of activity between them. *Measured*: public clock sweeps
of an RTX 8000 with DCGM's own counters; and GPT-3 stages and Zeus's series, whose counters nobody kept. The best clocks
within a bound are found by trying all of them on the truth (``bench/online_truths``).

DRAM activity of a virtual board is made here, from how much the truth's own busy time depends on its memory clock, and
from what work that does not wait for memory moves meanwhile, drawn for each job.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import online_table
from bench.online_jobs import Job
from bench.online_truths import SHORTEST_STEP_S, Case, cases, library_case
from joulewise.model import catalog, workloads
from joulewise.model.truth import RichLaw

GPUS = ("h200", "a100-sxm", "rtx6000", "v100", "a40", "rtxpro6000")
SCRAPE_S = 30.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """One instant as an exporter shows it; activities are means since the last. None: not exported."""

    power_w: float
    sm_mhz: float | None
    memory_mhz: float | None
    limit_w: float | None
    energy_j: float | None = None
    util: float | None = None
    engine: float | None = None
    sm: float | None = None
    dram: float | None = None


_ORACLES: dict[tuple[str, int, float], float] = {}
_CLOCKED: dict[tuple[str, int], Case] = {}
_SCRAPES: dict[tuple[str, int], list[Scrape]] = {}


@dataclass(frozen=True)
class Watched:
    """One job, the name that its GPU goes by, and what its counters would show."""

    case: Case
    gpu_name: str
    group: str
    dram: float | None
    """DRAM activity while busy."""
    sm_fill: float | None
    """SM activity while busy."""
    busy: float | None = None
    """Share of time with a kernel running, where the truth is a table; None: as the board says."""

    def possible(self, bound: float) -> float:
        """What the best clocks within the bound save, by trying all of them (of a table over power limits, all of
        these)."""
        job = (self.case.name, self.case.seed)
        if (*job, bound) not in _ORACLES:
            clocks = tuple(knob for knob in self.case.knobs if knob != "power_limit_w")
            case = _CLOCKED.setdefault(job, replace(self.case, knobs=clocks or self.case.knobs))
            _ORACLES[*job, bound] = case.oracle(bound)[2]
        return _ORACLES[*job, bound]

    def taken(self) -> list[Scrape]:
        """`scrapes`, made once for a job under whatever name its GPU goes."""
        key = (self.case.name, self.case.seed)
        if key not in _SCRAPES:
            _SCRAPES[key] = list(self.scrapes())
        return _SCRAPES[key]

    def scrapes(self, duration_s: float = 600.0, every_s: float = SCRAPE_S) -> Iterator[Scrape]:
        """The job watched from its second minute on, while it plays on its board with nothing set."""
        job = Job(self.case)
        job.start()
        job.time.sleep(60.0)
        job.gpu.read()
        busy_s = job.gpu.board.activity_s[0]
        for _ in range(round(duration_s / every_s)):
            job.time.sleep(every_s)
            reading = job.gpu.read()
            now_s = job.gpu.board.activity_s[0]
            busy, busy_s = min(1.0, (now_s - busy_s) / every_s), now_s
            if self.busy is not None:
                busy = self.busy
            counted = self.case.kind == "library" or self.dram is not None
            counter = job.gpu.sensors.counter_j(reading.time_s)
            yield Scrape(
                power_w=float(reading.average_power_w or reading.power_w or 0.0),
                sm_mhz=reading.sm_mhz,
                memory_mhz=reading.memory_mhz,
                limit_w=self.case.model.default_limit_w,
                energy_j=counter,
                util=reading.utilization if counted else None,
                engine=busy if counted else None,
                sm=None if self.sm_fill is None else busy * self.sm_fill,
                dram=None if self.dram is None else busy * self.dram,
            )


def watched(data: Path | None, *, count: int, seed: int = 0) -> list[Watched]:
    """``count`` library jobs, and the measured ones where there are data."""
    found = list(_library(count, seed))
    if data is not None:
        found += _measured(data, seed)
    return found


def _library(count: int, seed: int) -> Iterator[Watched]:
    draw = random.Random(f"estimate {seed}")
    families: list[str] = []
    for number in range(count):
        model = catalog.load(GPUS[number % len(GPUS)])
        if not families:
            families = list(workloads.library())
            draw.shuffle(families)
        family, job_seed = families.pop(), draw.getrandbits(31)
        work = workloads.get(family, gpu=model, seed=job_seed)
        if work.nominal_step_s < SHORTEST_STEP_S:
            work = workloads.get(family, gpu=model, seed=job_seed, step_s=SHORTEST_STEP_S)
        law = RichLaw(model.chip, job_seed)
        case = library_case(f"{family}-{model.key}-{number}", model, law, work, job_seed)
        beside = draw.betavariate(1.5, 5.0)  # mean 0.23, some above 0.5: most dense kernels reuse what they load
        full = draw.uniform(0.78, 0.93)
        bound = _memory_bound(case)
        yield Watched(
            case, model.name, "library", bound * full + (1.0 - bound) * beside, draw.triangular(0.6, 1.0, 0.97)
        )


def _memory_bound(case: Case) -> float:
    """Share of busy time that follows the memory clock, by the truth, at the default."""
    less, chip = 0.98, case.model.chip
    slower = whole = 0.0
    for load in case.order:
        base = case.law.operate(chip, load, limit_w=case.model.default_limit_w, temperature_c=60.0)
        moved = case.law.operate(
            chip, load, lock_mhz=base.sm_mhz, memory_mhz=less * chip.memory_max_mhz, temperature_c=60.0
        )
        held = case.law.operate(chip, load, lock_mhz=base.sm_mhz, temperature_c=60.0)
        slower += moved.busy_s - held.busy_s
        whole += held.busy_s
    return min(1.0, max(0.0, slower / whole / (1.0 / less - 1.0)))


def _measured(data: Path, seed: int) -> list[Watched]:
    counters = {table.name: table.activity for table in online_table.tables(data / "dvfs" / "rtx8000-dvfs-real.csv")}
    found = []
    for case in cases(data, seed):
        if case.kind == "library":
            continue
        kind = case.name.split("-")[0]
        activity = counters.get(case.name.removeprefix("sweep-rtx8000-"), {})
        # Tables over the limit alone say nothing of clocks; whoever watches sees what the law of the board shows.
        found.append(
            Watched(
                case, case.model.name, kind, activity.get("dram"), activity.get("sm"), busy=1.0 if activity else None
            )
        )
    return found


def renamed(jobs: Sequence[Watched], name: Callable[[Watched], str], group: str) -> list[Watched]:
    """The same jobs on GPUs that go by another name: the estimate then knows less of them."""
    return [replace(job, gpu_name=name(job), group=f"{group} {job.group}") for job in jobs]
