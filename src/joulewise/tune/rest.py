"""Idle gaps, acted upon: the GPUs of a waiting job are clocked down when that pays, and roused at once.

``tune/idle`` says when it pays; this applies it to the subject and keeps the job's time account.
"""

from __future__ import annotations

from joulewise.core.knob import SM_MHZ, Setting
from joulewise.tune.guard import Debt
from joulewise.tune.idle import Cost, Gaps
from joulewise.tune.subject import JobSubject


class Rest:
    """Puts one subject to rest and rouses it. ``look`` at every look at the job; it raises what the lease raises."""

    def __init__(self, subject: JobSubject, debt: Debt, gaps: Gaps | None = None) -> None:
        self._subject, self._debt = subject, debt
        updates_s = [track.gpu.info.sensors.utilization_update_s for track in subject.ruler.sampler.tracks]
        self.gaps = gaps or Gaps(cost=Cost(update_s=max(updates_s)))
        self._since_s: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether the job is in an idle gap: looks should come often."""
        return self._since_s is not None

    def look(self, now_s: float, *, busy: bool) -> str:
        """What was done, in words for the journal; empty: nothing."""
        if busy:
            return self._back(now_s)
        if self._since_s is None:
            self._since_s = now_s
        elapsed_s = now_s - self._since_s
        clocks = self._subject.space.knobs.get(SM_MHZ.name)
        asleep = self._subject.asleep is not None
        if asleep or clocks is None or not self.gaps.worth_it(elapsed_s, self._debt.room_s):
            return ""
        self._subject.rest(Setting(sm_mhz=clocks.low))
        return f"idle for {elapsed_s:.1f} s, and usually for longer: clocked down"

    def _back(self, now_s: float) -> str:
        if self._since_s is not None:
            self.gaps.ended(now_s - self._since_s)
            self._since_s = None
        if self._subject.asleep is None:
            return ""
        self._subject.rouse()
        self.gaps.woke()
        self._debt.charge(self.gaps.cost.lost_s)
        return "work came back: clocks up again"
