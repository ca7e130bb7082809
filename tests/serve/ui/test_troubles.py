"""The dashboard when something cannot be had, is not proven, or is refused: it says so, in place, and nothing else."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.store.database import Database
from joulewise.store.sql import SqliteStore
from tests import preloaded
from tests.serve import face_toys
from tests.serve.serving import Serving
from tests.serve.ui import toys
from tests.serve.ui.tab import Tab
from tests.tiers import sample

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

AWAY = {"status": 503, "json": {"error": "NotKept", "message": "the disk is away"}}
GPUS = ("GPU-ccccccccccccccc", "GPU-aaaaaaaaaaaaaaa", "GPU-bbbbbbbbbbbbbbb")
"""In the order of the run, which is not that of their names."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Iterator[Serving]:
    """A server on a store that nobody writes to: a tuned run, one on three GPUs, a cluster, many runs, a plan."""
    folder = tmp_path_factory.mktemp("kept")
    store = SqliteStore(Database(folder / "x.db"))
    face_toys.tuned(store)
    face_toys.readings(store, face_toys.TUNED, seconds=3000)
    three = toys.Run(store, "three", began_s=face_toys.T0, gpus=GPUS)
    three.begin()
    three.read(60)
    three.end()
    for number in range(12):
        face_toys.plain_run(store, f"many-{number}")
    face_toys.write(store, f"cluster/{face_toys.CLUSTER}", face_toys.cluster_events())
    store.close()
    flags = ("--no-gpu", "--plans", str(face_toys.plans(folder / "plans")), "--kwh-price", "0.3", "--currency", "EUR")
    serving = Serving(str(folder / "x.db"), folder, *flags)
    yield serving
    serving.end()


@pytest.fixture
def opened(pages, kept: Serving) -> Iterator[Callable[[], Tab]]:
    """Opens tabs that may only complain of what was refused."""
    tabs: list[Tab] = []

    def one() -> Tab:
        tabs.append(Tab(pages, kept.url))
        return tabs[-1]

    yield one
    for each in tabs:
        each.close()
        assert [fault for fault in each.faults if "the server responded with a status of" not in fault] == []


def says(looking: Tab, path: str, **changed: Any) -> None:
    """From now on the API says this at a path, and otherwise what it did."""
    said = {**looking.get(path), **changed}
    looking.page.route(f"**{path}", lambda route: route.fulfill(json=said))


def test_readings_that_cannot_be_had_are_not_called_missing_and_come_by_themselves(opened):
    looking = opened()
    looking.page.route("**/readings?*", lambda route: route.fulfill(**AWAY))
    looking.go(f"#/runs/{face_toys.TUNED}")
    looking.sees("The readings cannot be had: the disk is away")
    assert "No readings" not in looking.text()
    looking.page.unroute("**/readings?*")
    looking.page.wait_for_selector(".uplot canvas")
    assert "cannot be had" not in looking.text()


def test_a_report_that_cannot_be_had_says_so_beside_its_button(opened):
    looking = opened()
    looking.page.route("**/report", lambda route: route.fulfill(**AWAY))
    looking.go(f"#/runs/{face_toys.TUNED}")
    looking.page.get_by_role("button", name="Report as a file").click()
    looking.sees("There is no report: the disk is away")


def test_a_pipeline_that_cannot_be_had_is_not_shown_as_another_ones(opened):
    looking = opened()
    looking.go("#/plans/four%20stages")
    asked = [each for each in looking.asked if "/at?" in each]
    assert len(asked) == 1  # it is drawn once
    picture = looking.page.locator("canvas.pipeline")
    assert picture.is_visible()
    looking.page.route("**/at?*", lambda route: route.fulfill(**AWAY))
    looking.page.locator("#deadline").focus()
    looking.page.keyboard.press("End")
    looking.sees("The pipeline at this point cannot be had: the disk is away")
    assert not picture.is_visible()
    looking.page.unroute("**/at?*")
    looking.page.keyboard.press("Home")
    looking.page.wait_for_selector("canvas.pipeline", state="visible")
    assert "cannot be had" not in looking.text()


def test_an_answer_that_is_no_json_is_told_as_such(opened):
    looking = opened()
    looking.page.route("**/api/runs?*", lambda route: route.fulfill(status=200, body="<html>please log in</html>"))
    looking.go("#/runs")
    looking.sees("cannot be read")
    assert "destructure" not in looking.text()


