"""What is kept: a run's journal (``journal``, ``sql``), what was learnt (``memory``), and how it reads (``views``).

One SQLite file for everything; see ``database`` for where it lies.
"""

from joulewise.store.database import Database, default_path
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.store.memory import Memory, Remembered
from joulewise.store.sql import SqliteJournal

__all__ = ["Database", "Journal", "Memory", "MemoryJournal", "Remembered", "SqliteJournal", "default_path"]
