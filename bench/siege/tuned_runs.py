"""Honest tuned runs of many kinds on virtual GPUs, kept in a store as ``joulewise run --tune`` keeps them.

They are the raw material of ``bench/siege/forgeries``. Every run lives in virtual time, under the tuner, the sampler,
the readings and the record of steps that the command line uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from joulewise.core.event import Finished
from joulewise.core.marks import MarkKind
from joulewise.core.objective import MinEnergy
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.hold import hold
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, workloads
from joulewise.model.physics import Load
from joulewise.model.workloads import Phase
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.steps import MemoryFeed
from joulewise.monitor.window import Monitor
from joulewise.store.pace import PaceRecord, pace_stream
from joulewise.store.store import Store
from joulewise.store.thinned import Thinned
from joulewise.store.views import measured_stream
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
    """Steps between two waits of some seconds, in which the GPU is idle; 0: none."""
    gap_s: float = 0.0
    """For so long, in the middle, nothing is kept of the readings."""
    hooks: bool = True
    events: bool = False
    """Whether there are evaluations and checkpoints."""


def kinds(seed: int) -> list[Kind]:
    """Fourteen kinds: workloads, GPUs, busy and idle phases, gaps of the meter, several GPUs, no hooks."""
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
    ]
    return [replace(kind, seed=1000 * seed + place) for place, kind in enumerate(made)]


class _Work:
    """A workload as it plays on one of the GPUs, with waits and pauses; the first GPU's tells its steps."""

    def __init__(self, kind: Kind, gpu: VirtualGpu, feed: MemoryFeed | None) -> None:
        self._kind, self._gpu, self._feed = kind, gpu, feed

    def phases(self) -> Iterator[Phase]:
        job = workloads.get(self._kind.family, gpu=self._gpu.model, seed=self._kind.seed, step_s=self._kind.step_s)
        if not self._kind.events:
            job = replace(job, events=workloads.Events())
        steps, paused = 0, False
        for phase in job.phases():
            pauses = phase.name in _PAUSES
            if pauses is not paused and self._feed is not None:
                mark = MarkKind.PAUSE if pauses else MarkKind.RESUME
                self._feed.mark(mark, name=phase.name if pauses else "", time_s=self._gpu.board.time_s)
            paused = pauses
            yield phase
            steps += phase.ends_step
            if phase.ends_step and self._kind.idle_every and steps % self._kind.idle_every == 0:
                yield Phase("wait", Load(0.0, 0.0, 0.0, host_s=6.0))

    def step(self, end_s: float) -> None:
        if self._feed is not None:
            self._feed.mark(MarkKind.STEP, time_s=end_s)


def make(store: Store, kind: Kind, run: str) -> None:
    """Live through one run and keep it in ``store`` under the name ``run``."""
    time = VirtualTime()
    model = catalog.load(kind.gpu)
    gpus = [VirtualGpu(model, time=time, index=index, seed=kind.seed) for index in range(kind.gpus)]
    feed = MemoryFeed(time)
    if kind.hooks:
        feed.mark(MarkKind.HELLO)
    for index, gpu in enumerate(gpus):
        work = _Work(kind, gpu, feed if index == 0 and kind.hooks else None)
        gpu.play(work, pid=4242, on_step=work.step)
    thinned = Thinned(len(gpus), UNIX_S)
    sampler = Sampler(gpus, recorder=thinned, seed=kind.seed)
    with Monitor(sampler=sampler) as monitor:
        window = monitor.window("run", settle=True).begin()
        lease = hold(gpus)
        online = build(
            gpus,
            lease=lease,
            feed=feed if kind.hooks else None,
            objective=MinEnergy(kind.bound),
            seed=kind.seed,
            journal=store.journal(run),
            fingerprint=kind.name,
            run=run,
            facts={"unix_s": UNIX_S, "command": ["train"], "virtual": True, "wanted": "least energy"},
            sampler=sampler,
        )

        def end() -> Loop[None]:
            yield kind.length_s
            online.stop()

        time.spawn(end())
        time.run(online.loop())
        report = window.end()
        lease.release()
    thinned.end()
    _keep(store, kind, run, gpus, thinned)
    event = PaceRecord().event(online.ruler.log.fetch_steps(), run, last=True)
    if event is not None:
        store.journal(pace_stream(run)).append(event)
    whole = report.total
    measured = {"energy_j": whole.energy_j, "gain_error": whole.gain_error, "duration_s": report.duration_s}
    store.journal(measured_stream(run)).append(Finished(time.now_s(), "ended", {"measured": measured}))


def _keep(store: Store, kind: Kind, run: str, gpus: Sequence[VirtualGpu], thinned: Thinned) -> None:
    lost: Callable[[float], bool] = lambda at_s: 0.0 < at_s - UNIX_S - 0.5 * kind.length_s < kind.gap_s  # noqa: E731
    for index, gpu in enumerate(gpus):
        samples = [each for each in thinned.fetch(index) if not lost(each.at_s)]
        store.readings().write(run, gpu.info.uuid, samples)
