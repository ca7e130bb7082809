"""Honest tuned runs of many kinds on virtual GPUs, kept in a store as ``joulewise run --tune`` keeps them.

They are the raw material of ``bench/siege/forgeries``. Every run lives in virtual time, under the tuner, the sampler,
the readings and the record of steps that the command line uses.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from joulewise.core.event import Finished
from joulewise.core.marks import MarkKind
from joulewise.core.objective import MinEnergy
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.hold import hold
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, workloads
from joulewise.model.physics import Load
from joulewise.model.workloads import Phase
from joulewise.monitor.report import Report
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.steps import MemoryFeed
from joulewise.monitor.window import Monitor
from joulewise.store import Database, SqliteStore
from joulewise.store.evidence import circumstances
from joulewise.store.pace import PaceRecord, pace_stream
from joulewise.store.thinned import Thinned
from joulewise.store.views import measured_stream, runs
from joulewise.tune.online import build

UNIX_S = 1.7e9
"""When the virtual clocks showed 0."""
_PAUSES = ("evaluation", "checkpoint", "compile")


@dataclass(frozen=True, slots=True)
class Kind:
    """A run to be made."""

    name: str
    family: str = "transformer"
    gpu: str = "h200"
    gpus: int = 1
    step_s: float = 0.4
    seed: int = 0
    bound: float = 0.05
    length_s: float = 420.0
    idle_every: int = 0
    """Steps between two waits, in which the GPU is idle; 0: none."""
    idle_s: float = 6.0
    """Length of such a wait."""
    gap_s: float = 0.0
    """For so long, in the middle, nothing is kept of the readings."""
    hooks: bool = True
    events: bool = False
    """Whether there are evaluations and checkpoints."""
    unused: int = 0
    """GPUs of the node that are measured and that the job does not use."""
    killed_s: float = 0.0
    """When the tuner is killed, to go on some seconds later; 0: never."""
    lost_s: float = 0.0
    """Of the readings and steps before that, so many seconds were not written yet."""
    real: bool = False
    """``joulewise run`` itself, on a virtual GPU whose clock runs twenty times as fast as the wall's."""


def kinds(seed: int) -> list[Kind]:
    """Many kinds: workloads, GPUs, busy and idle phases, gaps of the meter, several GPUs, unused ones, no hooks, runs
    that were gone on with, steps that the power sensor sees the same part of, and a real process at twenty times the
    wall's speed."""
    made = [
        Kind("steady"),
        Kind("long steps", step_s=1.7),
        Kind("short steps", "cnn", step_s=0.03),
        Kind("other card", "transformer", "a100-sxm4-80gb"),
        Kind("recommender", "recommender"),
        Kind("graph", "gnn"),
        Kind("evaluations", "cnn", events=True, step_s=0.25),
        Kind("checkpoints", "transformer", events=True),
        Kind("idle phases", idle_every=60),
        Kind("idle often", "cnn", idle_every=25, step_s=0.3),
        Kind("gap", gap_s=4.0),
        Kind("long gap", gap_s=40.0),
        Kind("two GPUs", gpus=2),
        Kind("four GPUs", "cnn", gpus=4, step_s=0.3),
        Kind("no hooks", hooks=False, step_s=1.0),
        Kind("resumed", killed_s=233.3, length_s=600.0),
        Kind("killed and resumed", killed_s=233.3, lost_s=9.0, length_s=600.0),
        Kind("unused GPUs", unused=2),
        Kind("in step with the sensor", step_s=0.05, idle_every=1, idle_s=0.05),
        Kind("nearly in step", step_s=0.05, idle_every=1, idle_s=0.0504),
        Kind("shorter than a look", step_s=0.02, idle_every=1, idle_s=0.02),
        Kind("twenty times as fast", "recommender", step_s=0.15, real=True, length_s=600.0),
    ]
    return [replace(kind, seed=1000 * seed + place) for place, kind in enumerate(made)]


class _Work:
    """A workload as it plays on one of the GPUs, with waits and pauses; the first GPU's tells its steps."""

    def __init__(self, kind: Kind, gpu: VirtualGpu) -> None:
        self._kind, self._gpu = kind, gpu
        self.feed: MemoryFeed | None = None

    def phases(self) -> Iterator[Phase]:
        job = workloads.get(self._kind.family, gpu=self._gpu.model, seed=self._kind.seed, step_s=self._kind.step_s)
        if not self._kind.events:
            job = replace(job, events=workloads.Events())
        steps, paused = 0, False
        for phase in job.phases():
            pauses = phase.name in _PAUSES
            if pauses is not paused and self.feed is not None:
                mark = MarkKind.PAUSE if pauses else MarkKind.RESUME
                self.feed.mark(mark, name=phase.name if pauses else "", time_s=self._gpu.board.time_s)
            paused = pauses
            yield phase
            steps += phase.ends_step
            if phase.ends_step and self._kind.idle_every and steps % self._kind.idle_every == 0:
                yield Phase("wait", Load(0.0, 0.0, 0.0, host_s=self._kind.idle_s))

    def step(self, end_s: float) -> None:
        if self.feed is not None:
            self.feed.mark(MarkKind.STEP, time_s=end_s)


