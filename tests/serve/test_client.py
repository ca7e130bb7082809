import pytest

from joulewise.core.errors import BadSpec, NoReading, NotKept
from joulewise.core.event import Asked, Told
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.core.timeline import VirtualTime
from joulewise.serve.client import Client, jobs
from joulewise.tune.desk import Desk
from tests.serve.serving import Serving

JOB = Recurring("nightly", (8, 16, 32, 64), 32, 10, "val_acc>=0.84", {"what": "energy", "max_slowdown": 0.1})
PLATFORM = Platform("NVIDIA H200", 2, 1400.0)
COST = EpochCost(10.0, 5000.0, Setting(power_limit_w=500.0), 0.1, 20.0)
TOLD = {"outcome": Outcome.REACHED, "epochs": 4, "duration_s": 40.0, "energy_j": 20000.0, "profile": [COST]}


@pytest.fixture
def serving(tmp_path):
    made = Serving(str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.kill()


def test_a_client_is_as_a_desk(serving, store):
    """Everything that is asked and told here arrives there, and every view comes back as it is there."""
    client, desk = Client(serving.url, "nightly"), Desk.of(store, "nightly")
    client.register(JOB)
    client.register(JOB)
    assert jobs(serving.url) == ["nightly"]
    assert desk.job == JOB
    with pytest.raises(NoReading):
        client.frontier(PLATFORM)
    first = client.ask("r0", PLATFORM, "me", "key")
    with pytest.raises(BadSpec):
        Client(serving.url, "nightly").register(Recurring("nightly", (8, 16), 8, 10))
    assert client.ask("r0", PLATFORM, "me", "key") == first
    assert client.limit(first.trial, [COST]) == desk.limit(first.trial, [COST])
    assert client.progress(first.trial, 1, [COST]) == desk.progress(first.trial, 1, [COST])
    for _ in range(2):
        client.tell(first.trial, **TOLD, notes=["a", "b" * 1000, *"c" * 30])
    client.tell(client.ask("r1", PLATFORM).trial, **{**TOLD, "outcome": Outcome.STOPPED_EARLY, "epochs": 2})
    assert client.trouble is None
    events = [event for _, event in store.journal("series/nightly").read()]
    assert next(event for event in events if isinstance(event, Asked)) == first
    assert [event.trial for event in events if isinstance(event, Told)] == [0, 1]
    assert client.history() == desk.history()
    assert client.beliefs(PLATFORM) == desk.beliefs(PLATFORM)
    assert client.summary(PLATFORM) == desk.summary(PLATFORM)
    assert client.frontier(PLATFORM) == desk.frontier(PLATFORM)
    assert "Traceback" not in serving.end()


def test_every_ask_without_a_key_is_another_trial(serving):
    client = Client(serving.url, "nightly")
    client.register(JOB)
    assert [client.ask("r0", PLATFORM).trial for _ in range(3)] == [0, 1, 2]


def test_a_server_that_is_restarted_is_waited_for(serving):
    client = Client(serving.url, "nightly")
    client.register(JOB)
    trial = client.ask("r0", PLATFORM).trial
    serving.kill()
    serving.start()
    client.tell(trial, **TOLD)
    assert client.trouble is None
    assert client.history()[0].told is not None


def test_inside_training_nothing_is_raised_and_a_result_is_kept_until_it_can_be_handed_in(serving):
    client = Client(serving.url, "nightly", time=VirtualTime())
    client.register(JOB)
    trial = client.ask("r0", PLATFORM).trial
    most = client.progress(trial, 1, [COST]).most_epochs
    serving.kill()
    assert client.progress(trial, 2, [COST]).go_on
    assert "does not answer" in client.trouble
    standing = client.progress(trial, most, [COST])
    assert (standing.most_epochs, standing.go_on) == (most, False)
    assert client.limit(trial, [COST]) == most
    client.tell(trial, **TOLD)
    assert "1 results wait" in client.trouble
    with pytest.raises(NotKept, match="is 'joulewise serve' running there"):
        client.ask("r1", PLATFORM)
    serving.start()
    assert client.flush()
    assert client.trouble is None
    assert client.history()[trial].told is not None


def test_a_trial_that_the_server_does_not_know_is_trouble_and_no_more(serving):
    client = Client(serving.url, "nightly")
    client.register(JOB)
    assert client.progress(99, 1).most_epochs == JOB.max_epochs
    client.tell(99, **TOLD)
    assert "never handed out" in client.trouble
    assert client.flush()
    assert client.ask("r0", PLATFORM).trial == 0


def test_a_job_that_is_not_there_and_a_token_that_is_wrong_are_said(serving):
    with pytest.raises(BadSpec, match="register it first"):
        Client(serving.url, "nightly").ask("r0", PLATFORM)
    with pytest.raises(BadSpec, match="of the job 'nightly', not of 'weekly'"):
        Client(serving.url, "nightly").register(Recurring("weekly", (8,), 8, 1))
