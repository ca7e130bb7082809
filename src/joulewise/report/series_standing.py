"""How learning a recurring job's batch size stands, in sentences: what is known, what is not yet, and what will tell.

Pure, and of nothing but what the tuner believes: an interval that holds zero is "not known yet", whatever its middle
is. Not the numbers themselves: those stand in tables beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from joulewise.core.series import Recurring
from joulewise.tune.series_views import WORTH_A_TRY, SeriesSummary, SizeBelief

_INTERVAL_SD = 1.96  # 95 %, as the tuner's own intervals


def standing(job: Recurring, summary: SeriesSummary, beliefs: Sequence[SizeBelief]) -> list[str]:
    """A sentence for each thing that somebody would ask; none after the first recurrence, when there is nothing to say.

    ``beliefs`` may be empty: then only what ``summary`` says is told.
    """
    if summary.recurrences < 2:
        return []
    by_size = {belief.batch_size: belief for belief in beliefs}
    lines = [_paid(job, summary, by_size), _better(job, summary, by_size), _left(summary, beliefs)]
    return [line for line in lines if line]


def _paid(job: Recurring, summary: SeriesSummary, by_size: dict[int, SizeBelief]) -> str:
    """What it has cost so far, with learning, against the default every time."""
    if summary.saved is None:
        return ""
    half = _INTERVAL_SD * summary.saved_error if summary.saved_error else 0.0
    figure = f"{_percent(abs(summary.saved))}{f' ± {_percent(half)}' if half else ''}"
    against = f"{figure} {'less' if summary.saved >= 0 else 'more'} than the default every time"
    if abs(summary.saved) > half:
        return f"cost, with learning: {against}"
    default = by_size.get(job.default)
    seen = f", as the default ran {_times(default.runs)}" if default is not None and default.runs else ""
    return f"whether it has paid is not known yet{seen}: cost, with learning, {against}"


def _better(job: Recurring, summary: SeriesSummary, by_size: dict[int, SizeBelief]) -> str:
    """What the next runs cost against the default, where that is certain, and when learning is paid for."""
    if summary.best is None:
        return "no batch size has reached the target yet; the first that does is what others are compared with"
    best, default = by_size.get(summary.best), by_size.get(job.default)
    if best is None or default is None or best is default or not best.cost or not default.cost:
        return ""
    gain = 1.0 - best.cost / default.cost
    if best.cost_high is None or default.cost_low is None or best.cost_high >= default.cost_low or gain <= 0:
        return f"whether {summary.best} beats the default is not certain yet: their intervals overlap, runs narrow them"
    line = f"a run at {summary.best} costs about {_percent(gain)} less than one at the default"
    owed = -(summary.saved or 0.0) * summary.recurrences  # in runs of the default
    if owed <= 0:
        return line
    more = math.ceil(owed / gain)
    return f"{line}: learning is paid for after about {more} more run{'s' if more != 1 else ''}"


def _left(summary: SeriesSummary, beliefs: Sequence[SizeBelief]) -> str:
    """What will still be tried."""
    if summary.best is None or not beliefs:
        return ""
    worth = [str(belief.batch_size) for belief in beliefs if belief.state == "open" and belief.says == WORTH_A_TRY]
    if worth:
        return f"still worth a try: {', '.join(worth)}"
    return f"nothing else is worth a try: runs stay at {summary.best} unless what is believed changes"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
