from joulewise.cli.live import tuned_lines
from joulewise.core.block import Role, Rung
from joulewise.core.knob import Setting
from joulewise.tune.proof import Change, Proof
from joulewise.tune.status import Status


class Tuning:
    waiting = "waiting for the command to use a GPU"

    def __init__(self, status=None):
        self._status = status

    def status(self):
        return self._status


def shown(**fields):
    return [text.plain for text in tuned_lines(Tuning(Status(0.0, **fields)))]


def test_before_the_tuner_has_begun_it_says_what_it_waits_for():
    (line,) = tuned_lines(Tuning())
    assert line.plain == "tune  waiting for the command to use a GPU"


def test_the_setting_the_pace_the_saving_and_the_reason_are_shown():
    saved, slower = Change(-0.081, 0.003, -0.087, -0.075), Change(0.008, 0.001, 0.005, 0.011)
    proof = Proof(saved, slower, saved, slower, 1e5, 9e4, 1.1e5, 9, 0, 0.02, ())
    first, second = shown(
        rung=Rung.STEPS,
        unit_s=0.25,
        setting=Setting(sm_mhz=1500),
        role=Role.HOLD,
        verified=True,
        proof=proof,
        why="verified: within +2 %",
        phase="rollout",
    )
    assert first == (
        "tune  SM clock at most 1500 MHz (held, shown to keep the bound)  250 ms a step  rollout"
        "  energy −8.1 % ± 0.6 %, time +0.8 % ± 0.3 %"
    )
    assert second == "      shown to keep the bound by itself: within +2 %"


def test_without_a_pace_the_ruler_says_why():
    first, second = shown(ruler="no steps and no period yet", why="watching")
    assert first == "tune  default  no steps and no period yet"
    assert second == "      watching"


def test_what_was_lost_comes_before_the_reason():
    assert shown(why="x", note="nothing is tuned any more: gone")[1] == "      nothing is tuned any more: gone"


def test_what_is_going_on_is_said_in_a_user_s_words():
    reason = "power_limit_w=575 teaches most about the settings still open"
    assert shown(setting=Setting(power_limit_w=575), role=Role.PROBE, why=reason, unit_s=0.25) == [
        "tune  power limit 575 W (trying it)  250 ms a unit",
        "      power limit 575 W: it tells most about the settings not tried yet",
    ]
    assert shown(setting=Setting(sm_mhz=1845), role=Role.CANDIDATE)[0].startswith(
        "tune  SM clock at most 1845 MHz (comparing it with the default)"
    )
    assert shown(role=Role.REFERENCE)[0].startswith("tune  default (to compare with)")
