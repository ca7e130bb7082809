"""What is known about a recurring job, as people read it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from joulewise.cli import recur_views as views
from joulewise.core.event import Asked, Expired, Told
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord

JOB = Recurring("nightly", (8, 16, 1024), 16, 10, "val_acc>=0.84")
PLATFORM = Platform("NVIDIA H200", 8, 5600.0)
SUMMARY = SeriesSummary(12, 20, 1024, 3.6e9, 9e5, 3e8, 8e4, 2e8, 6e4, 3.25, 0.218, 0.04)
BELIEFS = [
    SizeBelief(8, "open", 0, 0, 3.6, 2.2, 105.8, None, None, None, None, "not worth a try now"),
    SizeBelief(16, "works", 3, 3, 4.0, 3.1, 5.2, EpochCost(3725.0, 342e6), 3e8, 2.7e8, 3.3e8, "at a higher cost"),
    SizeBelief(1024, "too large", 1, 0, 11.9, 8.2, 17.3, EpochCost(3725.0, 342e6), 1e8, 0.9e8, 1.1e8, "no memory"),
]
"""As wide as numbers get, and the longest of the states."""


def shown(page: RenderableType, width: int) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(page)
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def trial(number: int = 0, *, told: Outcome | None = None, notes: tuple[str, ...] = (), size: int = 16) -> TrialRecord:
    asked = Asked(1e9, number, "r1", size, PLATFORM, Purpose.EXPLORE, "may save 4 %", 1e9 + 600, "me", "key")
    if told is None:
        return TrialRecord(asked, asked.expires_s)
    came = Told(1e9 + 60, number, told, 7, 3725.0, 342e6, (EpochCost(60.0, 2e4),), notes)
    return TrialRecord(asked, asked.expires_s, came)


# Nothing is cut off.


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_status_has_room_in_every_usual_terminal_and_in_a_wide_one_says_why(width):
    lines = shown(views.status_page(JOB, PLATFORM, SUMMARY, BELIEFS, width=width), width)
    assert not any("…" in line for line in lines)
    assert [line.split()[0] for line in lines if line.lstrip()[0].isdigit()] == ["8", "16*", "1024"]
    whole = "\n".join(lines)
    assert "too large" in whole
    assert ("not worth a try now" in whole) == (width >= 110)
    assert whole.count("\n* ") + whole.count("\n*:") == 1


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_history_has_a_line_a_trial_and_room_for_each_way_to_end(width):
    trials = [trial(number, told=outcome) for number, outcome in enumerate(Outcome)]
    trials += [trial(len(trials)), replace(trial(len(trials) + 1), expired=Expired(2e9, len(trials) + 1, "silent"))]
    lines = shown(views.history_table(trials, width=width), width)
    assert not any("…" in line for line in lines)
    assert [int(line.split()[0]) for line in lines[2:]] == list(range(len(trials)))
    ways = [line[lines[0].index("ended") :] for line in lines[2:]]
    assert len({way[:14] for way in ways}) == len(ways)  # each in words of its own
    assert ways[-1].startswith("never came back")
    assert all(("may save 4 %" in way) == (width >= 110) for way in ways)


def test_of_a_size_that_never_got_there_it_is_said_what_it_takes_at_least():
    eight, sixteen, most = shown(views.status_page(JOB, PLATFORM, SUMMARY, BELIEFS, width=80), 80)[-4:-1]
    assert "at least 2.2" in eight
    assert "105.8" not in eight
    assert "4.0 (3.1–5.2)" in sixteen
    assert "at least 8.2" in most
    roomy = replace(JOB, max_epochs=100)
    assert "11.9 (8.2–17.3)" in shown(views.status_page(roomy, PLATFORM, SUMMARY, BELIEFS, width=80), 80)[-2]


def test_the_frontier_names_the_setting_in_words():
    points = Frontier(
        [Point(60.0, 2e4, (8, Setting(power_limit_w=300)), 1.0, 500.0), Point(50.0, 3e4, (16, DEFAULT), 1.0, 500.0)]
    )
    first, second = shown(views.frontier_table(points), 80)[2:]
    assert first.split()[-2:] == ["16", "default"]
    assert "300 W" in second


# Sentences.


@given(st.integers(0, 10**9), st.sampled_from(["epoch", "trial", "recurrence"]))
def test_one_is_one_and_all_other_numbers_are_many(number, what):
    text = views.counted(number, what)
    assert text == (f"1 {what}" if number == 1 else f"{number} {what}s")


def test_the_first_recurrence_says_nothing_about_saving_yet():
    first = replace(SUMMARY, recurrences=1, trials=1, best=16)
    lines = views.summary_lines(JOB, first)
    assert lines[0].startswith("so far 1 recurrence, 1 trial: ")
    assert lines[1].startswith("the best known is 16, the default, with about ")
    assert len(lines) == 2


def test_what_learning_has_cost_is_never_below_nothing():
    (line,) = [
        line for line in views.summary_lines(JOB, replace(SUMMARY, learning_cost=-0.3)) if "learning has" in line
    ]
    assert line == "learning has cost about 0.0 runs of the best"


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ({"what": "zeus", "eta": 0.7}, "least 0.7 × energy + 0.3 × max power × time"),
        ({"what": "energy"}, "least energy"),
        ({"what": "energy", "max_slowdown": 0.1}, "least energy, at most 10 % slower than the default"),
        ({"what": "energy", "deadline_s": 7200.0}, "least energy within 2 h"),
        ({"what": "money", "gpu_hour_price": 2.5, "kwh_price": 0.3}, "least money: 2.5 a GPU hour, 0.3 a kWh"),
    ],
)
def test_every_objective_has_its_words(objective, words):
    assert views.objective(replace(JOB, objective=objective)).startswith(words)


def test_money_is_a_number_without_a_unit_and_joules_have_one():
    money = replace(JOB, objective={"what": "money", "gpu_hour_price": 2.5, "kwh_price": 0.3})
    costs = [replace(belief, cost=1.5, cost_low=1.2, cost_high=1.8) for belief in BELIEFS]
    assert "1.50 (1.20–1.80)" in "\n".join(shown(views.status_page(money, PLATFORM, SUMMARY, costs, width=80), 80))
    costs = [replace(belief, cost=12345.6, cost_low=0.0, cost_high=2e5) for belief in BELIEFS]
    assert "12,346 (0–200,000)" in "\n".join(shown(views.status_page(money, PLATFORM, SUMMARY, costs, width=80), 80))
    joules = "\n".join(shown(views.status_page(JOB, PLATFORM, SUMMARY, BELIEFS, width=80), 80))
    assert "cost of a run (MJ)" in joules
    assert "300 (270–330)" in joules


# JSON.


def test_a_trial_is_one_level_and_what_did_not_come_back_is_null():
    back = views.trial_json(trial(told=Outcome.STOPPED_EARLY, notes=("a note",)))
    away = views.trial_json(trial())
    assert list(back) == list(away)
    assert (back["outcome"], back["epochs"], back["energy_j"], back["notes"]) == ("stopped_early", 7, 342e6, ["a note"])
    assert [away[name] for name in ("outcome", "epochs", "energy_j", "told_s", "notes")] == [None] * 4 + [[]]
    assert json.loads(views.dumped(back)) == back


def test_json_is_one_line_and_holds_no_word_that_is_none():
    assert "\n" not in views.dumped({"trials": [views.trial_json(trial())], "name": "two\nlines"})
    with pytest.raises(ValueError, match="JSON"):
        views.dumped({"value": float("nan")})
