"""An agent and the scheduler, joined: looks in one thread, talk in two others.

The scheduler's answer may take as long as it likes (a long poll, a dead network), and looks must go on meanwhile: so
one thread always waits for a newer declaration, and another takes reports of changes there at once. What is heard wakes
the agent, which acts on it within milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from joulewise.cluster.declared import Declared, Report
from joulewise.core.errors import JoulewiseError
from joulewise.daemon.agent import Agent

LOOK_S: Final = 0.15
"""Between two looks: a prolog is over in less, and a step of the ceiling is met in less than a second."""
AGAIN_S: Final = 1.0
"""After the scheduler did not answer."""

Exchange = Callable[[Report, float], Declared]
"""Hands a report in and gives what is declared, waiting so many seconds at most for something newer than the report
names. Raises JoulewiseError or OSError where nobody answers."""


class Link:
    """Both threads of talk, from ``start`` to ``close``. They die with the process, whatever they wait for."""

    def __init__(self, exchange: Exchange, wake: threading.Event, period_s: float) -> None:
        self.period_s = period_s
        """How long a poll waits for news; may be changed at any time."""
        self.lost = ""
        """Why the scheduler cannot be heard; empty if it can."""
        self._exchange = exchange
        self._wake = wake
        self._lock = threading.Condition()
        self._latest: Report | None = None
        self._polled: Report | None = None
        self._urgent = False
        self._heard: deque[Declared] = deque()
        self._closed = False

    def start(self) -> None:
        """Begin to talk, once there is a report."""
        for act in (self._listen, self._tell):
            threading.Thread(target=act, name=f"agent{act.__name__}", daemon=True).start()

    def tell(self, report: Report, *, urgent: bool) -> None:
        """The newest report; ``urgent``: to be handed in now and not with the next poll."""
        with self._lock:
            self._latest = report
            self._urgent |= urgent
            self._lock.notify_all()

    def heard(self) -> list[Declared]:
        """What was declared since the last call, oldest first."""
        with self._lock:
            heard = list(self._heard)
            self._heard.clear()
            return heard

    def close(self) -> None:
        """Say no more."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _listen(self) -> None:
        while True:
            with self._lock:
                # For a report that knows of the last answer: with an older one the same answer would come at once.
                self._lock.wait_for(lambda: self._closed or self._latest is not self._polled, self.period_s)
                if self._closed:
                    return
                report = self._polled = self._latest
            if report is not None:
                self._talk(report, self.period_s)

    def _tell(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closed or self._urgent)
                if self._closed:
                    return
                report, self._urgent = self._latest, False
            assert report is not None
            self._talk(report, 0.0)

    def _talk(self, report: Report, wait_s: float) -> None:
        try:
            declared = self._exchange(report, wait_s)
        except (JoulewiseError, OSError) as error:
            self.lost = str(error)
            time.sleep(AGAIN_S)
            return
        with self._lock:
            self.lost = ""
            self._heard.append(declared)
        self._wake.set()


def run(agent: Agent, exchange: Exchange, stop: threading.Event, *, complain: Callable[[str], None]) -> None:
    """Look and talk until ``stop``, which a signal handler may set; then give everything back.

    ``complain`` hears of each trouble when it begins.
    """
    wake = threading.Event()
    link = Link(exchange, wake, agent.period_s)
    link.start()
    known: frozenset[str] = frozenset()
    try:
        while not stop.is_set():
            wake.clear()
            for declared in link.heard():
                agent.hear(declared)
            link.period_s = agent.period_s
            report = agent.look()
            if report is not None:
                link.tell(report, urgent=agent.changed)
                lost = (
                    {f"the scheduler does not answer, and what it declared last stays: {link.lost}"}
                    if link.lost
                    else ()
                )
                trouble = frozenset((*report.trouble, *lost))
                for each in sorted(trouble - known):
                    complain(each)
                known = trouble
            wake.wait(LOOK_S)
    finally:
        link.close()
        agent.close()
