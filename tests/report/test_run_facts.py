from itertools import pairwise

import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began
from joulewise.core.knob import DEFAULT
from joulewise.core.plain import plain
from joulewise.report import run_facts
from joulewise.report.claim import STANDARD_ERRORS, Claim
from joulewise.report.story import Story, tried
from joulewise.tune.proof import prove
from tests.cli import made_up


@pytest.fixture(scope="module")
def story() -> Story:
    return Story.of(made_up.run(hold=40))


def test_chapters_are_in_unix_time_and_in_a_users_words(story):
    chapters = run_facts.chapters(story, 5000.0)
    assert chapters[0].at_s == pytest.approx(5000.0)
    assert all(a.at_s <= b.at_s for a, b in pairwise(chapters))
    assert [each.kind for each in chapters[:2]] == ["baseline", "probe"]
    held = next(each for each in chapters if each.kind == "hold")
    assert (held.setting, held.words, held.kind_words) == (made_up.HELD, "SM clock at most 1500 MHz", "held")
    assert held.until_s > held.at_s
    assert "sm_mhz" not in " ".join(each.reason for each in chapters)


def test_points_are_ratios_with_half_intervals_and_one_is_chosen(story):
    points = run_facts.points(story)
    assert (points[0].setting, points[0].time_ratio, points[0].energy_ratio) == (DEFAULT, 1.0, 1.0)
    (chosen,) = (each for each in points if each.chosen)
    assert chosen.setting == made_up.HELD
    assert chosen.energy_ratio == pytest.approx(1 - made_up.THRIFTIER[made_up.HELD], abs=0.01)
    told = {each.setting: each for each in tried(story.seen)}
    assert chosen.energy_error == pytest.approx(STANDARD_ERRORS * told[made_up.HELD].energy_error)


def test_the_proof_is_the_claims_and_names_the_journal(story):
    claim = Claim.of(story)
    proof = run_facts.proof(story, claim)
    assert proof is not None
    assert (proof.energy_change, proof.saved_j) == (claim.energy_change, claim.saved_j)
    assert proof.digest == story.digest()
    found = prove(story.seen, story.shifted)
    assert (proof.windows, proof.pairs) == (found.windows, found.pairs)
    assert proof.windows < sum(each.role in (Role.PROOF, Role.REFERENCE) for each in story.seen)
    plain(proof)


def test_where_nothing_is_claimed_there_is_no_proof():
    story = Story.of([Began(0.0, "x", {})])
    assert run_facts.proof(story, Claim.of(story)) is None
    assert run_facts.points(story) == []
    assert run_facts.chapters(story, 0.0) == []


@pytest.mark.parametrize(("said", "bound"), [(0.02, 0.02), (None, None), (True, None), (7, None), ("x", None)])
def test_a_bound_that_is_none_is_not_shown(said, bound):
    assert run_facts.bound(Story.of([Began(0.0, "x", {"bound": said})])) == bound


def test_who_ran_it_where_is_nobodys_business():
    assert run_facts.shown({"host": "h", "pid": 1, "boot": "b", "pid_start": 2, "seed": 3}) == {"seed": 3}
