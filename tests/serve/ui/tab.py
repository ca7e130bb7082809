"""A tab of a browser on the dashboard, which remembers whatever went wrong in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000
"""For what shall be seen soon; the machine may be busy."""


class Tab:
    """One page. ``asked``: every address that it asked for; ``faults``: what its console and scripts complained of."""

    def __init__(self, browser: Browser, url: str, *, phone: bool = False, dark: bool = False) -> None:
        size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
        self._context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.url = url
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on(
            "console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda fault: self.faults.append(str(fault)))

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
        self._context.close()
