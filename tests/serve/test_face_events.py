"""Server-sent events: what is sent, when, to whom, and that nobody who is slow costs more than a little."""

import asyncio
import gc
import logging
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from joulewise.core.errors import NotKept
from joulewise.core.event import Began, Proven
from joulewise.core.timeline import VirtualTime
from joulewise.serve.app import make_app
from joulewise.serve.face import Face
from joulewise.serve.face_events import EventStream
from joulewise.serve.face_hub import MOST_NEWS, Hub, Listener, Message
from joulewise.serve.face_news import News
from joulewise.serve.live import LiveGpus
from joulewise.serve.tokens import Guard, Scope, make
from joulewise.store import Store, open_store
from tests.monitor.played import PlayedGpu, constant
from tests.serve import face_toys as toys
from tests.serve.asgi import Call
from tests.serve.conftest import JOB
from tests.serve.serving import Serving


@pytest.fixture(autouse=True)
def everything_is_logged(monkeypatch):
    """A server that this process has been before lets through a line every few seconds, whichever test says it."""
    monkeypatch.setattr(logging.getLogger("joulewise.serve"), "filters", [])


class Told:
    """News that a test puts there; counts how often it is asked."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.looks = self.begins = 0
        self.trouble: Exception | None = None

    def begin(self) -> None:
        self.begins += 1

    def look(self) -> Iterable[Message]:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        found, self.waiting = self.waiting, []
        return found


def hub_of(told: Told, **more: Any) -> Hub:
    return Hub(told.look, begin=told.begin, period_s=0.01, **more)


def run(number: int) -> Message:
    return Message("run", {"name": f"run-{number}", "what": "decided", "words": "x" * 200})


# The stream.


def test_a_stream_says_hello_at_once_sends_what_happens_and_ends_with_its_client():
    told = Told()

    async def listened() -> Call:
        hub = hub_of(told)
        call = Call(EventStream(hub), "/").start()
        await call.until(lambda: call.parts)
        told.waiting = [run(1), Message("gpus", {"gpus": []}, replaces=True)]
        await call.until(lambda: len(call.events()) == 2)
        assert (len(hub), hub.looking) == (1, True)
        await call.leave()
        assert (len(hub), hub.looking) == (0, False)
        return call

    call = asyncio.run(listened())
    assert call.status == 200
    assert call.headers["content-type"].startswith("text/event-stream")
    assert call.headers["cache-control"] == "no-store"
    assert "content-length" not in call.headers
    assert call.parts[0].startswith(b"retry: ")
    assert call.events() == [("run", run(1).data), ("gpus", {"gpus": []})]


def test_nobody_is_asked_for_news_while_nobody_listens_and_each_beginning_is_one():
    told = Told()

    async def listened() -> None:
        hub = hub_of(told)
        await asyncio.sleep(0.05)
        assert (told.begins, told.looks) == (0, 0)
        for times in (1, 2):
            calls = [Call(EventStream(hub), "/").start() for _ in range(3)]
            before = told.looks
            async with asyncio.timeout(60.0):
                while told.looks == before:
                    await asyncio.sleep(0.005)
            assert told.begins == times
            for call in calls:
                await call.leave()
            stopped = told.looks
            await asyncio.sleep(0.05)
            assert told.looks <= stopped + 1

    asyncio.run(listened())


def test_one_client_gets_so_many_places_and_where_all_are_taken_whoever_has_fewer_gets_one():
    async def listened() -> None:
        hub = Hub(Told().look, most=10, most_of_one=8)
        async with AsyncExitStack() as stack:

            async def come(client: str, count: int) -> list[Listener]:
                return [await stack.enter_async_context(hub.listening(client)) for _ in range(count)]

            greedy = await come("greedy", 8)
            with pytest.raises(NotKept, match="8 times, the most for one client"):
                await come("greedy", 1)
            others = await come("modest", 2) + await come("other", 2)
            # Those that came first are told to end, and nobody else's.
            assert [each.closed for each in greedy] == 2 * [True] + 6 * [False]
            assert not any(each.closed for each in others)
            assert len(hub) == 10
            with pytest.raises(NotKept, match="10 others listen"):
                await come("greedy", 1)
        assert len(hub) == 0

    asyncio.run(listened())


def test_a_silent_stream_shows_that_it_lives():
    async def listened() -> bytes:
        call = Call(EventStream(hub_of(Told()), keep_alive_s=0.01), "/").start()
        await call.until(lambda: call.body.count(b": keep-alive\n\n") >= 3)
        await call.leave()
        return call.body

    assert asyncio.run(listened()).startswith(b"retry: ")


def test_a_client_that_takes_nothing_for_long_is_let_go():
    told = Told()

    async def listened() -> None:
        hub = hub_of(told)
        stalled = Call(EventStream(hub, stalled_s=0.05), "/", taken=1).start()
        reading = Call(EventStream(hub, stalled_s=0.05), "/").start()
        await reading.until(lambda: reading.parts)
        told.waiting = [run(1)]
        await asyncio.wait_for(stalled.task, 10.0)
        assert len(hub) == 1
        told.waiting = [run(2)]
        await reading.until(lambda: len(reading.events()) == 2)
        await reading.leave()

    asyncio.run(listened())


def test_a_client_that_goes_away_while_its_network_is_full_leaves_nothing_behind():
    """What waits to be sent is free, and goes nowhere, in the same moment in which the client is found to be gone."""
    told = Told()

    async def listened() -> None:
        hub, left, full = hub_of(told), asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if b"run-1" in message.get("body", b""):
                full.set()
                await left.wait()

        stream = asyncio.create_task(EventStream(hub)({"type": "http", "method": "GET"}, receive, send))
        told.waiting = [run(1)]
        await asyncio.wait_for(full.wait(), 10.0)
        left.set()
        done, _ = await asyncio.wait({stream}, timeout=10.0)
        assert done
        assert (len(hub), hub.looking) == (0, False)
        async with asyncio.timeout(10.0):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.01)

    asyncio.run(listened())


def test_when_the_server_ends_so_do_its_streams():
    async def listened() -> Call:
        hub = hub_of(Told())
        call = Call(EventStream(hub), "/").start()
        await call.until(lambda: call.parts)
        hub.close()
        await asyncio.wait_for(call.task, 10.0)
        late = Call(EventStream(hub), "/").start()
        await asyncio.wait_for(late.task, 10.0)
        assert late.over
        return call

    assert asyncio.run(listened()).over


def test_too_many_listeners_are_turned_away_and_the_others_stay():
    async def listened() -> None:
        hub = hub_of(Told(), most=2)
        calls = [Call(EventStream(hub), "/").start() for _ in range(2)]
        for call in calls:
            await call.until(lambda call=call: call.parts)
        third = Call(EventStream(hub), "/").start()
        with pytest.raises(NotKept, match="2 others listen"):
            await third.task
        for call in calls:
            await call.leave()

    asyncio.run(listened())


@pytest.mark.parametrize("trouble", [NotKept("the store is away"), RuntimeError("a fault of ours")])
def test_a_stream_stays_when_there_can_be_no_news_and_goes_on_when_there_can(trouble, caplog):
    told = Told()
    told.trouble = trouble

    async def listened() -> None:
        call = Call(EventStream(hub_of(told)), "/").start()
        await call.until(lambda: call.parts)
        while told.looks < 5:
            await asyncio.sleep(0.01)
        told.trouble = None
        told.waiting = [run(1)]
        await call.until(lambda: call.events())
        await call.leave()

    asyncio.run(listened())
    assert caplog.text.count("no news can be had") == 1


def test_whoever_is_slow_loses_the_oldest_news_and_is_told_so():
    async def listened() -> bytes:
        listener = Listener()
        for number in range(MOST_NEWS + 5):
            listener.put("run", run(number).written(), replaces=False)
        for number in range(50):
            listener.put("gpus", Message("gpus", {"n": number}).written(), replaces=True)
        return b"".join(await listener.next(1.0))

    body = asyncio.run(listened())
    assert body.startswith(b'event: missed\ndata: {"events":5}\n\n')
    assert body.count(b"event: run\n") == MOST_NEWS
    assert b"run-4" not in body.partition(b"run-5")[0]
    assert body.count(b"event: gpus\n") == 1
    assert b'{"n":49}' in body


def test_two_hundred_clients_that_read_nothing_cost_little():
    """What they wait for is written once and shared, and only the latest of it is kept."""
    told = Told()
    clients, looks = 200, 60

    async def listened() -> tuple[int, int]:
        hub = hub_of(told)
        calls = [Call(EventStream(hub), "/", taken=1).start() for _ in range(clients)]
        for call in calls:
            await call.until(lambda call=call: call.parts)
        gc.collect()
        tracemalloc.start()
        for look in range(looks):
            told.waiting = [run(20 * look + number) for number in range(20)]
            told.waiting.append(Message("gpus", {"gpus": ["y" * 50_000], "look": look}, replaces=True))
            seen = told.looks
            while told.looks < seen + 2:
                await asyncio.sleep(0.005)
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for call in calls:
            await call.leave()
        return grown, len(hub)

    grown, left = asyncio.run(listened())
    assert left == 0
    # Unbounded, 200 clients would hold 60 looks of 50 kB: 600 MB. A deque of a hundred places and one set of bytes are
    # all that there is.
    assert grown < 2_000_000


def test_news_are_one_line_whatever_a_name_holds():
    written = Message("run", {"name": "a\nevent: evil\ndata: {}\n\n<script>\u2028"}).written()
    assert written.count(b"\n") == 3
    assert b"<script>" in written  # as data: whoever shows it shows text


# What is new.


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    return str(tmp_path / "jobs.db") if request.param == "sqlite" else request.getfixturevalue("database_url")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    yield made
    made.close()


def looked(news: News) -> list[tuple[str, Any]]:
    return [(message.kind, message.data) for message in news.look()]


def test_what_was_there_before_is_no_news_and_what_comes_is_told_once(store):
    toys.plain_run(store, "before")
    news = News(Face(store))
    news.begin()
    assert [kind for kind, _ in looked(news)] == ["gpus"]
    toys.tuned(store, "a <b>")
    told = looked(news)
    assert {data["name"] for kind, data in told if kind == "run"} == {"a <b>"}
    whats = [data["what"] for kind, data in told if kind == "run"]
    assert (whats[0], whats[-1]) == ("began", "finished")
    assert set(whats) == {"began", "decided", "proven", "finished"}
    decided = next(data for kind, data in told if kind == "run" and data["what"] == "decided")
    assert decided["words"] == "default: learn what default is"
    assert [kind for kind, _ in looked(news)] == ["gpus"]


def test_another_process_that_writes_is_heard_and_a_clock_that_is_a_little_behind_is_no_matter(store, url):
    news = News(Face(store))
    news.begin()
    other = open_store(url)
    other.journal("x").append(Began(1.0, "x", {"command": ["a", "b"]}))
    other.tables.change("UPDATE events SET at = at - 5", {})
    other.journal("x").append(Proven(2.0, -0.08, 0.003, 0.008, 0.002))
    other.close()
    assert looked(news)[1:] == [
        ("run", {"name": "x", "what": "began", "words": "began: a b"}),
        ("run", {"name": "x", "what": "proven", "words": "−8.0 % ± 0.6 % energy, +0.8 % ± 0.4 % time"}),
    ]


def test_a_cluster_is_told_of_once_a_look_however_much_was_decided(store):
    news = News(Face(store))
    news.begin()
    toys.write(store, f"cluster/{toys.CLUSTER}", toys.cluster_events())
    (told,) = [data for kind, data in looked(news) if kind == "cluster"]
    assert told["name"] == toys.CLUSTER


def test_a_run_that_writes_hundreds_of_events_is_told_of_within_bounds(store):
    news = News(Face(store))
    news.begin()
    toys.write(store, "busy", (Proven(float(n), -0.1, 0.01, 0.0, 0.01) for n in range(250)))
    assert len([kind for kind, _ in looked(news) if kind == "run"]) == 200


def test_the_gpus_are_told_while_the_store_is_away_and_when_it_is_back_that_something_may_be_missing(
    store, monkeypatch, caplog
):
    live = LiveGpus([PlayedGpu(constant(312.0), time=VirtualTime())])
    live.look()
    news = News(Face(store, live=live))
    news.begin()
    looked(news)

    def away(*_: object) -> Any:
        raise NotKept("the database is starting up")

    with monkeypatch.context() as patched:
        patched.setattr(store.tables, "select", away)
        for _ in range(3):
            ((kind, told),) = looked(news)
            assert (kind, told["gpus"][0]["power_w"]) == ("gpus", pytest.approx(312.0))
        toys.plain_run(store, "meanwhile")
    assert caplog.text.count("starting up") == 1
    assert [kind for kind, _ in looked(news)] == ["gpus", "missed"]
    toys.plain_run(store, "after")
    assert {data["name"] for kind, data in looked(news) if kind == "run"} == {"after"}


def test_the_gpus_are_sent_without_their_history(store):
    live = LiveGpus([PlayedGpu(constant(312.0), time=VirtualTime())])
    live.look()
    news = News(Face(store, live=live))
    news.begin()
    ((_, gpus),) = looked(news)
    assert gpus["gpus"][0]["power_w"] == pytest.approx(312.0)
    assert gpus["gpus"][0]["history"] is None


# Through the app, and in a process of its own.


def test_the_apps_events_need_a_token(store):
    secret, token = make(Scope.READ)
    app = make_app(store, Guard([token]))

    async def listened() -> Call:
        refused = Call(app, "/api/events").start()
        await asyncio.wait_for(refused.task, 10.0)
        call = Call(app, "/api/events", headers={"authorization": f"Bearer {secret}"}).start()
        await call.until(lambda: any(kind == "gpus" for kind, _ in call.events()))
        await call.leave()
        assert call.status == 200
        return refused

    assert asyncio.run(listened()).status == 401


def test_a_real_server_tells_what_another_process_writes_and_ends_with_streams_open(url, tmp_path):
    server = Serving(url, tmp_path, "--no-gpu")
    heard: list[str] = []
    there, over = threading.Event(), threading.Event()

    def listen() -> None:
        with httpx.stream("GET", f"{server.url}/api/events", timeout=60.0) as stream:
            for line in stream.iter_lines():
                heard.append(line)
                if line == "event: gpus":
                    there.set()
        over.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        assert there.wait(60.0)
        writer = open_store(url)
        writer.journal("said elsewhere").append(Began(1.0, "x", {"command": ["train"]}))
        writer.close()
        toys.until(lambda: any("said elsewhere" in line for line in heard), timeout_s=60.0)
        assert httpx.put(f"{server.url}/api/series/nightly", json=JOB).status_code == 200
        assert httpx.get(f"{server.url}/").status_code == 200
    finally:
        said = server.end()
    assert over.wait(10.0)
    assert server.process.returncode == 0  # in order: what it left for its clients is gone
    assert "timeout graceful shutdown exceeded" not in said
    assert "Traceback" not in said
