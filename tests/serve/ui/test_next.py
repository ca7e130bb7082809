"""What the dashboard tells the reader to do: on a first start, and after what was seen of late."""

import re
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from tests.serve.serving import Serving
from tests.serve.ui.tab import LOOKS
from tests.tiers import sample

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

STEPS = "([overview, gpus]) => import('/ui/next.js').then((next) => next.nextSteps(overview, gpus))"
BUSY = {"index": 0, "virtual": False, "held_by": None, "utilization": 0.97}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A server on a store in which nothing ever happened."""
    folder = tmp_path_factory.mktemp("fresh")
    serving = Serving(str(folder / "x.db"), folder, "--no-gpu")
    yield serving
    serving.end()


def run(**facts: Any) -> dict[str, Any]:
    """A run as the overview has it, finished and tuned unless said otherwise."""
    usual = {"name": "one", "command": "python train.py", "state": "finished", "tuned": True, "virtual": False}
    known = {"began_s": 1.8e9, "duration_s": 600.0, "energy_j": 5e5, "saved_j": None, "saved_half_j": None}
    return {**usual, **known, "headline": "", **facts}


def overview(*recent: dict[str, Any], **facts: Any) -> dict[str, Any]:
    return {"recent": list(recent), "saved_j": None, "kwh_price": 0.3, **facts}


PROVEN = run(saved_j=9e3, saved_half_j=1e3)
SEEN = {
    "a run that was only measured is to be tuned, by its own command": (
        overview(run(tuned=False, command="python t.py --lr 1")),
        [],
        ("500.0 kJ", "joulewise run --tune -- python t.py --lr 1"),
    ),
    "of two such runs the hungrier one": (
        overview(run(tuned=False, command="a"), run(tuned=False, command="b", energy_j=6e5)),
        [],
        ("600.0 kJ", "joulewise run --tune -- b"),
    ),
    "a GPU that works while nobody tunes it": (
        overview(),
        [BUSY],
        ("GPU 0 works", "joulewise run --tune -- python train.py"),
    ),
    "a tuned run that was killed: is anything still set?": (
        overview(run(state="killed"), run(tuned=False)),
        [BUSY],
        ("was killed", "joulewise leases"),
    ),
    "one that saved nothing, and why": (overview(run(headline="not tuned: MIG is on")), [], ("MIG is on", "")),
    "a saving is to be shown": (overview(PROVEN), [], ("9.0 ± 1.0 kJ", "joulewise report one --out report.html")),
    "a run whose name a shell would take for something else": (
        overview({**PROVEN, "name": "a b;c"}),
        [],
        ("9.0 ± 1.0 kJ", "joulewise report 'a b;c' --out report.html"),
    ),
    "what a saving is worth": (
        overview(saved_j=9e3, kwh_price=None),
        [],
        ("what a kWh costs", "joulewise serve --kwh-price 0.30 --currency EUR"),
    ),
    "and of another store than the usual one": (
        overview(saved_j=9e3, kwh_price=None, flag=" --database x.db"),
        [],
        ("what a kWh costs", "joulewise serve --database x.db --kwh-price 0.30 --currency EUR"),
    ),
    "a script that returns": (
        overview(*(run(command=f"python nightly.py --day {day}", saved_j=1.0) for day in range(3))),
        [],
        ("nightly.py has run 3 times", ""),
    ),
}


NOTHING = {
    "nothing was seen": (overview(), []),
    "GPUs that are tuned, unknown or virtual": (
        overview(),
        [{**BUSY, "held_by": "run one"}, {**BUSY, "utilization": None}, {**BUSY, "virtual": True}],
    ),
    "a run under way": (overview(run(state="running")), []),
    "one that was too short": (overview(run(duration_s=2.0, headline="not tuned: it ended")), []),
    "no certain saving": (overview(run(saved_j=10.0, saved_half_j=50.0)), []),
    "a price where nothing is proven": (overview(saved_j=10.0, saved_half_j=50.0, kwh_price=None), []),
}


def test_the_first_step_answers_what_was_seen(tab, fresh):
    looking = tab(fresh.url)
    looking.go("#/")
    for what, (said, gpus, (words, command)) in SEEN.items():
        steps = looking.page.evaluate(STEPS, [said, gpus])
        assert words in steps[0]["words"], what
        assert steps[0].get("command", "") == command, what


def test_where_nothing_is_to_be_done_nothing_is_said(tab, fresh):
    looking = tab(fresh.url)
    looking.go("#/")
    for what, (said, gpus) in NOTHING.items():
        assert looking.page.evaluate(STEPS, [said, gpus]) == [], what


def test_no_more_than_three_steps_are_given(tab, fresh):
    looking = tab(fresh.url)
    looking.go("#/")
    many = overview(run(state="killed"), run(tuned=False), run(headline="why"), PROVEN, saved_j=1.0, kwh_price=None)
    assert len(looking.page.evaluate(STEPS, [many, [BUSY]])) == 3


@pytest.mark.sampled
@pytest.mark.parametrize(("dark", "phone"), sample(LOOKS, 1, of="looks of a first start"))
def test_a_first_start_says_what_to_type_and_copies_it(tab, fresh, dark, phone):
    looking = tab(fresh.url, dark=dark, phone=phone, own=True)
    looking.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    looking.go("#/")
    assert looking.text("h1") == "Nothing was measured yet"
    commands = looking.page.locator(".typed code").all_inner_texts()
    assert commands[:3] == [
        "joulewise doctor",
        "joulewise run -- python train.py",
        "joulewise run --tune -- python train.py",
    ]
    assert looking.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert looking.serious() == []
    looking.page.get_by_role("button", name="Copy").nth(2).click()
    looking.sees("Copied")
    assert looking.page.evaluate("navigator.clipboard.readText()") == commands[2]


def test_where_nothing_may_be_copied_it_is_selected(tab, fresh):
    looking = tab(fresh.url, own=True)
    looking.page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    looking.go("#/")
    looking.page.get_by_role("button", name="Copy").first.click()
    looking.sees("Selected")
    assert looking.page.evaluate("getSelection().toString()") == "joulewise doctor"


def test_the_overview_of_real_runs_begins_with_the_result_and_ends_with_the_next_step(tab):
    looking = tab()
    looking.go("#/")
    said = looking.get("/api/overview")
    proven = said["saved_j"] is not None and said["saved_j"] > said["saved_half_j"]
    wanted = r"[\d.]+ ± [\d.]+ k?J saved" if proven else r"no saving proven yet|No saving that can be told"
    assert re.search(wanted, looking.text("h1"))
    assert "spent" in looking.text("h1")
    assert "virtual GPUs" in looking.text("h1")
    assert "joulewise run --gpu sim:h200 --tune -- " in looking.text(".steps")
