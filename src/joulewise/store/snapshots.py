"""A fold's state as of some event, so that whoever starts need not read a long stream from its beginning.

Kept beside the journal and never in its place: a snapshot may be thrown away at any time, and is, when the code that
folds has changed (``version``), when it cannot be read, or when its stream is not the one it was made from. So nothing
here raises; without a snapshot the stream is read from event 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from joulewise.core.errors import NotKept
from joulewise.core.parsing import json_value
from joulewise.store.tables import Tables

# Only with the event it was made after: a stream that was deleted and begun anew has another past.
_LOAD = """
SELECT last_id, state FROM snapshots WHERE stream = :stream AND version = :version AND EXISTS (
    SELECT 1 FROM events WHERE events.stream = snapshots.stream AND events.id = snapshots.last_id
)
"""
# Of two writers of one version the one that has read further stays, as long as what it read is there.
_SAVE = """
INSERT INTO snapshots (stream, version, last_id, at, state) VALUES (:stream, :version, :last_id, :at, :state)
ON CONFLICT (stream) DO UPDATE
SET version = excluded.version, last_id = excluded.last_id, at = excluded.at, state = excluded.state
WHERE excluded.last_id > snapshots.last_id OR excluded.version <> snapshots.version OR NOT EXISTS (
    SELECT 1 FROM events WHERE events.stream = snapshots.stream AND events.id = snapshots.last_id
)
"""


class Snapshots:
    """The snapshots of a database, one a stream. Safe with several threads and processes."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def load(self, stream: str, version: int) -> tuple[int, dict[str, Any]] | None:
        """The id of the last event folded and the state after it; None if there is none to use."""
        try:
            rows = self._tables.select(_LOAD, {"stream": stream, "version": version})
            for last_id, text in rows:
                state = json_value(text)
                return (last_id, state) if isinstance(state, dict) else None
        except (NotKept, ValueError):
            return None
        return None

    def save(self, stream: str, version: int, last_id: int, state: Mapping[str, Any]) -> None:
        """Keep ``state`` (what ``json`` can write), unless one of a later event is there; in vain is no fault.

        TypeError or ValueError for a state that cannot be written: a bug of whoever made it.
        """
        values = {"stream": stream, "version": version, "last_id": last_id, "at": time.time()}
        text = json.dumps(dict(state), separators=(",", ":"))
        with suppress(NotKept):
            self._tables.change(_SAVE, {**values, "state": text})
