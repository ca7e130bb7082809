"""R17: the ranks of one job hold their caps together or not at all."""

from __future__ import annotations

import time

from tests.scenarios.staging import Stage, until

LIMIT = ["power_limit_w"]


def _joined(stage: Stage, name: str) -> list:
    ranks = [stage.client() for _ in stage.uuids]
    for rank, uuid in zip(ranks, stage.uuids, strict=True):
        rank.begin("take", gpus=[uuid], knobs=LIMIT, together=[name, len(ranks)])
    return ranks


def test_where_one_rank_of_eight_gets_no_lease_no_rank_keeps_a_cap(stage: Stage, scenario):
    shown = scenario("R17", "8 ranks, one gets no lease", criterion="all or nothing: no rank keeps a cap")
    before = stage.cap()
    stranger = stage.client()
    stranger("take", gpus=stage.uuids[5:6], knobs=LIMIT)
    writes = stage.writes()
    ranks = _joined(stage, "job-1")
    refusal = ranks[5].end_refused()
    assert refusal.kind == "LeaseTaken"
    for rank in (rank for rank in ranks if rank is not ranks[5]):
        # Each had a lease for a moment or was refused as well, by how the eight happened to come; none may act.
        rank.begin("apply", power_limit_w=400)
        answers = [rank.outcome(), rank.outcome()]
        assert answers[0] in ("ok", "LeaseTaken", "LeaseLost", "NotNow")
        assert answers[1] in ("LeaseLost", "NotNow", "AssertionError")
    until(lambda: [lease["pid"] for lease in stage.leases()] == [stranger.pid])
    assert stage.all_hardware() == before
    assert stage.writes() == writes
    stranger("release")
    shown.saw("rank 5 refused (LeaseTaken): 7 others ended, no GPU written to")


def test_where_one_rank_of_eight_dies_all_caps_end(stage: Stage, scenario):
    shown = scenario("R17", "8 ranks with caps, one dies", criterion="all or nothing: no rank keeps a cap")
    before = stage.cap()
    ranks = _joined(stage, "job-2")
    for rank in ranks:
        rank.end()
    for rank in ranks:
        rank("apply", power_limit_w=400)
    assert [limit_w for limit_w, _, _ in stage.all_hardware()] == [400.0] * 8
    begun_s = time.monotonic()
    ranks[3].kill()
    until(lambda: stage.all_hardware() == before)
    took_s = time.monotonic() - begun_s
    for rank in ranks[:3] + ranks[4:]:
        assert rank.refused("apply", power_limit_w=300).kind == "LeaseLost"
    assert stage.all_hardware() == before
    shown.saw(f"8 GPUs restored in {1e3 * took_s:.0f} ms")
