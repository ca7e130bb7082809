import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began, Finished, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.report.claim import Claim
from joulewise.report.outcome import headline, missed_budgets, untuned
from joulewise.report.story import Story
from tests.cli import made_up

TOO_COARSE = "left alone: unit time errs by 2.3% over 9 s, too coarse for the bound"
REFUSED = "nothing is tuned: GPU-78a6 is in the hands of pid 6064 (joulewise); end that, or ask its daemon"


def told(*blocks, lost=None, facts=None, finished=None, says=""):
    """A run of ``blocks``: (setting, role, reason) each."""
    made = made_up.Made()
    for setting, role, reason in blocks:
        made.block(setting, role, reason, says=says)
    began = Began(made_up.START_S, "r", {"bound": 0.02, **(facts or {})})
    shifted = [Shifted(made.now_s, "lost", lost)] if lost else []
    story = Story.of([began, *made.events, *shifted, Finished(made.now_s, "stopped", finished or {})])
    return story, Claim.of(story)


BASELINE = (DEFAULT, Role.BASELINE, "the job as it runs by itself")
PROBE = (made_up.HELD, Role.PROBE, "sm_mhz=1500 teaches most about the settings still open")


def test_a_saving_comes_first():
    story = Story.of(made_up.run())
    assert headline(story, Claim.of(story)) == Claim.of(story).says()
    assert untuned(story, Claim.of(story)) is None


def test_a_job_that_was_left_alone_says_the_tuner_s_own_reason():
    run = told(BASELINE, (DEFAULT, Role.HOLD, TOO_COARSE))
    assert headline(*run) == "not tuned: its pace is too unsteady: 2.3 % over 9 s, bound 2 %"
    assert untuned(*run) == "its pace is too unsteady: 2.3 % over 9 s, bound 2 %"


def test_default_is_best_only_where_others_were_tried():
    alone = "left alone: no setting is expected to save anything worth having"
    assert "default is best" not in headline(*told(BASELINE, (DEFAULT, Role.HOLD, alone)))
    assert headline(*told(BASELINE, PROBE, (DEFAULT, Role.HOLD, alone))) == (
        "nothing is set: default is best here, 1 setting tried; no setting is expected to save anything worth having"
    )


def test_a_command_that_ended_too_soon_is_said_so():
    assert headline(*told(BASELINE)) == "not tuned: the command ended before anything could be tried"
    run = told(BASELINE, PROBE)
    assert (
        headline(*run) == "nothing is held: the command ended before anything was compared to the end, 1 setting tried"
    )
    assert untuned(*run) is None


def test_a_script_that_tunes_itself_has_a_loop_and_no_command():
    assert headline(*told(BASELINE, facts={"framework": "torch"})) == (
        "not tuned: the loop ended before anything could be tried"
    )


def test_a_gpu_in_other_hands_is_said_once_and_without_doubled_words():
    run = told((DEFAULT, Role.HOLD, "measured only"), lost=REFUSED)
    assert headline(*run) == "not tuned: GPU-78a6 is in the hands of pid 6064 (joulewise); end that, or ask its daemon"


def test_a_tuner_that_stopped_says_why():
    lost = "nothing is tuned any more: the lease has ended"
    assert headline(*told(BASELINE, PROBE, lost=lost)) == "stopped tuning: the lease has ended"
    assert headline(*told(BASELINE, lost=lost)) == "not tuned: tuning stopped: the lease has ended"


def test_a_pace_that_nobody_can_tell_is_named():
    run = told(finished={"rung": "unknown", "ruler": "no steps, and no period in power"})
    assert headline(*run) == "not tuned: the command's pace could not be told: no steps, and no period in power"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"power_budget_w": 450.0}, "a budget of 450 W was not met: 6"),
        ({"energy_budget_j": 90.0}, "a budget of 90 J a step was not met: 1"),
    ],
)
def test_a_budget_that_was_not_met_is_said(facts, says):
    run = told(BASELINE, BASELINE, facts=facts)
    assert f"; {says}" in headline(*run)
    assert "on average" in headline(*run)


def test_a_budget_that_was_kept_to_is_not():
    story, _ = told(BASELINE, facts={"power_budget_w": 700.0, "energy_budget_j": 200.0})
    assert missed_budgets(story) == []
    assert missed_budgets(Story.of([])) == []


def test_a_setting_that_was_probed_only_is_not_held():
    assert not told(BASELINE, (Setting(sm_mhz=1305), Role.PROBE, "x"))[1].held
