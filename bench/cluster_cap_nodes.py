"""The cap of live nodes is cut: real agents, daemons and scheduler in real time, on virtual GPUs that are kept busy.

Four jobs (one of them on two nodes) fill all GPUs. Each brings its points of time and energy by clock, as the
catalogue's law gives them; the simulated cards are drawn around that law, so what is believed of their power is off.
Then, again and again: the power that the simulators really draw is taken as it is; the operator says, over HTTP as
``joulewise cluster cap`` does, so much less; the truth is read some twenty times a second; the cap is lifted, and all
wait until everything is as before. Host watts are declared, the same for all nodes.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.cluster_cap_engine import LoadEngine, Node, nodes
from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought import belief_of, plain
from joulewise.cluster.engine import Order
from joulewise.cluster.limits import Limits
from joulewise.cluster.purse import Purse
from joulewise.cluster.response import Response, response, smoothed
from joulewise.cluster.round import Round
from joulewise.cluster.scheduler import Scheduler
from joulewise.cluster.state import Kind
from joulewise.core.errors import JoulewiseError, NotPermitted
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.model import catalog
from joulewise.model.physics import Load, operate
from joulewise.serve.cluster_client import ClusterClient
from joulewise.store import MemoryJournal

Out = Callable[[str], None]
MODEL, HOST_W = "a100-sxm", 400.0
NODES, GPUS = 4, 4
JOBS = {"wide": 8, "left": 4, "one": 2, "two": 2}
LOADS = {
    "wide": (0.5, 0.9, 300.0),
    "left": (0.5, 0.6, 260.0),
    "one": (0.5, 0.8, 330.0),
    "two": (0.5, 0.4, 200.0),
}
"""By job: seconds of a piece at full clock, the share of it that follows the SM clock, dynamic watts."""
CUTS = (0.2, 0.4)
TIMES = 2
CLOCKS = (0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 1.0)
PERIOD_S = 1.0
SAMPLE_S = 0.05
BEFORE_S, AFTER_S, SETTLE_S = 4.0, 10.0, 3.0
READY_S = 90.0
"""For everything to run at full power; some seconds, unless the machine has much else to do."""
_STEADY = 0.97


def cuts(out: Out, *, quick: bool = False) -> list[dict[str, Any]]:
    """A row a cut. MissingPart without the virtual NVML; NotPermitted where we are not root."""
    if os.geteuid() != 0:
        raise NotPermitted("the nodes' half sets virtual GPUs through a daemon, which needs root; or --only days")
    found = []
    with tempfile.TemporaryDirectory(prefix="joulewise-cap-") as folder, live(Path(folder), out) as cluster:
        for number in range(1 if quick else TIMES):
            for share in CUTS:
                row = cluster.cut(share)
                found.append(row)
                kept = "never" if row["compliance_s"] is None else f"after {row['compliance_s']:.2f} s"
                out(
                    f"cut {number + 1}: −{share:.0%} of {row['drawn_w']:,.0f} W: kept {kept} "
                    f"({row['mean_compliance_s'] or float('nan'):.2f} s as a mean over a second), "
                    f"{row['overshoot_kj']:.2f} kJ above, then {row['after_w'] / row['cap_w']:.1%} of the cap, "
                    f"{row['preemptions']} preempted, {row['resizes']} resized"
                )
    return found


def node_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The slowest and the worst of all cuts; nan where a cap was never kept."""
    figures = {}
    for share in CUTS:
        of_share = [row for row in rows if row["share"] == share]
        name = f"{share * 100:.0f}"
        slow = [row["mean_compliance_s"] for row in of_share]
        figures[f"compliance_s_{name}"] = float("nan") if None in slow else max(slow)
        figures[f"overshoot_kj_{name}"] = max(row["overshoot_kj"] for row in of_share)
    figures["overshoot_kj"] = max(row["overshoot_kj"] for row in rows)
    figures["above_after_w"] = max(row["above_after_w"] for row in rows)
    figures["node_preemptions_20"] = max(row["preemptions"] for row in rows if row["share"] == CUTS[0])
    figures["cap_used"] = fmean(row["after_w"] / row["cap_w"] for row in rows)
    return figures


