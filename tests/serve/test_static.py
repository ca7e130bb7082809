import re
from importlib import resources

import pytest
from fastapi import FastAPI

from joulewise.serve import static
from joulewise.serve.app import make_app
from joulewise.serve.tokens import Guard, Scope, make
from joulewise.store import Database, SqliteStore
from tests.serve.asgi import asked
from tests.serve.conftest import Api


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return make_app(SqliteStore(Database(tmp_path_factory.mktemp("static") / "jobs.db")), Guard(local_users=True))


@pytest.fixture(scope="module")
def api(app: FastAPI) -> Api:
    return Api(app)


def test_the_page_is_open_to_all_and_may_load_nothing_from_elsewhere(store):
    api = Api(make_app(store, Guard([make(Scope.READ)[1]])), peer="192.0.2.7", host="energy.example.org")
    page = api("GET", "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert api("GET", "/api/overview").status_code == 401


def test_every_file_of_the_dashboard_is_served_as_what_it_is(api):
    found = static.assets()
    assert "index.html" in found
    for path, asset in found.items():
        got = api("GET", f"/ui/{path}")
        assert (got.status_code, got.content) == (200, asset.content), path
        assert not path.endswith(".js") or got.headers["content-type"].startswith("text/javascript")


def test_the_page_holds_no_program_and_no_style_of_its_own_and_names_only_files_that_are_there():
    text = (resources.files("joulewise.serve") / "ui" / "index.html").read_text("utf-8")
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|https?://", text)
    named = re.findall(r'(?:src|href)="/ui/([^"]+)"', text)
    assert named
    assert set(named) <= set(static.assets())


def test_an_unchanged_file_is_not_sent_again(api):
    first = api("GET", "/ui/index.html")
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}'):
        again = api("GET", "/ui/index.html", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == static.POLICY
    assert api("GET", "/ui/index.html", headers={"If-None-Match": '"other"'}).status_code == 200
    assert first.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/",
        "/ui/../app.py",
        "/ui/..%2fapp.py",
        "/ui/%2e%2e/app.py",
        "/ui/%2e%2e%2fapp.py",
        "/ui/..%5capp.py",
        "/ui//etc/passwd",
        "/ui/%2fetc%2fpasswd",
        "/ui/vendor/../../app.py",
        "/ui/index.html/",
        "/ui/index.html%00.js",
        "/ui/INDEX.HTML",
        "/ui/./index.html",
        "/index.html",
        "/..",
        "/ui",
    ],
)
def test_path_tricks_get_404(app, path):
    got = asked(app, path)
    assert got.status == 404, got.body
    assert set(got.json()) == {"error", "message"}


def test_nothing_is_written_through_it(api):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert api(method, "/").status_code == 405
        assert api(method, "/ui/index.html").status_code == 405


def test_without_its_files_the_rest_is_served(tmp_path, caplog):
    assert static.assets(tmp_path / "nowhere") == {}
    assert "not there" in caplog.text


def test_what_is_hidden_is_not_served(tmp_path):
    (tmp_path / ".secret").write_text("x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "LICENSE").write_text("free")
    found = static.assets(tmp_path)
    assert list(found) == ["vendor/LICENSE"]
    assert found["vendor/LICENSE"].media_type == "text/plain; charset=utf-8"
