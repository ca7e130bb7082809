"""The dashboard without a network, and without its server: what it says, what it keeps, and how it goes on."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from tests import preloaded
from tests.serve.serving import Serving
from tests.serve.ui.tab import Tab

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

STRANGERS = ("http://example.org/", "http://192.0.2.1/", "https://cdn.jsdelivr.net/npm/uplot")
REFUSED = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_CONNECTION_RESET")
"""What Chromium itself writes to its console of a server that is not there, or ends in the middle of a word."""


@pytest.fixture
def serving(tmp_path: Path):
    """A server of our own, to be killed."""
    started = Serving(str(tmp_path / "x.db"), tmp_path, "--gpu", "sim:h200")
    yield started
    started.process.send_signal(signal.SIGCONT)
    started.end()


@pytest.fixture
def open_tab(pages):
    """Opens tabs that may only complain of a server that is away."""
    tabs: list[Tab] = []

    def opened(url: str) -> Tab:
        tabs.append(Tab(pages, url, own=True))
        return tabs[-1]

    yield opened
    for each in tabs:
        each.close()
        assert [fault for fault in each.faults if not any(known in fault for known in REFUSED)] == []
        assert each.elsewhere() == []


def run(folder: Path) -> None:
    environ = {**os.environ, "JOULEWISE_HOME": str(folder), "JOULEWISE_DATABASE": str(folder / "x.db")}
    preloaded.run("run", "--gpu", "sim:h200", "--speed", "20", "--", "true", env=environ, check=True)


def test_the_browser_of_these_tests_finds_nobody_but_this_machine(browser):
    """So every page that is seen in them works with the network off."""
    page = browser.new_page()
    for stranger in STRANGERS:
        with pytest.raises(Exception, match="ERR_NAME_NOT_RESOLVED"):
            page.goto(stranger)
    page.close()


def test_while_the_server_is_away_pages_say_so_keep_what_they_showed_and_go_on_by_themselves(
    open_tab, serving, tmp_path, virtual_nvml
):
    listing, gpus = open_tab(serving.url), open_tab(serving.url)
    listing.go("#/runs")
    listing.sees("No run yet")
    gpus.go("#/gpus")
    gpus.page.wait_for_selector("#live[data-state=live]")
    listing.page.wait_for_selector("#live[data-state=live]")
    serving.kill()
    for looking in (listing, gpus):
        looking.sees("The server has not answered since", "#away")
        assert looking.text("#live") == "not live"
        assert looking.serious() == []
    assert "No run yet" in listing.text()
    assert "NVIDIA H200" in gpus.text()
    assert gpus.page.locator(".uplot canvas").count() == 1
    gpus.page.locator(".chart").focus()
    gpus.page.keyboard.press("End")
    before = gpus.text(".readout")
    run(tmp_path)  # nobody is told of it
    serving.start()
    listing.page.wait_for_selector("main tbody tr")  # nobody has touched anything
    assert listing.page.locator("main tbody tr").count() == 1
    for looking in (listing, gpus):
        looking.page.wait_for_selector("#live[data-state=live]")
        assert not looking.page.is_visible("#away")
    gpus.page.wait_for_function(
        """before => {
            document.querySelector('.chart').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));
            return document.querySelector('.readout').innerText !== before;
        }""",
        arg=before,
    )


@pytest.mark.exhaustive
def test_a_page_that_was_asked_for_in_vain_is_drawn_when_the_server_is_back(open_tab, serving):
    looking = open_tab(serving.url)
    looking.go("#/")
    looking.page.wait_for_selector("#live[data-state=live]")
    serving.kill()
    looking.page.wait_for_selector("#live[data-state=waiting]")
    looking.page.evaluate("location.hash = '#/runs'")
    looking.sees("The server does not answer. Is 'joulewise serve' still running?")
    serving.start()
    looking.sees("No run yet")
    assert looking.page.locator("h1").inner_text() == "Runs"


@pytest.mark.exhaustive
def test_a_server_that_hangs_is_not_called_live_for_ever(open_tab, serving):
    looking = open_tab(serving.url)
    looking.page.clock.install()
    looking.go("#/")
    looking.page.wait_for_selector("#live[data-state=live]")
    serving.process.send_signal(signal.SIGSTOP)
    looking.page.wait_for_timeout(1500)  # what it had already sent is read
    assert looking.text("#live") == "live"
    looking.page.clock.fast_forward(45_000)
    looking.page.wait_for_selector("#live[data-state=waiting]")
    looking.page.clock.fast_forward(5_000)
    looking.sees("The server has not answered since", "#away")
    serving.process.send_signal(signal.SIGCONT)
    looking.page.clock.fast_forward(60_000)
    looking.page.wait_for_selector("#live[data-state=live]")
    assert not looking.page.is_visible("#away")
