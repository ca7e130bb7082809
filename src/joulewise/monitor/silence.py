"""Work that nobody marks: a job that goes on while its hooks tell no steps. How long, and what that means.

Training ends and the script computes on (a test set, an export), an evaluation is marked as a pause, a hook breaks:
what runs then is not what a setting was measured on. A fold of looks at the job; it knows no settings.
"""

from __future__ import annotations

import math

from joulewise.monitor.steplog import StepLog

UNMARKED_S, UNMARKED_STEPS = 10.0, 5.0
"""Work without a step for so long, in seconds and usual steps, is not the work that steps were measured on."""
PAUSED_S = 3.0
"""A pause that the job marked is such work after so long; for a shorter one nobody switches twice."""
FORSAKEN = 3.0
"""After so many times as long the hooks are not believed to come back soon."""
_LOOK_S = 1.0  # no more than this is taken to have passed busily between two looks


class Silence:
    """Watches one job. ``look`` at every look at it, after its marks were taken."""

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._looked_s = -math.inf
        self._steps = 0
        self._busy_s = 0.0

    def look(self, now_s: float, *, busy: bool) -> None:
        """Add up the busy time since the last step; a moment without work is told to the log."""
        passed_s, self._looked_s = min(now_s - self._looked_s, _LOOK_S), now_s
        if self._log.last_s is None or self._log.steps_seen != self._steps:
            self._steps, self._busy_s = self._log.steps_seen, 0.0
        elif busy:
            self._busy_s += passed_s
        else:
            self._log.seen_idle(now_s)

    def says(self, usual_s: float | None) -> str:
        """What the job does instead of steps, in words, once that has lasted a while; empty before. ``usual_s`` is how
        long a step takes."""
        if self._log.paused and self._busy_s >= PAUSED_S:
            return f"{self._log.paused}, which the setting was not measured on"
        if self._busy_s >= _patience_s(usual_s):
            return f"at work for {self._busy_s:.0f} s without a step: not what the setting was measured on"
        return ""

    def forsaken(self, usual_s: float | None) -> str:
        """Why steps are not waited for any longer, in words; empty while they are, as they are after a pause."""
        if self._log.paused or self._busy_s < FORSAKEN * _patience_s(usual_s):
            return ""
        return f"at work for {self._busy_s:.0f} s without a step: hooks tell its pace no longer"


def _patience_s(usual_s: float | None) -> float:
    return max(UNMARKED_S, UNMARKED_STEPS * (usual_s or 0.0))
