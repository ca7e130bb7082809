import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from joulewise.cluster.scheduler_status import NodeStatus
from joulewise.core.errors import NotKept
from joulewise.core.event import Began, Finished
from joulewise.core.measurement import Reading, Throttle
from joulewise.core.timeline import VirtualTime
from joulewise.daemon import audit
from joulewise.device.host import HostEnergy
from joulewise.device.node import spawn
from joulewise.device.remote import RemoteLease
from joulewise.report.summaries import Totals
from joulewise.serve import holders, metrics, tokens
from joulewise.serve.app import make_app
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.holders import Writes
from joulewise.serve.live import LiveGpus
from joulewise.serve.metrics import metrics_router
from joulewise.serve.tokens import Guard, Scope
from joulewise.store import Store
from tests.daemon.running import running_daemon
from tests.monitor.played import PlayedGpu, constant
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering, toy_job
from tests.serve.conftest import Api

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Found:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def of(found: Found, name: str, /, **labels: str) -> list[float]:
    """The values of a metric's series that have these labels."""
    return [value for (each, at), value in found.items() if each == name and labels.items() <= dict(at).items()]


class FullGpu(PlayedGpu):
    """Shows everything that a GPU can show."""

    shows = Reading(
        0.0, 312.4, 300.5, 700.0, 1755.0, 3201.0, 0.98, 0.4, 61.0, 2**30, frozenset({Throttle.POWER_CAP, Throttle.HEAT})
    )

    def read(self) -> Reading:
        super().read()
        return self.shows


def looked_at(*gpus: PlayedGpu, **more: object) -> LiveGpus:
    time = gpus[0].time
    live = LiveGpus(gpus, now=time.now_s, node="node7", **more)
    live.look()
    return live


def scraped(store: Store, live: LiveGpus | None, **more: object) -> Found:
    answer = Api(make_app(store, Guard(local_users=True), live=live))("GET", "/metrics", **more)
    assert answer.status_code == 200
    return read(answer.text)


def test_a_gpu_is_told_in_base_units_under_its_uuid(store: Store) -> None:
    gpu = FullGpu(constant(300.0), time=VirtualTime(), uuid="GPU-7")
    found = scraped(store, looked_at(gpu))
    assert of(found, "joulewise_gpu_power_watts") == [300.5]  # the driver's mean over a second
    assert of(found, "joulewise_gpu_power_limit_watts", gpu_uuid="GPU-7") == [700.0]
    assert of(found, "joulewise_gpu_clock_hertz", clock="sm") == [1.755e9]
    assert of(found, "joulewise_gpu_clock_hertz", clock="memory") == [3.201e9]
    assert of(found, "joulewise_gpu_utilization_ratio") == [0.98]
    assert of(found, "joulewise_gpu_temperature_celsius") == [61.0]
    assert of(found, "joulewise_gpu_memory_used_bytes") == [2.0**30]
    assert of(found, "joulewise_gpu_throttled", reason="power_cap") == [1.0]
    assert of(found, "joulewise_gpu_throttled", reason="idle") == [0.0]
    assert len(of(found, "joulewise_gpu_throttled")) == len(Throttle)
    assert of(found, "joulewise_gpu_info", gpu_uuid="GPU-7", name="Played", node="node7", virtual="true") == [1.0]
    assert of(found, "joulewise_gpu_energy_joules_total") == [pytest.approx(gpu.energy().energy_j)]
    assert len(of(found, "joulewise_build_info")) == 1


def test_what_is_not_known_is_absent(store: Store) -> None:
    plain = PlayedGpu(constant(300.0), time=VirtualTime(), uuid="GPU-plain")
    lost = FullGpu(constant(300.0), time=plain.time, uuid="GPU-lost")
    lost.lost = True
    found = scraped(store, looked_at(plain, lost))
    told = {name for (name, labels) in found if ("gpu_uuid", "GPU-lost") in labels}
    assert told == {"joulewise_gpu_info"}
    told = {name for (name, labels) in found if ("gpu_uuid", "GPU-plain") in labels}
    assert told == {
        "joulewise_gpu_info",
        "joulewise_gpu_power_watts",
        "joulewise_gpu_utilization_ratio",
        "joulewise_gpu_energy_joules_total",
    }
    for name in ("joulewise_lease_active", "joulewise_control_writes_total", "joulewise_cpu_energy_joules_total"):
        assert of(found, name) == []


def test_a_server_without_gpus_has_metrics_of_itself(store: Store) -> None:
    assert {name for name, _ in scraped(store, None)} >= {"joulewise_build_info"}
    assert not any(name.startswith("joulewise_gpu") for name, _ in scraped(store, None))


