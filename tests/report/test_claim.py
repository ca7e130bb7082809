import json

import pytest

from joulewise.report.claim import Claim, percent
from joulewise.report.story import Story
from joulewise.tune.proof import prove
from tests.cli import made_up

CLAIM = Claim(1200.0, 1000.0, -0.081, 0.006, 0.008, 0.003, 412_000.0, 30_500.0, 0.018)


def test_the_claim_is_the_result_in_one_line():
    assert CLAIM.says() == "saved 8.1 % ± 0.6 % energy, +0.8 % ± 0.3 % time, 412 ± 30 kJ"


def test_a_saving_within_its_interval_is_none():
    claim = Claim(1000.0, 900.0, -0.004, 0.006, -0.001, 0.003, 20_000.0, 30_000.0)
    assert claim.says() == "no saving that could be told from nothing (−0.4 % ± 0.6 % energy), −0.1 % ± 0.3 % time"


def test_a_loss_is_said_as_one():
    claim = Claim(10.0, 9.0, 0.03, 0.006, 0.0, 0.003, -5.0, 1.0)
    assert claim.says() == "used 3.0 % ± 0.6 % energy more, +0.0 % ± 0.3 % time, 5.0 ± 1.0 J"


def test_without_a_proof_nothing_is_claimed_and_the_reason_is_said():
    assert Claim(10.0).says() == "no saving can be claimed"
    few = Claim(10.0, unjudged=("the saving: 1 baseline window could be compared, 4 are needed", "more"))
    assert few.says() == "no saving can be claimed: the saving: 1 baseline window could be compared, 4 are needed"


def test_small_errors_get_another_digit():
    assert percent(0.08123, 0.00052) == "8.12 % ± 0.05 %"


def test_a_claim_survives_the_way_through_json():
    assert Claim.from_json(json.loads(json.dumps(CLAIM.to_json()))) == CLAIM
    with pytest.raises(ValueError, match="watched_s"):
        Claim.from_json({})


def test_a_claim_is_what_the_blocks_prove():
    claim = Claim.of(Story.of(made_up.run()))
    assert claim.energy_change == pytest.approx(-0.08, abs=0.01)
    assert abs(claim.energy_change + 0.081) < 3 * claim.energy_half
    assert claim.held
    assert claim.saved_j > 0


@pytest.mark.parametrize("hold", [4, 12, 120])
def test_joules_and_percent_say_the_same_however_wide_the_interval(hold):
    story = Story.of(made_up.run(hold=hold))
    claim = Claim.of(story)
    assert claim.saved_half_j / claim.saved_j == pytest.approx(claim.energy_half / -claim.energy_change)
    assert claim.energy_half == prove(story.seen, story.shifted).energy.half


def test_where_nothing_was_held_nothing_is_claimed_though_settings_were_tried():
    claim = Claim.of(Story.of(made_up.run(hold=0)))
    assert not claim.held
    assert (claim.energy_change, claim.time_change, claim.saved_j, claim.extra_s) == (None,) * 4


def test_what_is_lost_in_time_is_of_the_judged_part_as_the_joules_are():
    assert CLAIM.extra_s == pytest.approx(1000.0 * 0.008 / 1.008)
    assert CLAIM.extra_half_s == pytest.approx(1000.0 * 0.003, rel=0.02)
    story = Story.of(made_up.run())
    claim = Claim.of(story)
    assert claim.judged_s == sum(each.block.duration_s for each in story.seen)
    assert claim.judged_s < claim.watched_s
