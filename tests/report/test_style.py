import re

from joulewise.report.page import page
from joulewise.report.story import Story
from joulewise.report.style import STYLE
from tests.cli import made_up


def variables(rules):
    return set(re.findall(r"(--[a-z]+):", rules))


def test_every_colour_that_is_used_is_there_by_day_and_by_night():
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    used = set(re.findall(r"var\((--[a-z]+)\)", STYLE))
    assert used
    assert used <= variables(light)
    assert used <= variables(dark)


def test_every_brace_that_is_opened_is_closed():
    depth = 0
    for sign in STYLE:
        depth += (sign == "{") - (sign == "}")
        assert 0 <= depth <= 2
    assert depth == 0


def test_whatever_a_report_colours_by_a_key_has_a_rule_for_it():
    kinds = set(re.findall(r'<i class="([a-z]+)"', page(Story.of(made_up.run()))))
    assert kinds >= {"baseline", "probe", "verify", "hold", "proof", "default", "tried", "held", "saving"}
    assert kinds <= set(re.findall(r"\.key \.([a-z]+)", STYLE))


def test_it_asks_nobody_for_anything():
    assert not re.search(r"url\(|@import|https?:", STYLE)
