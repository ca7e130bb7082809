"""Every page while news come in, with eight GPUs and a run of hours: no task of the page is long enough to be felt."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.core.event import Event
from joulewise.store import Sample
from joulewise.store.database import Database
from joulewise.store.sql import SqliteStore
from tests.cli import made_up
from tests.serve import face_toys
from tests.serve.serving import Serving
from tests.serve.ui import toys

# Hours of readings, eight GPUs and three hundred jobs are written for it.
pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow, pytest.mark.exhaustive]

LONG_MS = 50.0
"""From this on a task is felt."""
GPUS = 8
LATER = 60
"""So many of the run's events are still to come when the server starts."""
RUN = "20260101-000000-abcd"


class Training:
    """A tuned run of three hours on eight GPUs which is still under way, beside a cluster of as many jobs as its page
    shows, each with as many spans: ``go_on`` writes what happens next."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._store = SqliteStore(Database(database))
        events = made_up.run(RUN, hold=2000, unix_s=0.0)[:-1]
        shift_s = time.time() - events[-LATER].time_s
        events = made_up.run(RUN, hold=2000, unix_s=shift_s)[:-1]
        self._later: Iterator[Event] = iter(events[-LATER:])
        self.long_s = events[-1].time_s - events[0].time_s
        self._from_s, self._to_s = events[0].time_s + shift_s, int(time.time())
        toys.at_once(self._store, RUN, events[:-LATER])
        self._readings(self._from_s, self._to_s)
        face_toys.plain_run(self._store)
        self._hall = toys.Hall(self._store, "hall", over=240, running=60, spans=60, now_s=time.time())

    def go_on(self) -> None:
        """The next event, readings up to now, and what the cluster has spent."""
        self._hall.go_on()
        face_toys.write(self._store, RUN, [next(self._later)])
        now_s = int(time.time())
        self._readings(self._to_s, now_s)
        self._to_s = now_s

    def _readings(self, from_s: float, to_s: float) -> None:
        times = [from_s + at for at in range(int(to_s - from_s))]
        for gpu in range(GPUS):
            rows = [Sample(at_s, 500.0 + 90.0 * math.sin(at_s / (7 + gpu)), 1500.0, limit_w=700.0) for at_s in times]
            if rows:
                self._store.readings().write(RUN, f"GPU-{gpu}", rows)

    def close(self) -> None:
        self._store.close()


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Iterator[Training]:
    made = Training(tmp_path_factory.mktemp("hours") / "x.db")
    yield made
    made.close()


@pytest.fixture(scope="module")
def eight(training, virtual_nvml) -> Iterator[Serving]:
    """A server on it which reads eight GPUs."""
    serving = Serving(str(training.database), training.database.parent, "--gpu", f"sim:h200*{GPUS}")
    yield serving
    serving.end()


def longest_ms(trace: bytes) -> tuple[float, int]:
    """The longest task of a page's main thread, and how many there were. By the thread's own processor time: on a busy
    machine a short task takes long by the clock."""
    traced: list[dict[str, Any]] = json.loads(trace)["traceEvents"]
    mains = {
        (each["pid"], each["tid"])
        for each in traced
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = [each for each in traced if each["name"] == "RunTask" and (each["pid"], each["tid"]) in mains]
    whole = [each["tdur"] / 1000 for each in tasks if "tdur" in each]  # the first and the last may be cut off
    assert len(whole) >= len(tasks) - 2
    return max(whole), len(whole)


def traced(browser, page) -> None:
    browser.start_tracing(page=page, categories=["devtools.timeline", "disabled-by-default-devtools.timeline"])


def test_what_looks_for_long_tasks_finds_one(browser, tab, eight):
    looking = tab(eight.url)
    looking.go("#/")
    traced(browser, looking.page)
    looking.page.evaluate(
        """() => new Promise((done) => setTimeout(() => {
            let sum = 0;
            for (const end = performance.now() + 400; performance.now() < end; ) sum += Math.sqrt(sum + 1);
            setTimeout(() => done(sum), 500);  // others come after it: the last task of a trace is cut off
        }))"""
    )
    assert longest_ms(browser.stop_tracing())[0] > LONG_MS / 2  # others may have had the processor half of the time


@pytest.mark.parametrize(
    ("address", "seconds"),
    [("#/", 4), ("#/gpus", 5), (f"#/runs/{RUN}", 8), ("#/runs", 4), ("#/clusters", 4)],
    ids=["overview", "gpus", "run", "runs", "cluster"],
)
def test_no_task_is_felt_while_news_come_in(browser, tab, eight, training, address, seconds):
    assert training.long_s > 2.5 * 3600
    looking = tab(eight.url)
    looking.go(address)
    looking.page.wait_for_selector("#live[data-state=live]")
    looking.page.evaluate(
        """() => {
            window.drawn = 0;
            new MutationObserver((all) => (window.drawn += all.length)).observe(document.getElementById('main'),
                { subtree: true, childList: true, characterData: true, attributes: true });
        }"""
    )
    traced(browser, looking.page)
    asked = len(looking.asked)
    for _ in range(seconds):
        training.go_on()
        looking.page.wait_for_timeout(1000)
    longest, tasks = longest_ms(browser.stop_tracing())
    assert looking.page.evaluate("window.drawn") > 0 or len(looking.asked) > asked
    assert tasks > 20
    assert longest < LONG_MS, address


def test_eight_gpus_move_by_the_second(tab, eight):
    looking = tab(eight.url)
    looking.go("#/gpus")
    assert looking.page.locator(".card").count() == GPUS
    looking.page.locator(".chart").first.focus()
    seen: set[str] = set()
    deadline_s = time.monotonic() + 60
    while len(seen) < 4 and time.monotonic() < deadline_s:
        looking.page.keyboard.press("End")
        seen.add(looking.text(".card:first-child .readout"))
    assert len(seen) == 4
