"""The dashboard while a store is written to: nothing stays as it was when a page was opened, and nobody who reads with
the keyboard, or has a dialog open, loses the place."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.core.event import Event, Finished, Led, Proven
from joulewise.store import Sample, views
from joulewise.store.database import Database
from joulewise.store.sql import SqliteStore
from tests.cli import made_up
from tests.serve import face_toys
from tests.serve.conftest import JOB
from tests.serve.serving import Serving
from tests.serve.ui import toys

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

FOCUSED = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
AWAY = """away => {
    Object.defineProperty(document, 'hidden', { get: () => away, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


class Written:
    """A store that is written to while a server shows it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.store = SqliteStore(Database(folder / "x.db"))
        self.serving = Serving(str(folder / "x.db"), folder, *flags)
        self.url = self.serving.url

    def end(self) -> None:
        self.serving.end()
        self.store.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory, virtual_nvml) -> Iterator[Written]:
    """One for all tests that say themselves what they call things."""
    made = Written(tmp_path_factory.mktemp("written"), "--gpu", "sim:h200")
    yield made
    made.end()


def live(looking, address: str) -> None:
    """Open a page, and wait until it hears of what is new."""
    looking.go(address)
    looking.page.wait_for_selector("#live[data-state=live]")


def last_read(looking) -> str:
    """When the last point of the first chart is."""
    looking.page.locator(".chart").first.focus()
    looking.page.keyboard.press("End")
    said = looking.text(".readout").partition("·")[0].strip()
    looking.page.evaluate("document.activeElement.blur()")
    return said


def reads_up_to(looking, words: str) -> None:
    """Wait until its last point is this late."""
    looking.page.wait_for_selector(".uplot canvas")
    deadline_s = time.monotonic() + 60
    while (said := last_read(looking)) != words:
        assert time.monotonic() < deadline_s, said
        looking.page.wait_for_timeout(100)


def test_a_run_that_ends_while_one_looks_shows_its_last_readings(tab, written):
    run = toys.Run(written.store, "short", began_s=time.time() - 30.0)
    run.begin()
    looking = tab(written.url)
    live(looking, "#/runs/short")
    looking.sees("The first readings are on their way")
    run.read(20)
    run.end()
    looking.sees("finished")
    reads_up_to(looking, "19.0 s in")


@pytest.mark.exhaustive
def test_what_is_written_after_the_tuner_has_ended_is_shown_too(tab, written):
    began_s = time.time() - 90.0
    events = made_up.run("late", hold=4, unix_s=began_s - made_up.START_S)
    face_toys.write(written.store, "late", events)
    rows = [Sample(began_s + at, 300.0, 1500.0) for at in range(80)]
    written.store.readings().write("late", "GPU-1", rows[:40])
    looking = tab(written.url)
    live(looking, "#/runs/late")
    looking.sees("finished")
    before = last_read(looking)
    written.store.readings().write("late", "GPU-1", rows[40:])
    measured = {"energy_j": 5000.0, "energy_error_j": 9.0, "duration_s": 80.0, "exit_code": 0}
    last = Finished(events[-1].time_s, "ended", {"measured": measured})
    face_toys.write(written.store, views.measured_stream("late"), [last])
    looking.sees("5.0000 ± 0.0090 kJ")
    deadline_s = time.monotonic() + 60
    while last_read(looking) == before:
        assert time.monotonic() < deadline_s


@pytest.fixture
def empty(tmp_path) -> Iterator[Written]:
    """A server on a store in which nothing happened yet. Named before ``tab``, it ends after the pages that ask it."""
    (tmp_path / "plans").mkdir()
    made = Written(tmp_path, "--no-gpu", "--plans", str(tmp_path / "plans"))
    yield made
    made.end()


def test_pages_that_were_empty_fill_while_one_looks(empty, tab, tmp_path):
    cluster, series, plans = (tab(empty.url, own=True) for _ in range(3))
    for looking, address in ((cluster, "#/clusters"), (series, "#/series"), (plans, "#/plans")):
        looking.page.clock.install()
        live(looking, address)
        assert looking.page.locator("main .empty:visible").count() == 1
    face_toys.write(empty.store, "cluster/hall", [Led(face_toys.T0, 1, {})])
    cluster.sees("Cluster hall")
    cluster.sees("Nothing has been measured yet")
    face_toys.write(empty.store, "cluster/hall", face_toys.cluster_events()[1:])
    cluster.page.wait_for_selector(".uplot canvas")
    cluster.page.wait_for_selector(".gantt .span")
    series.page.evaluate(
        """job => fetch('/api/series/nightly',
            { method: 'PUT', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(job) })""",
        JOB,
    )
    series.page.clock.fast_forward(31_000)
    series.page.wait_for_selector("main tbody a")
    face_toys.plans(tmp_path / "plans")
    plans.page.clock.fast_forward(31_000)
    plans.sees("four stages")
    for looking in (cluster, series, plans):
        assert looking.page.locator("main .empty:visible").count() == 0


def test_times_in_a_list_pass(tab, written):
    looking = tab(written.url, own=True)
    looking.page.clock.install()
    live(looking, "#/runs?query=passing")
    toys.Run(written.store, "passing", began_s=time.time() - 20.0).begin()
    looking.page.wait_for_selector("main tbody time")
    began = looking.text("main tbody time")
    looking.page.clock.fast_forward(31_000)
    looking.page.wait_for_function("was => document.querySelector('main tbody time').innerText !== was", arg=began)


def test_a_cluster_shows_who_runs_now_before_who_has_run(tab, written):
    hall = toys.Hall(written.store, "many", over=70, running=3, spans=2, now_s=time.time())
    looking = tab(written.url)
    looking.go("#/clusters/many")
    assert looking.page.locator(".gantt .end").all_text_contents()[-3:] == hall.running
    assert looking.page.locator(".gantt .span").count() == 60 * 2
    looking.sees("… and 13 more jobs.")


def test_whoever_stands_in_a_list_stays_there_while_it_grows(tab, written):
    looking = tab(written.url)
    live(looking, "#/runs?query=stand")
    for name in ("stand-1", "stand-2"):
        toys.Run(written.store, name, began_s=time.time() - 60.0).begin()
    looking.page.get_by_role("link", name="stand-1").focus()
    toys.Run(written.store, "stand-3", began_s=time.time()).begin()
    looking.sees("stand-3.py")
    assert looking.page.evaluate(FOCUSED) == "stand-1.py"
    looking.page.locator("main .wide").click(position={"x": 5, "y": 5})  # as whoever scrolls it does
    toys.Run(written.store, "stand-4", began_s=time.time()).begin()
    looking.sees("stand-4.py")


def test_a_dialog_gives_the_focus_back_though_its_table_has_changed(tab, written):
    hall = toys.Hall(written.store, "why", over=1, running=2, spans=2, now_s=time.time())
    looking = tab(written.url)
    live(looking, "#/clusters/why")
    done = "[...document.querySelectorAll('main td[data-name=Energy]')].map((cell) => cell.innerText).join()"
    before = looking.page.evaluate(done)
    looking.page.get_by_role("button", name="Why new-001?").click()
    looking.page.wait_for_selector("dialog[open]")
    hall.go_on()
    looking.page.wait_for_function(f"was => {done} !== was", arg=before)
    looking.page.keyboard.press("Escape")
    looking.page.wait_for_selector("dialog", state="detached")
    assert looking.page.evaluate(FOCUSED) == "Why new-001?"


@pytest.mark.exhaustive
def test_a_span_of_a_cluster_keeps_the_focus_while_time_passes(tab, written):
    hall = toys.Hall(written.store, "spans", over=0, running=2, spans=2, now_s=time.time())
    looking = tab(written.url)
    live(looking, "#/clusters/spans")
    span = looking.page.locator(".gantt .span").last
    span.focus()
    before = span.get_attribute("aria-label")
    hall.go_on()
    looking.page.wait_for_function("was => document.activeElement.getAttribute('aria-label') !== was", arg=before)
    assert looking.page.evaluate("document.activeElement.classList.contains('span')")


@pytest.mark.exhaustive
def test_a_reason_that_comes_too_late_opens_nothing_and_one_that_is_open_goes_with_its_page(tab, written):
    toys.Hall(written.store, "late-why", over=1, running=1, spans=1, now_s=time.time())
    looking = tab(written.url)
    looking.go("#/clusters/late-why")
    looking.page.route("**/why", lambda _: None)  # no answer yet
    why = looking.page.get_by_role("button", name="Why new-000?")
    with looking.page.expect_request("**/why"):
        why.click()
    looking.go("#/runs")
    assert looking.page.locator("dialog").count() == 0
    looking.page.unroute("**/why")
    looking.go("#/clusters/late-why")
    why.click()
    looking.page.wait_for_selector("dialog[open]")
    looking.go("#/runs")
    assert looking.page.locator("dialog").count() == 0


@pytest.mark.exhaustive
def test_decisions_wait_for_whoever_is_among_them_and_come_when_they_leave(tab, written):
    events = [event for event in made_up.run("deciding", hold=60, seed=3) if not isinstance(event, Finished | Proven)]
    shift_s = time.time() - events[30].time_s
    told: list[Event] = made_up.run("deciding", hold=60, seed=3, unix_s=shift_s)
    face_toys.write(written.store, "deciding", told[:20])
    run = toys.Run(written.store, "deciding", began_s=told[0].time_s + shift_s)
    run.read(30)
    looking = tab(written.url)
    live(looking, "#/runs/deciding")
    pieces = looking.page.locator(".ribbon .piece")
    pieces.first.focus()
    before = pieces.count()
    rows = looking.page.locator("main tbody tr").count()
    face_toys.write(written.store, "deciding", told[20:40])
    looking.page.wait_for_function("was => document.querySelectorAll('main tbody tr').length > was", arg=rows)
    assert pieces.count() == before
    assert looking.page.evaluate("document.activeElement.classList.contains('piece')")
    looking.page.evaluate("document.activeElement.blur()")
    looking.page.wait_for_function("was => document.querySelectorAll('.ribbon .piece').length > was", arg=before)


@pytest.mark.exhaustive
def test_what_was_marked_in_the_head_of_a_run_stays_marked(tab, written):
    run = toys.Run(written.store, "marked", began_s=time.time() - 100.0)
    run.begin()
    run.read(5)
    looking = tab(written.url)
    live(looking, "#/runs/marked")
    looking.page.evaluate("getSelection().selectAllChildren(document.querySelector('.command'))")
    took = looking.text(".tiles")
    looking.page.wait_for_function("was => document.querySelector('.tiles').innerText !== was", arg=took)
    assert looking.page.evaluate("getSelection().toString()") == "python marked.py"


def remembered(said: dict[str, Any], seconds: int, power_w: float) -> dict[str, Any]:
    """The GPUs as the server has them, with a history of so many seconds up to now."""
    times = [said["time_s"] - seconds + at for at in range(seconds)]
    history = {"time_s": times, "power_w": [power_w] * seconds, "sm_mhz": [1000.0] * seconds}
    return {**said, "gpus": [{**gpu, "history": history} for gpu in said["gpus"]]}


@pytest.mark.parametrize("address", ["#/gpus", "#/"])
def test_a_tab_that_was_hidden_catches_up_with_what_the_server_remembers(tab, written, address):
    toys.Run(written.store, "there", began_s=time.time()).begin()
    looking = tab(written.url)
    looking.go("#/plans")
    said = looking.get("/api/gpus")
    looking.page.route("**/api/gpus", lambda route: route.fulfill(json=remembered(said, 2, 99.0)))
    live(looking, address)
    looking.page.evaluate(AWAY, True)
    looking.page.unroute("**/api/gpus")
    looking.page.route("**/api/gpus", lambda route: route.fulfill(json=remembered(said, 250, 111.0)))
    looking.page.evaluate(AWAY, False)
    if address == "#/":
        looking.page.wait_for_function("() => /^[4-9] min/.test(document.querySelector('.ends').innerText)")
        return
    looking.page.wait_for_function(
        """() => {
            const chart = document.querySelector('.chart');
            chart.dispatchEvent(new KeyboardEvent('keydown', { key: 'Home' }));
            return document.querySelector('.readout').innerText.includes('power 111 W');
        }"""
    )