@pytest.mark.exhaustive
def test_a_job_that_cannot_be_read_is_a_row_that_says_why(opened):
    looking = opened()
    looking.page.route("**/api/series", lambda route: route.fulfill(json={"series": ["bad", "worse"]}))
    looking.page.route("**/api/series/*", lambda route: route.fulfill(**AWAY))
    looking.go("#/series")
    looking.page.wait_for_function("() => document.querySelectorAll('main .under').length === 2")
    assert looking.page.locator("main .under").all_inner_texts() == ["the disk is away"] * 2
    assert looking.page.locator("main tbody a").all_inner_texts() == ["bad", "worse"]


SAVINGS = [
    ("saved", 9e3, 1e3, "9.0 ± 1.0 kJ saved", "proven", True),
    ("lost", -9e3, 1e3, "9.0 ± 1.0 kJ more used than by default", "more was used", False),
    ("open", 9e2, 1e3, "No saving that can be told from nothing", "not told from nothing yet", False),
    ("none", None, None, "no saving proven yet", "Nothing is proven yet", False),
]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "saved_j", "half_j", "headline", "note", "good"), sample(SAVINGS, 2, of="savings"), ids=lambda each: each
)
def test_only_what_is_proven_to_be_saved_is_called_so(opened, kind, saved_j, half_j, headline, note, good):
    looking = opened()
    looking.go("#/plans")
    money = None if saved_j is None else saved_j / 3.6e6 * 0.3
    says(looking, "/api/overview", saved_j=saved_j, saved_half_j=half_j, saved_money=money)
    looking.go("#/")
    assert headline in looking.text("h1")
    saved = looking.page.locator(".tile", has=looking.page.get_by_text("Saved", exact=True))
    assert note in saved.inner_text()
    assert ("proven, 95 %" in saved.inner_text()) is good
    assert ("good" in saved.get_attribute("class")) is good
    assert ("EUR" in looking.text("main dl")) is good


@pytest.mark.exhaustive
def test_a_runs_own_saving_is_good_only_where_it_is_one(opened):
    looking = opened()
    looking.go(f"#/runs/{face_toys.TUNED}")
    assert looking.page.locator(".tile.good").count() == 1
    path = f"/api/runs/{face_toys.TUNED}"
    proof = looking.get(path)["proof"]
    says(looking, path, proof={**proof, "saved_j": -proof["saved_j"]})
    looking.go("#/runs")
    looking.go(f"#/runs/{face_toys.TUNED}")
    looking.sees("more was used; against default")
    assert looking.page.locator(".tile.good").count() == 0


def test_gpus_of_a_run_have_the_numbers_that_they_have_in_it(opened):
    looking = opened()
    looking.go("#/runs/three")
    buttons = looking.page.locator("main button[aria-pressed]")
    assert buttons.all_inner_texts() == [f"{number} · {uuid[:12]}…" for number, uuid in enumerate(GPUS)]
    buttons.nth(2).click()
    assert [each.get_attribute("aria-pressed") for each in buttons.all()] == ["false", "false", "true"]
    says(looking, "/api/runs/three/readings?points=600", more_gpus=7)
    looking.go("#/runs")
    looking.go("#/runs/three")
    looking.sees("… and 7 more GPUs")


