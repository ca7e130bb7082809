"""What is watched while a job is tuned, and is not the tuner's business: phases, pace, idle, stalls, foreign hands.

What it is: ``Watcher.look``, called at every look at the job, and ``Watcher.saw``, called with every block; both tell
the lines' tuners when the job changed. What it is not: the detectors themselves (tune/change, tune/phases, tune/idle,
tune/stalls), nor the loop that runs blocks (tune/online).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from joulewise.core.block import Block
from joulewise.core.errors import GpuError, NotNow
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.change import ChangeDetector, Shift
from joulewise.tune.lines import Line, Lines
from joulewise.tune.phases import PhaseFinder
from joulewise.tune.record import Record
from joulewise.tune.rest import Rest
from joulewise.tune.slack import Slack
from joulewise.tune.subject import JobSubject
from joulewise.tune.tenure import NO_MORE, Tenure

MOST_OVER_MHZ = 45.0
"""Three usual steps of 15 MHz: a mean clock further above the ceiling asked for is somebody else's doing …"""
MOST_OVER_BLOCKS = 4
"""… in so many blocks on end, of one second or longer: ten readings."""


class Watcher:
    """Watches one job."""

    def __init__(self, subject: JobSubject, lines: Lines, slack: Slack, record: Record, tenure: Tenure) -> None:
        self._subject, self._lines, self._slack, self._record, self._tenure = subject, lines, slack, record, tenure
        self._ruler = subject.ruler
        self._rest = Rest(subject, lines.debt)
        self._finder = PhaseFinder()
        self._setting = DEFAULT  # in force at the last look

    def look(self) -> bool:
        """At every look at the job: phases, shifts, idle gaps, news of the lease. True: look again soon."""
        now_s = self._ruler.sampler.time.now_s()
        self._phase(now_s)
        self._pace()
        if self._subject.lease is None:
            return False
        self._tenure.hear(now_s)
        try:
            done = self._rest.look(now_s, busy=self._ruler.busy)
        except NotNow:
            return True  # asked again at the next look
        except GpuError as error:
            self._tenure.lose(f"{NO_MORE}: {error}")
            return False
        if done:
            self._record.change("awake" if self._subject.asleep is None else "idle", done)
        return self._rest.waiting

    def saw(self, line: Line, block: Block, own: Mapping[str, Setting]) -> None:
        """A block was seen, with ``own`` on single GPUs: is the clock ours, did the job change, does it stall?"""
        self._check_clock(line, block)
        # Blocks with slack are compared among themselves: they use less.
        felt = replace(block, setting=next(iter(own.values()), block.setting))
        cried = line.joules.tell(felt.setting, 0.0, felt.unit_j)
        found = line.jump(felt) or cried
        if found is not None:
            self._shift(line, found, line.joules if cried is not None else None)
        else:
            self._check_stalls(line, block)

    def _phase(self, now_s: float) -> None:
        """Where the job marks no phases, those that its activity shows."""
        track, log = self._ruler.sampler.tracks[0], self._ruler.log
        if track.latest is None or log.marks_phases or (log.steps_seen and log.longest_s is None):
            return  # what happens within a step is no phase, and how long steps are is not known yet
        unit_s = log.longest_s if log.steps_seen else self._ruler.usual_s(self._ruler.phase)
        if self._subject.setting != self._setting:
            self._setting = self._subject.setting
            self._finder.switched(now_s)
        for reading in track.readings(self._finder.told_s):  # all of them: a few could be in step with the job
            self._finder.tell(reading, unit_s)
        log.enter(self._finder.phase, now_s)

    def _pace(self) -> None:
        tracks = self._ruler.sampler.tracks
        for step in self._ruler.fresh():
            line = self._lines.find(step.phase)
            if line is None or not step.whole or step.end_s <= line.told_until_s:
                continue
            line.told_until_s = step.end_s
            setting = self._subject.setting_at(step.start_s)
            line.stalls.tell(setting, step)
            if step.dirt or step.slow:
                continue  # a slow kind of step is work, and no sign of a change
            if len(tracks) > 1 and line.tuner.holds and not self._subject.own and self._subject.setting != DEFAULT:
                self._slack.read([track.latest for track in tracks], [track.gpu.info.idle_power_w for track in tracks])
            found = line.pace.tell(setting, step.unit_s)
            if found is not None:
                self._shift(line, found, line.pace)

    def _shift(self, line: Line, found: Shift, cried: ChangeDetector | None) -> None:
        """The job changed: what is under way for it is void, and its tuner is told."""
        line.changed(cried)
        self._lines.debt.settle(line.phase)
        line.tuner.shift(found.kind)
        self._slack.forget()
        self._record.change(found.kind, found.says, line.phase)

    def _check_clock(self, line: Line, block: Block) -> None:
        """A clock well above its ceiling, block after block, is not ours: somebody else sets this GPU. One block alone
        may hold readings from before its own switch, on a busy host a few."""
        ceiling_mhz = block.setting.get("sm_mhz")
        if ceiling_mhz is None or block.sm_mhz is None or block.duration_s < 1.0:
            return  # says nothing
        if block.sm_mhz <= ceiling_mhz + MOST_OVER_MHZ:
            line.over = 0
            return
        line.over += 1
        if line.over >= MOST_OVER_BLOCKS:
            self._tenure.lose(
                f"{NO_MORE}: the SM clock is {block.sm_mhz:.0f} MHz under a ceiling of {ceiling_mhz:.0f} MHz, so "
                "somebody else sets it"
            )

    def _check_stalls(self, line: Line, block: Block) -> None:
        """Refuse a setting that loses in stalls, which no block shows, what it keeps in clean work."""
        bound, known = line.tuner.bound, line.tuner.slowdown_of(block.setting)
        if block.setting == DEFAULT or known is None or not math.isfinite(bound):
            return
        whole = line.stalls.breaks(block.setting, known, bound)
        if whole is not None:
            why = f"slower than {bound:+.1%} with its stalls: {whole:+.1%} all in all, {known:+.1%} without them"
            self._lines.debt.charge(line.stalls.lost_s(block.setting))
            line.stalls.forget(block.setting)
            line.tuner.refuse(block.setting, why)
            self._record.change("refused", why, line.phase)
