"""A real Prometheus scrapes the real server: what it then says of joules and watts, over a restart of ours."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from joulewise.device.discover import find
from joulewise.device.host import HostEnergy
from joulewise.device.node import RunningNode, spawn
from joulewise.device.nvml_library import virtual
from joulewise.device.remote import RemoteLease
from joulewise.report.summaries import Totals
from joulewise.serve import holders, listen, metrics
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.holders import Writes
from joulewise.serve.live import LiveGpus
from joulewise.serve.metrics import metrics_router
from joulewise.serve.tokens import Guard
from tests.daemon.running import running_daemon
from tests.prometheus import PrometheusServer, check_metrics
from tests.scenario_table import Shown
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering, toy_job
from tests.serve.serving import Serving

pytestmark = pytest.mark.slow
BOARD = Path(__file__).parents[2] / "packaging" / "grafana" / "joulewise.json"
ENERGY = "joulewise_gpu_energy_joules_total"
LIFE_S = 30.0
"""How long the server is scraped before and after its restart."""
Starts = Callable[..., PrometheusServer]


class TrueJoules:
    """What two virtual GPUs have really drawn, written down as it happens."""

    def __init__(self, node: RunningNode) -> None:
        self._seen: list[tuple[float, tuple[float, ...]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(node,), daemon=True)
        self._thread.start()

    def _watch(self, node: RunningNode) -> None:
        with node.client() as client:
            while not self._stop.wait(0.05):
                before_s = time.time()
                joules = tuple(client.truth(index).energy_j for index in range(len(client.uuids)))
                self._seen.append((0.5 * (before_s + time.time()), joules))

    def mean_w(self, gpu: int, from_s: float, to_s: float) -> float:
        return (self._at(gpu, to_s) - self._at(gpu, from_s)) / (to_s - from_s)

    def _at(self, gpu: int, at_s: float) -> float:
        place = bisect_left(self._seen, (at_s, ()))
        (early_s, early), (late_s, late) = self._seen[place - 1], self._seen[place]
        share = (at_s - early_s) / (late_s - early_s)
        return early[gpu] + share * (late[gpu] - early[gpu])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def node(virtual_nvml: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    """Two GPUs at work whose power goes up and down, the second without an energy counter."""
    with spawn("sim:h200*2", load="recommender") as running, running.client() as client:
        client.fault(1, "unsupported", groups=["energy_counter"])
        for name, value in running.environment({}).items():
            monkeypatch.setenv(name, value)
        yield running


def scraped_for(prometheus: PrometheusServer, selector: str, life_s: float, *, after_s: float) -> tuple[float, float]:
    """Wait until there are samples from ``after_s`` on over ``life_s``; when the first and the last of them were.

    Prometheus stamps a sample with the moment at which it asked; one that was answered late, as on a busy machine or
    while the server starts, is of another moment than its stamp, and nothing is measured from there.
    """
    deadline_s = time.monotonic() + life_s + 60.0
    while True:
        now_s = time.time()
        (asked,) = prometheus.samples("scrape_duration_seconds", now_s - after_s, at_s=now_s) or [[]]
        prompt = {at_s for at_s, took_s in asked if took_s < 0.05}
        (samples,) = prometheus.samples(selector, now_s - after_s, at_s=now_s) or [[]]
        good = [at_s for at_s, _ in samples if at_s in prompt]
        if good and good[-1] - good[0] >= life_s:
            return good[0], good[-1]
        assert time.monotonic() < deadline_s, f"{len(samples)} samples of {selector}, {len(good)} of them prompt"
        time.sleep(0.2)


def test_counters_go_on_over_a_restart_of_the_server(node: RunningNode, prometheus: Starts, tmp_path: Path) -> None:
    with node.client() as client:
        counted, summed = (f'{ENERGY}{{gpu_uuid="{uuid}"}}' for uuid in client.uuids)
    serving = Serving(str(tmp_path / "runs.db"), tmp_path, "--gpu", "nvml:all")
    try:
        assert check_metrics(httpx.get(f"{serving.url}/metrics", trust_env=False).content) == ""
        server = prometheus(scrapes={"joulewise": serving.url}, every_s=0.5)
        server.wait_for(f"count_over_time({counted}[1h]) >= 4")
        serving.kill()
        restarted_s = time.time()
        serving.start()
        server.wait_for(f"count_over_time({summed}[1h]) >= 4 and timestamp({summed}) > {restarted_s + 1.0}")
        end_s = time.time()
        (values,) = server.samples(counted, 3600.0, at_s=end_s)
        assert values[-1][0] > restarted_s
        joules = [value for _, value in values]
        assert joules == sorted(joules)
        assert server.value(f"resets({counted}[1h])", at_s=end_s) == 0
        assert server.value(f"increase({counted}[1h])", at_s=end_s) > 0
        # Without a counter of its own the sum begins anew with us: Prometheus sees that, and takes nothing back.
        assert server.value(f"resets({summed}[1h])", at_s=end_s) == 1
        assert server.value(f"increase({summed}[1h])", at_s=end_s) > 0
    finally:
        serving.end()


@pytest.mark.exhaustive  # two lives of half a minute
def test_watts_are_right_over_a_restart_of_the_server(
    node: RunningNode, prometheus: Starts, tmp_path: Path, scenario: Callable[..., Shown]
) -> None:
    shown = scenario(
        "R23",
        f"real Prometheus, {2 * LIFE_S:.0f} s at 2 scrapes a second, serve killed between",
        criterion="counters monotonic, rate() ± 2 %, promtool clean",
    )
    with node.client() as client:
        counted, summed = (f'{ENERGY}{{gpu_uuid="{uuid}"}}' for uuid in client.uuids)
    truth = TrueJoules(node)
    serving = Serving(str(tmp_path / "runs.db"), tmp_path, "--gpu", "nvml:all")
    try:
        scraped = httpx.get(f"{serving.url}/metrics", trust_env=False)
        assert check_metrics(scraped.content) == ""
        began_s = time.time()
        server = prometheus(scrapes={"joulewise": serving.url}, every_s=0.5)
        first = scraped_for(server, counted, LIFE_S, after_s=began_s)
        serving.kill()
        restarted_s = time.time()
        serving.start()
        second = scraped_for(server, summed, LIFE_S, after_s=restarted_s)
        time.sleep(0.2)  # for the truth of the last sample's moment
        shown.saw(checked(server, truth, counted, summed, began_s, first, second))
    finally:
        serving.end()
        truth.close()


def checked(
    server: PrometheusServer,
    truth: TrueJoules,
    counted: str,
    summed: str,
    began_s: float,
    first: tuple[float, float],
    second: tuple[float, float],
) -> str:
    """What Prometheus says against the truth, judged; in short."""
    end_s = second[1]
    (values,) = server.samples(counted, end_s - began_s + 0.001, at_s=end_s)
    assert all(later >= earlier for (_, earlier), (_, later) in itertools.pairwise(values))
    told = {"counter, whole": server.value(f"rate({counted}{over(first[0], end_s)})", at_s=end_s)}
    true = {"counter, whole": truth.mean_w(0, first[0], end_s)}
    for name, gpu, selector in (("counter", 0, counted), ("summed", 1, summed)):
        for life, (from_s, to_s) in (("before", first), ("after", second)):
            told[f"{name}, {life}"] = server.value(f"rate({selector}{over(from_s, to_s)})", at_s=to_s)
            true[f"{name}, {life}"] = truth.mean_w(gpu, from_s, to_s)
    print(json.dumps({name: [round(told[name], 2), round(true[name], 2)] for name in told}))
    assert told == {name: pytest.approx(value, rel=0.02) for name, value in true.items()}
    all_of_it = over(began_s, end_s)
    assert server.value(f"resets({counted}{all_of_it})", at_s=end_s) == 0
    # Without a counter of its own the sum begins anew with us: Prometheus sees that, and takes nothing back.
    assert server.value(f"resets({summed}{all_of_it})", at_s=end_s) == 1
    spent_j = server.value(f"increase({summed}{all_of_it})", at_s=end_s)
    assert 0 < spent_j <= 1.02 * truth.mean_w(1, began_s, end_s) * (end_s - began_s)
    worst = max(abs(told[name] / true[name] - 1) for name in told)
    return f"{len(values)} samples, 0 resets of the counter, rate() off by {worst:.1%} at most; promtool clean"


SAVED_J = 4e5


def over(from_s: float, to_s: float) -> str:
    """The range whose first sample is the one at ``from_s``."""
    return f"[{round((to_s - from_s) * 1000) + 1}ms]"


def test_every_query_of_the_grafana_board_is_answered_with_data(
    node: RunningNode, prometheus: Starts, tmp_path: Path, may_set: None
) -> None:
    with everything(node, tmp_path) as (url, beside, cluster_url):
        for each in (url, cluster_url):
            assert check_metrics(httpx.get(f"{each}/metrics", trust_env=False).content) == ""
        server = prometheus(scrapes={"joulewise": url, "beside": beside, "cluster": cluster_url}, every_s=0.5)
        server.wait_for("rate(joulewise_control_writes_total[4s])")
        server.wait_for("rate(joulewise_cluster_energy_joules_total[4s])")
        queries = list(board_queries())
        assert len(queries) > 20
        for title, query in queries:
            found = server.wait_for(query, within_s=10.0)
            assert all(value == value and abs(value) != float("inf") for _, value in found), title
        # Two servers on one node and one store tell the same GPUs and runs: what is summed counts each of them once.
        by_title = dict(reversed(queries))
        server.wait_for('count(joulewise_saved_joules{virtual="false"}) == 2')
        assert [value for _, value in server.wait_for(by_title["Saved by tuned runs"])] == [SAVED_J]
        assert {value for _, value in server.wait_for(by_title["Runs"])} == {1.0, 7.0}
        server.wait_for("count(joulewise_lease_active) == 2 * count(count by (gpu_uuid) (joulewise_lease_active))")
        assert [value for _, value in server.wait_for(by_title["GPUs under a lease"])] == [1.0]
        named = {name for name in server.ask("label/__name__/values") if name.startswith("joulewise_")}
        shown = {name for _, query in queries for name in re.findall(r"joulewise_\w+", query)}
        assert shown <= named
        assert named - shown == {
            "joulewise_build_info",
            "joulewise_runs_energy_joules",
            "joulewise_cluster_budget_joules",
        }


def board_queries() -> Iterator[tuple[str, str]]:
    """Every query of the board as Grafana would send it, over the last seconds; by its panel's title."""
    board = json.loads(BOARD.read_text("utf-8"))
    assert board["templating"]["list"][1]["query"]["query"] == "label_values(joulewise_gpu_info, node)"
    assert {each["value"] for each in board["templating"]["list"][3]["options"]} == {"false", "true"}
    filled = {"$__rate_interval": "4s", "$__range": "10s", "$node": ".*", "$kwh_price": "0.30", "$virtual": "false"}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for variable, value in filled.items():
                query = query.replace(variable, value)
            assert "$" not in query, panel["title"]
            yield panel["title"], query


