import json

import pytest

from joulewise.core.event import Asked, Expired, Told
from joulewise.serve import tokens
from joulewise.serve.app import make_app
from joulewise.serve.problems import MOST_BYTES
from joulewise.serve.tokens import Guard, Scope
from joulewise.store import Database, SqliteStore
from tests.serve.conftest import ASK, COST, JOB, TELL, Api

AT = "/api/series/nightly"


@pytest.fixture
def registered(api) -> Api:
    assert api("PUT", AT, JOB).status_code == 200
    return api


def problem(response, status: int) -> str:
    """Its message; it must be a problem of that status."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "message"}
    assert body["message"]
    assert "\n" not in body["message"]
    return body["message"]


def test_a_whole_recurrence(api, store):
    assert api("GET", "/api/series").json() == {"series": []}
    job = api("PUT", AT, JOB).json()
    assert job == {"name": "nightly", **JOB, "objective": {"what": "zeus", "eta": 0.5}}
    assert api("GET", "/api/series").json() == {"series": ["nightly"]}

    asked = api("POST", f"{AT}/ask", ASK).json()
    assert (asked["trial"], asked["batch_size"], asked["purpose"]) == (0, 32, "default")
    limit = api("POST", f"{AT}/trials/0/limit", {"profile": [COST]}).json()
    standing = api("POST", f"{AT}/trials/0/progress", {"epochs": 1, "profile": [COST]}).json()
    assert standing == {"most_epochs": limit["most_epochs"], "go_on": True}
    assert api("POST", f"{AT}/trials/0/tell", TELL).status_code == 204

    found = api("GET", AT).json()
    assert found["platform"] == ASK["platform"]
    assert found["job"] == job
    assert [each["batch_size"] for each in found["beliefs"]] == JOB["batch_sizes"]
    assert found["summary"]["trials"] == 1
    page = api("GET", f"{AT}/history").json()
    assert (len(page["trials"]), page["next"]) == (1, None)
    (point,) = api("GET", f"{AT}/frontier").json()["points"]
    assert (point["batch_size"], point["setting"]) == (32, {"power_limit_w": 500.0})
    kinds = [type(event).__name__ for _, event in store.journal("series/nightly").read()]
    assert kinds == ["Registered", "Asked", "Progressed", "Told"]


def test_a_job_that_nobody_has_asked_for_is_shown_all_the_same(registered):
    found = registered("GET", AT).json()
    assert (found["platform"], found["summary"], found["beliefs"]) == (None, None, [])
    assert registered("GET", f"{AT}/history").json() == {"trials": [], "next": None}
    assert registered("GET", f"{AT}/frontier").json() == {"platform": None, "points": []}
    other = {"gpu_name": "another", "gpus": 2, "max_power_w": 600.0}
    assert registered("GET", AT, params=other).json()["platform"] == other
    assert registered("GET", f"{AT}/frontier", params=other).json() == {"platform": other, "points": []}


def test_history_comes_in_pages(registered):
    for number in range(5):
        registered("POST", f"{AT}/ask", {**ASK, "recurrence": f"r{number}"})
    page = registered("GET", f"{AT}/history", params={"first": 1, "most": 2}).json()
    assert [each["asked"]["trial"] for each in page["trials"]] == [1, 2]
    assert page["next"] == 3
    page = registered("GET", f"{AT}/history", params={"first": 3, "most": 2}).json()
    assert ([each["asked"]["trial"] for each in page["trials"]], page["next"]) == ([3, 4], None)
    assert registered("GET", f"{AT}/history", params={"first": 99}).json() == {"trials": [], "next": None}
    for most, trials in ((2, [3, 4]), (9, [0, 1, 2, 3, 4])):
        page = registered("GET", f"{AT}/history", params={"latest": True, "most": most}).json()
        assert ([each["asked"]["trial"] for each in page["trials"]], page["next"]) == (trials, None)


def test_a_job_known_otherwise_is_a_conflict_and_stays_as_it_is(registered):
    other = {**JOB, "batch_sizes": [16, 32]}
    assert registered("PUT", AT, other).json()["batch_sizes"] == [16, 32]  # as long as nothing has run
    assert registered("PUT", AT, JOB).status_code == 200
    registered("POST", f"{AT}/ask", ASK)
    assert "under way" in problem(registered("PUT", AT, other), 409)
    registered("POST", f"{AT}/trials/0/tell", TELL)
    problem(registered("PUT", AT, other), 409)
    problem(registered("PUT", AT, {**JOB, "objective": {"what": "energy", "max_slowdown": 0.1}}), 409)
    assert registered("GET", AT).json()["job"]["batch_sizes"] == JOB["batch_sizes"]


def test_batch_sizes_may_come_in_any_order(registered):
    assert registered("PUT", AT, {**JOB, "batch_sizes": [64, 8, 32, 16, 8]}).status_code == 200


def test_asking_again_under_one_key_gives_the_same_trial_and_telling_twice_counts_once(registered, store):
    first, again = (registered("POST", f"{AT}/ask", {**ASK, "key": "mine"}).json() for _ in range(2))
    assert first == again
    for _ in range(3):
        assert registered("POST", f"{AT}/trials/0/tell", TELL).status_code == 204
    events = [event for _, event in store.journal("series/nightly").read()]
    assert sum(isinstance(event, Told) for event in events) == 1
    assert sum(isinstance(event, Asked) for event in events) == 1


def test_a_late_report_is_taken_in_every_stage(registered, store):
    """Zeus, D3: a run that ends after the stage has changed is rejected with 400."""
    trials = [registered("POST", f"{AT}/ask", {**ASK, "recurrence": f"r{n}"}).json()["trial"] for n in range(4)]
    store.journal("series/nightly").append(Expired(0.0, trials[1], "overdue"))
    for outcome, trial in zip(("reached", "stopped_early", "failed", "out_of_memory"), trials, strict=True):
        for _ in range(2):
            assert registered("POST", f"{AT}/trials/{trial}/tell", {**TELL, "outcome": outcome}).status_code == 204
            assert registered("POST", f"{AT}/trials/{trial}/progress", {"epochs": 9}).status_code == 200


def test_what_is_not_there_is_404(api):
    for method, path, body in (
        ("GET", AT, None),
        ("GET", f"{AT}/history", None),
        ("GET", f"{AT}/frontier", None),
        ("POST", f"{AT}/ask", ASK),
        ("POST", f"{AT}/trials/0/tell", TELL),
    ):
        assert "register it first" in problem(api(method, path, body), 404)
    api("PUT", AT, JOB)
    for what, body in (("limit", {}), ("progress", {"epochs": 1}), ("tell", TELL)):
        assert "never handed out" in problem(api("POST", f"{AT}/trials/3/{what}", body), 404)
    problem(api("GET", "/api/nothing"), 404)
    problem(api("DELETE", AT), 405)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("", {**JOB, "default": 7}, "the default batch size 7 is none of 8, 16, 32, 64"),
        ("", {**JOB, "batch_sizes": []}, "batch_sizes"),
        ("", {**JOB, "batch_sizes": [0, 32]}, "batch_sizes.0"),
        ("", {**JOB, "batch_sizes": ["32"]}, "batch_sizes.0"),
        ("", {**JOB, "batch_sizes": [32.5]}, "batch_sizes.0"),
        ("", {**JOB, "max_epochs": 0}, "max_epochs"),
        ("", {**JOB, "max_epochs": True}, "max_epochs"),
        ("", {**JOB, "objective": {"what": "fame"}}, "objective"),
        ("", {**JOB, "objective": {"what": "zeus", "eta": 2}}, "eta"),
        ("", {**JOB, "colour": "red"}, "colour"),
        ("", [], "body"),
        ("", 7, "body"),
        ("/ask", {**ASK, "recurrence": ""}, "recurrence"),
        ("/ask", {**ASK, "owner": "x" * 201}, "owner"),
        ("/ask", {**ASK, "lease_s": 0}, "lease_s"),
        ("/ask", {**ASK, "lease_s": "600"}, "lease_s"),
        ("/ask", {**ASK, "platform": {"gpu_name": "x", "gpus": 0}}, "gpus"),
        ("/trials/0/tell", {**TELL, "outcome": "grand"}, "outcome"),
        ("/trials/0/tell", {**TELL, "energy_j": -1}, "energy_j"),
        ("/trials/0/tell", {**TELL, "energy_j": 1e300}, "energy_j"),
        ("/trials/0/tell", {**TELL, "epochs": -1}, "epochs"),
        ("/trials/0/tell", {**TELL, "profile": [{**COST, "duration_s": 0}]}, "duration_s"),
        ("/trials/0/tell", {**TELL, "profile": [{**COST, "setting": {"fan": 3}}]}, "fan"),
        ("/trials/0/tell", {**TELL, "profile": [COST] * 101}, "profile"),
        ("/trials/0/tell", {**TELL, "notes": ["x"] * 21}, "notes"),
        ("/trials/-1/tell", TELL, "trial"),
        ("/trials/x/tell", TELL, "trial"),
    ],
)
def test_bad_input_is_refused_by_name_and_nothing_is_written(registered, store, path, body, says):
    registered("POST", f"{AT}/ask", ASK)
    before = list(store.journal("series/nightly").read())
    method = "PUT" if not path else "POST"
    assert says in problem(registered(method, f"{AT}{path}", body), 422)
    assert list(store.journal("series/nightly").read()) == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"recurrence": NaN}',
        b'{"recurrence": "r", "platform": {"gpu_name": "x", "max_power_w": Infinity}}',
        b'{"recurrence": "r", "platform": {"gpu_name": "x", "max_power_w": 1e999}}',
        b'{"recurrence": "\\ud800", "platform": {"gpu_name": "x"}}',
        b'{"recurrence": "r", "platform": {"gpu_name": "x"}, "\\ud800": 1}',
        b"[" * 30_000,
    ],
)
def test_what_is_hardly_json_is_refused_in_order(registered, content):
    response = registered("POST", f"{AT}/ask", content=content, headers={"Content-Type": "application/json"})
    problem(response, 422)


def test_json_that_says_it_is_text_is_refused(registered):
    """A page in somebody's browser may send text to this machine without asking, but not JSON."""
    sent = {"content": json.dumps(ASK).encode(), "headers": {"Content-Type": "text/plain"}}
    problem(registered("POST", f"{AT}/ask", **sent), 422)


