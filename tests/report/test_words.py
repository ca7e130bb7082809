import pytest

from joulewise.core.block import Role
from joulewise.report.words import doing, plainly, reason, verdict

PRIVATE = ("wealth", "reference", "candidate", "teaches", "trial", "Setting(", "sm_mhz", "_w=")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "held, not verified: +2.03% ± 0.25% after 12 pairs, wealth 0.00562",
            "held: by itself it costs +2.03 % ± 0.25 % (12 pairs)",
        ),
        (
            "held 86% of the time, which keeps the bound, not verified: +2.16% ± 0.10% after 11 pairs",
            "held 86 % of the time, so that the whole keeps the bound; by itself it costs +2.16 % ± 0.10 % (11 pairs)",
        ),
        (
            "verified: within +2.0%: +1.10% ± 0.10% after 1 pair, error ≤ 5.0%",
            "shown to keep the bound by itself: +1.10 % ± 0.10 % (1 pair, error ≤ 5.0 %)",
        ),
        (
            "verified: within +0.0%: -8.10% ± 0.10% after 9 pairs, error ≤ 5.0%",
            "shown to cost no more than the default: −8.10 % ± 0.10 % (9 pairs, error ≤ 5.0 %)",
        ),
        (
            "verified: within the budget in 3 of 3 blocks",
            "shown to keep the bound by itself: within the budget in 3 of 3 blocks",
        ),
        ("the job changed a little: to be verified again", "the job changed a little: to be compared again"),
        (
            "power_limit_w=575 teaches most about the settings still open",
            "power limit 575 W: it tells most about the settings not tried yet",
        ),
        (
            "-4.1% energy at +1.1% time expected, bound +2.0%, met with 97%",
            "−4.1 % energy, +1.1 % time expected; within +2.0 % with a chance of 97 %",
        ),
        (
            "the hold block at 3.0 s at Setting(sm_mhz=1890) was seen without having been decided on",
            "the hold block at 3.0 s at SM clock at most 1890 MHz was seen without having been decided on",
        ),
        (
            "the baseline, to compare memory_mhz=2201 with",
            "the baseline, to compare memory clock at most 2201 MHz with",
        ),
        ("sm_mhz of GPU-4 is held by uid 0 pid 7", "SM clock of GPU-4 is held by uid 0 pid 7"),
        ("the reference block is a baseline at Setting()", "the default block is a baseline at default"),
    ],
)
def test_the_tuner_s_words_are_a_user_s(said, shown):
    assert plainly(said) == shown
    assert not [word for word in PRIVATE if word in shown]
    assert "verif" not in shown  # that is what is done with a whole run


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "left alone: unit time errs by 2.3% over 9 s, too coarse for the bound",
            "its pace is too unsteady: 2.3 % over 9 s",
        ),
        ("left alone: unit time errs by 5.2% over 34 s, more than 2.0%", "its pace is too unsteady: 5.2 % over 34 s"),
        ("nothing is tuned: GPU-7 is in the hands of pid 6", "GPU-7 is in the hands of pid 6"),
        ("nothing is tuned any more: the lease has ended", "the lease has ended"),
    ],
)
def test_a_reason_is_said_without_what_stands_before_it(said, why):
    assert reason(said) == why


def test_what_is_done_now_is_said_in_a_user_s_words():
    assert doing(None) == ""
    assert doing(Role.HOLD, verified=True) == "held, shown to keep the bound"
    assert doing(Role.HOLD) == "held, still being compared with the default"
    assert doing(Role.HOLD, default=True) == "left alone"
    for role in Role:
        assert not [word for word in PRIVATE if word in doing(role)]


def test_after_a_comparison_only_what_is_about_it_is_repeated():
    assert verdict("-6.0% energy at +1.9% time expected, bound +2.0%, met with 58%") == ""
    assert verdict("sm_mhz=1815 given up, slower than +2.0%: +2.4%; -6.0% energy at +1.9% time expected") == (
        "SM clock at most 1815 MHz given up, slower than +2.0 %: +2.4 %"
    )
    assert verdict("verified: within +2.0%: +1.10% ± 0.10% after 9 pairs, error ≤ 5.0%").startswith("shown to keep")
