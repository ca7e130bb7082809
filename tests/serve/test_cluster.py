import asyncio
import json

import httpx
import pytest

from joulewise.cluster.declared import Declared, GpuReport, JobEnergy, Report, ShareReport
from joulewise.cluster.scheduler_status import JobStatus
from joulewise.core.knob import Setting
from joulewise.core.plain import built, plain
from joulewise.serve import tokens
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.problems import MOST_BYTES
from joulewise.serve.tokens import Guard, Scope
from tests.serve.cluster_toys import ToyDesk, ToySteering, toy_job
from tests.serve.conftest import Api
from tests.serve.test_app import problem

AT = "/api/cluster"
ORDER = {"name": "night-7", "command": ["python", "train.py"], "gpus": 8, "checkpoint": "/scratch/night-7"}
REPORT = Report(
    "n1",
    1.8e9,
    1,
    0,
    2100.0,
    9000.0,
    1000.0,
    gpus=(GpuReport("GPU-1", None, 120.0, Setting(sm_mhz=1200), "41"),),
    shares=(ShareReport("41", 3, "refused", "clocks cannot be set"),),
    jobs=(JobEnergy("41", 7000.0, 1000.0, 30.0),),
    ceiling_w=3000.0,
    trouble=("a GPU is lost",),
)


@pytest.fixture
def steering() -> ToySteering:
    return ToySteering()


@pytest.fixture
def desk() -> ToyDesk:
    return ToyDesk()


@pytest.fixture
def api(steering, desk) -> Api:
    return Api(make_cluster_app(steering, desk, Guard(local_users=True), now=lambda: 1.8e9))


def test_a_job_is_handed_in_shown_explained_and_cancelled(api, steering):
    assert api("POST", f"{AT}/jobs", ORDER).json() == {"name": "night-7", "id": "1"}
    ((_, order),) = steering.said
    assert (order.command, order.gpus, order.elastic, order.submitted_s) == (("python", "train.py"), 8, True, 1.8e9)
    assert [job["name"] for job in api("GET", AT).json()["jobs"]] == ["night-7"]
    assert built(JobStatus, api("GET", f"{AT}/jobs/night-7").json()) == toy_job("night-7")
    why = api("GET", f"{AT}/jobs/night-7/why").json()
    assert why == {"job": "night-7", "time_s": 1.8e9, "says": "night-7 runs on 8 GPUs."}
    assert "is there already" in problem(api("POST", f"{AT}/jobs", ORDER), 409)
    assert api("DELETE", f"{AT}/jobs/night-7").status_code == 204
    assert api("GET", AT).json()["jobs"] == []


def test_what_is_not_there_is_404(api):
    for method, path in (("GET", ""), ("GET", "/why"), ("DELETE", "")):
        assert "no job here is called 'nobody'" in problem(api(method, f"{AT}/jobs/nobody{path}"), 404)


def test_a_cap_with_an_end_and_a_ramp_and_a_budget_are_passed_on(api, steering):
    assert api("PUT", f"{AT}/cap", {"power_w": 20000, "for_s": 10800, "ramp_w_per_s": 16.5}).status_code == 204
    assert api("PUT", f"{AT}/cap", {"power_w": None}).status_code == 204
    assert api("PUT", f"{AT}/budget", {"energy_j": 1.8e9}).status_code == 204
    assert steering.said == [("cap", 20000.0, 10800.0, 16.5), ("cap", None, None, None), ("budget", 1.8e9, 86400.0)]