def test_whoever_looks_closer_sees_more_and_can_still_reach_the_decisions(opened):
    looking = opened()
    looking.go(f"#/runs/{face_toys.TUNED}")
    press = looking.page.keyboard.press
    place = looking.page.locator(".u-over").bounding_box()

    def apart_s() -> float:
        """Between the first two points that are seen."""
        looking.page.locator(".chart").first.focus()
        times = []
        for key in ("Home", "ArrowRight"):
            press(key)
            minutes, seconds = re.search(r"(?:(\d+) min )?([\d.]+) s in", looking.text(".readout")).groups()
            times.append(60 * int(minutes or 0) + float(seconds))
        return times[1] - times[0]

    assert apart_s() > 2.0  # 3,000 s in 600 points
    with looking.page.expect_response(lambda answer: "from_s=" in answer.url):
        looking.page.mouse.move(place["x"] + place["width"] * 0.04, place["y"] + 50)
        looking.page.mouse.down()
        looking.page.mouse.move(place["x"] + place["width"] * 0.07, place["y"] + 50, steps=4)
        looking.page.mouse.up()
    deadline_s = time.monotonic() + 60
    while apart_s() > 1.5:
        assert time.monotonic() < deadline_s
    # The whole of the zoomed piece is finer, and can be read to its end: 4 to 7 % of 3,000 s.
    press("End")
    minutes, seconds = re.search(r"(?:(\d+) min )?([\d.]+) s in", looking.text(".readout")).groups()
    assert 180 < 60 * int(minutes or 0) + float(seconds) < 230
    looking.page.locator(".chart").first.focus()
    press("Tab")
    assert looking.page.evaluate("document.querySelector('.ribbon .piece').hidden")
    assert looking.page.evaluate("document.activeElement.classList.contains('piece')")
    looking.page.locator(".u-over").dblclick()
    looking.page.wait_for_function(
        "() => ![...document.querySelectorAll('.ribbon .piece')].some((each) => each.hidden)"
    )


@pytest.mark.exhaustive
def test_a_ribbon_that_has_not_all_decisions_says_so(opened):
    looking = opened()
    looking.go("#/plans")
    path = f"/api/runs/{face_toys.TUNED}"
    decisions = looking.get(path)["decisions"]
    first_s, last_s = decisions[0]["at_s"], decisions[-1]["until_s"]
    times_s = [(first_s if number < 300 else last_s - 1) + number / 1e6 for number in range(401)]
    told = [{**decisions[0], "at_s": at_s, "until_s": at_s + 1, "reason": f"no. {n}"} for n, at_s in enumerate(times_s)]
    says(looking, path, decisions=told)
    looking.go(f"#/runs/{face_toys.TUNED}")
    assert looking.page.locator(".ribbon .piece").count() == 400
    # Each stands at its own time.
    left = "(each) => parseFloat(each.style.left) / each.parentElement.clientWidth"
    assert looking.page.locator(".ribbon .piece").nth(298).evaluate(left) < 0.01
    assert looking.page.locator(".ribbon .piece").nth(299).evaluate(left) > 0.05
    looking.sees("The last 400 of 401 decisions")
    rows = looking.page.locator("main section:not([hidden]) tbody tr")
    assert rows.count() == 60
    assert "no. 400" in rows.last.inner_text()
    looking.page.get_by_role("button", name="341 earlier decisions").click()
    assert rows.count() == 401
    assert "no. 0" in rows.first.inner_text()


@pytest.mark.exhaustive
def test_a_filter_waits_until_it_is_told_to_show(opened):
    looking = opened()
    looking.go("#/runs")
    looking.page.locator("#runs-state").focus()
    looking.page.locator("#runs-state").select_option("killed")
    assert looking.page.evaluate("location.hash") == "#/runs"
    assert looking.page.evaluate("document.activeElement.id") == "runs-state"
    looking.page.get_by_role("button", name="Show").click()
    looking.sees("No run is like that")
    assert "state=killed" in looking.page.evaluate("location.hash")


def test_a_search_says_why_something_was_found_and_that_there_is_more(opened):
    looking = opened()
    looking.go("#/search?q=many-")
    assert looking.page.locator(".hits li").count() == 8
    assert "<script>.py" in looking.text(".hits li")
    looking.page.get_by_role("link", name="All 12 runs like this").click()
    looking.page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 12")
    assert looking.page.locator("#runs-query").input_value() == "many-"


@pytest.mark.exhaustive
def test_a_cap_that_is_nearly_kept_leaves_nothing(opened):
    looking = opened()
    path = f"/api/clusters/{face_toys.CLUSTER.replace('/', '%2F')}"
    address = path.replace("/api", "#")
    looking.go("#/plans")
    for power_w, words in ((2900.0, "kept, 100 W left"), (3010.0, "kept, nothing left"), (3100.0, "100 W above it")):
        says(looking, path, power_w=power_w, cap_w=3000.0)
        looking.go(address)
        assert words in looking.text("main dl")
        looking.page.unroute_all()
        looking.go("#/plans")


