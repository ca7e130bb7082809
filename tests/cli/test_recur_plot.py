"""The picture of a recurring job."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cli.recur_plot import draw
from joulewise.core.event import Asked, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord

pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")

JOB = Recurring("nightly", (8, 16, 32), 16, 8, "$val_acc$>=0.5")
H200, A100 = Platform("NVIDIA H200", 1, 700.0), Platform("NVIDIA A100", 1, 400.0)
SUMMARY = SeriesSummary(2, 3, 32, 3e4, 90.0, 1.5e4, 40.0, 9e3, 30.0, 0.5, 0.2, 0.05)
BELIEFS = [
    SizeBelief(8, "open", 0, 0, 4.0, 2.0, 8.0, None, None, None, None, ""),
    SizeBelief(16, "works", 1, 1, 4.0, 3.0, 5.0, EpochCost(10.0, 3e3), 1.5e4, 1.2e4, 1.9e4, ""),
    SizeBelief(32, "best", 1, 1, 5.0, 4.0, 6.0, EpochCost(8.0, 2e3), 9e3, 8e3, 1.1e4, ""),
]


def trial(number: int, recurrence: str, size: int, outcome: Outcome | None, platform: Platform = H200) -> TrialRecord:
    asked = Asked(float(number), number, recurrence, size, platform, Purpose.EXPLORE, "", 600.0)
    told = None if outcome is None else Told(number + 1.0, number, outcome, 4, 40.0, 9e3)
    return TrialRecord(asked, 600.0, told)


TRIALS = [
    trial(0, "r0", 16, Outcome.REACHED),
    trial(1, "elsewhere", 1111, Outcome.REACHED, A100),
    trial(2, "r1", 8, Outcome.STOPPED_EARLY),
    trial(3, "r1", 32, Outcome.REACHED),
    trial(4, "r2", 8, None),
]


def drawn(path: Path, *, job: Recurring = JOB, trials: list[TrialRecord] = TRIALS) -> bytes:
    draw(path, job, H200, SUMMARY, BELIEFS, trials)
    return path.read_bytes()


@pytest.fixture
def written() -> Iterator[None]:
    """Letters as letters, so that what is written can be read in the file."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


@pytest.mark.usefixtures("written")
def test_it_names_the_best_and_the_default_and_what_was_spent_in_vain(tmp_path):
    text = drawn(tmp_path / "job.svg").decode()
    for words in ("best", "default", "reached the target", "did not reach it", "cost of a whole run (kJ)"):
        assert words in text, words
    assert "nightly on 1x NVIDIA H200: $val_acc$" in text  # a name, not a formula
    assert "1111" not in text  # another platform's


@pytest.mark.usefixtures("written")
def test_one_kind_of_end_needs_no_legend_and_money_has_no_unit(tmp_path):
    money = replace(JOB, objective={"what": "money", "gpu_hour_price": 2.0, "kwh_price": 0.3})
    text = drawn(tmp_path / "job.svg", job=money, trials=TRIALS[:1]).decode()
    assert "reached the target" not in text
    assert "cost of a whole run<" in text.replace("\n", "")


def test_the_same_job_gives_the_same_file(tmp_path):
    assert drawn(tmp_path / "one.svg") == drawn(tmp_path / "other.svg")


def test_without_any_trial_that_came_back_there_is_a_picture(tmp_path):
    assert drawn(tmp_path / "job.png", trials=TRIALS[-1:]).startswith(b"\x89PNG")
