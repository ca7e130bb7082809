"""What holds for every route, whichever is added: nothing without a token, nothing unknown, nothing by a trick."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from joulewise.serve.app import make_app
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard, Scope, make
from joulewise.store import Database, SqliteStore
from tests.serve import face_toys as toys
from tests.serve.asgi import asked
from tests.serve.cluster_toys import ToyDesk, ToySteering
from tests.serve.conftest import ASK, JOB, TELL, Api

ELSEWHERE = {"peer": "192.0.2.7", "host": "energy.example.org"}
OPEN = {"/", "/ui/{path:path}", "/favicon.ico", "/docs", "/openapi.json", "/healthz"}
"""All that anybody may have: what holds no data."""
READER, READ = make(Scope.READ)
WRITER, WRITE = make(Scope.WRITE)
BODIES = {
    "/api/series/{job}": JOB,
    "/api/series/{job}/ask": ASK,
    "/api/series/{job}/trials/{trial}/limit": {"profile": []},
    "/api/series/{job}/trials/{trial}/progress": {"epochs": 1},
    "/api/series/{job}/trials/{trial}/tell": TELL,
}
NAMES = {"/api/runs": toys.TUNED, "/api/plans": "four%20stages", "/api/clusters": "hall%2Ftrain"}
SECRET = "root:x:0:0"
TRICKS = [
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e%2fjobs.db",
    "%2Fetc%2Fpasswd",
    "..%5c..%5cjobs.db",
    "..\\..\\jobs.db",
    "%00",
    "example%00.json",
    "%252e%252e%252fjobs.db",
    "%25252e%25252e%25252f",
    "%c0%ae%c0%ae%c0%afjobs.db",
    "%ff%fe",
    "%ef%bc%8e%ef%bc%8e%ef%bc%8fjobs.db",
    "~root",
    "file:%2f%2f%2fetc%2fpasswd",
    "x%0d%0aSet-Cookie:%20a=b",
    "x;.html",
    "%",
    "%zz",
    "a" * 900,
    "a" * 100_000,
    "%2f" * 20_000,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[FastAPI]:
    """With something of everything, a recurring job and a trial of it included."""
    store = SqliteStore(Database(folder / "jobs.db"))
    toys.filled(store)
    app = make_app(store, Guard([READ, WRITE]), plans=toys.plans(folder / "plans"))
    api, bearing = Api(app), {"Authorization": f"Bearer {WRITER}"}
    assert api("PUT", "/api/series/nightly", JOB, headers=bearing).status_code == 200
    assert api("POST", "/api/series/nightly/ask", ASK, headers=bearing).status_code == 200
    api("GET", "/api/overview", headers=bearing)  # what is remembered of runs is there now
    app.state.closing()  # a stream that has no end would be waited for
    yield app
    store.close()


@pytest.fixture(scope="module")
def cluster() -> FastAPI:
    return make_cluster_app(ToySteering(), ToyDesk(), Guard([READ, WRITE]))


def routes(app: FastAPI) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """Method, path as described, path with names that are there, and what is said of its names."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            named = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
            yield method.upper(), path, filled_in(path), named


def every_path(router: APIRouter) -> Iterator[str]:
    """Whether it is described or not."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield route.path
        else:
            yield from every_path(inner)


def filled_in(path: str, **instead: str) -> str:
    found = next((name for at, name in NAMES.items() if path.startswith(at)), "night-7")
    values = {"{name}": found, "{trial}": "0", "{node}": "n1"}
    values["{job}"] = "one" if path.startswith("/api/clusters") else "nightly"
    for place, value in {**values, **{f"{{{name}}}": value for name, value in instead.items()}}.items():
        path = path.replace(place, value)
    return path


def kept(folder: Path) -> dict[str, bytes]:
    """Every byte of the store's files, but for what SQLite's readers tell each other."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.suffix != ".db-shm"}


def test_what_anybody_may_have_is_counted_up(server: FastAPI, cluster: FastAPI) -> None:
    for app in (server, cluster):
        described, there = set(app.openapi()["paths"]), set(every_path(app.router))
        assert described < there
        assert there - described <= OPEN
        for method, path, at, _ in routes(app):
            if path not in OPEN:
                assert asked(app, at, method=method, **ELSEWHERE).status == 401, (method, path)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": WRITER},
        {"Authorization": f"Basic {WRITER}"},
        {"Authorization": f"Bearer {WRITER} "[:-3]},
        {"Cookie": f"token={WRITER}", "X-Forwarded-For": "127.0.0.1"},
    ],
    ids=["none", "wrong", "empty", "no scheme", "another scheme", "cut short", "cookie"],
)
def test_a_request_without_a_token_changes_no_byte(
    server: FastAPI, cluster: FastAPI, folder: Path, headers: dict[str, str]
) -> None:
    before = kept(folder)
    for app in (server, cluster):
        for method, path, at, _ in routes(app):
            if path in OPEN:
                continue
            for peer in ({}, ELSEWHERE):
                answer = Api(app, **peer)(method, at, BODIES.get(path, {}), headers=headers)
                assert answer.status_code == 401, (method, path)
            in_the_address = Api(app)(method, f"{at}?token={WRITER}&access_token={WRITER}", headers=headers)
            assert in_the_address.status_code == 401, (method, path)
    assert kept(folder) == before


