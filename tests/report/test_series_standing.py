"""What is said of a job that is being learnt: never more than the intervals bear out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.series import EpochCost, Recurring
from joulewise.report.series_standing import standing
from joulewise.tune.series import SeriesSummary, SizeBelief

JOB = Recurring("nightly", (8, 16, 32), 16, 10, "val_acc>=0.84")
SUMMARY = SeriesSummary(12, 20, 32, 3.6e9, 9e5, 3e8, 8e4, 2e8, 6e4, 3.25, 0.218, 0.04)


def size(
    batch_size: int, cost: float, spread: float, state: str = "works", says: str = "", runs: int = 2
) -> SizeBelief:
    epoch = EpochCost(60.0, 1e4)
    return SizeBelief(batch_size, state, runs, runs, 4.0, 3.0, 5.0, epoch, cost, cost - spread, cost + spread, says)


OPEN = size(8, 3.0, 2.0, "open", "worth a try", 0)
DEFAULT, BEST = size(16, 3.0, 0.2), size(32, 2.0, 0.2, "best")


def test_what_is_certain_is_said_as_such():
    assert standing(JOB, SUMMARY, [OPEN, DEFAULT, BEST]) == [
        "cost, with learning: 21.8 % ± 7.8 % less than the default every time",
        "a run at 32 costs about 33.3 % less than one at the default",
        "still worth a try: 8",
    ]


def test_an_interval_that_holds_zero_is_not_known_yet_and_says_why():
    dear = replace(SUMMARY, saved=-0.7, saved_error=1.19)
    paid, better, left = standing(JOB, dear, [replace(OPEN, says="not worth a try now"), DEFAULT, size(32, 2.9, 0.2)])
    assert paid == (
        "whether it has paid is not known yet, as the default ran twice: "
        "cost, with learning, 70.0 % ± 233.2 % more than the default every time"
    )
    assert better == "whether 32 beats the default is not certain yet: their intervals overlap, runs narrow them"
    assert left == "nothing else is worth a try: runs stay at 32 unless what is believed changes"


@pytest.mark.parametrize(("saved", "more"), [(-0.1, "4 more runs"), (-0.02, "1 more run")])
def test_where_learning_is_not_paid_for_yet_it_is_said_when_it_will_be(saved, more):
    (_, better, _) = standing(JOB, replace(SUMMARY, saved=saved, saved_error=0.001), [OPEN, DEFAULT, BEST])
    assert better.endswith(f": learning is paid for after about {more}")


def test_before_anything_works_that_is_what_is_said():
    nothing = replace(SUMMARY, best=None, saved=None, learning_cost=None)
    assert standing(JOB, nothing, [OPEN]) == [
        "no batch size has reached the target yet; the first that does is what others are compared with"
    ]


def test_where_the_default_is_the_best_there_is_nothing_to_compare():
    lines = standing(JOB, replace(SUMMARY, best=16), [OPEN, replace(DEFAULT, state="best")])
    assert [line.partition(":")[0] for line in lines] == ["cost, with learning", "still worth a try"]


def test_after_the_first_recurrence_nothing_is_claimed():
    assert standing(JOB, replace(SUMMARY, recurrences=1), [OPEN, DEFAULT, BEST]) == []


@given(st.floats(-2, 1), st.floats(1e-3, 2) | st.none())
def test_what_was_saved_is_less_or_more_with_its_interval_and_never_a_sign(saved, error):
    line = standing(JOB, replace(SUMMARY, saved=saved, saved_error=error), [])[0]
    assert (" less than " in line) == (saved >= 0)
    assert f"{abs(saved) * 100:.1f} %" in line
    assert ("±" in line) == (error is not None)
    assert "-" not in line
    assert ("not known yet" in line) == (abs(saved) <= 1.96 * (error or 0.0))
