import html.parser
import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.block import Block, Role
from joulewise.core.event import Began, Seen
from joulewise.core.knob import DEFAULT
from joulewise.report.claim import STANDARD_ERRORS
from joulewise.report.compare import Quantity, Side, _mean, compare
from joulewise.report.compare_page import headline, lines, page
from joulewise.report.run_summary import RunSummary, State
from joulewise.report.story import Story
from joulewise.report.worth import Carbon
from tests.cli import made_up


def summary(name="a", state=State.FINISHED, **facts):
    known = {"command": "python train.py", "gpus": ("NVIDIA H200",), "virtual": False, "tuned": False}
    return RunSummary(name, 0.0, 100.0, state, **{**known, **facts})


def side(name="a", energy_j=1000.0, duration_s=10.0, *, error_j=10.0, gain=0.02, uuid="GPU-1", **facts):
    measured = {"energy_j": energy_j, "energy_error_j": error_j, "gain_error": gain, "duration_s": duration_s}
    measured["gpus"] = [{"uuid": uuid}]
    return Side.of(summary(name, **facts), Story.of([Began(0.0, name, {})]), measured)


def energy(a, b):
    return next(each for each in compare(a, b).differences if each.name == "energy of the run")


def test_on_one_card_the_sensor_cancels_in_a_ratio_and_sampling_does_not():
    found = energy(side(), side("b", 900.0))
    assert (found.change, found.ratio) == (-100.0, pytest.approx(-0.1))
    assert found.ratio_half == pytest.approx(STANDARD_ERRORS * 0.9 * math.hypot(10 / 1000, 10 / 900))
    assert found.change_half == pytest.approx(STANDARD_ERRORS * math.hypot(10, 10, 0.02 * 100))
    assert found.told


def test_on_other_cards_the_sensors_count():
    found = energy(side(), side("b", 900.0, uuid="GPU-2"))
    assert found.ratio_half == pytest.approx(STANDARD_ERRORS * 0.9 * math.hypot(10 / 1000, 10 / 900, 0.02, 0.02))
    assert found.ratio_half > energy(side(), side("b", 900.0)).ratio_half
    assert any("other cards" in each for each in compare(side(), side("b", uuid="GPU-2")).remarks)


def test_cards_that_nobody_named_are_not_taken_for_the_same():
    strangers = [Side.of(summary(name), Story.of([]), {"energy_j": 5.0, "gain_error": 0.1}) for name in "ab"]
    assert energy(*strangers).ratio_half == pytest.approx(STANDARD_ERRORS * math.hypot(0.1, 0.1))


amounts = st.floats(1.0, 1e9)
errors = st.floats(0.0, 0.3)


@given(amounts, amounts, errors, errors, st.booleans())
def test_swapping_the_two_turns_the_difference_and_keeps_its_error(a, b, error, gain, same):
    one = side(energy_j=a, error_j=error * a, gain=gain)
    other = side("b", b, error_j=error * b, gain=gain, uuid="GPU-1" if same else "GPU-2")
    there, back = energy(one, other), energy(other, one)
    assert there.change == -back.change
    assert there.change_half == pytest.approx(back.change_half)
    assert (1 + there.ratio) * (1 + back.ratio) == pytest.approx(1.0)
    # Relative errors of a ratio and of its inverse are the same.
    assert there.ratio_half / (1 + there.ratio) == pytest.approx(back.ratio_half / (1 + back.ratio))


@given(amounts, errors)
def test_a_run_against_its_like_differs_by_nothing(energy_j, error):
    found = energy(side(energy_j=energy_j, error_j=error), side("b", energy_j, error_j=error))
    assert (found.change, found.ratio) == (0.0, 0.0)
    assert found.told is (False if found.change_half else None)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"gpus": ("NVIDIA A100", "NVIDIA A100")}, "other GPUs: NVIDIA H200 against 2 × NVIDIA A100"),
        ({"command": "python other.py"}, "other commands: python train.py against python other.py"),
        ({"virtual": True}, "simulated or replayed"),
        ({"exit_code": 3}, "b ended with exit code 3"),
        ({"state": State.KILLED}, "b was killed"),
    ],
)
def test_what_is_not_alike_is_warned_of(facts, words):
    found = compare(side(), side("b", **facts))
    (warning,) = found.warnings
    assert words in warning
    assert f"  not comparable: {warning}" in lines(found)


def test_runs_alike_are_not_warned_of_but_one_run_each_is_said():
    found = compare(side(), side("b"))
    assert found.warnings == ()
    assert found.to_json()["comparable"] is True
    assert "one run each" in found.remarks[0]


def test_another_bound_is_warned_of():
    one, other = side(tuned=True, bound=0.02), side("b", tuned=True, bound=0.05)
    assert compare(one, other).warnings == ("other bounds: 2 % against 5 %",)


