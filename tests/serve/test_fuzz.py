"""The whole API under fire: whatever is sent, it never breaks (5xx), and it answers as it says that it does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase

from joulewise.core.timeline import VirtualTime
from joulewise.plan import plan_files
from joulewise.serve import tokens
from joulewise.serve.app import make_app
from joulewise.serve.live import LiveGpus
from joulewise.serve.tokens import Guard, Scope
from joulewise.store import Database, MemoryJournal, SqliteStore
from tests.monitor.played import PlayedGpu, constant
from tests.plan.made_up import plan
from tests.serve import face_toys as toys
from tests.serve.conftest import ASK, COST, JOB, TELL, Api
from tests.tiers import examples

schemathesis = pytest.importorskip("schemathesis")
CHECKS = pytest.importorskip("schemathesis.checks")
CHECKS.load_all_checks()
# Not among them: that all that is valid by the description is taken. A default that is no batch size of the job, or a
# trial that nobody asked for, is refused with reason.
JUDGED = [
    CHECKS.CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    )
]
# The same cases every time, and no search for a smaller one that fails: that can take minutes here.
QUICKLY = hypothesis.settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SECRET, TOKEN = tokens.make(Scope.WRITE)
BEARING = {"Authorization": f"Bearer {SECRET}"}


class MemoryStore:
    """Journals that end with their process, without anything beside them."""

    name = "memory"
    tables = None

    def __init__(self) -> None:
        self._journals: dict[str, MemoryJournal] = {}

    def journal(self, stream: str) -> MemoryJournal:
        return self._journals.setdefault(stream, MemoryJournal())

    def streams(self, prefix: str = "") -> list[str]:
        return sorted(stream for stream in self._journals if stream.startswith(prefix))

    def snapshots(self) -> None:
        return None

    def readings(self) -> None:
        return None

    def close(self) -> None:
        pass


HOME = Path(mkdtemp())
STORE = SqliteStore(Database(HOME / "jobs.db"))
LIVE = LiveGpus([PlayedGpu(constant(312.0), time=VirtualTime())])
APP = make_app(STORE, Guard([TOKEN]), live=LIVE, plans=HOME)
# As a fixture: what is made up for every operation would take seconds of whoever collects the tests.
described = schemathesis.pytest.from_fixture("description")


@pytest.fixture(scope="module")
def description():
    return schemathesis.openapi.from_asgi("/openapi.json", APP)


@pytest.fixture(scope="module", autouse=True)
def _something_of_everything() -> Iterator[None]:
    """Under the names and the number that the description gives as examples, so that the fuzzer finds them."""
    toys.tuned(STORE, "example")
    toys.readings(STORE, "example")
    toys.plain_run(STORE)
    toys.write(STORE, "cluster/example", toys.cluster_events("example"))
    plan_files.write(plan(), HOME / "example.json")
    LIVE.look()
    APP.state.closing()  # a stream that has no end would be waited for
    api = Api(APP)
    assert api("PUT", "/api/series/nightly", JOB, headers=BEARING).status_code == 200
    for number in range(5):
        api("POST", "/api/series/nightly/ask", {**ASK, "recurrence": f"r{number}"}, headers=BEARING)
    api("POST", "/api/series/nightly/trials/1/tell", TELL, headers=BEARING)
    yield
    STORE.close()
    shutil.rmtree(HOME)


@pytest.mark.sampled
@described.parametrize()
@QUICKLY
def test_whatever_is_sent_it_answers_as_described(case):
    case.call_and_validate(headers=BEARING, checks=JUDGED)


def test_the_fuzzer_has_something_to_find():
    """Else every answer above would be 404."""
    api = Api(APP)
    for path, operations in APP.openapi()["paths"].items():
        if "get" in operations:
            named = path.replace("{name}", "example").replace("{job}/why", "example/why").replace("{job}", "nightly")
            assert api("GET", named, headers=BEARING).status_code == 200, named


PLATFORMS = [{"gpu_name": name, "max_power_w": power_w} for name in ("x", "y") for power_w in (0.0, 1.0, 1e9)]
NUMBERS = hypothesis.strategies.floats(0, 1e9) | hypothesis.strategies.sampled_from([0.0, 1e-6, 1e9])
EPOCHS = hypothesis.strategies.integers(0, 12) | hypothesis.strategies.just(1_000_000)


@pytest.mark.sampled
@hypothesis.settings(QUICKLY, max_examples=examples(25))
@hypothesis.given(
    outcomes=hypothesis.strategies.lists(
        hypothesis.strategies.tuples(
            hypothesis.strategies.sampled_from(["reached", "stopped_early", "failed", "out_of_memory", "preempted"]),
            EPOCHS,
            NUMBERS,
            NUMBERS,
            hypothesis.strategies.lists(hypothesis.strategies.tuples(NUMBERS, NUMBERS), max_size=3),
            hypothesis.strategies.sampled_from(PLATFORMS),
        ),
        max_size=12,
    )
)
def test_no_history_that_can_be_told_breaks_what_follows(outcomes):
    """A result is taken for good: if the tuner could not live with it, the job would be dead for ever."""
    api = Api(make_app(MemoryStore(), Guard([TOKEN])))
    at = "/api/series/nightly"
    api("PUT", at, JOB, headers=BEARING)
    for number, (outcome, epochs, duration_s, energy_j, costs, platform) in enumerate(outcomes):
        body = {"recurrence": f"r{number // 2}", "platform": platform}
        asked = api("POST", f"{at}/ask", body, headers=BEARING)
        if not platform["max_power_w"]:  # Zeus's cost cannot be told there, so nothing may be run
            assert asked.status_code == 422
            continue
        if "no batch size of 'nightly' can be run" in asked.text:  # all of them ran out of memory
            continue
        assert asked.status_code == 200, asked.text
        profile = [{**COST, "duration_s": max(1e-6, cost_s), "energy_j": cost_j} for cost_s, cost_j in costs]
        told = {"outcome": outcome, "epochs": epochs, "duration_s": duration_s, "energy_j": energy_j}
        trial = f"{at}/trials/{asked.json()['trial']}"
        answers = [
            api("POST", f"{trial}/progress", {"epochs": epochs, "profile": profile}, headers=BEARING),
            api("POST", f"{trial}/tell", {**told, "profile": profile}, headers=BEARING),
        ]
        possible = epochs <= JOB["max_epochs"] and (epochs > 0 or outcome != "reached")
        assert [each.status_code for each in answers] == [200, 204 if possible else 422]
    for view in ("", "/history", "/frontier"):
        found = api("GET", f"{at}{view}", headers=BEARING)
        assert found.status_code == 200, found.text