class Live:
    """Nodes, scheduler and operator."""

    def __init__(
        self, there: Sequence[Node], engine: LoadEngine, scheduler: Scheduler, operator: ClusterClient
    ) -> None:
        self._nodes, self._engine, self._scheduler, self._operator = there, engine, scheduler, operator
        self._full_w = 0.0
        self._samples: list[tuple[float, float]] = []
        self._enough = threading.Event()

    def cut(self, share: float) -> dict[str, Any]:
        """One cut, and all as it was before again."""
        drawn_w = self.steady(BEFORE_S)
        cap_w = (1.0 - share) * drawn_w
        moved = len(self._engine.preempted), len(self._engine.resized)
        began = len(self._samples)
        time.sleep(1.0)
        at_s = time.monotonic()
        self._operator.cap(cap_w)
        time.sleep(AFTER_S)
        power = self._samples[began:]
        seen = _response(power, cap_w, at_s)
        mean = _response(smoothed(power, 1.0), cap_w, at_s)
        row = {
            "share": share,
            "drawn_w": drawn_w,
            "cap_w": cap_w,
            "compliance_s": seen.complied_s,
            "mean_compliance_s": mean.complied_s,
            "overshoot_kj": (seen.overshoot_j + seen.after_j) / 1000.0,
            "above_after_w": mean.above_w,
            "after_w": seen.after_w,
            "preemptions": len(self._engine.preempted) - moved[0],
            "resizes": len(self._engine.resized) - moved[1],
            "samples_per_s": len(power) / (power[-1][0] - power[0][0]),
        }
        self._operator.cap(None)
        return row

    def steady(self, for_s: float) -> float:
        """Wait until all GPUs are at work and power has stood for ``for_s``; its mean. JoulewiseError if not."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            time.sleep(0.2)
            now_s = time.monotonic()
            power = [(time_s, watts) for time_s, watts in self._samples if time_s >= now_s - for_s]
            if len(power) < 2 or power[-1][0] - power[0][0] < 0.8 * for_s:
                continue
            mean_w = fmean(watts for _, watts in power)
            busy = all(not node.free for node in self._nodes)
            whole = mean_w >= _STEADY * self._full_w
            if busy and whole and min(watts for _, watts in power) >= _STEADY * mean_w:
                self._full_w = max(self._full_w, mean_w)
                return mean_w
        said = "; ".join(node.said() for node in self._nodes)
        raise JoulewiseError(f"the nodes did not come to full power within {READY_S:g} s; they say: {said}")

    def watch(self) -> None:
        """Read the truth until the end, in a thread of its own."""
        clients = [(node.client(), len(node.uuids)) for node in self._nodes]
        host_w = sum(node.host_w for node in self._nodes)
        while not self._enough.is_set():
            watts = host_w + sum(client.truth(gpu).power_w for client, gpus in clients for gpu in range(gpus))
            self._samples.append((time.monotonic(), watts))
            self._enough.wait(SAMPLE_S)
        for client, _ in clients:
            client.close()

    def schedule(self) -> None:
        """Pass after pass until the end, in a thread of its own."""
        self._scheduler.run(self._enough)

    def close(self) -> None:
        """Enough."""
        self._enough.set()


def _response(power: Sequence[tuple[float, float]], cap_w: float, at_s: float) -> Response:
    return response(
        power, lambda time_s: None if time_s < at_s else cap_w, at_s, at_s + AFTER_S, settle_s=SETTLE_S, tolerance=0.005
    )


@contextmanager
def live(folder: Path, out: Out) -> Iterator[Live]:
    """All processes, with every job at work; all ends with the context."""
    from joulewise.serve import listen
    from joulewise.serve.cluster import make_cluster_app
    from joulewise.serve.tokens import Guard

    model = catalog.load(MODEL)
    kind = Kind(MODEL, NODES, GPUS, model.chip.deep_idle_w, HOST_W, top_mhz=model.chip.sm_max_mhz)
    token = folder / "token"
    token.write_text("no-token-is-asked-for-on-this-machine\n", encoding="utf-8")
    token.chmod(0o600)
    with (
        nodes(folder, NODES, GPUS, model=MODEL, host_w=HOST_W, cards=7) as there,
        listen.bound("127.0.0.1", 0) as socket,
    ):
        engine = LoadEngine(there, MODEL, LOADS)
        desk = AgentDesk(now=time.monotonic, period_s=PERIOD_S)
        purse = Purse(round_s=10.0)
        fabric = Fabric(model, GPUS, kind=MODEL)
        most_gpu_w = model.power_limit_w.high
        scheduler = Scheduler(
            engine,
            Round(priced(), purse=purse, calm=True),
            kinds=(kind,),
            most_gpu_w={MODEL: most_gpu_w},
            journal=MemoryJournal(),
            believe=lambda order: belief_of(order, fabric, gpus_there=kind.gpus),
            now=time.time,
            agents=desk,
            limits=Limits(idle_w=NODES * kind.empty_node_w, most_w=NODES * (HOST_W + GPUS * most_gpu_w)),
            purse=purse,
            period_s=10.0,
        )
        scheduler.lead()
        with listen.serving(make_cluster_app(scheduler, desk, Guard(local_users=True)), socket):
            url = listen.url_of(socket)
            for node in there:
                node.start_agent(url, token)
            cluster = Live(there, engine, scheduler, ClusterClient(url))
            threads = [threading.Thread(target=act) for act in (cluster.watch, cluster.schedule)]
            for thread in threads:
                thread.start()
            try:
                _agents_are_heard(there, desk)
                for name, gpus in JOBS.items():
                    checkpoint = folder / name
                    checkpoint.mkdir()
                    scheduler.submit(_order(name, gpus, str(checkpoint)))
                out(f"{NODES} nodes of {GPUS} GPUs, each with daemon and agent; {len(JOBS)} jobs handed in")
                cluster.steady(BEFORE_S)
                yield cluster
            finally:
                cluster.close()
                for thread in threads:
                    thread.join(30.0)
                engine.close()


def _agents_are_heard(there: Sequence[Node], desk: AgentDesk) -> None:
    deadline_s = time.monotonic() + READY_S
    while not all(desk.heard(node.name) for node in there):
        dead = [node for node in there if node.agent is not None and node.agent.poll() is not None]
        if dead or time.monotonic() > deadline_s:
            node = dead[0] if dead else next(node for node in there if not desk.heard(node.name))
            raise JoulewiseError(f"the agent of {node.name} does not report: {node.said()}")
        time.sleep(0.1)


def _order(name: str, gpus: int, checkpoint: str) -> Order:
    """A job that asks for so many GPUs, takes no more, and brings its points by clock on them and on half of them."""
    chip = catalog.load(MODEL).chip
    piece_s, sm_share, dynamic_w = LOADS[name]
    points: dict[int, list[Point[Setting]]] = {}
    for count in sorted({gpus, max(1, gpus // 2)}):
        for clock in CLOCKS:
            lock_mhz = round(clock * chip.sm_max_mhz / 15.0) * 15.0
            law = operate(chip, Load(piece_s, sm_share, dynamic_w), lock_mhz=lock_mhz)
            # The same work on fewer GPUs takes as many times longer.
            time_s = law.step_s * gpus / count
            points.setdefault(count, []).append(
                Point(time_s, time_s * count * law.busy_power_w, Setting(sm_mhz=lock_mhz))
            )
    return Order(
        name,
        ("bench.cluster_cap_load",),
        gpus,
        time.time(),
        checkpoint=checkpoint,
        least_gpus=max(1, gpus // 2),
        most_gpus=gpus,
        work=100_000.0,
        brought=plain(points, gpu=MODEL),
    )
