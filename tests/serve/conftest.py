import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

import httpx
from fastapi import FastAPI

from joulewise.serve.app import make_app
from joulewise.serve.tokens import Guard
from joulewise.store import Database, SqliteStore

JOB = {"batch_sizes": [8, 16, 32, 64], "default": 32, "max_epochs": 10, "target": "val_acc>=0.84"}
ASK = {"recurrence": "r0", "platform": {"gpu_name": "NVIDIA H200", "gpus": 1, "max_power_w": 700.0}}
COST = {"duration_s": 10.0, "energy_j": 5000.0, "setting": {"power_limit_w": 500.0}}
TELL = {"outcome": "reached", "epochs": 4, "duration_s": 40.0, "energy_j": 20000.0, "profile": [COST]}


class Api:
    """The app, called as a server would, from ``peer`` to ``host``."""

    def __init__(self, app: FastAPI, *, peer: str = "127.0.0.1", host: str = "localhost:8745") -> None:
        self._app, self._peer, self._host = app, peer, host

    def __call__(self, method: str, path: str, json: Any = None, **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(self._peer, 4242), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self._host}") as client:
                return await client.request(method, path, **({"json": json} if json is not None else {}), **more)

        return asyncio.run(call())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(Database(tmp_path / "jobs.db"))
    yield made
    made.close()


@pytest.fixture
def api(store: SqliteStore) -> Api:
    """An app without tokens on an empty store, called from its own machine."""
    return Api(make_app(store, Guard(local_users=True)))
