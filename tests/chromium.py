"""A real browser for tests: the system's own Chromium, driven by Playwright; nothing is downloaded.

``browser`` lives as long as a module's tests: Playwright's calls run an event loop in this thread, and tests of other
modules want one of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# It asks nobody for anything but what a test opens, and finds nobody but this machine, as with the network off.
# Without its sandbox, which root cannot have.
_FLAGS = (
    "--no-sandbox",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; skips where it, or Playwright, is not installed."""
    pytest.importorskip("playwright", reason="Playwright is not installed (pip install 'joulewise[dev]')")
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield started
        finally:
            started.close()
