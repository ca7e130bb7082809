"""A run that a store keeps, and its report: the one way to it, for ``joulewise report`` and for the server, so that the
two cannot differ. Not the page itself (``page``), nor how a run is found (``store.views``, ``report.summaries``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulewise.report.beside import Beside
from joulewise.report.figures import Beyond
from joulewise.report.kept_curves import series_of
from joulewise.report.page import page
from joulewise.report.run_summary import RunSummary, State
from joulewise.report.story import Story
from joulewise.report.worth import Carbon
from joulewise.store import Store, views


@dataclass(frozen=True, slots=True)
class KeptRun:
    """``measured``: what the whole command used, as the store has it; None where nobody measured it, or not yet."""

    summary: RunSummary
    story: Story
    measured: Mapping[str, Any] | None

    @classmethod
    def of(cls, store: Store, summary: RunSummary, story: Story) -> KeptRun:
        """With what ``store`` keeps beside its journal. NotKept when that cannot be read."""
        run = views.one(store.tables, summary.name)
        return cls(summary, story, None if run is None or run.measured is None else dict(run.measured))

    @property
    def tuned(self) -> bool:
        """Whether there is anything to prove."""
        return bool(self.story.seen or self.story.decided)

    def beyond(self, store: Store) -> Beyond:
        """Its curves, out of the readings in ``store``. NotKept when they cannot be read."""
        return Beyond.of(self.story, series_of(store, self.summary.name, self.summary.began_s, self.story.began_s))

    def page(self, beyond: Beyond, carbon: Carbon | None = None) -> str:
        """Its report, one HTML file. One that still runs has used nothing as a whole yet, so that what would be told of
        it is left out rather than said to be missing."""
        beside = None if self.summary.state is State.RUNNING else Beside(self.measured, carbon)
        return page(self.story, beyond, title=None if self.tuned else self.summary.headline, beside=beside)
