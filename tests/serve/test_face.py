"""The dashboard's API on a store with something of everything, on both engines."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from joulewise.core.block import Role
from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Finished
from joulewise.core.timeline import VirtualTime
from joulewise.report.claim import Claim
from joulewise.report.page import carried
from joulewise.report.story import Story
from joulewise.serve import face_runs
from joulewise.serve.app import make_app
from joulewise.serve.face import Worth
from joulewise.serve.face_plan_folder import PlanFolder
from joulewise.serve.live import LiveGpus
from joulewise.serve.tokens import Guard, Scope, make
from joulewise.store import Database, Sample, SqliteStore, Store, open_store
from tests.cli import made_up
from tests.monitor.played import PlayedGpu, constant
from tests.serve import face_toys as toys
from tests.serve.asgi import asked
from tests.serve.conftest import ASK, JOB, Api

PATHS = [
    "/api/overview",
    "/api/gpus",
    "/api/runs",
    f"/api/runs/{toys.TUNED}",
    f"/api/runs/{toys.TUNED}/readings",
    f"/api/runs/{toys.TUNED}/report",
    "/api/plans",
    "/api/plans/four%20stages",
    "/api/plans/four%20stages/at",
    "/api/clusters",
    "/api/clusters/hall%2Ftrain",
    "/api/clusters/hall%2Ftrain/jobs/one/why",
    "/api/search?q=o",
    "/metrics",
]


WORTH = Worth(0.3, "EUR", 400.0, "made up")
SECRET, TOKEN = make(Scope.READ)


POSTGRESQL = pytest.mark.xdist_group("postgresql")
ENGINES = ["sqlite", pytest.param("postgresql", marks=POSTGRESQL)]


@pytest.fixture(scope="module", params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all tests that only read."""
    if request.param == "sqlite":
        made = open_store(tmp_path_factory.mktemp("face") / "jobs.db")
    else:
        server = request.getfixturevalue("postgresql")
        made = open_store(server.url(server.new_database()))
    toys.filled(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def app(store: Store, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    plans = toys.plans(tmp_path_factory.mktemp("face") / "plans")
    return make_app(store, Guard(local_users=True), plans=plans, worth=WORTH)


@pytest.fixture(scope="module")
def guarded(store: Store) -> FastAPI:
    """The same behind a token, without plans."""
    return make_app(store, Guard([TOKEN]))


@pytest.fixture(scope="module")
def face(app: FastAPI) -> Api:
    return Api(app)


# What is read of a PostgreSQL is seen in the other store; one for each test is dear.
@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=(POSTGRESQL, pytest.mark.exhaustive))])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of the test's own."""
    made = open_store(tmp_path / "jobs.db" if request.param == "sqlite" else request.getfixturevalue("database_url"))
    yield made
    made.close()


@pytest.fixture
def api(own: Store) -> Api:
    return Api(make_app(own, Guard(local_users=True)))


