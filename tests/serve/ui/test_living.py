"""The dashboard while things happen: a first start, runs that begin, tokens, bad names."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from tests import preloaded
from tests.serve.serving import Serving
from tests.serve.ui.tab import Tab

pytestmark = [pytest.mark.xdist_group("dashboard"), pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>/../..?&#"


@pytest.fixture
def empty(tmp_path: Path):
    """A server on an empty store, without GPUs. Named before ``tab``, it ends after the pages that ask it."""
    serving = Serving(str(tmp_path / "empty.db"), tmp_path, "--no-gpu")
    yield serving
    serving.end()


def run(database: Path, *command: str) -> int:
    """Run a command measured; its exit code."""
    environ = {**os.environ, "JOULEWISE_HOME": str(database.parent), "JOULEWISE_DATABASE": str(database)}
    return preloaded.run("run", "--gpu", "sim:h200", "--speed", "20", "--", *command, env=environ).returncode


def token(tokens: Path) -> str:
    """A new one in this file, with which one may read."""
    made = preloaded.run("serve", "token", "--scope", "read", "--token-file", tokens, check=True)
    return made.stdout.split()[-1]


def test_a_run_that_begins_elsewhere_appears_and_ends_while_one_looks(empty, tab, tmp_path, virtual_nvml):
    looking = tab(empty.url)
    looking.go("#/")
    looking.sees("Nothing was measured yet")
    looking.sees("live", "#live")
    train = Path(__file__).parents[3] / "examples" / "train_virtual.py"
    assert run(tmp_path / "empty.db", sys.executable, str(train), "--epochs", "1", "--steps", "40") == 0
    looking.sees("train_virtual.py --epochs 1 --steps 40")
    looking.sees("finished")
    assert looking.page.locator("main tbody tr").count() == 1
    looking.page.get_by_role("link", name="train_virtual.py").click()
    looking.sees("Nothing was tuned in this run")
    assert looking.page.locator(".uplot canvas").count() == 1


def test_a_name_full_of_markup_is_shown_as_it_is_and_does_nothing(empty, tab, tmp_path, virtual_nvml):
    assert run(tmp_path / "empty.db", "true", HOSTILE) == 0
    looking = tab(empty.url, own=True)
    asked_by_browser = []
    looking.page.on("dialog", lambda dialog: (asked_by_browser.append(dialog.message), dialog.dismiss()))
    for address in ("#/", "#/runs", "#/search?q=onerror"):
        looking.go(address)
        looking.page.get_by_role("link", name="true").or_(looking.page.locator("main .hits a")).first.wait_for()
    looking.go("#/runs")
    assert HOSTILE in looking.text()
    looking.page.locator("main tbody a").click()
    looking.page.wait_for_selector("main[data-page] .command")
    assert HOSTILE in looking.text(".command")
    assert looking.page.locator("main img, main script").count() == 0
    assert asked_by_browser == []


EMPTY = {
    "#/": "joulewise run --tune -- python train.py",
    "#/gpus": "joulewise serve --gpu 'sim:h200*2'",
    "#/runs": "joulewise run -- python train.py",
    "#/series": "joulewise recur run --job nightly",
    "#/plans": "joulewise plan solve",
    "#/clusters": "joulewise cluster up --engine sim",
    "#/search?q=x": "Nothing here is called",
    "#/runs/nobody": "no run",
    "#/series/nobody": "no job",
}


def test_an_empty_page_says_what_to_do(pages, empty):
    looking = Tab(pages, empty.url)
    for address, says in EMPTY.items():
        looking.go(address)
        assert says in looking.text(), address
        assert looking.serious() == [], address
    looking.close()
    # What is not there is answered with 404, which Chromium itself writes to its console.
    assert [each for each in looking.faults if "404" not in each] == []


@pytest.mark.exhaustive
def test_whoever_has_no_token_is_told_once_and_may_give_one_later(pages, tmp_path):
    tokens = tmp_path / "tokens"
    made = token(tokens)
    serving = Serving(str(tmp_path / "x.db"), tmp_path, "--no-gpu", "--token-file", str(tokens), trusting=False)
    looking = Tab(pages, serving.url, own=True)
    try:
        looking.page.goto(serving.url)
        looking.page.get_by_role("button", name="Not now").click()
        looking.sees("This server wants a token")
        looking.sees("This server wants a token", "#away")
        assert looking.page.locator("dialog").count() == 0
        looking.page.get_by_role("button", name="Give one").click()
        looking.page.fill("#token", made)
        looking.page.keyboard.press("Enter")
        looking.page.wait_for_selector("#live[data-state=live]")
        looking.page.wait_for_selector("#away", state="hidden")
        looking.sees("Nothing was measured yet")
    finally:
        looking.close()
        serving.end()


def test_a_token_is_asked_for_once_and_kept_for_the_session(pages, tmp_path):
    tokens = tmp_path / "tokens"
    made = token(tokens)
    serving = Serving(str(tmp_path / "x.db"), tmp_path, "--no-gpu", "--token-file", str(tokens), trusting=False)
    looking = Tab(pages, serving.url, own=True)
    try:
        looking.page.goto(serving.url)
        looking.page.wait_for_selector("dialog[open]")
        assert looking.serious() == []
        looking.page.fill("#token", "wrong")
        looking.page.keyboard.press("Enter")
        looking.sees("does not know that one", "dialog[open]")
        looking.page.fill("#token", made)
        looking.page.keyboard.press("Enter")
        looking.sees("Nothing was measured yet")
        looking.sees("live", "#live")
        assert looking.page.locator("dialog").count() == 0
        assert looking.page.evaluate("document.getElementById('live').dataset.state") == "live"
        looking.page.reload()
        looking.sees("Nothing was measured yet")
        assert all(made not in each for each in looking.asked)  # never in an address, where logs would keep it
        refused = "the server responded with a status of 401"
        assert [each for each in looking.faults if refused not in each] == []
    finally:
        looking.close()
        serving.end()


def test_a_command_that_failed_is_not_called_finished(empty, tab, tmp_path, virtual_nvml):
    assert run(tmp_path / "empty.db", "sh", "-c", "exit 3") == 3
    looking = tab(empty.url)
    looking.go("#/")
    assert looking.text("main tbody .chip") == "exit code 3"


def test_the_link_that_the_server_prints_opens_the_dashboard_once(pages, tmp_path):
    serving = Serving(str(tmp_path / "x.db"), tmp_path, "--no-gpu", trusting=False)
    first, second = Tab(pages, serving.url, own=True), Tab(pages, serving.url, own=True)
    try:
        first.page.goto(serving.link)
        first.sees("Nothing was measured yet")
        first.page.wait_for_selector("#live[data-state=live]")
        assert "once=" not in first.page.url
        assert first.page.evaluate("document.cookie") == ""
        first.page.reload()
        first.sees("Nothing was measured yet")
        second.page.goto(serving.link)
        second.page.wait_for_selector("dialog[open]")
        second.sees("each works once", "dialog[open]")
    finally:
        first.close()
        second.close()
        serving.end()