@pytest.mark.parametrize("name", ["a" * 101, ".hidden", "a b", "ä", "%2e%2e", "a%0A"])
def test_a_name_that_is_none_is_refused(api, name):
    problem(api("PUT", f"/api/series/{name}", JOB), 422)


def test_a_long_body_is_refused_without_being_read(registered):
    problem(registered("POST", f"{AT}/ask", content=b" " * (MOST_BYTES + 1)), 413)
    sent = b" " * (MOST_BYTES - 500) + json.dumps(ASK).encode()
    response = registered("POST", f"{AT}/ask", content=sent, headers={"Content-Type": "application/json"})
    assert response.status_code == 200


def test_text_is_kept_as_it_was_sent(registered, store):
    odd = "r\u0000 ü 🦊 \u202e"
    registered("POST", f"{AT}/ask", {**ASK, "recurrence": odd})
    (asked,) = [event for _, event in store.journal("series/nightly").read() if isinstance(event, Asked)]
    assert asked.recurrence == odd
    assert registered("GET", f"{AT}/history").json()["trials"][0]["asked"]["recurrence"] == odd


def test_a_store_that_cannot_be_read_is_503_and_health_tells_nobody_where_it_is(tmp_path, caplog):
    file = tmp_path / "jobs.db"
    file.write_bytes(b"this is no database, and long enough to look like one" * 100)
    store = SqliteStore(Database(file))
    api = Api(make_app(store, Guard(local_users=True)))
    for method, path, body in (("PUT", AT, JOB), ("POST", f"{AT}/ask", ASK), ("GET", "/api/series", None)):
        response = api(method, path, body)
        assert "damaged" in problem(response, 503)
        assert response.headers["Retry-After"] == "1"
    assert str(file) not in problem(api("GET", "/healthz"), 503)
    assert str(file) in caplog.text
    assert file.read_bytes().startswith(b"this is no database")


