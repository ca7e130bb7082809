"""Runs are folded while nobody asks, and what is missing is said."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from joulewise.core.errors import NotKept
from joulewise.report.summaries import Summaries
from joulewise.serve.app import make_app
from joulewise.serve.face_folding import folding
from joulewise.serve.tokens import Guard
from joulewise.store import Database, SqliteStore
from tests.serve import face_toys as toys
from tests.serve.conftest import Api
from tests.serve.serving import Serving

FOLDED = "SELECT COUNT(*) FROM summaries WHERE version > 0"


def folded(store: SqliteStore) -> int:
    return store.tables.select(FOLDED, {})[0][0]


async def so(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not holds():
            await asyncio.sleep(0.01)


def test_runs_are_folded_though_nobody_asks_and_so_are_those_that_come_later(store: SqliteStore) -> None:
    toys.tuned(store)
    toys.plain_run(store)

    async def served() -> None:
        async with folding(Summaries(store, fresh_s=0.0), every_s=0.02, rest_s=0.01) as task:
            await so(lambda: folded(store) == 2)
            toys.tuned(store, "later")
            await so(lambda: folded(store) == 3)
        assert task.cancelled()

    asyncio.run(served())


def test_the_server_does_so_while_it_is_served(store: SqliteStore) -> None:
    toys.tuned(store)
    app = make_app(store, Guard(local_users=True))

    async def served() -> None:
        async with app.router.lifespan_context(app):
            await so(lambda: folded(store) == 1)

    asyncio.run(served())


def test_a_store_that_is_away_is_told_once_and_tried_again(
    store: SqliteStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.tuned(store)
    summaries = Summaries(store, fresh_s=0.0)
    whole, tries = summaries.refresh, []

    def away(patience_s: float | None = None) -> bool:
        tries.append(patience_s)
        if len(tries) < 5:
            raise NotKept("the store is away")
        return whole(patience_s)

    monkeypatch.setattr(summaries, "refresh", away)

    async def served() -> None:
        async with folding(summaries, every_s=0.01, rest_s=0.01):
            await so(lambda: folded(store) == 1)

    asyncio.run(served())
    assert caplog.text.count("the store is away") == 1


def test_what_may_be_missing_from_the_sums_is_among_the_troubles(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        toys.tuned(store, f"run-{number}")
    app = make_app(store, Guard(local_users=True))
    monkeypatch.setattr("joulewise.report.summaries.Summaries._fold", lambda *_: False)
    assert Api(app)("GET", "/api/overview").json()["troubles"] == [
        "not all runs are read yet; lists and sums grow until they are"
    ]


def test_a_store_that_may_only_be_read_says_so_among_the_troubles_and_is_not_tried_all_the_time(
    store: SqliteStore,
) -> None:
    toys.plain_run(store, "a")
    Summaries(store).page()
    toys.plain_run(store, "b")
    with store.database.reading() as connection:
        connection.execute("PRAGMA query_only=1")
    app = make_app(store, Guard(local_users=True))
    overview = Api(app)("GET", "/api/overview").json()
    assert [run["name"] for run in overview["recent"]] == ["a"]
    (said,) = overview["troubles"]
    assert said.startswith("runs may be missing from lists and sums: ")
    summaries = Summaries(store, fresh_s=0.0)
    assert not summaries.refresh()
    assert not summaries.behind  # or it would be tried again every moment


def test_a_real_server_has_folded_before_anybody_looks(tmp_path: Path) -> None:
    writer = SqliteStore(Database(tmp_path / "jobs.db"))
    for number in range(20):
        toys.plain_run(writer, f"run-{number}")
    toys.tuned(writer)
    server = Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu")
    try:
        toys.until(lambda: folded(writer) == 21, timeout_s=60.0)
    finally:
        said = server.end()
        writer.close()
    assert "Traceback" not in said