def got(api: Api, path: str, **query):
    answer = api("GET", path, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_empty_store_is_shown_as_one(api):
    overview = got(api, "/api/overview")
    assert (overview["runs"], overview["energy_j"], overview["recent"]) == (0, 0.0, [])
    assert [overview[name] for name in ("power_w", "saved_j", "saved_half_j", "saved_money")] == [None] * 4
    assert got(api, "/api/runs") == {"runs": [], "total": 0, "next": None}
    assert got(api, "/api/plans") == {"plans": []}
    assert got(api, "/api/clusters") == {"clusters": []}
    assert got(api, "/api/search", q="x") == {"hits": [], "runs": 0, "more": 0}
    assert got(api, "/api/gpus")["gpus"] == []


def test_the_overview_adds_up_what_was_spent_saved_and_what_it_is_worth(face, store):
    found = got(face, "/api/overview")
    claim = Claim.of(Story.of(event for _, event in store.journal(toys.TUNED).read()))
    assert (found["runs"], found["running"], found["simulated"]) == (2, 0, False)
    assert found["energy_j"] == pytest.approx(5000.0)
    assert found["saved_j"] == pytest.approx(claim.saved_j)
    assert found["saved_half_j"] == pytest.approx(claim.saved_half_j)
    assert found["saved_money"] == pytest.approx(claim.saved_j / 3.6e6 * 0.3)
    assert found["saved_carbon_g"] == pytest.approx(claim.saved_j / 3.6e6 * 400.0)
    assert (found["currency"], found["carbon_source"]) == ("EUR", "made up")
    assert {run["name"] for run in found["recent"]} == {toys.TUNED, toys.NASTY}


def test_what_simulated_gpus_saved_is_left_out_of_the_sums_where_there_are_real_ones(face, api, own):
    toys.tuned(own)
    toys.tuned(own, "virtual", virtual=True)
    found = got(api, "/api/overview")
    assert (found["runs"], found["virtual"], found["simulated"]) == (2, 1, False)
    assert found["saved_j"] == got(face, "/api/overview")["saved_j"]


def test_where_all_gpus_are_simulated_the_sums_are_theirs_and_say_so(api, own):
    toys.tuned(own, "virtual", virtual=True)
    found = got(api, "/api/overview")
    assert (found["virtual"], found["simulated"]) == (1, True)
    assert found["saved_j"] > 0


def test_runs_come_in_pages_the_latest_first_and_can_be_searched(api, own):
    for number in range(7):
        toys.plain_run(own, f"run-{number}")
    first = got(api, "/api/runs", most=5)
    assert (len(first["runs"]), first["total"], first["next"]) == (5, 7, 5)
    rest = got(api, "/api/runs", first=5, most=5)
    assert (len(rest["runs"]), rest["next"]) == (2, None)
    names = [run["name"] for run in first["runs"] + rest["runs"]]
    assert sorted(names) == sorted(f"run-{number}" for number in range(7))
    assert got(api, "/api/runs", query="RUN-3")["total"] == 1
    assert got(api, "/api/runs", query="%")["total"] == 0
    assert got(api, "/api/runs", state="running")["total"] == 0
    assert got(api, "/api/runs", first=99)["next"] is None
    assert api("GET", "/api/runs", params={"state": "odd"}).status_code == 422


def test_a_run_tells_what_was_decided_tried_and_proven(face, store):
    found = got(face, f"/api/runs/{toys.TUNED}")
    story = Story.of(event for _, event in store.journal(toys.TUNED).read())
    claim = Claim.of(story)
    assert found["summary"]["name"] == toys.TUNED
    assert found["claim_words"] == claim.says()
    assert found["proof"]["energy_change"] == pytest.approx(claim.energy_change)
    assert found["proof"]["digest"] == story.digest()
    here = f" --database {store.tables.path}" if isinstance(store, SqliteStore) else ""
    assert found["verify"] == f"joulewise verify {toys.TUNED}{here}"
    assert got(face, "/api/overview")["flag"] == here
    first, last = found["decisions"][0], found["decisions"][-1]
    assert (first["kind"], first["at_s"]) == ("baseline", pytest.approx(toys.T0))
    assert last["until_s"] == pytest.approx(toys.T0 + story.span_s)
    assert found["frontier"]["bound"] == 0.02
    assert [point["words"] for point in found["frontier"]["tried"] if point["chosen"]] == ["SM clock at most 1500 MHz"]


def test_a_run_that_goes_on_is_followed(api, own):
    toys.tuned(own)
    before = got(api, f"/api/runs/{toys.TUNED}")
    made = made_up.Made(7)
    made.now_s = made_up.START_S + 5000.0
    made.block(made_up.HELD, Role.HOLD, "goes on")
    toys.write(own, toys.TUNED, made.events)

    def gone_on() -> bool:
        after = got(api, f"/api/runs/{toys.TUNED}")
        return after["decisions"][-1]["until_s"] > before["decisions"][-1]["until_s"]

    toys.until(gone_on)  # not at once: whoever looks may cost its machine only so much


def test_readings_come_in_as_many_points_as_asked_for(face):
    (gpu,) = got(face, f"/api/runs/{toys.TUNED}/readings", points=50)["gpus"]
    assert gpu["uuid"] == toys.UUID
    assert 40 <= len(gpu["time_s"]) <= 50
    assert all(low <= mean <= high for low, mean, high in zip(gpu["low_w"], gpu["power_w"], gpu["high_w"], strict=True))
    some = {"from_s": toys.T0 + 100, "to_s": toys.T0 + 110}
    (part,) = got(face, f"/api/runs/{toys.TUNED}/readings", **some)["gpus"]
    assert (part["time_s"][0], len(part["time_s"])) == (toys.T0 + 100, 11)
    assert set(part["limit_w"]) == {700.0}
    assert got(face, f"/api/runs/{quote(toys.NASTY, safe='')}/readings") == {"gpus": [], "more_gpus": 0}


def test_readings_of_more_gpus_than_are_shown_are_counted(api, own):
    for number in range(66):
        own.readings().write("wide", f"GPU-{number:02}", [Sample(toys.T0, 300.0)])
    found = got(api, "/api/runs/wide/readings")
    assert (len(found["gpus"]), found["more_gpus"]) == (64, 2)


def test_the_report_is_one_file_that_verify_takes_and_that_can_run_nothing(face):
    answer = face("GET", f"/api/runs/{toys.TUNED}/report")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    facts = carried(answer.text)
    assert facts["run"] == toys.TUNED
    assert len(facts["beyond"]["power"]) > 100


def test_a_name_with_a_script_and_slashes_is_harmless(face):
    name = quote(toys.NASTY, safe="")
    found = face("GET", f"/api/runs/{name}")
    assert found.headers["content-type"] == "application/json"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.json()["summary"]["name"] == toys.NASTY
    assert found.json()["verify"] == ""
    report = face("GET", f"/api/runs/{name}/report")
    assert report.status_code == 200
    assert "<script>alert" not in report.text
    assert "<script>.py" not in report.text
    hits = got(face, "/api/search", q="<SCRIPT>")["hits"]
    assert [(hit["kind"], hit["href"]) for hit in hits] == [("run", f"#/runs/{name}")]


@pytest.mark.parametrize("end", ["", "/readings", "/report"])
@pytest.mark.parametrize(
    "name",
    ["nothing", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a%00b", "%ff%fe", "%2F", "a%2Fb", "%252e", "%20"],
)
def test_unknown_runs_and_path_tricks_are_404(app, name, end):
    answer = asked(app, f"/api/runs/{quote(name, safe='%')}{end}")
    assert answer.status == 404, answer.body
    assert set(answer.json()) == {"error", "message"}


@pytest.mark.parametrize(
    "path",
    [
        "/api/plans/..%2fjobs",
        "/api/plans/..",
        "/api/plans/four%20stages.json",
        "/api/plans/.hidden",
        "/api/plans/folder",
        "/api/plans/notes",
        "/api/plans/%2Fetc%2Fpasswd",
        "/api/plans/nothing/at?time_s=3",
        "/api/clusters/nothing",
        "/api/clusters/hall",
        "/api/clusters/hall/train",
        "/api/clusters/hall%2Ftrain/jobs/three/why",
        "/api/runs/",
        "/api/runs//readings",
        "/api/runs/a/b",
        "/api/../api/overview",
        "/api//overview",
        "/api/overview/",
    ],
)
def test_what_is_not_there_is_404(app, path):
    assert asked(app, path).status == 404


def test_plans_are_listed_with_what_they_save_and_a_broken_one_with_what_is_wrong(face):
    broken, good = got(face, "/api/plans")["plans"]
    assert (broken["name"], broken["points"]) == ("broken", None)
    assert broken["trouble"]
    assert "/" not in broken["trouble"]
    assert (good["name"], good["stages"], good["microbatches"], good["gpus"]) == ("four stages", 3, 4, 6)
    assert "energy" in good["headline"]
    assert face("GET", "/api/plans/broken").status_code == 422


def test_a_plan_has_its_frontier_and_the_iteration_at_a_deadline(face):
    at = "/api/plans/four%20stages"
    plan = got(face, at)
    times = [point["time_s"] for point in plan["frontier"]]
    assert times == sorted(times)
    assert plan["fastest"] == plan["frontier"][0]
    assert (plan["low_mhz"], plan["high_mhz"]) == (990.0, 1410.0)
    shown = got(face, f"{at}/at", time_s=times[-1] + 1)
    assert shown["time_s"] == times[-1]
    assert len(shown["steps"]) == 3 * 4 * 2
    assert max(step["end_s"] for step in shown["steps"]) == pytest.approx(shown["time_s"])
    assert shown["steps"][0]["setting"] == {"sm_mhz": 990.0}
    assert shown["steps"][0]["words"] == "SM clock at most 990 MHz"
    assert "fastest takes" in face("GET", f"{at}/at", params={"time_s": 0.001}).json()["message"]
    assert got(face, f"{at}/at")["time_s"] == plan["as_fast"]["time_s"]


def test_a_plan_that_changes_is_read_anew(tmp_path):
    folder = PlanFolder(toys.plans(tmp_path / "plans"))
    file = tmp_path / "plans" / "four stages.json"
    broken, good = folder.listed()
    assert (broken.name, good.trouble) == ("broken", None)
    assert folder.plan("four stages") is folder.plan("four stages")
    file.write_text(file.read_text()[:-100])
    assert folder.listed()[1].trouble
    with pytest.raises(BadSpec):
        folder.plan("four stages")
    file.unlink()
    assert folder.names() == ["broken"]
    assert PlanFolder(tmp_path / "nowhere").listed() == []


def test_a_cluster_shows_power_cap_jobs_and_why(face):
    (brief,) = got(face, "/api/clusters")["clusters"]
    assert (brief["name"], brief["running"], brief["cap_w"]) == (toys.CLUSTER, 1, 3000.0)
    shown = got(face, "/api/clusters/hall%2Ftrain")
    assert {job["name"] for job in shown["jobs"]} == {"one", "two"}
    assert shown["power"]["cap_w"][-1] == 3000.0
    assert shown["budget"]["energy_j"] == 3.6e9
    assert got(face, "/api/clusters/hall%2Ftrain/jobs/one/why") == {
        "job": "one",
        "why": "one was resized (4 GPUs on n1, 1200 MHz): the cap fell",
    }


def test_search_finds_one_of_each_kind(face):
    face("PUT", "/api/series/one-more", JOB)
    hits = got(face, "/api/search", q="O")["hits"]
    assert {(hit["kind"], hit["name"]) for hit in hits} >= {
        ("series", "one-more"),
        ("plan", "four stages"),
        ("job", "one"),
        ("run", toys.TUNED),
    }
    assert next(hit["words"] for hit in hits if hit["name"] == toys.TUNED).startswith("python train.py · saved ")
    for nothing in (" ", "\0"):
        assert got(face, "/api/search", q=nothing) == {"hits": [], "runs": 0, "more": 0}


def test_a_search_says_how_much_more_there_is(api, own):
    for number in range(11):
        toys.plain_run(own, f"many-{number}")
        api("PUT", f"/api/series/many-{number}", JOB)
    found = got(api, "/api/search", q="MANY")
    assert [hit["kind"] for hit in found["hits"]] == ["run"] * 8 + ["series"] * 8
    assert (found["runs"], found["more"]) == (11, 3)


def test_live_gpus_are_shown_with_their_last_minutes(own):
    live = LiveGpus([PlayedGpu(constant(312.0), time=VirtualTime())], why="a toy", node="here")
    live.look()
    api = Api(make_app(own, Guard(local_users=True), live=live))
    found = got(api, "/api/gpus")
    (gpu,) = found["gpus"]
    assert (gpu["node"], found["why"]) == ("here", "a toy")
    assert gpu["history"]["power_w"] == [gpu["power_w"]]
    assert got(api, "/api/overview")["power_w"] == gpu["power_w"]
    assert [hit["kind"] for hit in got(api, "/api/search", q=gpu["uuid"][:8])["hits"]] == ["gpu"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_a_token(guarded, path):
    elsewhere = {"peer": "192.0.2.7", "host": "energy.example.org"}
    refused = asked(guarded, path, **elsewhere)
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    allowed = asked(guarded, path, **elsewhere, headers={"authorization": f"Bearer {SECRET}"})
    assert allowed.status == (404 if path.startswith("/api/plans/") else 200)


def test_a_request_without_a_token_changes_nothing(guarded, store):
    """Whatever the method, whatever the path: every row of the store stays as it is."""
    api = Api(guarded)
    api("GET", "/api/runs", headers={"Authorization": f"Bearer {SECRET}"})  # what is remembered of runs is there now

    def rows() -> list[object]:
        tables = ("events", "learnt", "snapshots", "readings", "summaries")
        return [store.tables.select(f"SELECT * FROM {table}", {}) for table in tables]

    before = rows()
    writing = ["/api/series/nightly", "/api/series/nightly/ask", "/api/series/nightly/trials/0/tell"]
    for path in [*PATHS, *writing, "/api/events"]:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                answer = api(method, path, ASK if method != "GET" else None, headers=headers)
                assert answer.status_code in (401, 405)
    assert rows() == before


def test_reading_writes_no_event(face, store):
    before = store.tables.select("SELECT stream, id FROM events", {})
    for path in PATHS:
        face("GET", path)
    assert store.tables.select("SELECT stream, id FROM events", {}) == before


def test_a_store_that_is_away_is_503_everywhere_and_plans_are_shown_all_the_same(tmp_path):
    file = tmp_path / "jobs.db"
    file.write_bytes(b"this is no database, and long enough to look like one" * 100)
    api = Api(make_app(SqliteStore(Database(file)), Guard(local_users=True), plans=toys.plans(tmp_path / "plans")))
    for path in ("/api/overview", "/api/runs", "/api/runs/x", "/api/clusters", "/api/clusters/x", "/api/search?q=x"):
        assert api("GET", path).status_code == 503, path
    assert len(got(api, "/api/plans")["plans"]) == 2


def test_a_price_that_is_none_is_refused():
    with pytest.raises(BadSpec, match="--kwh-price -1"):
        Worth(-1.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("/api/runs?firs=3", "there is no parameter 'firs' here; this one has first, most, query, state"),
        ("/api/runs?first=0&=null", "there is no parameter '' here"),
        ("/api/overview?x=1", "this one has none"),
    ],
)
def test_a_parameter_that_is_not_there_is_refused_by_its_name(api: Api, asked: str, said: str) -> None:
    answer = api("GET", asked)
    assert answer.status_code == 422
    assert said in answer.json()["message"]


def test_a_command_that_is_no_text_spoils_no_list(api, own):
    began = Began(toys.T0, "odd", {"command": ["python", "caf\udce9.py"], "tuned": False, "unix_s": 0.0})
    measured = {"energy_j": 1.0, "energy_error_j": 0.1, "duration_s": 1.0, "exit_code": 0}
    toys.write(own, "odd", [began, Finished(toys.T0 + 1.0, "ended", {"measured": measured})])
    assert got(api, "/api/runs")["runs"][0]["command"] == "python 'caf?.py'"
    assert got(api, "/api/overview")["recent"][0]["name"] == "odd"
    assert "caf?.py" in got(api, "/api/search", q="python")["hits"][0]["words"]
    assert got(api, "/api/runs/odd")["facts"]["command"] == ["python", "caf?.py"]


def test_of_very_many_decisions_the_latest_are_shown(api, own, monkeypatch):
    monkeypatch.setattr(face_runs, "MOST_DECISIONS", 2)
    toys.tuned(own)
    found = got(api, f"/api/runs/{toys.TUNED}")
    story = Story.of(event for _, event in own.journal(toys.TUNED).read())
    assert (len(found["decisions"]), found["more_decisions"] > 0) == (2, True)
    assert found["decisions"][-1]["until_s"] == pytest.approx(toys.T0 + story.span_s)