def test_two_apps_on_one_store_are_as_one(store, registered):
    other = Api(make_app(store, Guard(local_users=True)))
    trials = [(registered, other)[n % 2]("POST", f"{AT}/ask", {**ASK, "recurrence": f"r{n}"}).json() for n in range(6)]
    assert [each["trial"] for each in trials] == list(range(6))
    assert registered("POST", f"{AT}/trials/5/tell", TELL).status_code == 204
    assert other("GET", f"{AT}/history").json() == registered("GET", f"{AT}/history").json()


def test_with_tokens_each_may_do_what_its_scope_says(store):
    (reading, reader), (writing, writer) = (tokens.make(scope) for scope in (Scope.READ, Scope.WRITE))
    api = Api(make_app(store, Guard([reader, writer])), peer="10.0.0.7", host="server:8745")

    def bearing(secret: str) -> dict[str, dict[str, str]]:
        return {"headers": {"Authorization": f"Bearer {secret}"}}

    refused = api("PUT", AT, JOB)
    assert "token is needed" in problem(refused, 401)
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    problem(api("PUT", AT, JOB, **bearing("jw_x")), 401)
    problem(api("PUT", AT, JOB, **bearing(reading)), 403)
    assert api("PUT", AT, JOB, **bearing(writing)).status_code == 200
    for secret in (reading, writing):
        assert api("GET", AT, **bearing(secret)).status_code == 200
    problem(api("GET", AT), 401)
    problem(api("POST", f"{AT}/ask", ASK, **bearing(reading)), 403)
    assert api("GET", "/healthz").status_code == 200


