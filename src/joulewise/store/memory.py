"""What was learnt about a workload on a GPU, so that the next run starts at the answer and only confirms it.

The payload is plain JSON that its writer understands (the fitted law, the settings chosen phase by phase, the proof);
here it is only kept. A workload on the very same card is the best memory; on another card of the same model it is a
good first guess, and ``Remembered.same_card`` says which of the two it is. Never raises: a memory that cannot be read
or written is a run that starts from nothing, and ``trouble`` says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from joulewise.core.errors import NotKept
from joulewise.core.parsing import json_value
from joulewise.store.bounded import BoundedCalls
from joulewise.store.database import Database

_COLUMNS = "fingerprint, gpu_uuid, gpu_name, at, runs, payload"
_RETRY_S = 5.0
"""After a read that failed the next are spared for so long: each may wait seconds, and a tuner asks phase by phase."""
_KEEP = """
INSERT INTO learnt (fingerprint, gpu_uuid, gpu_name, at, runs, payload) VALUES (?, ?, ?, ?, 1, ?)
ON CONFLICT (fingerprint, gpu_uuid) DO UPDATE
SET gpu_name = excluded.gpu_name, at = excluded.at, runs = runs + 1, payload = excluded.payload
"""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one workload taught on one GPU."""

    fingerprint: str
    gpu_uuid: str
    gpu_name: str
    at_s: float
    """When it was last kept, in seconds since 1970."""
    runs: int
    """How many runs have been kept under this key."""
    payload: Mapping[str, Any]
    same_card: bool = True
    """Whether it was learnt on the card that was asked about, not on another of its model."""


class Memory:
    """What is kept in a database or its file. Safe with several processes; the last writer wins."""

    def __init__(self, database: Database | Path) -> None:
        self.database = database if isinstance(database, Database) else Database(database)
        self._calls = BoundedCalls(self.database.name)
        self._unread_s = float("-inf")
        """When it could last not be read."""
        self.trouble: str | None = None
        """Why the last call could not read or write, in one line; None when it could."""

    def recall(self, fingerprint: str, gpu_uuid: str, gpu_name: str) -> Remembered | None:
        """What is known about this workload: on this card, else the latest on a card of the same model, else None."""
        query = (
            f"SELECT {_COLUMNS} FROM learnt WHERE fingerprint = ? AND (gpu_uuid = ? OR gpu_name = ?) "
            "ORDER BY gpu_uuid = ? DESC, at DESC"
        )
        for found in self._select(query, (fingerprint, gpu_uuid, gpu_name, gpu_uuid), gpu_uuid):
            return found
        return None

    def card(self, gpu_uuid: str) -> list[Remembered]:
        """Everything that was learnt on this card, whatever the workload, latest first: what makes it differ from its
        model."""
        query = f"SELECT {_COLUMNS} FROM learnt WHERE gpu_uuid = ? ORDER BY at DESC"
        return self._select(query, (gpu_uuid,), gpu_uuid)

    def all(self) -> list[Remembered]:
        """Everything, latest first."""
        return self._select(f"SELECT {_COLUMNS} FROM learnt ORDER BY at DESC", (), None)

    def keep(self, fingerprint: str, gpu_uuid: str, gpu_name: str, payload: Mapping[str, Any]) -> bool:
        """Replace what is known about this workload on this card; whether it is kept.

        ``payload`` must be plain JSON, every number in it finite; anything else is not kept, and ``trouble`` says so.
        """
        try:
            text = json.dumps(dict(payload), separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError) as error:
            self.trouble = f"what was learnt cannot be kept: {error}"
            return False
        return self._write(_KEEP, (fingerprint, gpu_uuid, gpu_name, time.time(), text)) > 0

    def forget(self, fingerprint: str | None = None) -> int:
        """Forget a workload on every GPU, or all of them; how many were known."""
        if fingerprint is None:
            return self._write("DELETE FROM learnt", ())
        return self._write("DELETE FROM learnt WHERE fingerprint = ?", (fingerprint,))

    def _select(self, query: str, values: tuple[object, ...], gpu_uuid: str | None) -> list[Remembered]:
        if time.monotonic() - self._unread_s < _RETRY_S:
            return []
        self.trouble = None
        try:
            rows = self._calls(partial(self._rows, query, values))
        except NotKept as error:
            self.trouble, self._unread_s = str(error), time.monotonic()
            return []
        found = []
        for mark, uuid, name, at_s, runs, text in rows:
            payload = _payload(text)
            if payload is None:  # one damaged line shall not hide the others
                self.trouble = f"what was learnt about workload {mark} is damaged; --forget it"
            else:
                found.append(Remembered(mark, uuid, name, at_s, runs, payload, gpu_uuid in (None, uuid)))
        return found

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self.database.reading() as connection:
            return connection.execute(query, values).fetchall() if connection is not None else []

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        self.trouble = None
        try:
            with self.database.writing() as connection:
                return connection.execute(statement, values).rowcount
        except NotKept as error:
            self.trouble = str(error)
            return 0


def _payload(text: object) -> dict[str, Any] | None:
    """A payload as it was kept; None for anything else."""
    try:
        payload = json_value(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return payload if isinstance(payload, dict) else None