def test_a_cap_that_is_refused_leaves_the_old_one(api, steering):
    api("PUT", f"{AT}/cap", {"power_w": 20000})
    assert "below the 1000 W of an idle cluster" in problem(api("PUT", f"{AT}/cap", {"power_w": 10}), 422)
    assert steering.now.cap_w == 20000.0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/cap", {}),
        ("PUT", "/cap", {"power_w": 0}),
        ("PUT", "/cap", {"power_w": "20kW"}),
        ("PUT", "/cap", {"power_w": 1e300}),
        ("PUT", "/cap", {"power_w": 20000, "until": 3}),
        ("PUT", "/budget", {"energy_j": -1}),
        ("PUT", "/budget", {"energy_j": 1, "period_s": 0}),
        ("POST", "/jobs", {**ORDER, "gpus": 0}),
        ("POST", "/jobs", {**ORDER, "command": []}),
        ("POST", "/jobs", {**ORDER, "name": "../etc"}),
        ("POST", "/jobs", {**ORDER, "least_gpus": 8, "most_gpus": 4}),
        ("POST", "/jobs", {**ORDER, "work": 0}),
        ("POST", "/jobs", {**ORDER, "name": "a@7"}),
        ("POST", "/jobs", {**ORDER, "checkpoint": "a\0b"}),
        ("POST", "/jobs", {**ORDER, "environ": {"a b": "x"}}),
        ("POST", "/jobs", {**ORDER, "brought": {"gpus": [[[[[[[[[[1]]]]]]]]]]}}),
        ("POST", "/nodes/n1", {**plain(REPORT), "node": "n2"}),
        ("POST", "/nodes/n1", {**plain(REPORT), "node_j": -1}),
        ("POST", "/nodes/n1", {**plain(REPORT), "gpus": [{}]}),
        ("POST", "/nodes/n1?wait_s=1e9", plain(REPORT)),
        ("POST", "/nodes/n1?wait_s=nan", plain(REPORT)),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_happens(api, steering, desk, method, path, body):
    problem(api(method, AT + path, body), 422)
    assert (steering.said, desk.reports) == ([], [])


