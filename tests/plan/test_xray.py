"""``look``: from traces to what a plan could save; and traces that do not belong together."""

import json
from functools import cache
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.plan import trace, xray
from tests.plan.traced_job import GEMM, Truth, fsdp

H200 = catalog.load("h200")


@cache
def job() -> Truth:
    return Truth(fsdp(4, H200), H200, seed=1)


def written(path: Path, *, rank: int = 0, steps: int = 3, gpu: str = "NVIDIA H200", **more) -> Path:
    said = job().kineto(rank=rank, steps=steps, seed=rank, **more)
    said["deviceProperties"][0]["name"] = gpu
    path.write_text(json.dumps(said))
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> xray.Findings:
    folder = tmp_path_factory.mktemp("traces")
    return xray.look([trace.read(written(folder / f"{rank}.json", rank=rank)) for rank in range(2)])


def test_every_plan_is_told_at_every_slowdown_with_its_interval(found):
    assert [(each.slowdown, each.plan) for each in found.savings] == [
        (slowdown, plan) for slowdown in (0.0, 0.01, 0.03) for plan in xray.PLANS
    ]
    for each in found.savings:
        assert 0.0 <= each.saving.low <= each.saving.middle <= each.saving.high < 1.0
        assert each.took <= each.slowdown + 1e-6
    by_plan = {(each.plan, each.slowdown): each.saving.middle for each in found.savings}
    for slowdown in (0.0, 0.01, 0.03):
        assert by_plan["one_clock", slowdown] <= by_plan["phased", slowdown] <= by_plan["each_run", slowdown]
    for plan in xray.PLANS:
        assert by_plan[plan, 0.0] <= by_plan[plan, 0.01] <= by_plan[plan, 0.03]


def test_the_job_is_described_as_the_traces_show_it(found):
    assert (found.lanes, found.ranks, found.world, found.steps) == (2, (0, 1), 2, 2)
    assert found.joined == 8
    assert found.explained == pytest.approx(1.0, abs=0.02)
    assert not found.read
    assert found.model.key == "h200"
    assert 300 < found.power_w.low < found.power_w.high < 800


def test_places_hold_all_energy_and_all_that_the_limit_saves(found):
    kinds = [place for place in found.where if not place.name]
    assert sum(place.energy for place in kinds) == pytest.approx(1.0, abs=0.01)
    limit = next(each for each in found.savings if (each.plan, each.slowdown) == ("each_run", 0.01))
    assert sum(place.saved for place in kinds) == pytest.approx(limit.saving.middle, abs=0.03)
    assert {GEMM, "vectorized_layer_norm_kernel"} <= {place.name for place in found.where}
    assert [wait.cause for wait in found.waits if wait.time > 0.02]
    assert all(wait.name.startswith("nccl") for wait in found.waits if wait.cause == "link")


def test_a_power_that_was_seen_is_believed(tmp_path):
    read = [trace.read(written(tmp_path / "t.json", sync_events=True))]
    told = xray.look(read, power_w=560.0, slowdowns=(0.02,))
    assert told.read
    assert told.power_w.middle == pytest.approx(560.0, rel=0.06)
    assert {each.slowdown for each in told.savings} == {0.02}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"rank": 1, "steps": 5}, "different numbers of steps: .*a.json 2, .*b.json 4"),
        ({"rank": 0}, "rank 0 is there more than once"),
        ({"rank": 1, "gpu": "NVIDIA A100-SXM4-80GB"}, "different hardware"),
    ],
)
def test_traces_that_do_not_belong_together_are_refused(tmp_path, second, says):
    both = [trace.read(written(tmp_path / "a.json")), trace.read(written(tmp_path / "b.json", **second))]
    with pytest.raises(BadSpec, match=says):
        xray.look(both)


def test_a_gpu_that_nobody_knows_must_be_named(tmp_path):
    strange = [trace.read(written(tmp_path / "t.json", gpu="NVIDIA Z900"))]
    with pytest.raises(BadSpec, match=r"not known: no GPU model is called 'NVIDIA Z900'.*--gpu"):
        xray.look(strange)
    assert xray.look(strange, gpu="h200", slowdowns=(0.01,)).model.key == "h200"
    nameless = [trace.read(written(tmp_path / "u.json", gpu=""))]
    with pytest.raises(BadSpec, match="does not name its GPU"):
        xray.look(nameless)


def test_collectives_alone_are_nothing_to_plan(tmp_path):
    path = written(tmp_path / "t.json")
    said = json.loads(path.read_text())
    said["traceEvents"] = [e for e in said["traceEvents"] if e["cat"] != "kernel" or e["name"].startswith("nccl")]
    path.write_text(json.dumps(said))
    with pytest.raises(BadSpec, match="no kernel within its steps"):
        xray.look([trace.read(path)])
