"""``/docs``: all of the API on one page that loads nothing and runs nothing."""

import base64
import hashlib
import html
import html.parser
import re

import pytest
from fastapi import FastAPI

from joulewise.serve import described
from joulewise.serve.app import make_app
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard, Scope, make
from joulewise.store import SqliteStore
from tests.serve.cluster_toys import ToyDesk, ToySteering
from tests.serve.conftest import Api


class Seen(html.parser.HTMLParser):
    """Which elements and which addresses a page has; that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self._open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.anchors.add(value or "")
            if name == "href":
                self.links.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(params=["server", "cluster"])
def app(request: pytest.FixtureRequest, store: SqliteStore) -> FastAPI:
    guard = Guard([make(Scope.READ)[1]])
    if request.param == "server":
        return make_app(store, guard)
    return make_cluster_app(ToySteering(), ToyDesk(), guard)


def test_it_tells_of_every_route_and_every_shape_to_anybody(app: FastAPI) -> None:
    api = Api(app, peer="192.0.2.7", host="energy.example.org")
    page = api("GET", "/docs")
    document = api("GET", "/openapi.json").json()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for path, routes in document["paths"].items():
        assert f"<code>{path}</code>" in page.text
        assert all(html.escape(route["summary"]) in page.text for route in routes.values())
    seen = Seen(page.text)
    assert {f"shape-{name}" for name in document["components"]["schemas"]} == seen.anchors
    assert {link.removeprefix("#") for link in seen.links} <= {*seen.anchors, "/openapi.json"}


def test_it_loads_nothing_and_runs_nothing_and_the_browser_is_told_so(app: FastAPI) -> None:
    page = Api(app)("GET", "/docs")
    seen = Seen(page.text)
    assert not seen.tags & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not {name for name in seen.attributes if name.startswith("on") or name in ("style", "src")}
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "url(" not in style
    assert "@import" not in style


def test_there_is_no_page_that_loads_programs_from_elsewhere(app: FastAPI) -> None:
    api = Api(app)
    for path in ("/redoc", "/docs/", "/docs/oauth2-redirect"):
        assert api("GET", path).status_code == 404, path


def test_words_in_a_description_are_words() -> None:
    """Ours are harmless; a page that trusts them would be the first place to look."""
    route = {"summary": "<i>", "description": "a `b<c` **d** ``e``\n\n<script>", "tags": ["<t>"], "responses": {}}
    document = {"info": {"title": "<x>", "version": "1"}, "paths": {"/<p>": {"get": route}}}
    page = described.page(document)
    assert not Seen(page).tags & {"script", "i", "x", "t", "p>"}
    assert "<p>a <code>b&lt;c</code> <b>d</b> <code>e</code></p><p>&lt;script&gt;</p>" in page


def test_shapes_are_told_in_words() -> None:
    shape = described._shape
    assert shape({"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}]}) == "number (≥ 0) or null"
    assert shape({"type": "array", "items": {"$ref": "#/components/schemas/Run"}}) == (
        'list of <a href="#shape-Run">Run</a>'
    )
    assert shape({"enum": ["a", "b"]}) == "<code>a</code> or <code>b</code>"
    assert shape({"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}}) == (
        "object of string (up to 3 letters)"
    )
    assert shape({}) == "anything"