def test_a_name_with_odd_characters_stays_inside_its_label(store: Store) -> None:
    gpu = PlayedGpu(constant(300.0), time=VirtualTime(), uuid='GPU-"\n{a="b"} 1\\')
    found = scraped(store, looked_at(gpu))
    assert len(of(found, "joulewise_gpu_power_watts", gpu_uuid='GPU-"\n{a="b"} 1\\')) == 1


def test_openmetrics_is_spoken_to_who_asks_for_it(store: Store) -> None:
    api = Api(make_app(store, Guard(local_users=True), live=looked_at(FullGpu(constant(300.0), time=VirtualTime()))))
    answer = api("GET", "/metrics", headers={"Accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    kinds = {family.name: family.type for family in parse_openmetrics(answer.text)}
    assert kinds["joulewise_gpu_energy_joules"] == "counter"
    assert kinds["joulewise_gpu_power_watts"] == "gauge"
    assert kinds["joulewise_build"] == "info"
    plain = api("GET", "/metrics", headers={"Accept": "text/html"})
    assert plain.headers["content-type"].startswith("text/plain")


def test_a_reader_needs_a_token_where_there_are_tokens(store: Store) -> None:
    secret, token = tokens.make(Scope.READ, "prometheus")
    api = Api(make_app(store, Guard([token])))
    assert api("GET", "/metrics").status_code == 401
    assert api("GET", "/metrics", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_the_hosts_processors_are_told_by_zone(store: Store, tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, value in {"name": "package-0", "energy_uj": "5000000", "max_energy_range_uj": "65532610987"}.items():
        (zone / name).write_text(value)
    time = VirtualTime()
    live = looked_at(PlayedGpu(constant(300.0), time=time), host=HostEnergy(tmp_path, time=time))
    (zone / "energy_uj").write_text("47000000")
    time.sleep(6.0)
    live.look()
    found = scraped(store, live)
    assert of(found, "joulewise_cpu_energy_joules_total", zone="package-0") == [pytest.approx(42.0)]


def test_what_runs_add_up_to_is_asked_of_the_store_only_now_and_then() -> None:
    now_s, asked = [0.0], []

    def totals(virtual: bool) -> Totals:
        asked.append((now_s[0], virtual))
        if now_s[0] == 16.0:
            raise NotKept("the store is away")
        saved = (4e5, 3e4) if now_s[0] < 16.0 else (None, None)
        return Totals(2, 0, 2, 1e6) if virtual else Totals(8, 1, 0, 5e6, *saved)

    source = metrics.runs(totals, now=lambda: now_s[0])

    def told() -> dict[str, list[float]]:
        return {family.name: [sample.value for sample in family.samples] for family in source() if family.samples}

    assert told() == {
        "joulewise_runs": [1.0, 7.0, 0.0, 2.0],
        "joulewise_runs_energy_joules": [5e6, 1e6],
        "joulewise_saved_joules": [4e5],
        "joulewise_saved_half_width_joules": [3e4],
    }
    now_s[0] = 14.0
    assert len(told()) == 4
    now_s[0] = 16.0
    assert told() == {}  # it could not be asked, and the old figures may be wrong by now
    now_s[0] = 40.0
    assert told().keys() == {"joulewise_runs", "joulewise_runs_energy_joules"}  # nothing proven is not 0 saved
    assert [at_s for at_s, _ in asked] == [0.0, 0.0, 16.0, 40.0, 40.0]


def test_runs_of_the_store_are_counted(store: Store) -> None:
    journal = store.journal("20261116-120000-ab")
    journal.append(Began(0.0, "20261116-120000-ab", {"command": ["python", "train.py"], "virtual": False}))
    journal.append(Finished(9.0, "it ended", {}))
    found = scraped(store, None)
    assert of(found, "joulewise_runs", state="ended", virtual="false") == [1.0]
    assert of(found, "joulewise_runs", state="running") == [0.0, 0.0]
    assert of(found, "joulewise_saved_joules") == []


def test_a_cluster_tells_its_watts_against_its_cap() -> None:
    nodes = tuple(
        NodeStatus(f"node{number}", state, "h200", 8, used, 0, 900.0, 900.0, 900.0, None, None, 0.1)
        for number, (state, used) in enumerate([("idle", 0), ("busy", 6), ("down", 0)])
    )
    now = replace(NOBODY, cap_w=4000.0, energy_j=7e6, nodes=nodes, jobs=(toy_job("a"), toy_job("b", "running")))
    api = Api(make_cluster_app(ToySteering(now=now), ToyDesk(), Guard(local_users=True)))
    found = read(api("GET", "/metrics").text)
    assert of(found, "joulewise_cluster_power_watts") == [1500.0]
    assert of(found, "joulewise_cluster_power_cap_watts") == [4000.0]
    assert of(found, "joulewise_cluster_energy_joules_total") == [7e6]
    assert (of(found, "joulewise_cluster_gpus"), of(found, "joulewise_cluster_used_gpus")) == ([16.0], [6.0])
    assert of(found, "joulewise_cluster_jobs", state="running") == [1.0]
    assert of(found, "joulewise_cluster_nodes", state="down") == [1.0]
    assert of(found, "joulewise_cluster_budget_joules") == []
    api = Api(make_cluster_app(ToySteering(), ToyDesk(), Guard(local_users=True)))
    assert of(read(api("GET", "/metrics").text), "joulewise_cluster_power_cap_watts") == []


def line(op: str, result: str, **more: object) -> str:
    return json.dumps({"time": "2026-11-16T12:00:00Z", "uid": 0, "op": op, "result": result, **more}) + "\n"


def test_writes_are_counted_by_knob_and_result_from_the_audit_log_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_text(line("apply", "ok", knob="sm_mhz", before=None, after=1500.0))
    writes = Writes(log)
    assert writes.counts() == {}  # what was there before is somebody else's to count
    with log.open("a") as file:
        file.write(line("apply", "ok", knob="sm_mhz", before=None, after=1500.0))
        file.write(line("apply", "ok", knob="memory_mhz,sm_mhz"))  # nothing had to change
        file.write(line("apply", "OutOfRange: sm_mhz=9000", after={"sm_mhz": 9000.0}))
        file.write(line("apply", "GpuLost: gone", after={"power_limit_w": 500.0}))
        file.write(line("restore", "restored", knob="sm_mhz", before=1500.0, after=None))
        file.write(line("restore", "unchanged", knob="memory_mhz"))
        file.write(line("restore", "failed: the driver hangs", knob="power_limit_w"))
        file.write(line("take", "ok", knob="sm_mhz") + "half a line, and no JSON\n" + "[1]\n")
        file.write(line("apply", "ok", knob="frobnicate", before=1.0, after=2.0))
    expected = {
        ("sm_mhz", "ok"): 1,
        ("sm_mhz", "refused"): 1,
        ("power_limit_w", "failed"): 2,
        ("sm_mhz", "restored"): 1,
    }
    assert writes.counts() == writes.counts() == expected
    whole = line("apply", "ok", knob="sm_mhz", before=None, after=1500.0)
    with log.open("a") as file:
        file.write(whole[:20])
    assert writes.counts() == expected
    with log.open("a") as file:
        file.write(whole[20:] + whole)
    log.rename(tmp_path / "audit.jsonl.1")
    log.write_text(whole)
    assert writes.counts() == {**expected, ("sm_mhz", "ok"): 4}
    writes.close()


def test_a_log_that_cannot_be_read_gives_no_count_and_one_that_appears_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    writes = Writes(tmp_path / "audit.jsonl")
    assert writes.counts() is None
    (tmp_path / "audit.jsonl").write_text(line("apply", "ok", knob="sm_mhz", before=None, after=1500.0))
    assert writes.counts() == {("sm_mhz", "ok"): 1}
    writes.close()


def test_the_log_is_looked_for_where_the_daemon_writes_it() -> None:
    assert holders.AUDIT == audit.AUDIT


def test_leases_and_writes_of_a_real_daemon_are_told(virtual_nvml: None, may_set: None, tmp_path: Path) -> None:
    with spawn("sim:h200*2") as node, running_daemon(node, tmp_path) as daemon, node.client() as client:
        leased, free = client.uuids
        writes = Writes(daemon.audit)
        writes.counts()
        time = VirtualTime()
        gpus = [PlayedGpu(constant(300.0), time=time, uuid=uuid) for uuid in client.uuids]
        live = looked_at(*gpus, holders=lambda: holders.holders(daemon.socket))
        lease = RemoteLease.take([leased], {"power_limit_w"}, socket=daemon.socket)
        lease.apply({"power_limit_w": 500.0})
        time.sleep(6.0)
        live.look()
        app = Api(_app(live, writes))
        found = read(app("GET", "/metrics").text)
        assert of(found, "joulewise_lease_active", gpu_uuid=leased) == [1.0]
        assert of(found, "joulewise_lease_active", gpu_uuid=free) == [0.0]
        assert of(found, "joulewise_control_writes_total", knob="power_limit_w", result="ok") == [1.0]
        assert re.match(r"uid \d+ pid \d+", live.gpus()[0].held_by or "")
        lease.release()
        daemon.kill()
        time.sleep(6.0)
        live.look()
        found = read(app("GET", "/metrics").text)
        assert of(found, "joulewise_lease_active") == []
        assert of(found, "joulewise_control_writes_total", knob="power_limit_w", result="restored") == [1.0]
        writes.close()


def _app(live: LiveGpus, writes: Writes) -> object:
    from fastapi import FastAPI

    app = FastAPI()
    app.include_router(metrics_router([metrics.gpus(live), metrics.writes(writes.counts)], Guard(local_users=True)))
    return app
