from collections.abc import Iterator
from dataclasses import replace

import pytest

from joulewise.cluster.declared import Declared
from joulewise.cluster.engine import Order
from joulewise.core.errors import BadSpec, NotKept
from joulewise.serve import listen, tokens
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.cluster_client import ClusterClient
from joulewise.serve.tokens import Guard, Scope
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering, toy_job
from tests.serve.test_cluster import REPORT

SECRET, TOKEN = tokens.make(Scope.WRITE)
STEERING, DESK = ToySteering(), ToyDesk()


@pytest.fixture(scope="module")
def client() -> Iterator[ClusterClient]:
    """Of a server in a thread, behind a real socket."""
    app = make_cluster_app(STEERING, DESK, Guard([TOKEN]))
    with listen.bound("127.0.0.1", 0) as listening, listen.serving(app, listening):
        yield ClusterClient(listen.url_of(listening), SECRET)


def test_everything_that_can_be_asked_travels_there_and_back(client):
    order = Order(
        "night-7",
        ("python", "train.py", "--lr", "1e-3"),
        8,
        checkpoint="/scratch/night-7",
        least_gpus=2,
        most_gpus=16,
        work=10_000.0,
        brought={"unit": "step", "gpus": {"4": [{"time_s": 0.5, "energy_j": 900.0, "setting": {"sm_mhz": 1200}}]}},
        environ={"LANG": "C"},
        deadline_s=2e9,
    )
    assert client.submit(order).id == "1"
    ((_, heard),) = STEERING.said
    assert heard == Order(
        **{
            field: getattr(order, field) for field in Order.__dataclass_fields__ if field not in ("submitted_s", "user")
        },
        submitted_s=heard.submitted_s,
        user="token",  # it has no name
    )
    assert client.status().jobs[0] == client.job("night-7") == toy_job("night-7")
    assert client.why("night-7").says == "night-7 runs on 8 GPUs."
    client.cap(20_000.0, for_s=60.0)
    client.budget(1e9, 3600.0)
    assert STEERING.said[1:] == [("cap", 20_000.0, 60.0, None), ("budget", 1e9, 3600.0)]
    client.cancel("night-7")
    assert client.status() == replace(NOBODY, cap_w=20_000.0, budget_j=1e9)


def test_a_report_is_heard_in_full_and_answered(client):
    DESK.declare(2500.0)
    assert client.exchange(REPORT) == Declared("n1", 1, DESK.number, ceiling_w=2500.0)
    assert DESK.reports[-1] == REPORT


def test_what_is_refused_is_said_in_the_scheduler_s_words(client):
    with pytest.raises(BadSpec, match="below the 1000 W of an idle cluster"):
        client.cap(1.0)
    with pytest.raises(BadSpec, match="no job here is called 'nobody'"):
        client.why("nobody")
    with pytest.raises(BadSpec, match="Not Found"):
        client.cancel("../cap")


def test_where_nobody_answers_the_way_out_is_said():
    with listen.bound("127.0.0.1", 0) as listening:
        url = listen.url_of(listening)
    with pytest.raises(NotKept, match="is 'joulewise cluster up' running there"):
        ClusterClient(url).status()