def make(store: SqliteStore, kind: Kind, run: str) -> None:
    """Live through one run and keep it in ``store`` under the name ``run``."""
    if kind.real:
        _make_real(store, kind, run)
        return
    time = VirtualTime()
    model = catalog.load(kind.gpu)
    gpus = [VirtualGpu(model, time=time, index=index, seed=kind.seed) for index in range(kind.gpus + kind.unused)]
    works = [_Work(kind, gpu) for gpu in gpus[: kind.gpus]]
    for gpu, work in zip(gpus, works, strict=False):
        gpu.play(work, pid=4242, on_step=work.step)
    if kind.killed_s:
        _process(store, kind, run, time, gpus, works, killed_s=kind.killed_s)
        time.run(_wait(5.0))
    _process(store, kind, run, time, gpus, works)


def _process(
    store: SqliteStore,
    kind: Kind,
    run: str,
    time: VirtualTime,
    gpus: Sequence[VirtualGpu],
    works: Sequence[_Work],
    *,
    killed_s: float = math.inf,
) -> None:
    """One process that tunes and measures, to the end of the run or until it is killed."""
    feed = MemoryFeed(time)
    if kind.hooks:
        feed.mark(MarkKind.HELLO)
        works[0].feed = feed
    used = gpus[: kind.gpus]
    thinned = Thinned(len(gpus), UNIX_S)
    sampler = Sampler(gpus, recorder=thinned, seed=kind.seed)
    with ExitStack() as stack:
        monitor = stack.enter_context(Monitor(sampler=sampler))
        ours = sampler
        if len(used) < len(gpus):  # as the command line has it
            locks = stack.enter_context(TemporaryDirectory(prefix="joulewise-locks-"))
            ours = stack.enter_context(Sampler(used, seed=kind.seed, lock_directory=Path(locks)))
        window = monitor.window("run", settle=True).begin()
        lease = hold(used)
        online = build(
            used,
            lease=lease,
            feed=feed if kind.hooks else None,
            objective=MinEnergy(kind.bound),
            seed=kind.seed,
            journal=store.journal(run),
            fingerprint=kind.name,
            run=run,
            facts={"unix_s": UNIX_S, "command": ["train"], "virtual": True, "wanted": "least energy"},
            sampler=ours,
        )

        def end() -> Loop[None]:
            yield kind.length_s - time.now_s()
            online.stop()

        if killed_s == math.inf:
            time.spawn(end())
        time.run(_until(online.loop(), time, killed_s))
        report = window.end()
        lease.release()
    thinned.end()
    written_s = killed_s - kind.lost_s
    _keep(store, kind, run, gpus, thinned, written_s)
    steps = [step for step in online.ruler.log.fetch_steps() if step[1] <= written_s]
    event = PaceRecord().event(steps, run, last=True)
    if event is not None:
        store.journal(pace_stream(run)).append(event)
    if killed_s == math.inf:
        measured = _measured(report, {"readings_error": thinned.readings_error, **circumstances(store.journal(run))})
        store.journal(measured_stream(run)).append(Finished(time.now_s(), "ended", {"measured": measured}))


def _wait(seconds: float) -> Loop[None]:
    yield seconds


def _until(loop: Loop[object], time: VirtualTime, killed_s: float) -> Loop[None]:
    """Goes on with ``loop`` until it ends, or is killed: then nothing more of it is done or written."""
    for seconds in loop:
        yield seconds
        if time.now_s() >= killed_s:
            return


def _measured(report: Report, more: Mapping[str, Any]) -> dict[str, Any]:
    """As ``report.keeping.measured`` has it, as far as it bears on the check."""
    whole = report.total
    gpus = [
        {"uuid": uuid, "energy_j": each.energy_j, "duration_s": report.duration_s} for uuid, each in report.gpus.items()
    ]
    energy = {"energy_j": whole.energy_j, "gain_error": whole.gain_error, "duration_s": report.duration_s}
    return {**energy, "gpus": gpus, **more}


def _keep(
    store: SqliteStore, kind: Kind, run: str, gpus: Sequence[VirtualGpu], thinned: Thinned, written_s: float
) -> None:
    lost: Callable[[float], bool] = lambda at_s: 0.0 < at_s - UNIX_S - 0.5 * kind.length_s < kind.gap_s  # noqa: E731
    for index, gpu in enumerate(gpus):
        samples = [each for each in thinned.fetch(index) if not lost(each.at_s) and each.at_s - UNIX_S <= written_s]
        store.readings().write(run, gpu.info.uuid, samples)


def _make_real(store: SqliteStore, kind: Kind, run: str) -> None:
    """As ``make run`` makes one, in processes of its own: real time, real stamps, a loaded machine."""
    database = store.tables
    assert isinstance(database, Database)
    example = Path(__file__).parents[2] / "examples" / "train_virtual.py"
    job = [sys.executable, str(example), "--workload", kind.family, "--step-seconds", f"{kind.step_s:g}"]
    job += ["--epochs", "1", "--steps", f"{kind.length_s / kind.step_s:.0f}", "--seed", f"{kind.seed}"]
    tuned = [sys.executable, "-m", "joulewise", "--quiet", "run", "--gpu", f"sim:{kind.gpu}", "--speed", "20", "--tune"]
    with TemporaryDirectory(prefix="joulewise-home-") as home:
        environ = {**os.environ, "JOULEWISE_HOME": home, "JOULEWISE_DATABASE": str(database.path)}
        argv = [*tuned, "--seed", f"{kind.seed}", "--", *job]
        subprocess.run(argv, env=environ, check=True, timeout=300, stdout=subprocess.DEVNULL)
    (name,) = (each.name for each in runs(database))
    for table, column in (("events", "stream"), ("readings", "stream"), ("summaries", "stream")):
        database.change(
            f"UPDATE {table} SET {column} = replace({column}, :name, :run) WHERE {column} LIKE :like",
            {"name": name, "run": run, "like": f"%{name}"},
        )