def test_a_token_that_may_only_read_changes_no_byte(server: FastAPI, folder: Path) -> None:
    api, before, refused = Api(server), kept(folder), []
    for method, path, at, _ in routes(server):
        if method != "GET":
            answer = api(method, at, BODIES[path], headers={"Authorization": f"Bearer {READER}"})
            refused += [path] if answer.status_code == 403 else []
            assert answer.status_code == 403 or path.endswith("/limit"), (method, path)
    assert len(refused) == 4
    assert kept(folder) == before


def test_a_token_that_may_write_does_change_it(tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    store = SqliteStore(Database(tmp_path / "jobs.db"))
    api = Api(make_app(store, Guard([WRITE])))
    before = kept(tmp_path)
    assert api("PUT", "/api/series/nightly", JOB, headers={"Authorization": f"Bearer {WRITER}"}).status_code == 200
    assert kept(tmp_path) != before
    store.close()


def test_no_route_takes_a_parameter_that_it_does_not_have(server: FastAPI, cluster: FastAPI) -> None:
    for app in (server, cluster):
        for method, path, at, _ in routes(app):
            answer = Api(app)(
                method, f"{at}?surely_not=1", BODIES.get(path), headers={"Authorization": f"Bearer {WRITER}"}
            )
            assert answer.status_code == 422, (method, path, answer.text)
            assert "there is no parameter 'surely_not' here" in answer.json()["message"]


def test_every_parameter_that_is_described_is_known(server: FastAPI, cluster: FastAPI) -> None:
    """A value may be refused; the name is not."""
    many = 0
    for app in (server, cluster):
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                for each in operation.get("parameters", ()):
                    if each["in"] == "query":
                        many += 1
                        answer = asked(
                            app,
                            f"{filled_in(path)}?{each['name']}=x",
                            method=method.upper(),
                            headers={"Authorization": f"Bearer {WRITER}"},
                        )
                        assert b"there is no parameter" not in answer.body, (path, each["name"])
    assert many > 10


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick[:30])
def test_a_trick_in_place_of_any_name_finds_nothing(server: FastAPI, trick: str) -> None:
    tried = 0
    for method, path, _, named in routes(server):
        for place in named:
            tried += 1
            answer = asked(
                server,
                filled_in(path, **{place["name"]: trick}),
                method=method,
                headers={"Authorization": f"Bearer {READER if method == 'GET' else WRITER}"},
            )
            # Names of recurring jobs and numbers of trials have a form; other names may be anything but very long.
            schema = place["schema"]
            formed = "pattern" in schema or schema["type"] == "integer" or len(trick) > schema["maxLength"]
            assert answer.status in ((404, 405, 422) if formed else (404,)), (method, path, place["name"], answer.body)
            assert set(answer.json()) == {"error", "message"}
            assert len(answer.body) < 1000
            assert SECRET not in answer.body.decode()
            assert "set-cookie" not in answer.headers
    assert tried > 15


@pytest.mark.parametrize("trick", [each for each in TRICKS if each not in (".", "")], ids=lambda trick: trick[:30])
@pytest.mark.parametrize("at", ["/ui/", "/ui/vendor/", "/ui/index.html/", "/"])
def test_a_trick_in_place_of_a_file_finds_nothing(server: FastAPI, at: str, trick: str) -> None:
    answer = asked(server, f"{at}{trick}")
    assert answer.status == 404, answer.body
    assert set(answer.json()) == {"error", "message"}


def test_nothing_with_a_name_in_it_is_taken_for_a_page(server: FastAPI) -> None:
    """A browser that is led to any address of the API shows text, not a page that somebody's name of a run has made."""
    evil = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    headers = {"Authorization": f"Bearer {READER}", "Accept": "text/html"}
    for method, path, at, named in routes(server):
        if method == "GET":
            instead = filled_in(path, **{place["name"]: evil for place in named})
            for where in (at, instead, f"{at}?{evil}={evil}"):
                answer = asked(server, where, headers=headers)
                is_report = path.endswith("/report") and answer.status == 200
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["content-type"].startswith("text/html") is is_report, where
                assert not is_report or "sandbox" in answer.headers["content-security-policy"]
