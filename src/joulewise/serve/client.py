"""The other end of ``joulewise serve``: a recurring job's desk over HTTP, on the standard library alone.

``Client`` has the methods of ``tune.desk.Desk`` and the promise of ``tune.steady.Steady``: inside a training run
``progress``, ``limit`` and ``tell`` never raise, and ``trouble`` says what is wrong. What gets no answer is asked again
under the same key, so a server may be restarted, or answer too late, and no trial is handed out or counted twice.
"""

from __future__ import annotations

import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from joulewise.core.errors import BadSpec, NoReading
from joulewise.core.event import Asked
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.plain import built, plain
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.core.timeline import TimeSource
from joulewise.serve.messages import LONGEST_TEXT, MOST_NOTES, History, Limit, Names, Points, Series
from joulewise.serve.wire import TIMEOUT_S, Wire
from joulewise.tune.desk import LEASE_S, Standing
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord
from joulewise.tune.steady import Steady

PATIENCE_S = 60.0
"""For a server that is being restarted, where nothing runs meanwhile (an ask) or everything has run (a tell)."""
_PAGE = 1000


class Client(Steady):
    """The desk of one job on a server. BadSpec for an address or a token that cannot be one; nothing is sent yet."""

    def __init__(
        self,
        url: str,
        job: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        time: TimeSource | None = None,
    ) -> None:
        super().__init__(_HttpDesk(Wire(url, token, timeout_s=timeout_s, time=time), job, patience_s))


def jobs(url: str, token: str | None = None) -> list[str]:
    """The jobs that a server knows. BadSpec where it refuses to say, NotKept where it cannot."""
    return list(built(Names, Wire(url, token).call("GET", "/api/series")).series)


class _HttpDesk:
    """A ``SeriesDesk`` that sends everything on, and raises what comes back."""

    trouble: str | None = None

    def __init__(self, wire: Wire, job: str, patience_s: float) -> None:
        self._wire = wire
        self._job = job
        self._path = f"/api/series/{urllib.parse.quote(job, safe='')}"
        self._patience_s = patience_s

    @property
    def job(self) -> Recurring | None:
        return built(Series, self._get("", {})).job

    def register(self, job: Recurring) -> None:
        if job.name != self._job:
            raise BadSpec(f"this desk is of the job {self._job!r}, not of {job.name!r}")
        body = {name: value for name, value in plain(job).items() if name != "name"}
        self._wire.call("PUT", self._path, body, patience_s=self._patience_s)

    def ask(
        self, recurrence: str, platform: Platform, owner: str = "", key: str = "", lease_s: float = LEASE_S
    ) -> Asked:
        body = {
            "recurrence": recurrence,
            "platform": plain(platform),
            "owner": owner,
            "key": key or str(uuid.uuid4()),  # so that asking again for lack of an answer does not ask for another
            "lease_s": lease_s,
        }
        return built(Asked, self._wire.call("POST", f"{self._path}/ask", body, patience_s=self._patience_s))

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        body = {"profile": plain(tuple(profile))}
        return built(Limit, self._wire.call("POST", f"{self._path}/trials/{trial}/limit", body)).most_epochs

    def progress(
        self, trial: int, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = LEASE_S
    ) -> Standing:
        # Once: the job is running, and the next epoch says the same and more.
        body = {"epochs": epochs, "profile": plain(tuple(profile)), "lease_s": lease_s}
        return built(Standing, self._wire.call("POST", f"{self._path}/trials/{trial}/progress", body))

    def tell(
        self,
        trial: int,
        *,
        outcome: Outcome,
        epochs: int,
        duration_s: float,
        energy_j: float,
        profile: Sequence[EpochCost] = (),
        notes: Sequence[str] = (),
    ) -> None:
        body = {
            "outcome": outcome.value,
            "epochs": epochs,
            "duration_s": duration_s,
            "energy_j": energy_j,
            "profile": plain(tuple(profile)),
            "notes": [note[:LONGEST_TEXT] for note in notes[:MOST_NOTES]],  # rather a part of them than no result
        }
        self._wire.call("POST", f"{self._path}/trials/{trial}/tell", body, patience_s=self._patience_s)

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        return list(self._series(platform).beliefs)

    def summary(self, platform: Platform) -> SeriesSummary:
        found = self._series(platform).summary
        if found is None:
            raise NoReading(f"nothing is known about {self._job!r} on {platform.key}")
        return found

    def history(self) -> list[TrialRecord]:
        trials: list[TrialRecord] = []
        first: int | None = 0
        while first is not None:
            page = built(History, self._get("/history", {"first": first, "most": _PAGE}))
            trials += page.trials
            first = page.next
        return trials

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        found = built(Points, self._get("/frontier", plain(platform))).points
        if not found:
            raise NoReading(f"nothing has been measured of {self._job!r} on {platform.key}")
        return Frontier(
            Point(each.time_s, each.energy_j, (each.batch_size, each.setting), each.time_error_s, each.energy_error_j)
            for each in found
        )

    def _series(self, platform: Platform) -> Series:
        return built(Series, self._get("", plain(platform)))

    def _get(self, path: str, query: Mapping[str, Any]) -> Any:
        return self._wire.call("GET", f"{self._path}{path}?{urllib.parse.urlencode(query)}")
