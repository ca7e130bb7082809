"""Points that jobs bring, made of what the floors below found: a tuned run, a series, a plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cluster import brought, brought_sources
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought_sources import of_plan, of_run, of_series, read
from joulewise.cluster.engine import Order
from joulewise.core.errors import BadSpec
from joulewise.core.event import Began
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.series import EpochCost, Platform
from joulewise.model import catalog
from joulewise.plan import plan_files
from joulewise.store import Database, open_store
from joulewise.store.sql import SqliteJournal
from joulewise.tune.desk import PREFIX
from tests.plan.made_up import plan
from tests.tune.jobs import Played
from tests.tune.runs import Run, tune
from tests.tune.series_jobs import Series

H200 = Platform("NVIDIA H200", 2, 1400.0)


@pytest.fixture(scope="module")
def run() -> Run:
    """A job as ``run --tune`` would have it, on virtual time."""
    return tune(Played.steady(jitter=0.01), duration_s=150.0)


def test_a_tuned_run_gives_points_that_are_true_within_their_errors(run):
    made = of_run(run.events)
    assert (made["gpu"], made["unit"], made["source"]) == ("h200", "step", "run test")
    (points,) = brought.points(made).values()
    assert points[0].setting == DEFAULT
    for point in points:
        time_s, energy_j = run.job.truth(point.setting)
        assert point.time_s == pytest.approx(time_s, rel=0.01, abs=3.5 * point.time_error_s)
        assert point.energy_j == pytest.approx(energy_j, rel=0.03, abs=3.5 * point.energy_error_j)


def test_it_reaches_beyond_the_slowdown_that_the_run_allowed_since_a_cap_may_need_that(run):
    (points,) = brought.points(of_run(run.events)).values()
    assert points[-1].time_s > 1.5 * points[0].time_s
    assert points[-1].power_w < 0.6 * points[0].power_w
    assert 8 <= len(points) <= brought_sources.MOST_POINTS + 10
    # What was measured is surer than what is far from it.
    near, far = points[1], points[-1]
    assert near.time_error_s / near.time_s < far.time_error_s / far.time_s


def test_a_journal_without_a_tuned_run_is_refused(run):
    with pytest.raises(BadSpec, match="no journal of 'run --tune'"):
        of_run([])
    (began,) = [event for event in run.events if isinstance(event, Began)]
    with pytest.raises(BadSpec, match="measured no steps or periods"):
        of_run([began])


def test_a_run_is_found_by_its_name_in_the_store(run, tmp_path):
    file = tmp_path / "joulewise.db"
    journal = SqliteJournal(Database(file), "20260314-101500-3f2a")
    for event in run.events:
        journal.append(event)
    journal.flush()
    assert read("run:20260314", database=file) == of_run(run.events)
    with pytest.raises(BadSpec, match="no run is called 'other'"):
        read("run:other", database=file)


def series() -> Series:
    """A job that was measured at two batch sizes and three limits on two H200s."""
    made = Series()
    for size in (32, 64):
        base_s = 100.0 * (1.0 + 16.0 / size)
        profile = [
            EpochCost(base_s * slower, base_s * slower * watts, Setting(power_limit_w=limit))
            for limit, slower, watts in ((700, 1.0, 1300.0), (500, 1.08, 950.0), (400, 1.3, 760.0))
        ]
        made.ran(size, epochs=10, platform=H200, profile=profile)
    return made


def said(made: Series) -> dict:
    """What ``recur frontier --json`` says."""
    rows = [
        {"batch_size": point.setting[0], "setting": dict(point.setting[1]), "time_s": point.time_s}
        | {"energy_j": point.energy_j, "time_error_s": point.time_error_s, "energy_error_j": point.energy_error_j}
        for point in made.tuner.frontier(H200)
    ]
    return {"job": "nightly", "platform": {"gpu_name": H200.gpu_name, "gpus": H200.gpus}, "points": rows}


def test_a_series_gives_whole_runs_of_one_batch_size(run):
    told = said(series())
    made = of_series(told)
    assert (made["gpu"], made["unit"], made["source"]) == ("h200", "run", "recur nightly at batch size 64")
    (points,) = brought.frontiers(made).values()
    assert [point.setting["power_limit_w"] for point in points] == [700, 500, 400]
    best = [row for row in told["points"] if row["batch_size"] == 64]
    assert [point.time_s for point in points] == [row["time_s"] for row in best]
    assert list(made["gpus"]) == ["2"]


def test_with_its_steps_a_run_of_a_series_becomes_steps():
    whole, steps = of_series(said(series())), of_series(said(series()), steps=5000.0)
    assert steps["unit"] == "step"
    for one, all_ in zip(steps["gpus"]["2"], whole["gpus"]["2"], strict=True):
        assert one["time_s"] * 5000 == pytest.approx(all_["time_s"])
        assert one["energy_j"] * 5000 == pytest.approx(all_["energy_j"])
        assert one["setting"] == all_["setting"]


def test_a_batch_size_that_has_no_point_is_refused_and_what_is_no_series():
    with pytest.raises(BadSpec, match="batch size 16 has no point; there are"):
        of_series(said(series()), batch=16)
    with pytest.raises(BadSpec, match="not what 'joulewise recur frontier JOB --json' says"):
        of_series({"points": []})
    with pytest.raises(BadSpec, match="cannot be read"):
        of_series({**said(series()), "points": [{"batch_size": "many"}]})
    with pytest.raises(BadSpec, match="0 steps"):
        of_series(said(series()), steps=0)


def test_a_recurring_job_is_found_in_the_store_and_its_verb_says_the_same(tmp_path):
    file = tmp_path / "joulewise.db"
    made = series()
    store = open_store(file)
    journal = store.journal(PREFIX + "nightly")
    for event in made.events:
        journal.append(event)
    store.close()
    verb = subprocess.run(
        [sys.executable, "-m", "joulewise", "recur", "frontier", "nightly", "--json", "--database", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "JOULEWISE_HOME": str(tmp_path)},
        timeout=60,
    )
    assert verb.returncode == 0, verb.stderr
    (tmp_path / "nightly.json").write_text(verb.stdout)
    assert read(str(tmp_path / "nightly.json")) == read("recur:nightly@64", database=file)
    assert read("recur:nightly", steps=100.0, database=file)["unit"] == "step"
    with pytest.raises(BadSpec, match="no recurring job called 'weekly'"):
        read("recur:weekly", database=file)
    with pytest.raises(BadSpec, match="no batch size"):
        read("recur:nightly@big", database=file)


def test_a_plan_gives_the_whole_pipeline_at_each_clock(tmp_path):
    made = plan()
    found = of_plan(made)
    (gpus,) = found["gpus"]
    assert (gpus, found["gpu"], found["unit"]) == ("6", "a100-sxm", "step")  # three ranks of two GPUs
    (points,) = brought.frontiers(found).values()
    assert [point.setting["sm_mhz"] for point in points] == [1410.0, 1200.0, 990.0]
    # All fast and all slow are points of the plan itself, so the times are known from there.
    assert points.fastest.time_s == made.points[0].time_s
    assert points.thriftiest.time_s == made.points[-1].time_s
    plan_files.write(made, tmp_path / "plan.json")
    assert read(str(tmp_path / "plan.json")) == found


def test_a_plan_whose_operations_share_no_clock_is_refused():
    made = plan()
    first = next(iter(made.profile.options))
    only = {key: (points[:1] if key == first else points[1:]) for key, points in made.profile.options.items()}
    object.__setattr__(made, "profile", type(made.profile)(only))
    made.__dict__.pop("options", None)
    with pytest.raises(BadSpec, match="no clock in common"):
        of_plan(made)


def test_points_in_a_file_are_taken_as_they_are_and_other_files_are_refused(tmp_path):
    file = tmp_path / "points.json"
    points = {"gpu": "h200", "unit": "step", "gpus": {"1": [{"time_s": 1.0, "energy_j": 2.0, "setting": {}}]}}
    file.write_text(json.dumps(points))
    assert read(str(file)) == {**points, "source": "points.json"}
    for text, says in (("{", "is not JSON"), ("[]", "holds no object"), ('{"a": 1}', "has no a")):
        file.write_text(text)
        with pytest.raises(BadSpec, match=says):
            read(str(file))
    with pytest.raises(BadSpec, match=r"cannot be read: no such file or directory; give 'run:NAME'"):
        read(str(Path("absent.json")))


def test_all_three_become_beliefs(run):
    a100, h200 = Fabric(catalog.load("a100-sxm"), 8), Fabric(catalog.load("h200"), 8)
    for made, on in ((of_run(run.events), h200), (of_series(said(series())), h200), (of_plan(plan()), a100)):
        (gpus,) = brought.frontiers(made)
        order = Order("job", ("train",), gpus, brought=made, work=100.0)
        ways = brought.belief_of(order, on).ways()
        assert {way.gpus for way in ways} == {gpus}
        assert len(ways) >= 3
