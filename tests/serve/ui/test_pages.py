"""Each page of the dashboard in a real browser, on what real runs on virtual GPUs have left in a store."""

import json
import re
from urllib.parse import quote

import httpx
import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.store.database import Database
from joulewise.store.sql import SqliteStore
from tests.serve import face_toys
from tests.serve.serving import Serving
from tests.serve.ui.tab import LOOKS
from tests.tiers import sample

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

PAGES = [
    "overview",
    "gpus",
    "runs",
    "tuned run",
    "plain run",
    "jobs",
    "job",
    "plans",
    "plan",
    "cluster",
    "search",
    "none",
]
# What no reader should ever meet.
NONSENSE = re.compile(r"NaN|undefined|Infinity|null|\[object|∞")


@pytest.fixture(scope="module")
def address(dashboard):
    """Where each page is."""
    runs = httpx.get(f"{dashboard.url}/api/runs?most=50", trust_env=False).json()["runs"]

    def run(tuned):
        # Those of the recurring job are tuned, too: the longest is the one that was meant.
        of_kind = [each for each in runs if ("train_virtual" in each["command"]) and each["tuned"] is tuned]
        return "#/runs/" + quote(of_kind[0]["name"], safe="")

    return {
        "overview": "#/",
        "gpus": "#/gpus",
        "runs": "#/runs",
        "tuned run": run(True),
        "plain run": run(False),
        "jobs": "#/series",
        "job": "#/series/nightly",
        "plans": "#/plans",
        "plan": "#/plans/four-stages",
        "cluster": "#/clusters",
        "search": "#/search?q=train",
        "none": "#/nowhere",
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A server on a run whose numbers are known: what a real one proves depends on how busy the machine was."""
    folder = tmp_path_factory.mktemp("told")
    store = SqliteStore(Database(folder / "x.db"))
    face_toys.tuned(store)
    store.close()
    serving = Serving(str(folder / "x.db"), folder, "--no-gpu")
    yield serving
    serving.end()


@pytest.mark.sampled
@pytest.mark.parametrize(("dark", "phone"), sample(LOOKS, 1, of="looks of every page"))
def test_every_page_is_drawn_reads_well_and_can_be_used_by_everybody(tab, address, dark, phone):
    looking = tab(dark=dark, phone=phone)
    for name in PAGES:
        looking.go(address[name])
        said = looking.text("body")
        assert not NONSENSE.search(said), (name, NONSENSE.search(said), said)
        assert looking.page.locator("h1").count() == 1, name
        assert looking.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is too wide"
        assert looking.serious() == [], name


def test_the_overview_says_what_is_drawn_spent_saved_and_worth(tab):
    looking = tab()
    looking.go("#/")
    said = looking.get("/api/overview")
    shown = looking.text("main dl")
    assert re.search(r"Drawn now\s+[\d,.]+ k?W\s+2 GPUs", shown)
    assert said["runs"] >= 4
    assert f"in {said['runs']} runs" in shown
    assert "nothing was really spent" in shown
    if said["saved_j"] is not None:
        assert re.search(r"Saved\s+−?[\d,.]+ ± [\d,.]+ k?J", shown)
        assert ("EUR" in shown) is (said["saved_j"] > said["saved_half_j"])
    assert looking.page.locator("main tbody tr").count() == min(8, said["runs"])


def test_a_run_shows_its_curves_and_every_decision_with_its_reason(tab, address):
    looking = tab()
    looking.go(address["tuned run"])
    name = address["tuned run"].removeprefix("#/runs/")
    run = looking.get(f"/api/runs/{name}")
    assert run["decisions"]  # how many depends on how busy the machine was
    assert looking.page.locator(".uplot canvas").count() == 1
    pieces = looking.page.locator(".ribbon .piece")
    assert pieces.count() == min(400, len(run["decisions"]))
    with_reason = next(number for number, each in enumerate(run["decisions"]) if each["reason"])
    pieces.nth(with_reason).hover()
    assert run["decisions"][with_reason]["reason"] in looking.text(".tip")
    pieces.first.focus()
    for _ in range(with_reason):
        looking.page.keyboard.press("ArrowRight")
    assert run["decisions"][with_reason]["reason"] in looking.text(".tip")
    assert run["verify"] in looking.text()


def test_a_run_shows_what_was_tried_and_a_proof_says_what_it_rests_on(tab, told):
    looking = tab(told.url)
    looking.go(f"#/runs/{face_toys.TUNED}")
    run = looking.get(f"/api/runs/{face_toys.TUNED}")
    tried = run["frontier"]["tried"]
    assert len(tried) > 1
    assert looking.page.locator("main .scatter .spot").count() == len(tried)
    assert looking.page.locator("main .scatter .spot.chosen").count() == sum(each["chosen"] for each in tried) > 0
    windows, pairs = run["proof"]["windows"], run["proof"]["pairs"]
    assert min(windows, pairs) > 1
    shown = looking.text()
    assert run["claim_words"] in shown
    assert run["proof"]["digest"][:16] in shown
    assert f"{windows} drawn windows (" in shown
    assert f"of the held time) + {pairs} pairs" in shown
    assert "that were judged, probing included" in shown


def test_a_chart_can_be_read_with_the_keyboard(tab, address):
    looking = tab()
    looking.go(address["tuned run"])
    looking.page.locator(".chart").first.focus()
    looking.page.keyboard.press("End")
    last = looking.text(".readout")
    looking.page.keyboard.press("Home")
    first = looking.text(".readout")
    assert first != last
    assert re.search(r"in\s+·\s+power [\d.]+ W\s+·\s+SM clock [\d,]+ MHz", first)


def test_a_report_is_a_file_of_its_own(tab, address):
    looking = tab()
    looking.go(address["tuned run"])
    with looking.page.expect_download() as downloading:
        looking.page.get_by_role("button", name="Report as a file").click()
    report = downloading.value.path().read_text("utf-8")
    assert report.startswith("<!doctype html>")
    assert address["tuned run"].removeprefix("#/runs/") in report


def test_a_recurring_job_shows_what_is_believed_of_each_size_and_what_learning_cost(tab):
    looking = tab()
    looking.go("#/series/nightly")
    job = looking.get("/api/series/nightly")
    shown = looking.text()
    assert looking.page.locator(".intervals .belief").count() == len(job["beliefs"])
    assert looking.page.locator(".bars .bar").count() == job["summary"]["recurrences"]
    for each in job["beliefs"]:
        assert each["says"] in shown
    looking.page.locator(".intervals .belief").first.focus()
    assert "95 %" in looking.text(".tip")


def test_the_slider_over_the_deadline_redraws_the_pipeline_and_spends_less(tab):
    looking = tab()
    looking.go("#/plans/four-stages")
    plan = looking.get("/api/plans/four-stages")
    energy = looking.text("main dl").split("Energy")[1].split("J")[0]
    picture = looking.page.evaluate("document.querySelector('canvas.pipeline').toDataURL()")
    looking.page.locator("#deadline").focus()
    looking.page.keyboard.press("End")
    looking.sees(f"point {len(plan['frontier'])} of {len(plan['frontier'])}")
    looking.page.wait_for_function("was => document.querySelector('canvas.pipeline').toDataURL() !== was", arg=picture)
    assert looking.text("main dl").split("Energy")[1].split("J")[0] != energy
    looking.page.locator("canvas.pipeline").focus()
    looking.page.keyboard.press("ArrowRight")
    looking.sees("microbatch 0, stage 0")


def test_the_cluster_shows_its_watts_its_cap_its_jobs_and_why(tab):
    looking = tab()
    looking.go("#/clusters")
    (brief,) = looking.get("/api/clusters")["clusters"]
    cluster = looking.get(f"/api/clusters/{brief['name']}")
    shown = looking.text()
    assert "4,500 W" in shown  # the cap
    assert "of 120 kWh a day" in shown  # the budget
    assert looking.page.locator(".gantt .span").count() == sum(len(job["spans"]) for job in cluster["jobs"])
    assert looking.page.locator(".uplot canvas").count() == 1
    job = cluster["jobs"][0]["name"]
    looking.page.get_by_role("button", name=f"Why {job}?").click()
    why = looking.get(f"/api/clusters/{brief['name']}/jobs/{job}/why")["why"]
    assert " ".join(why.split())[:60] in " ".join(looking.text("dialog").split())
    assert looking.serious() == []
    looking.page.keyboard.press("Escape")
    assert looking.page.locator("dialog").count() == 0


def test_the_keys_lead_to_every_page_and_the_search_finds(tab):
    looking = tab()
    looking.go("#/")
    press = looking.page.keyboard.press
    for key, title in (("g", "GPUs"), ("r", "Runs"), ("j", "Recurring jobs"), ("p", "Plans"), ("c", "Cluster")):
        while not looking.text("h1").startswith(title):  # on a busy machine two keys may come too late for one another
            press("g")
            press(key)
            looking.drawn()
    press("?")
    assert "search" in looking.text("dialog")
    assert looking.serious() == []
    press("Escape")
    press("/")
    looking.page.keyboard.type("night")
    press("Enter")
    looking.sees("nightly")
    looking.page.get_by_role("link", name="nightly").click()
    looking.page.wait_for_function("() => document.querySelector('h1')?.innerText === 'nightly'")


def test_light_and_dark_are_the_systems_until_one_is_chosen_which_is_kept(tab):
    looking = tab(dark=True)
    looking.go("#/")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = looking.page.evaluate(ground)
    looking.page.keyboard.press("t")
    light = looking.page.evaluate(ground)
    assert light != dark
    looking.page.reload()
    looking.drawn()
    assert looking.page.evaluate(ground) == light


def test_the_focus_goes_along_the_page_and_is_seen(tab):
    looking = tab()
    looking.go("#/runs")
    seen = set()
    while True:
        looking.page.keyboard.press("Tab")
        if looking.page.evaluate("document.activeElement === document.body"):
            break  # behind the last
        seen.add(looking.page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
        ring = looking.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none", looking.page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert len(seen) > 15


NUMBERS = {
    "energy(2561, 31)": "2.561 ± 0.031 kJ",
    "energy(163984.46, 4.11)": "163.98 ± 0.01 kJ",
    "energy(9427, 1591)": "9.4 ± 1.6 kJ",
    "energy(0)": "0 J",
    "energy(null)": "–",
    "energy(NaN)": "–",
    "energy(-1234)": "−1.234 kJ",
    "energy(3.6e6)": "3.600 MJ",
    "kilowattHours(3.6e6)": "1.00 kWh",
    "power(312.4)": "312 W",
    "power(9.83)": "9.8 W",
    "power(14250)": "14.25 kW",
    "power(undefined)": "–",
    "clock(1980)": "1,980 MHz",
    "duration(0.412)": "412 ms",
    "duration(8.2)": "8.20 s",
    "duration(59.97)": "1 min 00 s",
    "duration(200)": "3 min 20 s",
    "duration(3599.7)": "1 h 00 min",
    "duration(7500)": "2 h 05 min",
    "duration(Infinity)": "–",
    "percent(0.0123)": "1.2 %",
    "change(-0.181, 0.009)": "−18.1 ± 0.9 %",
    "change(0.004)": "+0.4 %",
    "change(null, 0.1)": "–",
    "change(-0.0001, 0.02)": "0.0 ± 2.0 %",
    "money(0.0004, 'EUR')": "0.00040 EUR",
    "money(12.5, 'EUR')": "12.50 EUR",
    "share(689, 700, power)": "689 of 700 W",
    "share(null, 700, power)": "–",
    "bytes(536870912)": "512 MiB",
    "tick(90)": "1 min 30 s",
    "tick(0)": "0 s",
    "count(1, 'run')": "1 run",
    "count(1200, 'run')": "1,200 runs",
    "setting({sm_mhz: 1500})": "SM ≤ 1,500 MHz",
    "setting({})": "default",
    "quoted('20260101-0-ab')": "20260101-0-ab",
    "quoted('its; rm')": "'its; rm'",
    "quoted(`it's`)": "'it'\\''s'",
    "shortCommand('/a/python3.11 /b/train.py --out /c/d')": "train.py --out d",
}


def test_numbers_are_shown_with_their_units_and_errors_and_what_is_unknown_as_a_dash(tab):
    looking = tab()
    looking.go("#/")
    calls = ", ".join(f"{json.dumps(call)}: f.{call.replace(', power)', ', f.power)')}" for call in NUMBERS)
    assert looking.page.evaluate(f"import('/ui/format.js').then(f => ({{{calls}}}))") == NUMBERS
