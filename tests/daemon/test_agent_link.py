import threading
from dataclasses import dataclass, field

from joulewise.cluster.declared import Declared, Report
from joulewise.core.errors import NotKept
from joulewise.daemon.agent_link import run
from tests.daemon.running import until


@dataclass
class Looker:
    """An agent that only counts."""

    period_s: float = 0.05
    changed: bool = False
    looks: int = 0
    heard: list[Declared] = field(default_factory=list)
    closed: bool = False

    def hear(self, declared):
        self.heard.append(declared)

    def look(self):
        self.looks += 1
        number = self.heard[-1].number if self.heard else 0
        return Report("n1", float(self.looks), 1, number, 0.0, 0.0, 0.0)

    def close(self):
        self.closed = True


class Running:
    """``run`` in a thread of its own, until the block ends."""

    def __init__(self, agent, exchange):
        self.said, self.stop = [], threading.Event()
        kept = {"complain": self.said.append}
        self.thread = threading.Thread(target=run, args=(agent, exchange, self.stop), kwargs=kept)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(10.0)
        assert not self.thread.is_alive()


def test_looks_go_on_while_the_scheduler_does_not_answer_and_what_it_says_then_is_heard():
    agent, answer = Looker(), threading.Event()

    def exchange(report, wait_s):
        answer.wait(20.0)
        return Declared("n1", 1, 3)

    with Running(agent, exchange):
        until(lambda: agent.looks > 5)
        assert agent.heard == []
        answer.set()
        until(lambda: agent.heard)
    assert agent.heard[0].number == 3
    assert agent.closed


def test_a_change_is_told_at_once_while_a_poll_is_under_way():
    agent, told = Looker(period_s=20.0), []

    def exchange(report, wait_s):
        told.append((wait_s, report))
        if wait_s:
            threading.Event().wait(2.0)
        return Declared("n1", 1, 1)

    with Running(agent, exchange):
        until(lambda: any(wait_s for wait_s, _ in told))
        agent.changed = True
        until(lambda: any(not wait_s for wait_s, _ in told))


def test_a_scheduler_that_is_gone_is_said_once_and_asked_again():
    agent, asked = Looker(), []

    def exchange(report, wait_s):
        asked.append(report)
        raise NotKept("http://head:8440 does not answer")

    with Running(agent, exchange) as running:
        until(lambda: len(asked) > 1)
    assert len(running.said) == 1
    assert "what it declared last stays" in running.said[0]


def test_an_agent_that_fails_gives_everything_back_before_it_ends():
    class Broken(Looker):
        def look(self):
            raise RuntimeError("a fault of ours")

    agent = Broken()
    failed = []

    def act():
        try:
            run(agent, lambda *_: Declared("n1", 1, 1), threading.Event(), complain=failed.append)
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(10.0)
    assert agent.closed
    assert failed == ["a fault of ours"]