@contextmanager
def everything(node: RunningNode, folder: Path) -> Iterator[tuple[str, str, str]]:
    """All that there can be: GPUs at work, one of them leased and set, processors, runs, told by two servers; and a
    cluster. Their URLs."""
    zone = folder / "rapl" / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {"name": "package-0", "energy_uj": "5000000", "max_energy_range_uj": "65532610987"}.items():
        (zone / name).write_text(text)
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(node, folder))
        stack.enter_context(virtual(node.directory))
        writes = Writes(daemon.audit)
        stack.callback(writes.close)
        writes.counts()
        gpus = find("nvml:all")
        lease = stack.enter_context(RemoteLease.take([gpus[0].info.uuid], {"power_limit_w"}, socket=daemon.socket))
        lease.apply({"power_limit_w": 600.0})
        live = LiveGpus(gpus, holders=lambda: holders.holders(daemon.socket), host=HostEnergy(folder / "rapl"))
        stack.enter_context(live)
        sums = Totals(8, 1, 0, 5e6, SAVED_J, 3e4)
        app = _app(metrics_router([*_of(live, writes), metrics.runs(lambda virtual: sums)], Guard(local_users=True)))
        now = replace(NOBODY, cap_w=4000.0, nodes=(_node(),), jobs=(toy_job("a"),), budget_j=1e9)
        cluster = make_cluster_app(Metered(now=now), ToyDesk(), Guard(local_users=True))
        url, beside, cluster_url = (stack.enter_context(_served(each)) for each in (app, app, cluster))
        yield url, beside, cluster_url


class Metered(ToySteering):
    """Its meters go on."""

    def status(self) -> Any:
        return replace(super().status(), energy_j=1500.0 * time.monotonic())


def _of(live: LiveGpus, writes: Writes) -> list[metrics.Source]:
    return [metrics.build, metrics.gpus(live), metrics.writes(writes.counts)]


def _node() -> Any:
    from joulewise.cluster.scheduler_status import NodeStatus

    return NodeStatus("node1", "busy", "h200", 8, 6, 0, 900.0, 900.0, 900.0, None, None, 0.1)


def _app(router: Any) -> Any:
    from fastapi import FastAPI

    app = FastAPI()
    app.include_router(router)
    return app


@contextmanager
def _served(app: Any) -> Iterator[str]:
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield listen.url_of(listening)