def test_a_body_that_is_too_long_is_not_read(api, desk):
    body = json.dumps({**plain(REPORT), "trouble": ["x" * 2000] * (MOST_BYTES // 1000)})
    problem(api("POST", f"{AT}/nodes/n1", content=body, headers={"Content-Type": "application/json"}), 413)
    assert desk.reports == []


def test_a_report_arrives_as_it_was_sent_and_is_answered_with_what_shall_be_so(api, desk):
    desk.declare(2500.0)
    answer = api("POST", f"{AT}/nodes/n1", plain(REPORT))
    assert desk.reports == [REPORT]
    assert built(Declared, answer.json()) == Declared("n1", 1, 1, ceiling_w=2500.0)


def test_a_hundred_agents_wait_at_once_and_all_hear_of_a_cut_when_it_comes(steering):
    """More than there are threads: were each to hold one, most of them would time out here."""
    desk = ToyDesk()
    app = make_cluster_app(steering, desk, Guard(local_users=True))

    async def all_wait() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 4242))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            asked = [
                asyncio.create_task(
                    client.post(
                        f"{AT}/nodes/n{node}", params={"wait_s": 30}, json={**plain(REPORT), "node": f"n{node}"}
                    )
                )
                for node in range(100)
            ]
            while len(desk.reports) < len(asked):
                await asyncio.sleep(0.01)
            assert not any(task.done() for task in asked)
            # Meanwhile an operator is served.
            assert (await client.get(AT)).status_code == 200
            desk.declare(1234.0)
            return await asyncio.wait_for(asyncio.gather(*asked), 25)

    answers = [built(Declared, answer.json()) for answer in asyncio.run(all_wait())]
    assert [each.node for each in answers] == [f"n{node}" for node in range(100)]
    assert {each.ceiling_w for each in answers} == {1234.0}


def test_an_agent_for_which_there_is_nothing_new_is_answered_after_the_time_that_it_named(api, desk):
    answer = api("POST", f"{AT}/nodes/n1?wait_s=0.2", plain(REPORT))
    assert built(Declared, answer.json()).number == 0
    assert len(desk.reports) == 1


def test_a_node_s_token_reports_and_can_neither_see_nor_change_the_rest(steering, desk):
    made = {scope: tokens.make(scope, "n1") for scope in Scope}
    api = Api(make_cluster_app(steering, desk, Guard([kept for _, kept in made.values()])), peer="10.0.0.7")
    bearing = {scope: {"Authorization": f"Bearer {secret}"} for scope, (secret, _) in made.items()}
    asked = (
        ("GET", AT, None),
        ("PUT", f"{AT}/cap", {"power_w": 5000}),
        ("POST", f"{AT}/jobs", ORDER),
        ("POST", f"{AT}/nodes/n1", plain(REPORT)),
    )
    answers = {scope: [api(*each, headers=headers).status_code for each in asked] for scope, headers in bearing.items()}
    assert answers == {
        Scope.AGENT: [403, 403, 403, 200],
        Scope.READ: [200, 403, 403, 403],
        Scope.WRITE: [200, 204, 201, 200],
    }
    assert "is a node agent's and may only report" in problem(api("GET", AT, headers=bearing[Scope.AGENT]), 403)
    assert "a token is needed" in problem(api("GET", AT), 401)


def test_a_node_s_token_does_not_report_for_another_node(steering, desk):
    secret, kept = tokens.make(Scope.AGENT, "n1")
    api = Api(make_cluster_app(steering, desk, Guard([kept])), peer="10.0.0.7")
    bearing = {"Authorization": f"Bearer {secret}"}
    other = {**plain(REPORT), "node": "n2"}
    assert "is for node 'n1', and 'n2' reports" in problem(api("POST", f"{AT}/nodes/n2", other, headers=bearing), 403)
    problem(api("POST", f"{AT}/nodes/n1", other, headers=bearing), 422)
    assert desk.reports == []
    assert api("POST", f"{AT}/nodes/n1", plain(REPORT), headers=bearing).status_code == 200


def test_a_job_is_whose_token_handed_it_in_whatever_its_order_says(steering, desk):
    secret, token = tokens.make(Scope.WRITE, "ci")
    api = Api(make_cluster_app(steering, desk, Guard([token])))
    order = {"name": "night-7", "command": ["true"], "gpus": 1, "tenant": "alice"}
    assert api("POST", f"{AT}/jobs", order, headers={"Authorization": f"Bearer {secret}"}).status_code == 201
    [(_, handed_in)] = steering.said
    assert handed_in.user == "token ci"


def test_without_tokens_nothing_is_served_over_tcp_this_machine_s_users_neither(steering, desk):
    api = Api(make_cluster_app(steering, desk, Guard(users=True)))
    problem(api("POST", f"{AT}/nodes/n1", plain(REPORT)), 401)
    problem(api("PUT", f"{AT}/cap", {"power_w": 2000.0}), 401)
    problem(api("GET", AT), 401)
    assert (desk.reports, steering.said) == ([], [])


def test_of_one_node_only_a_few_reports_wait_at_once_and_the_oldest_of_more_is_answered(steering):
    """However many one agent's token is used for, nobody else's news are late for it."""
    desk = ToyDesk()
    app = make_cluster_app(steering, desk, Guard(None, local_users=True))

    async def crowded() -> int:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 4242))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:

            def report(node: str) -> asyncio.Task[httpx.Response]:
                body = {**plain(REPORT), "node": node}
                return asyncio.create_task(client.post(f"{AT}/nodes/{node}", params={"wait_s": 30}, json=body))

            other = report("n2")
            crowd = [report("n1") for _ in range(20)]
            answered, left = await asyncio.wait(crowd, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            while len(left) > 4:
                done, left = await asyncio.wait(left, timeout=20, return_when=asyncio.FIRST_COMPLETED)
                assert done
                answered |= done
            assert {(await each).status_code for each in answered} == {200}
            assert not other.done()
            waiting = len(left)
            desk.declare(1234.0)
            await asyncio.gather(other, *left)
            return waiting

    assert asyncio.run(crowded()) == 4
