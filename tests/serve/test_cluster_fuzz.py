"""The scheduler's API under fire: whatever is sent, it never breaks (5xx), and it answers as it says that it does."""

from dataclasses import replace

import pytest

from joulewise.serve import tokens
from joulewise.serve.cluster import make_cluster_app
from joulewise.serve.tokens import Guard, Scope
from tests.serve.cluster_toys import NOBODY, ToyDesk, ToySteering, toy_job
from tests.serve.test_fuzz import JUDGED, QUICKLY

schemathesis = pytest.importorskip("schemathesis")
SECRET, TOKEN = tokens.make(Scope.WRITE)
STEERING = ToySteering(idle_w=0.0, now=replace(NOBODY, jobs=(toy_job("night-7"),)))
APP = make_cluster_app(STEERING, ToyDesk(), Guard([TOKEN]))
# As a fixture: what is made up for every operation would take seconds of whoever collects the tests.
described = schemathesis.pytest.from_fixture("description")


@pytest.fixture(scope="module")
def description():
    return schemathesis.openapi.from_asgi("/openapi.json", APP)


# A body that is too long is refused by its length, whatever else is wrong with it.
IF_TOO_LONG = [check for check in JUDGED if check.__name__ != "negative_data_rejection"]


@pytest.mark.sampled
@described.parametrize()
@QUICKLY
def test_whatever_is_sent_it_answers_as_described(case):
    if isinstance(case.query.get("wait_s"), int | float):
        case.query["wait_s"] = min(case.query["wait_s"], 0.01)
    answer = case.call(headers={"Authorization": f"Bearer {SECRET}"})
    case.validate_response(answer, checks=IF_TOO_LONG if answer.status_code == 413 else JUDGED)