@pytest.mark.exhaustive
def test_a_long_history_shows_its_latest_trials_and_no_run_that_is_not_over(tab):
    looking = tab()
    looking.go("#/plans")
    trials = looking.get("/api/series/nightly/history")["trials"]
    for trial in trials:
        trial["asked"]["trial"] += 300
    under_way = json.loads(json.dumps(trials[-1]))
    under_way["asked"] |= {"trial": 999, "recurrence": "tonight"}
    under_way |= {"told": None, "expired": None}
    runs = len({trial["asked"]["recurrence"] for trial in trials})
    answer = {"trials": [*trials, under_way], "next": None}
    looking.page.route("**/history?*latest=true*", lambda route: route.fulfill(json=answer))
    looking.go("#/series/nightly")
    assert looking.page.locator(".bars .bar").count() == runs - 1  # the first may have begun before
    assert looking.text("[aria-label=Trials] tbody tr:first-child").split()[0] == "999"
    looking.sees(f"The latest {len(trials) + 1} trials")


def test_a_chart_speaks_when_it_is_asked_and_not_by_itself(tab):
    looking = tab()
    looking.go("#/gpus")
    looking.page.wait_for_selector("#live[data-state=live]")
    looking.page.locator(".chart").first.focus()
    spoken = "document.querySelector('.card [aria-live]').textContent"
    assert looking.page.evaluate(spoken) == ""
    looking.page.keyboard.press("End")
    said = looking.page.evaluate(spoken)
    assert "power" in said
    looking.page.wait_for_function("was => document.querySelector('.readout').innerText !== was", arg=said)
    assert looking.page.evaluate(spoken) == said
    looking.page.keyboard.press("Shift+Tab")
    looking.page.wait_for_function("() => document.querySelector('.readout').innerText === ''")
    assert looking.page.evaluate(spoken) == ""


CONTRAST = """names => {
    const light = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
        .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const colour = (name) => light(getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return names.map(([one, other]) => {
        const [low, high] = [colour(one), colour(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    });
}"""
MARKS = [(name, "grid") for name in ("baseline", "probe", "verify", "hold", "shift", "quiet")] + [("baseline", "card")]
"""What is drawn on what: pieces on their ribbon (those left alone by their rim), intervals on a card."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_is_drawn_stands_out_from_its_ground(tab, dark):
    looking = tab(dark=dark)
    looking.go("#/plans")
    assert min(looking.page.evaluate(CONTRAST, MARKS)) >= 3.0


def made(tokens: Path, *scope: str) -> str:
    words = ["serve", "token", "--scope", *scope, "--token-file", str(tokens)]
    return preloaded.run(*words, check=True).stdout.split()[-1]


@pytest.mark.exhaustive
def test_a_token_is_asked_for_when_the_reader_asks_and_one_that_does_not_do_can_be_replaced(pages, tmp_path):
    tokens = tmp_path / "tokens"
    agent, reader = made(tokens, "agent", "--name", "n1"), made(tokens, "read")
    serving = Serving(str(tmp_path / "x.db"), tmp_path, "--no-gpu", "--token-file", str(tokens), trusting=False)
    looking = Tab(pages, serving.url, own=True)
    try:
        looking.page.clock.install()
        looking.page.goto(serving.url)
        looking.page.get_by_role("button", name="Not now").click()
        looking.sees("This server wants a token", "#away")
        for _ in range(3):
            asked = len(looking.asked)
            looking.page.clock.fast_forward(31_000)
            deadline_s = time.monotonic() + 60
            while len(looking.asked) == asked:
                assert time.monotonic() < deadline_s
                looking.page.wait_for_timeout(50)
            assert looking.page.locator("dialog").count() == 0
        looking.page.get_by_role("link", name="Runs").click()  # the reader wants to see something
        looking.page.fill("#token", agent)
        looking.page.keyboard.press("Enter")
        looking.sees("is a node agent's and may only report")
        looking.page.clock.fast_forward(20_000)
        looking.sees("is a node agent's and may only report", "#away")
        looking.page.get_by_role("button", name="Give another").click()
        looking.page.fill("#token", reader)
        looking.page.keyboard.press("Enter")
        looking.page.wait_for_selector("#live[data-state=live]")
        looking.sees("No run yet")
    finally:
        looking.close()
        serving.end()
