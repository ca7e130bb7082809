import html.parser
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.event import Began
from joulewise.report.claim import STANDARD_ERRORS
from joulewise.report.compare import Quantity, Side, compare
from joulewise.report.compare_page import headline, lines, page
from joulewise.report.run_summary import RunSummary, State
from joulewise.report.story import Story
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
    assert (found.change, found.ratio, found.told) == (0.0, 0.0, False)


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
