"""R7, R9, R10, R11: somebody else writes, a GPU breaks, the driver starts anew, persistence mode is off."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from bench.control_stage import Talk
from tests.scenarios.staging import SITE, Stage, staged, until

DEFAULT_W = 700.0  # of an H200
HUNG_S = 5.0
"""After which a driver call counts as hung."""
LIMIT = ["power_limit_w"]

_FOREIGN = """
import sys
from pynvml import *
nvmlInit()
nvmlDeviceSetPowerManagementLimit(nvmlDeviceGetHandleByUUID(sys.argv[1]), int(sys.argv[2]))
"""


def test_what_somebody_else_sets_during_a_lease_is_noticed_and_left_alone(stage: Stage, scenario):
    shown = scenario("R7", "a second NVML client sets 250 W", criterion="seen, left at release, event")
    stage.cap()
    client = stage.client()
    client("take", gpus=stage.uuids[:1], knobs=LIMIT)
    client("apply", power_limit_w=400)
    subprocess.run(
        [sys.executable, "-c", _FOREIGN, stage.uuids[0], "250000"], env=stage.node.environment(), check=True, timeout=30
    )
    begun_s = time.monotonic()
    assert stage.hardware(0)[0] == 250.0
    notices: list[dict[str, object]] = []
    until(lambda: notices.extend(client("notices")) or notices)
    took_s = time.monotonic() - begun_s
    (notice,) = notices
    assert (notice["kind"], notice["gpu"], notice["knob"]) == ("foreign", stage.uuids[0], "power_limit_w")
    assert (notice["wrote"], notice["found"]) == (400.0, 250.0)
    (restored,) = client("release")
    assert restored["ending"] == "foreign"
    assert stage.hardware(0)[0] == 250.0
    assert any(line["gpu"] == stage.uuids[0] and "foreign" in json.dumps(line) for line in stage.audit())
    shown.saw(f"noticed in {1e3 * took_s:.0f} ms; 250 W stands after the release")


def test_one_broken_gpu_of_eight_costs_the_others_nothing(scenario, stage: Stage):
    shown = scenario("R9", "1 of 8 lost, hung > 5 s, unsupported, no permission", criterion="the others do not wait")
    before = stage.cap()
    sick = stage.uuids[7]
    seen = []
    # fault, its arguments, what a write to that GPU is answered, and the health that is shown
    table: list[tuple[str, dict[str, object], str, str]] = [
        ("lost", {}, "GpuLost", "lost"),
        ("unsupported", {"groups": ["LIMIT_SET"]}, "Unsupported", "ok"),
        ("no_permission", {}, "NotPermitted", "ok"),
        ("hung", {}, "GpuStalled", "stalled"),
    ]
    with stage.talk() as well, stage.talk() as ill:
        leases = [well("take", gpus=[uuid], knobs=LIMIT, ttl_s=60)["lease"] for uuid in stage.uuids[:7]]
        for kind, arguments, refusal, health in table:
            stage.cap_one(7)
            patient = stage.client()
            patient("take", gpus=[sick], knobs=LIMIT, ttl_s=60)
            stage.breaker.fault(7, kind, **arguments)
            patient.begin("apply", power_limit_w=400)
            took_s = _busy(well, leases, stage.uuids[:7], for_s=HUNG_S if kind == "hung" else 0.3)
            assert patient.end_refused().kind == refusal
            assert max(took_s) < HUNG_S  # who waits for the hung one, waits for as long
            p99_ms = 1e3 * sorted(took_s)[int(0.99 * len(took_s))]
            seen.append(f"{kind} {p99_ms:.1f} ms")
            shown.figures[f"beside_{kind}_p99_ms"] = p99_ms
            assert _health(ill, sick) == health
            assert {_health(ill, uuid) for uuid in stage.uuids[:7]} == {"ok"}
            stage.breaker.clear(7)
            patient.kill()
            until(lambda: stage.hardware(7) == before[7])
            until(lambda: _health(ill, sick) == "ok")
        for lease in leases:
            well("release", lease=lease)
    assert stage.all_hardware() == before
    shown.saw("p99 of the others: " + ", ".join(seen))


def _busy(talk: Talk, leases: list[str], gpus: tuple[str, ...], for_s: float) -> list[float]:
    """Read and write these GPUs in turn for so long; how long each round trip took."""
    took_s = []
    ends_s = time.monotonic() + for_s
    value_w = 400
    while time.monotonic() < ends_s:
        for lease, uuid in zip(leases, gpus, strict=True):
            value_w = 400 + (value_w + 1) % 50
            for op, fields in (
                ("apply", {"lease": lease, "setting": {"power_limit_w": value_w}}),
                ("read", {"gpu": uuid}),
            ):
                begun_s = time.monotonic()
                talk(op, **fields)
                took_s.append(time.monotonic() - begun_s)
        time.sleep(0.02)
    return took_s


def _health(talk: Talk, uuid: str) -> str:
    (gpu,) = (gpu for gpu in talk("gpus")["gpus"] if gpu["uuid"] == uuid)
    return str(gpu["health"])


def test_a_driver_reload_ends_the_lease_and_its_journal_is_not_replayed(scenario):
    shown = scenario("R10", "driver reload: defaults, counter from 0", criterion="stale entry dropped, lease ended")
    with staged("sim:h200*2") as stage:
        stage.cap()
        _let_count(stage)
        client = stage.client()
        client("take", gpus=stage.uuids, knobs=["power_limit_w", "sm_mhz"])
        client("apply", power_limit_w=400, sm_mhz=1200)
        stage.breaker.fault(0, "reload")
        begun_s = time.monotonic()
        until(lambda: stage.leases() == [])
        took_s = time.monotonic() - begun_s
        assert {"reload", "ended"} & {notice["kind"] for notice in client("notices")}
        assert client.refused("apply", power_limit_w=300).kind == "LeaseLost"
        # The cap of before belonged to a driver that is no more: it is not written into the new one.
        assert stage.all_hardware() == [(DEFAULT_W, None, None)] * 2

        stage.cap()
        _let_count(stage)
        second = stage.client()
        second("take", gpus=stage.uuids, knobs=LIMIT)
        second("apply", power_limit_w=350)
        stage.daemon.kill()
        stage.breaker.fault(0, "reload")
        stage.daemon.restart()
        until(lambda: len([line for line in stage.audit() if line["op"] == "replay"]) == 2)
        assert stage.all_hardware() == [(DEFAULT_W, None, None)] * 2
        # Where a stale entry were left, the new driver's own 350 W would be taken for ours and undone.
        for index in range(2):
            stage.breaker.fault(index, "foreign", power_limit_w=350)
        stage.daemon.restart()
        assert stage.all_hardware() == [(350.0, None, None)] * 2
    shown.saw(f"lease ended with a notice after {1e3 * took_s:.0f} ms; entries of a dead daemon dropped at start")


def _let_count(stage: Stage) -> None:
    """Wait until the energy counters show more than they will soon after a reload, which is how one is seen."""
    until(lambda: all(stage.ask("energy", gpu=uuid)["energy_j"] > 250.0 for uuid in stage.uuids), 20.0, every_s=0.05)


@pytest.mark.parametrize("policy", ["warn", "refuse", "set"])
def test_with_persistence_mode_off_the_site_decides(policy: str, scenario):
    shown = scenario("R11", f"persistence mode off, policy {policy!r}", criterion="warn, and refuse or set per policy")
    with staged("sim:h200", site=f'persistence = "{policy}"\n{SITE}') as stage:
        before = stage.cap()
        stage.breaker.fault(0, "persistence", on=False)
        client = stage.client()
        if policy == "refuse":
            refusal = client.refused("take", gpus=stage.uuids, knobs=LIMIT)
            assert "persistence" in refusal.message
            assert stage.leases() == []
            shown.saw(f"refused: {refusal.kind}")
        else:
            notes = client("take", gpus=stage.uuids, knobs=LIMIT)["notes"]
            assert any("persistence" in note for note in notes)
            assert stage.persistence(0) is (policy == "set")
            client("apply", power_limit_w=400)
            client("release")
            assert stage.all_hardware() == before
            shown.saw("warned" if policy == "warn" else "on while leased, off again after")
        assert stage.persistence(0) is False