def test_without_tokens_others_are_refused(store):
    app = make_app(store, Guard(local_users=True))
    for elsewhere in (Api(app, peer="10.0.0.7"), Api(app, host="rebound.example")):
        problem(elsewhere("PUT", AT, JOB), 401)
        problem(elsewhere("GET", "/api/series"), 401)
    assert Api(make_app(store, Guard(open_to_all=True)), peer="10.0.0.7")("PUT", AT, JOB).status_code == 200


def test_every_route_is_described_with_what_it_may_answer_and_every_body_has_an_example(api):
    described = api("GET", "/openapi.json").json()
    assert set(described["paths"]) == {
        "/healthz",
        "/metrics",
        "/api/overview",
        "/api/gpus",
        "/api/search",
        "/api/events",
        "/api/runs",
        "/api/runs/{name}",
        "/api/runs/{name}/readings",
        "/api/runs/{name}/report",
        "/api/plans",
        "/api/plans/{name}",
        "/api/plans/{name}/at",
        "/api/clusters",
        "/api/clusters/{name}",
        "/api/clusters/{name}/jobs/{job}/why",
        "/api/series",
        "/api/series/{job}",
        "/api/series/{job}/history",
        "/api/series/{job}/frontier",
        "/api/series/{job}/ask",
        "/api/series/{job}/trials/{trial}/limit",
        "/api/series/{job}/trials/{trial}/progress",
        "/api/series/{job}/trials/{trial}/tell",
    }
    # Anybody may ask for health; metrics take nothing that could be wrong, and leave out what the store cannot tell.
    special = {"/healthz": {"503"}, "/metrics": {"401", "403"}}
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            assert set(operation["responses"]) >= special.get(path, {"401", "403", "422", "503"})
    schemas = described["components"]["schemas"]
    for body in ("JobBody", "AskBody", "ProgressBody", "TellBody", "Asked", "Standing"):
        assert schemas[body]["examples"], body
    assert "HTTPValidationError" not in schemas


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_what_a_proxy_hands_on_is_no_local_user_s_whatever_name_it_asks_under(store, header):
    api = Api(make_app(store, Guard(local_users=True)))
    assert api("GET", "/api/runs").status_code == 200
    problem(api("GET", "/api/runs", headers={header: "203.0.113.9"}), 401)
