"""Two servers on one PostgreSQL, eight clients, and a ``kill -9`` for each in turn: nothing is lost or doubled."""

import time
from collections import Counter
from pathlib import Path

import pytest

from joulewise.core.event import Asked, Event, Expired, Progressed, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import Recurring
from joulewise.store import open_store
from joulewise.tune.desk import Desk
from joulewise.tune.series import SeriesTuner
from tests.preloaded import Command
from tests.serve.serving import Serving
from tests.tiers import examples

ROOT = Path(__file__).parents[2]
CLIENT = "tests.serve.clients.recurrences"
RECURRENCES, CLIENTS = examples(500, share=0.4), 8
JOB = Recurring("nightly", (8, 16, 32, 64, 128, 256), 256, 30)
DEADLINE_S = 400.0  # for a machine that is busy with other things; it takes some fifteen seconds


class Playing:
    """One client process, started again after it was killed."""

    def __init__(self, url: str, number: int, folder: Path) -> None:
        shares = [RECURRENCES // CLIENTS + (each < RECURRENCES % CLIENTS) for each in range(CLIENTS)]
        self.name, self.share = f"client{number}", shares[number]
        self._log = folder / f"{self.name}.log"
        self._words = [url, JOB.name, self.name, str(sum(shares[:number])), str(shares[number]), str(folder)]
        self.start_again()

    def start_again(self) -> None:
        self.process = Command(*self._words, module=CLIENT, cwd=ROOT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self, word: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == word]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.xdist_group("postgresql")
def test_nothing_is_lost_doubled_or_stuck_whoever_is_killed(postgresql, database_url, tmp_path, scenario):
    shown = scenario(
        "R24",
        f"2 servers, {CLIENTS} clients, one job: each killed, PostgreSQL crashed",
        criterion="no trial lost or doubled; unique (job, attempt)",
    )
    servers = [Serving(database_url, tmp_path) for _ in range(2)]
    store = open_store(database_url)
    desk = Desk.of(store, JOB.name)
    desk.register(JOB)
    clients = [Playing(servers[number % 2].url, number, tmp_path) for number in range(CLIENTS)]
    # Each when so many recurrences are done, its own for a client, so that it is in the middle of its work.
    victims = {client: (client, client.share * (number + 2) // (CLIENTS + 6)) for number, client in enumerate(clients)}
    victims |= {server: (None, RECURRENCES * (number + 1) // 3) for number, server in enumerate(servers)}
    victims |= {postgresql: (None, RECURRENCES // 2)}
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while any(client.process.poll() is None for client in clients):
            assert time.monotonic() < deadline_s, [client.said("done")[-1:] for client in clients]
            done = {client: len(client.said("done")) for client in clients}
            done[None] = sum(done.values())
            due = [victim for victim, (whose, when) in victims.items() if done[whose] >= when]
            for victim in due:
                del victims[victim]
                if victim is postgresql:
                    assert victim.run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'joulewise'") > [
                        (0,)
                    ]
                    victim.crash()
                    victim.start()
                    continue
                assert victim.process.poll() is None
                victim.kill()
                victim.start_again()
            time.sleep(0.02)
        assert [client.process.returncode for client in clients] == [0] * CLIENTS
        assert not victims
        time.sleep(max(0.0, _last_expiry_s(desk) - time.time()))
        desk.expire()
    finally:
        for each in (*clients, *servers):
            each.kill()
        events = list(desk.journal.read())
        store.close()
    _judge(events, clients)
    trials = sum(isinstance(event, Asked) for _, event in events)
    shown.saw(f"{trials} trials of {RECURRENCES} recurrences, each once; {CLIENTS + len(servers) + 1} killed")


def _last_expiry_s(desk: Desk) -> float:
    """When the last lease that is open ends."""
    events = [event for _, event in desk.journal.read()]
    ended = {event.trial for event in events if isinstance(event, Told | Expired)}
    leased = [event for event in events if isinstance(event, Asked | Progressed) and event.trial not in ended]
    return max((event.expires_s for event in leased), default=0.0) + 0.1


def _judge(events: list[tuple[int, Event]], clients: list[Playing]) -> None:
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    asked = {event.trial: event for _, event in events if isinstance(event, Asked)}
    told = {event.trial: event for _, event in events if isinstance(event, Told)}
    expired = {event.trial for _, event in events if isinstance(event, Expired)}

    # No trial was handed out twice: not in the journal, and not to two who asked.
    assert sorted(event.trial for _, event in events if isinstance(event, Asked)) == list(range(len(asked)))
    given = [(int(trial), key) for client in clients for trial, key in client.said("got")]
    assert len({trial for trial, _ in given}) == len(given)
    assert all(asked[trial].key == key for trial, key in given)
    # None was counted twice, and nothing that a client was told was taken is missing.
    assert max(Counter(event.trial for _, event in events if isinstance(event, Told)).values()) == 1
    assert {int(trial) for client in clients for (trial,) in client.said("told")} <= set(told)
    # None is stuck.
    assert set(asked) == set(told) | expired
    # No recurrence was lost.
    reached = {asked[trial].recurrence for trial, each in told.items() if each.outcome is Outcome.REACHED}
    assert reached == {f"r{number}" for number in range(RECURRENCES)}
    # And what was killed was killed in the middle of something.
    assert expired
    tuner = SeriesTuner()
    for _, event in events:
        tuner.fold(event)
    assert len(tuner.history()) == len(asked)
