"""Frontiers that jobs bring: their plain form, and what is believed because of them."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster import brought
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought import belief_of, frontiers, joined, plain, refuse_unfit
from joulewise.cluster.engine import Order
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model import catalog

MODEL = catalog.load("a100-sxm")
POINTS = [
    {"time_s": 0.20, "energy_j": 300.0, "setting": {}},
    {"time_s": 0.22, "energy_j": 250.0, "setting": {"sm_mhz": 1200.0}},
    {"time_s": 0.30, "energy_j": 220.0, "setting": {"sm_mhz": 900.0}},
]
BROUGHT = {"gpu": "a100-sxm", "unit": "step", "gpus": {"4": POINTS}}


def fabric() -> Fabric:
    return Fabric(MODEL, 8)


def order(**more) -> Order:
    return Order(**{"name": "job", "command": ("train",), "gpus": 4, "checkpoint": "here", "work": 1000.0, **more})


def sizes(belief) -> set[int]:
    return {way.gpus for way in belief.ways()}


# The form.

points = st.builds(
    Point,
    st.floats(1e-6, 1e6),
    st.floats(1e-6, 1e9),
    st.builds(Setting, sm_mhz=st.floats(1.0, 3000.0)),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
)
several = st.lists(points, min_size=1, max_size=8, unique_by=lambda point: point.setting)


@given(st.dictionaries(st.integers(1, 512), several.map(Frontier), min_size=1, max_size=4))
def test_what_is_made_plain_is_read_back_also_through_json(found):
    made = plain(found, gpu="h200", source="a test")
    assert frontiers(json.loads(json.dumps(made))) == found


def test_points_that_others_beat_are_left_out():
    worse = {"time_s": 0.25, "energy_j": 260.0, "setting": {"sm_mhz": 1100.0}}
    assert len(frontiers({**BROUGHT, "gpus": {"4": [*POINTS, worse]}})[4]) == 3


def test_a_point_that_is_slower_and_dearer_stays_where_it_draws_less_power():
    slow = {"time_s": 0.60, "energy_j": 240.0, "setting": {"sm_mhz": 500.0}}
    with_slow = {**BROUGHT, "gpus": {"4": [*POINTS, slow]}}
    assert [point.setting for point in brought.points(with_slow)[4]][-1] == Setting(sm_mhz=500)
    assert len(frontiers(with_slow)[4]) == 3
    assert min(way.power_w for way in belief_of(order(brought=with_slow), fabric()).ways() if way.gpus == 4) == 400.0


@given(several)
def test_what_is_left_out_is_beaten_by_something_that_stays(found):
    kept = brought.points(plain({1: found}, gpu="h200"))[1]
    for point in found:
        assert any(
            each.time_s <= point.time_s and each.energy_j <= point.energy_j and each.power_w <= point.power_w
            for each in kept
        )
    assert [point.time_s for point in kept] == sorted(point.time_s for point in kept)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ((), 3, "is a int, not an object"),
        (("mood",), "good", "has no mood; it has gpu, unit"),
        (("gpu",), "", "name the GPU model"),
        (("gpu",), 3, "name the GPU model"),
        (("unit",), "epoch", "one of step, period, run"),
        (("source",), 3, "source is not a text"),
        (("gpus",), {}, "at least one number of GPUs"),
        (("gpus",), [], "at least one number of GPUs"),
        (("gpus",), {"0": POINTS}, r"gpus\.0 is no number of GPUs"),
        (("gpus",), {"four": POINTS}, r"gpus\.four is no number"),
        (("gpus",), {"-4": POINTS}, r"gpus\.-4 is no number"),
        (("gpus",), {"²": POINTS}, "is no number"),
        (("gpus", "4"), [], r"gpus\.4 is no list of points"),
        (("gpus", "4"), [POINTS[0]] * 1001, "at most 1000"),
        (("gpus", "4"), [POINTS[0]] * 2, "a setting twice"),
        (("gpus", "4", 1), 7, r"gpus\.4\[1\] is no object"),
        (("gpus", "4", 1, "colour"), "red", r"gpus\.4\[1\] has no colour"),
        (("gpus", "4", 1, "time_s"), 0, r"gpus\.4\[1\]\.time_s is 0; it must be a number from 1e-09 to 1e\+12"),
        (("gpus", "4", 1, "time_s"), 1e-300, "time_s is 1e-300"),
        (("gpus", "4", 1, "energy_j"), 1e13, r"energy_j is 1e\+13"),
        (("gpus", "4", 1, "energy_j"), 10**400, "energy_j is 1000000"),
        (("gpus", "4", 1, "time_s"), None, "time_s is None"),
        (("gpus", "4", 1, "time_s"), True, "time_s is True"),
        (("gpus", "4", 1, "energy_j"), float("inf"), "energy_j is inf"),
        (("gpus", "4", 1, "energy_j"), "12", "energy_j is '12'"),
        (("gpus", "4", 1, "time_error_s"), -1.0, r"time_error_s is -1; it must be a number from 0 to 1e\+12"),
        (("gpus", "4", 1, "setting"), 3, "no object of knobs"),
        (("gpus", "4", 1, "setting"), {"turbo": 1.0}, "no knob is called 'turbo'"),
        (("gpus", "4", 1, "setting"), {"sm_mhz": "fast"}, r"setting\.sm_mhz is 'fast'"),
    ],
)
def test_what_is_not_of_the_form_is_refused_by_the_part_that_is_not(path, value, says):
    changed = copy.deepcopy(BROUGHT)
    if not path:
        changed = value
    else:
        at = changed
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
    with pytest.raises(BadSpec, match=says):
        frontiers(changed)


@pytest.mark.parametrize(
    "brought", [[1], "x", {"gpu": "a100-sxm"}, {"gpu": "a100-sxm", "gpus": {"1": [{"time_s": 10**400, "energy_j": 1}]}}]
)
def test_a_job_that_brings_something_else_is_refused_and_nothing_breaks(brought):
    with pytest.raises(BadSpec, match=r"gpus"):
        belief_of(Order("a", ("x",), 1, checkpoint="c", brought=brought), Fabric(MODEL, 8))


def test_points_of_several_sizes_are_joined_and_of_different_gpus_are_not():
    eight = {**BROUGHT, "gpus": {"8": POINTS}, "source": "run b"}
    both = joined({**BROUGHT, "source": "run a"}, eight)
    assert set(frontiers(both)) == {4, 8}
    assert both["source"] == "run a, run b"
    with pytest.raises(BadSpec, match="gpu h200 and a100-sxm cannot be joined"):
        joined(BROUGHT, {**eight, "gpu": "h200"})
    with pytest.raises(BadSpec, match="unit run and step cannot be joined"):
        joined(BROUGHT, {**eight, "unit": "run"})


# Orders.


def test_an_order_that_can_never_run_is_refused():
    refuse_unfit(order(brought=BROUGHT))
    refuse_unfit(order(brought=BROUGHT, checkpoint=None))
    with pytest.raises(BadSpec, match="asks for 8 GPUs and brings points of 4"):
        refuse_unfit(order(brought=BROUGHT, checkpoint=None, gpus=8))
    with pytest.raises(BadSpec, match="outside its own 1 to 2"):
        refuse_unfit(order(most_gpus=2))
    with pytest.raises(BadSpec, match="outside its own 6 to"):
        refuse_unfit(order(least_gpus=6))
    with pytest.raises(BadSpec, match="unit"):
        refuse_unfit(order(brought={**BROUGHT, "unit": "mile"}))


# Beliefs.


def test_a_rigid_job_with_points_has_these_and_no_other_size():
    ways = belief_of(order(brought=BROUGHT, checkpoint=None), fabric()).ways()
    assert [(way.gpus, way.unit_s, way.unit_j, way.setting) for way in ways] == [
        (4, 0.20, 300.0, DEFAULT),
        (4, 0.22, 250.0, Setting(sm_mhz=1200)),
        (4, 0.30, 220.0, Setting(sm_mhz=900)),
    ]


def test_an_elastic_job_with_points_of_one_size_has_others_that_scale_from_them():
    belief = belief_of(order(brought=BROUGHT), fabric())
    assert sizes(belief) == {1, 2, 4}
    fastest = {gpus: min(way.unit_s for way in belief.ways() if way.gpus == gpus) for gpus in (1, 2, 4)}
    assert fastest[1] > fastest[2] > fastest[4] == 0.20
    assert fastest[1] < 4.4 * fastest[4]
    slower = {**BROUGHT, "gpus": {"4": [{**point, "time_s": 10 * point["time_s"]} for point in POINTS]}}
    ten = min(way.unit_s for way in belief_of(order(brought=slower), fabric()).ways() if way.gpus == 2)
    assert ten == pytest.approx(10 * fastest[2])


def test_what_is_seen_of_it_moves_points_and_other_sizes():
    belief = belief_of(order(brought=BROUGHT), fabric())
    before = belief.ways()
    assert belief.ways() is before
    seen = next(way for way in before if way.gpus == 4 and way.setting == DEFAULT)
    belief.tell(seen, 1, 2 * seen.unit_s, 2 * seen.unit_j)
    after = {(way.gpus, way.setting): way for way in belief.ways()}
    assert after[4, DEFAULT].unit_s == pytest.approx(0.40)
    was = {(way.gpus, way.setting): way for way in before}
    assert after[2, DEFAULT].unit_s == pytest.approx(2 * was[2, DEFAULT].unit_s, rel=0.25)


@pytest.mark.parametrize("more", [{}, {"brought": {**BROUGHT, "gpu": "h200"}}])
def test_without_points_of_this_gpu_the_law_is_believed(more):
    belief = belief_of(order(**more), fabric())
    assert sizes(belief) == {1, 2, 4}
    assert len({way.setting for way in belief.ways()}) > 3
    assert 0.20 not in {way.unit_s for way in belief.ways()}


def test_a_gpu_is_known_by_any_of_its_names():
    named = {**BROUGHT, "gpu": MODEL.name}
    assert 0.20 in {way.unit_s for way in belief_of(order(brought=named, checkpoint=None), fabric()).ways()}


@pytest.mark.parametrize("points", [None, BROUGHT])
def test_only_sizes_that_the_order_allows_are_offered(points):
    bounded = order(brought=points, least_gpus=2, most_gpus=4)
    assert sizes(belief_of(bounded, fabric())) == {2, 4}
    assert sizes(belief_of(order(brought=points, checkpoint=None), fabric())) == {4}


def test_without_a_most_it_grows_to_twice_what_was_seen_and_no_further_than_there_are():
    on = fabric()
    belief = belief_of(order(), on, gpus_there=12)
    for gpus in (4, 8):
        belief.tell(Way(gpus, 1.0, 1.0), 1, 1.0 / gpus, 100.0)
    assert max(sizes(belief)) == 8
    assert max(sizes(belief_of(order(name="job"), on, gpus_there=32))) == 16


def test_jobs_of_one_workload_learn_from_each_other_and_others_do_not():
    on = fabric()
    one = belief_of(order(workload="bert", batch=64), on)
    told = next(way for way in one.ways() if way.gpus == 4 and way.setting == DEFAULT)
    one.tell(told, 1, 7.0, 7000.0)

    def at_4(name: str, **more) -> float:
        ways = belief_of(order(name=name, **more), on).ways()
        return next(way.unit_s for way in ways if way.gpus == 4 and way.setting == DEFAULT)

    assert at_4("two", workload="bert", batch=64) == pytest.approx(7.0, rel=0.2)
    assert abs(at_4("three", workload="bert", batch=128) / 7.0 - 1) > 0.2
    assert abs(at_4("four") / 7.0 - 1) > 0.2


def test_what_is_left_is_what_the_order_says_unless_its_progress_knows_better():
    assert belief_of(order(), fabric()).work_left(400.0) == pytest.approx(600.0)
    assert belief_of(order(brought=BROUGHT), fabric(), work=500.0).work_left(400.0) == pytest.approx(100.0)


@pytest.mark.parametrize("points", [None, BROUGHT])
def test_of_a_job_of_unknown_size_an_hour_is_expected_and_more_the_longer_it_runs(points):
    belief = belief_of(order(work=None, brought=points), fabric())
    unit_s = min(way.unit_s for way in belief.ways() if way.gpus == 4)
    assert belief.work_left(0.0) * unit_s == pytest.approx(3600.0)
    hours = 10 * 3600.0 / unit_s
    assert belief.work_left(hours) > 0.5 * hours


def test_points_of_a_whole_run_are_cut_into_its_steps():
    run = {"gpu": "a100-sxm", "unit": "run", "gpus": {"4": [{"time_s": 800.0, "energy_j": 9e5, "setting": {}}]}}
    for work in (1000.0, None):
        belief = belief_of(order(brought=run, checkpoint=None, work=work), fabric())
        (way,) = belief.ways()
        assert way.unit_s * belief.work_left(0.0) == pytest.approx(800.0)
        assert way.unit_j * belief.work_left(0.0) == pytest.approx(9e5)


def test_the_form_and_its_units_are_as_documented():
    assert brought.UNITS == ("step", "period", "run")
    assert "time_error_s" not in plain(frontiers(BROUGHT), gpu="a100-sxm")["gpus"]["4"][0]
