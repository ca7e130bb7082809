"""Jobs and snapshots for the tests of policies, and hypothesis strategies that draw them."""

from __future__ import annotations

from hypothesis import strategies as st

from joulewise.cluster.state import Job, Kind, Snapshot, Way
from joulewise.core.knob import Setting
from tests.cluster.toys import CLOCKS_MHZ, TOY, toy_ways

OTHER = Kind("other", nodes=2, gpus_per_node=4, idle_gpu_w=30.0, host_w=500.0, off_w=10.0)


def job(
    name: str,
    gpus: int = 1,
    *,
    submitted_s: float = 0.0,
    work: float = 1000.0,
    running: int = 0,
    attained_gpu_s: float = 0.0,
    ways: tuple[Way, ...] | None = None,
) -> Job:
    """A job that asks for so many GPUs; ``running``: with how many it runs now."""
    menu = ways or toy_ways()
    way = next(way for way in menu if way.gpus == running) if running else None
    return Job(name, submitted_s, work, menu, gpus, way=way, attained_gpu_s=attained_gpu_s)


def snapshot(*jobs: Job, nodes: int = 1, now_s: float = 0.0) -> Snapshot:
    """These jobs on nodes of 8 GPUs."""
    kind = Kind(TOY.name, nodes, TOY.gpus_per_node, TOY.idle_gpu_w, TOY.host_w, TOY.off_w)
    return Snapshot(now_s, (kind,), jobs)


@st.composite
def menus(draw: st.DrawFn) -> tuple[Way, ...]:
    """Ways on one kind or two, some clocks, speeds that need not rise with GPUs."""
    ways = []
    for kind in draw(st.lists(st.sampled_from([TOY.name, OTHER.name]), min_size=1, unique=True)):
        for gpus in draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 64]), min_size=1, unique=True)):
            for mhz in draw(st.lists(st.sampled_from(CLOCKS_MHZ), min_size=1, unique=True)):
                unit_s = draw(st.floats(0.01, 10.0))
                power_w = gpus * draw(st.floats(60.0, 400.0))
                ways.append(Way(gpus, unit_s, unit_s * power_w, Setting(sm_mhz=mhz), kind))
    return tuple(ways)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Up to twelve jobs on two kinds of node."""
    jobs = []
    for place in range(draw(st.integers(0, 12))):
        ways = draw(menus())
        jobs.append(
            Job(
                f"job-{place}",
                submitted_s=100.0 * place,
                work_left=draw(st.floats(1.0, 1e6)),
                ways=ways,
                gpus_asked=draw(st.sampled_from([1, 2, 4, 5, 8, 16, 64])),
                way=draw(st.none() | st.sampled_from(ways)),
                attained_gpu_s=draw(st.floats(0.0, 1e5)),
                restarts=draw(st.integers(0, 9)),
            )
        )
    return Snapshot(5_000.0, (TOY, OTHER), tuple(jobs))
