"""What a pipeline that measures itself leaves for ``joulewise plan profile``, and how it is told where. Names only."""

from __future__ import annotations

PROFILE = "JOULEWISE_PLAN_PROFILE"
"""The folder for what is measured; nothing is played then."""
PROFILE_FILE, SCHEDULE_FILE, FACTS_FILE = "profile.json", "schedule.csv", "facts.json"
"""The stages' options; the order of every rank; and ``why`` it ended, with what a plan needs besides where there is."""
