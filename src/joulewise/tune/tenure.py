"""Our right to set the job's GPUs: taken when the job is there, kept, lost.

What it is: what stands between the loop and the lease. It takes one (a daemon may give rights only to whoever runs on
the GPU, so it is asked for a while), puts settings in force through it, hears what happens to it, and gives it up,
which is said once; from then on the job is only measured. What it is not: the decision what to set.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from joulewise.core.errors import GpuError, NotNow
from joulewise.core.knob import DEFAULT, Setting, Space
from joulewise.core.timeline import Loop
from joulewise.device.lease import Lease
from joulewise.monitor.ruler import Ruler
from joulewise.tune.chain import LOST, WAITS
from joulewise.tune.lines import Lines
from joulewise.tune.record import Record
from joulewise.tune.subject import JobSubject, common_space, retry_s

LEASE_TRIES_S = 60.0
"""How long a lease is asked for before the job is left untuned."""
NOTICES_S = 2.0
"""Between two looks at what has happened to the lease."""
NO_MORE = "nothing is tuned any more"

_log = logging.getLogger("joulewise")


class Tenure:
    """The lease of one subject. ``take`` takes it, where it is not there from the beginning."""

    def __init__(self, subject: JobSubject, lines: Lines, record: Record, take: Callable[[], Lease] | None) -> None:
        self._subject, self._lines, self._record, self._take = subject, lines, record, take
        self._time = subject.ruler.sampler.time
        self._notices_due_s = -math.inf
        self._lost = False

    def wait(self, stopped: Callable[[], bool]) -> Loop[None]:
        """Take the lease, now that the job is on its GPUs; give up after a while, or when the job ends first."""
        give_up_s, wait_s = self._time.now_s() + LEASE_TRIES_S, 1.0
        refused = ""
        while self._take is not None and not stopped():
            try:
                lease = self._take()
            except GpuError as error:
                refused = f"nothing is tuned: {error}"
                if self._time.now_s() >= give_up_s:
                    break
            else:
                self._subject.lease, self._take = lease, None
                self._subject.confine(space_of(self._subject.ruler, lease))
                return
            self._subject.ruler.read()
            yield wait_s
            wait_s = min(8.0, 2.0 * wait_s)  # whoever keeps the log of refusals does not want one a second
        if refused:
            self.lose(refused)

    def apply(self, setting: Setting, own: Mapping[str, Setting] | None = None) -> float | None:
        """Put a setting in force, another one on the GPUs in ``own``. None where it is; else how long to wait before
        going on."""
        try:
            self._subject.apply(setting, own)
        except NotNow as error:
            self._record.note(str(error))
            if self._record.latest != WAITS:  # once, however often it is tried again
                self._record.change(WAITS, str(error))
            return retry_s(error)
        except GpuError as error:
            self.lose(f"{NO_MORE}: {error}")
            return 0.0
        return None

    def hear(self, now_s: float) -> None:
        """What has happened to the lease or to a GPU without our doing; looked at now and then."""
        lease = self._subject.lease
        if lease is None or now_s < self._notices_due_s:
            return
        self._notices_due_s = now_s + NOTICES_S
        try:
            notices = lease.notices()
            alive = lease.alive
        except GpuError as error:
            self.lose(f"{NO_MORE}: {error}")
            return
        for notice in notices:
            if notice.kind in ("ended", "foreign", "reload"):
                self.lose(f"{NO_MORE}: {notice.says}")
                return
            self._record.note(notice.says)
        lost = next((track.lost for track in self._subject.ruler.sampler.tracks if track.lost is not None), None)
        if not alive or lost is not None:
            self.lose(f"{NO_MORE}: {lost or 'the lease has ended'}")

    def lose(self, why: str) -> None:
        """From here on only measure. Said once; the job goes on."""
        if self._lost:
            return
        self._lost = True
        lease, self._subject.lease, self._take = self._subject.lease, None, None
        self._subject.setting, self._subject.own, self._subject.asleep = DEFAULT, {}, None
        if lease is not None:
            try:
                lease.release()
            except Exception as error:  # its own guardian gives back what we cannot
                _log.debug("giving back after %s: %s", why, error)
        self._record.note(why)
        self._record.change(LOST, why)
        for line in self._lines:
            line.observation = None


def space_of(ruler: Ruler, lease: object) -> Space:
    """What may be set on all GPUs, through a lease where there is one already."""
    spaces = [track.gpu.info.space for track in ruler.sampler.tracks]
    if not isinstance(lease, Lease):
        return common_space(spaces, spaces[0].knobs)
    return common_space(spaces, lease.knobs, lease.allowed)
