import math
import re

import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began
from joulewise.core.knob import DEFAULT
from joulewise.core.measurement import Reading
from joulewise.report import figures as report_figures
from joulewise.report.figures import Beyond
from joulewise.report.history import Series
from joulewise.report.story import Story
from tests.cli import made_up


@pytest.fixture(scope="module")
def story():
    return Story.of(made_up.run())


def series(power_w, *, from_s=0.0, until_s=400.0, sm_mhz=1500.0):
    read = Series(width_s=1.0)
    at_s = from_s
    while at_s < until_s:
        read.add(Reading(made_up.START_S + at_s, power_w=power_w, sm_mhz=sm_mhz))
        at_s += 0.5
    return read


def at(curve, time_s):
    return min(curve, key=lambda point: abs(point[0] - time_s))[1]


def test_power_is_summed_over_gpus_and_the_clock_is_their_mean(story):
    beyond = Beyond.of(story, [series(500.0, sm_mhz=1000.0), series(300.0, sm_mhz=2000.0)])
    assert {y for _, y in beyond.power} == {800.0}
    assert {y for _, y in beyond.clock} == {1500.0}
    assert {y for _, y in (*beyond.low, *beyond.high)} == {800.0}


def test_where_one_of_them_was_not_read_there_is_no_sum(story):
    beyond = Beyond.of(story, [series(500.0), series(300.0, from_s=100.0, until_s=200.0)])
    for time_s, known in ((50.0, False), (150.0, True), (250.0, False)):
        assert math.isnan(at(beyond.power, time_s)) is not known
        assert math.isnan(at(beyond.clock, time_s)) is not known
    assert at(beyond.power, 150.0) == 800.0


def test_what_was_read_before_the_run_and_after_it_is_not_shown(story):
    times = [x for x, _ in Beyond.of(story, [series(500.0, from_s=-50.0, until_s=2000.0)]).power]
    assert min(times) >= 0.0
    assert max(times) <= story.span_s


def test_a_long_run_has_no_more_points_than_a_screen_shows(story):
    assert len(Beyond.of(story, [series(500.0, until_s=3000.0)]).power) <= 601


def test_without_readings_the_blocks_are_drawn(story):
    assert Beyond.of(story) == Beyond()
    drawn = report_figures.power(story, Beyond())
    assert 'class="line power"' in drawn
    assert "not in the journal" not in drawn
    assert "not in the journal" in report_figures.power(story, Beyond.of(story, [series(500.0)]))


def test_every_block_is_a_stripe_of_its_kind_and_every_change_of_the_held_setting_a_mark(story):
    drawn = report_figures.power(story, Beyond())
    stripes = re.findall(r'class="stripe ([a-z]+)"', drawn)
    assert len(stripes) == len(story.seen)
    assert set(stripes) == {"baseline", "probe", "verify", "hold", "proof"}
    assert drawn.count('class="mark turn"') == 2  # held once, in two panels
    assert drawn.count('class="mark shift"') == 2
    assert "&lt;than&gt;" in drawn  # what a job says is never markup


def test_the_frontier_shows_each_setting_once_with_the_bound(story):
    drawn = report_figures.frontier(story, Beyond())
    kinds = re.findall(r'class="dot ([a-z]+)"', drawn)
    assert sorted(kinds) == ["default", "held", "tried", "tried"]
    assert "bound +2 %" in drawn
    assert drawn.count('class="note') == 2 + 3, "default, the one held, the bound and what else was tried have names"
    assert "law expects" not in drawn
    assert "law expects" in report_figures.frontier(story, Beyond(expected=[(0.0, 0.0), (0.01, -0.05)]))


@pytest.mark.parametrize("bound", [None, "2 %", math.inf, -1.0])
def test_an_objective_without_a_bound_has_none_in_its_frontier(bound):
    assert "bound +" not in report_figures.frontier(Story.of(made_up.run(bound=bound)), Beyond())


def test_where_there_is_nothing_to_show_there_is_no_figure():
    made = made_up.Made()
    made.block(DEFAULT, Role.BASELINE, "learn what default is")
    alone = Story.of([Began(made_up.START_S, "r", {}), *made.events])
    assert report_figures.frontier(alone, Beyond()) == ""
    assert report_figures.saving(alone) == ""
    assert report_figures.power(Story.of([]), Beyond()) == ""


def test_the_saving_is_drawn_with_its_interval(story):
    drawn = report_figures.saving(story)
    assert 'class="line saving"' in drawn
    assert 'class="band saving"' in drawn


def test_curves_with_gaps_survive_being_carried(story):
    beyond = Beyond.of(story, [series(500.0), series(300.0, from_s=100.0)], [(0.0, 0.0), (0.01, -0.05)])
    plain = beyond.to_json()
    assert None in [y for _, y in plain["power"]]
    assert Beyond.from_json(plain).to_json() == plain
