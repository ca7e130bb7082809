import html.parser
import json
import re

import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began, Shifted
from joulewise.core.knob import DEFAULT
from joulewise.core.measurement import Reading
from joulewise.core.units import format_energy
from joulewise.report import frame
from joulewise.report.claim import Claim
from joulewise.report.figures import Beyond
from joulewise.report.history import Series
from joulewise.report.page import carried, page, parts
from joulewise.report.story import Story
from tests.cli import made_up


@pytest.fixture(scope="module")
def story():
    return Story.of(made_up.run(kwh_price=0.3, gpu_hour_price=3.0, host_w=800.0))


@pytest.fixture(scope="module")
def text(story):
    return page(story)


class Balanced(html.parser.HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_nobody_for_anything(text):
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|src=|@import|url\(|<link", text)


def test_it_begins_with_the_result_and_says_what_was_done(text, story):
    assert f"<h1>{frame.text(Claim.of(story).says())}</h1>" in text
    for words in (
        "python train.py",
        "NVIDIA H200",
        "SM clock at most 1500 MHz",
        "shown to keep the bound by itself: at most 2 % slower",
    ):
        assert words in text
    assert text.count("<svg") == 4
    assert "net:" in text
    assert "joulewise verify" in text


def test_what_a_job_says_cannot_break_the_page():
    story = Story.of(made_up.run(command=["python", "</script><script>alert(1)</script>", "<b>"]))
    text = page(story)
    assert "<script>alert" not in text
    assert "<b>" not in text.replace('<div class="tile"><b>', "").replace("<b>default", "")
    assert carried(text)["facts"]["command"][1] == "</script><script>alert(1)</script>"


def test_it_carries_what_verify_needs(text, story):
    facts = carried(text)
    assert (facts["run"], facts["events"], facts["digest"]) == (story.run, len(story.events), story.digest())
    assert Claim.from_json(facts["claim"]) == Claim.of(story)
    json.dumps(facts)


@pytest.mark.parametrize(
    "text", ["", "<html></html>", '<script type="application/json" id="joulewise">{"run": 1}</script>']
)
def test_a_page_without_facts_is_told_from_a_report(text):
    with pytest.raises(ValueError, match="facts"):
        carried(text)


def test_readings_are_drawn_where_there_are_some(story):
    series = Series(width_s=0.1)
    for tick in range(5000):
        series.add(Reading(made_up.START_S + tick * 0.1, power_w=500.0 + tick % 7, sm_mhz=1500.0))
    text = page(story, Beyond.of(story, [series]))
    assert 'class="band power"' in text
    assert 'class="band power"' not in page(story)


def test_what_the_law_expects_is_drawn_where_it_is_known(story):
    expected = [(0.0, 0.0), (0.01, -0.05), (0.02, -0.08)]
    assert 'class="line frontier"' in page(story, Beyond.of(story, expected=expected))
    assert 'class="line frontier"' not in page(story)


def test_a_run_that_proves_nothing_has_a_title_of_its_own(story):
    text = page(story, title="would set nothing")
    assert "<h1>would set nothing</h1>" in text
    assert "joulewise verify" not in text


def test_a_run_that_was_left_alone_has_a_report_too():
    story = Story.of(made_up.run(hold=0)[:3])
    text = page(story)
    assert "not tuned: the command ended before anything could be tried" in text
    assert text.count("<svg") == 2
    assert page(Story.of([])).startswith("<!doctype html>")


def test_what_the_journal_does_not_hold_is_carried_and_draws_the_same_page(story):
    series = Series(width_s=2.0)
    for tick in range(200):
        if tick % 50:  # with gaps
            series.add(Reading(made_up.START_S + tick * 2.0, power_w=500.0 + tick % 7, sm_mhz=1500.0))
    text = page(story, Beyond.of(story, [series], [(0.0, 0.0), (0.01, -0.05)]))
    assert page(story, Beyond.from_json(carried(text)["beyond"])) == text
    for damaged in (None, {}, {"power": 1}):
        with pytest.raises(ValueError, match="cannot be read"):
            Beyond.from_json(damaged)


def test_nothing_private_is_in_a_page_that_may_be_sent_to_others():
    story = Story.of(made_up.run(host="node17.corp", pid=4711, pid_start=99, boot="abc-boot"))
    text = page(story)
    for private in ("node17", "4711", "abc-boot"):
        assert private not in text


def test_charts_and_tables_scroll_on_a_narrow_screen(text):
    wide = re.findall(r'<div class="wide">(.*?)</div>', text, re.DOTALL)
    assert sum(part.count("<svg") for part in wide) == text.count("<svg")
    assert sum(part.count("<table") for part in wide) == text.count("<table")


def test_the_figures_of_tile_and_headline_are_the_claim_s(text, story):
    claim = Claim.of(story)
    head = parts(text)["the headline and what is under it"]
    assert frame.text(format_energy(claim.saved_j, claim.saved_half_j)) in re.search(r"<h1>(.*?)</h1>", head)[1]
    assert f"<b>{frame.text(format_energy(claim.saved_j, claim.saved_half_j))}</b>" in head
    assert head.count("± is half of a 95 % interval") == 1


def test_a_run_that_is_not_kept_promises_no_verification(story):
    text = page(story, kept=False)
    assert "nobody can verify this page" in text
    assert "joulewise verify" not in text


def test_no_word_of_ours_is_on_the_page():
    made = made_up.Made()
    made.block(DEFAULT, Role.BASELINE, "the job as it runs by itself")
    made.block(made_up.HELD, Role.PROBE, "sm_mhz=1500 teaches most about the settings still open")
    for _ in range(3):
        says = "held, not verified: +2.03% ± 0.25% after 12 pairs, wealth 0.00562"
        made.block(
            made_up.HELD, Role.CANDIDATE, "-6.0% energy at +1.9% time expected, bound +2.0%, met with 58%", says=says
        )
        made.block(DEFAULT, Role.REFERENCE, "the baseline, to compare sm_mhz=1500 with", says=says)
    made.block(made_up.HELD, Role.HOLD, says, says=says)
    events = [Began(made_up.START_S, "r", {"bound": 0.02}), *made.events, Shifted(made.now_s, "idle", "idle for 0.6 s")]
    body = page(Story.of(events)).partition("<main>")[2].partition("<script")[0]
    for word in ("wealth", "reference", "candidate", "teaches", "trial", "Setting(", "sm_mhz", "idle for"):
        assert word not in body
    assert "Clocked down while idle, 1 time." in body