def test_steps_are_compared_where_both_are_known():
    stories = [Story.of(made_up.run(name, hold=20, seed=seed)) for seed, name in enumerate("ab", 1)]
    a, b = (Side.of(summary(story.run, tuned=True), story, None) for story in stories)
    found = compare(a, b)
    step_j, step_s = found.differences
    assert (step_j.name, step_s.name) == ("energy a step", "time a step")
    assert 150 * 0.88 < step_j.a < 150  # between the thriftiest setting and default
    assert abs(step_j.change) < 2 * step_j.change_half  # the same law, other luck
    assert abs(step_s.change) < 2 * step_s.change_half
    assert any("no energy of all of a" in each for each in found.remarks)
    alone = compare(a, side("b"))
    assert not any("step" in each.name for each in alone.differences)
    assert any("steps of both are not known" in each for each in alone.remarks)


def test_a_first_of_nothing_has_no_ratio():
    nothing = Side(summary(), (), "", Quantity(0.0, 0.0), None)
    assert energy(nothing, side("b")).ratio is None
    assert "nothing was measured of both" in headline(compare(nothing, side("b")))


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)


def test_the_page_is_complete_and_what_runs_are_called_stays_text():
    evil = "<script>alert(1)</script>&\"'"
    text = page(compare(side(evil, command=evil), side("b", 900.0, gpus=(evil,))))
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.seen
    assert "&lt;script&gt;alert(1)" in text
    assert not re.search(r"https?:|src=|href=|@import|url\(|<link", text)
    assert "Not comparable" in text


def test_of_a_time_without_an_error_nobody_says_whether_it_can_be_told():
    found = compare(side(), side("b", duration_s=10.001))
    time = next(each for each in found.differences if each.name == "time of the run")
    assert (time.change_half, time.told) == (0.0, None)
    assert found.to_json()["differences"][1]["told"] is None
    assert "cannot be told" not in next(line for line in lines(found) if "time of the run" in line)


def stepped(name, *works, unit_s=1.0):
    """A run of blocks of so many steps, of which each is a little slower than the last."""
    blocks = [
        Block(DEFAULT, 100.0 * at, 100.0 * at + 90.0, work, slower * work, 100.0 * slower * work, 0.0, 0.0)
        for at, work in enumerate(works)
        for slower in (unit_s * (1 + 0.01 * at),)
    ]
    events = [Began(0.0, name, {}), *(Seen(block.end_s, Role.BASELINE, block) for block in blocks)]
    return Side.of(summary(name, tuned=True), Story.of(events), None)


def test_few_blocks_have_a_wide_interval_and_one_has_none():
    halves = [stepped("a", *[50.0] * many).step_s.error for many in (2, 3, 20)]
    # Of two blocks that differ by 1 %: half of that times Student's t of one degree of freedom.
    assert STANDARD_ERRORS * halves[0] == pytest.approx(12.706 * 0.005, rel=1e-3)
    assert halves[0] > halves[1]
    alone = stepped("a", 50.0)
    assert alone.step_j.error is None
    found = compare(alone, stepped("b", 50.0, 50.0))
    step_j = next(each for each in found.differences if each.name == "energy a step")
    assert (step_j.a_half, step_j.change_half, step_j.ratio_half, step_j.told) == (None, None, None, None)
    assert any("of a one block of steps was measured" in each for each in found.remarks)
    assert json.dumps(found.to_json(), allow_nan=False)
    assert "energy a step" in page(found)


@pytest.mark.parametrize("alike", [True, False])
def test_intervals_of_few_blocks_hold_the_truth_as_often_as_they_say(alike):
    rng = random.Random(1)
    held = 0
    for _ in range(2000):
        weights = [1.0 if alike else rng.uniform(0.2, 2.0) for _ in range(3)]
        values = [rng.gauss(10.0, 1.0) for _ in weights]
        mean, error = _mean(values, [weight / sum(weights) for weight in weights], 0.0)
        held += abs(mean - 10.0) <= STANDARD_ERRORS * error
    assert held / 2000 > 0.935


def test_runs_of_other_numbers_of_steps_are_not_comparable():
    found = compare(stepped("a", 50.0, 50.0), stepped("b", 50.0, 55.0))
    assert found.warnings == ("other work: 100 steps were measured of one and 105 of the other; compare by step",)
    assert found.to_json()["comparable"] is False
    assert compare(stepped("a", 50.0, 50.0), stepped("b", 50.0, 51.0)).warnings == ()


def test_with_a_factor_the_difference_is_told_in_co2e_too():
    found = compare(side(energy_j=3.6e6), side("b", 1.8e6), carbon=Carbon(400.0, "the grid's own"))
    emitted = found.differences[-1]
    assert (emitted.name, emitted.unit) == ("CO2e of the run", "g")
    assert (emitted.a, emitted.change) == (pytest.approx(400.0), pytest.approx(-200.0))
    assert emitted.ratio == energy(side(energy_j=3.6e6), side("b", 1.8e6)).ratio
    shown = next(line for line in lines(found) if "CO2e of the run" in line)
    assert re.search(r"400 ± 16 g CO2e +200\.0 ± 7\.8 g CO2e +−200\.0 ± ", shown)
    assert "at 400 g of CO2e a kWh, source: the grid's own" in found.remarks[-1]
    assert found.to_json()["carbon"] == {"g_per_kwh": 400.0, "source": "the grid's own"}
    assert compare(side(), side("b")).to_json()["carbon"] is None
