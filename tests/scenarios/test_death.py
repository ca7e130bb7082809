"""R1, R2, R4, R14: whoever dies, hangs or is stopped, the GPUs come back to what the site had set."""

from __future__ import annotations

import statistics
import time

import pytest

from tests import preloaded
from tests.scenarios.staging import Stage, staged, until
from tests.tiers import examples

BOTH = ["power_limit_w", "sm_mhz"]


@pytest.mark.sampled
def test_a_killed_client_s_gpu_is_as_before_at_once(stage: Stage, scenario):
    shown = scenario("R1", "SIGKILL a client that holds a lease", criterion="exact values back (target 100 ms)")
    before = stage.cap()
    took_s = []
    for trial in range(examples(10, 0.3)):
        client = stage.client()
        lease = client("take", gpus=stage.uuids[:2], knobs=BOTH)["lease"]
        client("apply", power_limit_w=400 + trial, sm_mhz=1200)
        assert [limit_w for limit_w, _, _ in stage.all_hardware()[:2]] == [400.0 + trial] * 2
        assert stage.hardware(0)[1] == (345, 1200)
        begun_s = time.monotonic()
        client.kill()
        until(lambda: stage.all_hardware() == before, every_s=0.0002)
        took_s.append(time.monotonic() - begun_s)
        until(lambda: stage.leases() == [])
        lines = [line for line in stage.audit() if line["lease"] == lease]
        assert any(line["op"] == "restore" for line in lines), lines
    shown.saw(f"median {1e3 * statistics.median(took_s):.1f} ms, worst of {len(took_s)} {1e3 * max(took_s):.1f} ms")


def test_after_a_killed_daemon_the_next_one_restores_all_it_had_changed(scenario):
    shown = scenario("R2", "SIGKILL the daemon with 8 leases, restart", criterion="all restored at the start")
    with staged() as stage:
        before = stage.cap()
        clients = [stage.client() for _ in stage.uuids]
        for client, uuid in zip(clients, stage.uuids, strict=True):
            client.begin("take", gpus=[uuid], knobs=BOTH)
        for number, client in enumerate(clients):
            client.end()
            client("apply", power_limit_w=300 + number, sm_mhz=1200)
        changed = stage.all_hardware()
        assert changed == [(300.0 + number, (345, 1200), None) for number in range(8)]
        stage.daemon.kill()
        assert stage.all_hardware() == changed  # nobody is left to restore
        begun_s = time.monotonic()
        stage.daemon.restart()
        until(lambda: stage.all_hardware() == before)
        took_s = time.monotonic() - begun_s
        for client in clients:
            assert client.refused("apply", power_limit_w=500).kind == "LeaseLost"
        assert stage.all_hardware() == before
        shown.saw(f"8 GPUs in {took_s:.2f} s, the interpreter's start included")


def test_a_client_that_hangs_loses_its_lease_and_cannot_write_when_it_wakes(stage: Stage, scenario):
    shown = scenario("R4", "client hangs (SIGSTOP) past its TTL", criterion="restored after the TTL; write refused")
    before, ttl_s = stage.cap(), 1.5
    client = stage.client()
    client("take", gpus=stage.uuids[:1], knobs=BOTH, ttl_s=ttl_s)
    client("apply", power_limit_w=420, sm_mhz=1200)
    beaten_s = time.monotonic()
    client("beat")
    client.hang()
    until(lambda: stage.all_hardware() == before)
    took_s = time.monotonic() - beaten_s
    assert took_s >= ttl_s
    client.go_on()
    assert client.refused("apply", power_limit_w=500).kind == "LeaseLost"
    assert stage.all_hardware() == before
    shown.saw(f"TTL {ttl_s:g} s: restored after {took_s:.2f} s; write refused: LeaseLost")


def test_a_stopped_daemon_restores_and_so_does_the_restore_verb_when_it_was_killed(scenario):
    shown = scenario("R14", "SIGTERM; restore with the daemon dead", criterion="all restored, exit 0, second a no-op")
    with staged("sim:h200*4") as stage:
        before = stage.cap()

        def hold_all() -> None:
            client = stage.client()
            client("take", gpus=stage.uuids, knobs=BOTH)
            client("apply", power_limit_w=333, sm_mhz=1200)
            assert stage.all_hardware() == [(333.0, (345, 1200), None)] * 4

        hold_all()
        begun_s = time.monotonic()
        status = stage.daemon.stop()
        stopped_s = time.monotonic() - begun_s
        assert status == 0
        assert stage.all_hardware() == before
        # What ExecStopPost does after a clean stop: there is nothing left to do.
        assert _restore(stage) == (0, before)

        stage.daemon.restart()
        hold_all()
        stage.daemon.kill()
        assert stage.all_hardware() != before
        begun_s = time.monotonic()
        assert _restore(stage) == (0, before)
        repaired_s = time.monotonic() - begun_s
        sequences = stage.writes()
        assert _restore(stage) == (0, before)
        assert stage.writes() == sequences  # the second run has not written at all
        shown.saw(
            f"stopped in {1e3 * stopped_s:.0f} ms, exit 0; repaired in {repaired_s:.1f} s; second run wrote nothing"
        )


def _restore(stage: Stage) -> tuple[int, object]:
    """Run the verb as ExecStopPost or a Slurm epilog would; its exit status, and what the GPUs hold then."""
    ran = preloaded.run("restore", "--state", stage.daemon.state, env=stage.environment())
    assert ran.returncode == 0, ran.stderr
    return ran.returncode, stage.all_hardware()
