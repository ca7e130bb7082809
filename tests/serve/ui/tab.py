"""A tab of a browser on the dashboard, which remembers whatever went wrong in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

PATIENCE_MS = 60_000
"""For what shall be seen soon; the machine may be busy."""
LOOKS = [
    pytest.param(dark, phone, id=f"{'dark' if dark else 'light'}-{'phone' if phone else 'desk'}")
    for dark in (False, True)
    for phone in (False, True)
]
"""``dark`` and ``phone`` of a tab."""


class Pages:
    """Pages of a browser, each in a context of its own, lent to one test after another: to start a page, and to load
    and compile what the dashboard consists of, costs more than most tests do with it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[tuple[bool, bool], list[Page]] = {}

    def new(self, *, phone: bool, dark: bool) -> Page:
        size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
        page = self._browser.new_context(viewport=size, color_scheme="dark" if dark else "light").new_page()
        page.set_default_timeout(PATIENCE_MS)
        return page

    def take(self, *, phone: bool, dark: bool) -> Page:
        """One that shows nothing and remembers nothing."""
        free = self._free.get((phone, dark))
        return free.pop() if free else self.new(phone=phone, dark=dark)

    def take_back(self, page: Page, *, phone: bool, dark: bool) -> None:
        page.unroute_all(behavior="ignoreErrors")
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.mouse.move(0, 0)
        page.goto("about:blank")
        self._free.setdefault((phone, dark), []).append(page)


class Tab:
    """One page. ``asked``: every address that it asked for; ``faults``: what its console and scripts complained of.

    ``own``: a page that nobody gets afterwards, for what cannot be taken back: a clock, a permission, a script at the
    start, another who listens."""

    def __init__(self, pages: Pages, url: str, *, phone: bool = False, dark: bool = False, own: bool = False) -> None:
        self._pages, self._own, self._kind = pages, own, {"phone": phone, "dark": dark}
        self.page: Page = pages.new(**self._kind) if own else pages.take(**self._kind)
        self.url = url
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", self._requested)
        self.page.on("console", self._said)
        self.page.on("pageerror", self._failed)

    def _requested(self, request: Request) -> None:
        self.asked.append(request.url)

    def _said(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.faults.append(said.text)

    def _failed(self, fault: object) -> None:
        self.faults.append(str(fault))

    def go(self, address: str) -> None:
        """Open a page of the dashboard (``"#/runs"``) and wait until it is drawn."""
        if self.page.url.startswith(self.url):
            self.page.evaluate(
                "to => { document.getElementById('main').removeAttribute('data-page'); location.hash = to; }", address
            )
            if self.page.evaluate("location.hash") == address and address == self._last:
                self.page.reload()
        else:
            self.page.goto(f"{self.url}/{address}")
        self._last = address
        self.drawn()

    _last = ""

    def drawn(self) -> None:
        self.page.wait_for_selector("main[data-page]")

    def text(self, selector: str = "main") -> str:
        return self.page.inner_text(selector)

    def get(self, path: str) -> Any:
        """What the API says, asked from the page itself."""
        return self.page.evaluate("path => fetch(path).then(answer => answer.json())", path)

    def sees(self, text: str, within: str = "main") -> None:
        """Wait until this text is there."""
        self.page.wait_for_function(
            "([text, where]) => document.querySelector(where)?.innerText.includes(text)", arg=[text, within]
        )

    def serious(self) -> list[str]:
        """What axe finds that is serious or critical, one line each."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{each['id']}: {json.dumps([node['html'][:150] for node in each['nodes'][:3]])}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def elsewhere(self) -> list[str]:
        """What was asked of others than the server itself."""
        return [each for each in self.asked if not each.startswith((f"{self.url}/", "blob:", "data:"))]

    def close(self) -> None:
        """Give the page back. One in which something went wrong, or that shows nothing of ours, is closed."""
        for event, listens in (("request", self._requested), ("console", self._said), ("pageerror", self._failed)):
            self.page.remove_listener(event, listens)
        if self._own or self.faults or not self.page.url.startswith(self.url):
            self.page.context.close()
        else:
            self._pages.take_back(self.page, **self._kind)
