"""What is kept: journals (``journal``), readings of GPUs (``readings``), what was learnt (``memory``), snapshots; and
how they read (``views``).

One SQLite file by default (``database`` says where it lies), or a PostgreSQL server by its URL (``store.open_store``).
"""

from joulewise.store.database import Database, default_path
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory, Remembered
from joulewise.store.readings import Curve, Readings, Sample
from joulewise.store.snapshots import Snapshots
from joulewise.store.sql import SqliteJournal, SqliteStore
from joulewise.store.store import Store, open_store

__all__ = [
    "Curve",
    "Database",
    "Journal",
    "Memory",
    "MemoryJournal",
    "Readings",
    "Remembered",
    "Sample",
    "Snapshots",
    "SqliteJournal",
    "SqliteStore",
    "Store",
    "default_path",
    "open_store",
]
