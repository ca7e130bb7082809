"""The clock of the next operation, asked for before it begins: by a thread beside the job, through a lease, read back.

A new clock takes some 25 ms to be there, whoever asks; the job never waits for it. ``at`` says what is wanted from when
on; the thread asks the lease then. How late it gets to that, and now and then how long the GPU takes to follow, is
measured: so much ahead has to be asked. Where the lease says "not now" it asks again; whatever else goes wrong ends it,
and ``problem`` says so.

``without_short_runs`` removes changes that would not be there before they are over. It is not a planner.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulewise.core.errors import GpuError, JoulewiseError, NotNow
from joulewise.core.knob import DEFAULT, SM_MHZ, Setting
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.gpu import Gpu
from joulewise.device.lease import Lease

_LOOK_S = 0.002
"""Between two looks at a clock that is on its way: a tenth of what it takes."""
_LEAST_WALL_S = 0.0005
"""The same by the wall's clock, where a simulator's time runs faster: a look costs some 0.2 ms."""
_PATIENCE_S = 0.5
"""A clock that is not there after this (the slowest of 19,000 changes over many GPUs) was not heeded."""
_LOOKS_KEPT, _DELAYS_KEPT = 15, 64
_RARELY = 16
"""Once so many changes were looked at, one in so many is."""
_IGNORED = 4
"""Changes on end that the GPU did not heed, after which something else holds its clock."""
_IDLE_S = 0.05
_NEAR_MHZ = 8.0
"""Clocks come in steps of 15 MHz on current GPUs: half of one."""


@dataclass(slots=True)
class _Run:
    """Operations one after another with one setting."""

    setting: Setting
    duration_s: float
    count: int


def without_short_runs(settings: Sequence[Setting], durations_s: Sequence[float], switch_s: float) -> list[Setting]:
    """Settings of operations that follow each other round and round, each kept for ``switch_s`` at least.

    ``durations_s`` are from an operation's begin to the next one's. A short stretch joins the lower of its neighbours
    that have a higher clock; where both have a lower one, the shorter of them joins it. So no operation ever gets a
    lower clock than it was given.
    """
    given = zip(settings, durations_s, strict=True)
    runs = _joined([_Run(setting, duration_s, 1) for setting, duration_s in given])
    while len({run.setting for run in runs}) > 1:
        last = len(runs) - 1
        lasts_s = [run.duration_s for run in runs]
        if runs[0].setting == runs[last].setting:  # one stretch, cut by the end of the iteration
            lasts_s[0] = lasts_s[last] = runs[0].duration_s + runs[last].duration_s
        at = min(range(len(runs)), key=lasts_s.__getitem__)
        if lasts_s[at] >= switch_s:
            break
        beside = [runs[at - 1], runs[(at + 1) % len(runs)]]
        beside = [run for run in beside if run.setting != runs[at].setting]
        higher = [run for run in beside if ceiling_mhz(run.setting) > ceiling_mhz(runs[at].setting)]
        if higher:
            runs[at].setting = min((run.setting for run in higher), key=ceiling_mhz)
        else:
            min(beside, key=lambda run: run.duration_s).setting = runs[at].setting
        runs = _joined(runs)
    return [run.setting for run in runs for _ in range(run.count)]


def ceiling_mhz(setting: Setting) -> float:
    """The clock that it allows at most; infinite where it sets none."""
    return setting.get(SM_MHZ.name, math.inf)


def _ninth(seen_s: Sequence[float], otherwise_s: float) -> float:
    """What nine in ten are below."""
    return sorted(seen_s)[math.ceil(0.9 * len(seen_s)) - 1] if seen_s else otherwise_s


def _joined(runs: list[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for run in runs:
        if joined and joined[-1].setting == run.setting:
            joined[-1].duration_s += run.duration_s
            joined[-1].count += run.count
        else:
            joined.append(run)
    return joined


class Clocks:
    """Puts settings in force on one GPU through ``lease``, on a thread of its own or in a VirtualTime. ``close`` it.

    Closing applies nothing: the lease is its owner's to release.
    """

    def __init__(self, lease: Lease, gpu: Gpu, *, watch: Callable[[], bool] = lambda: False) -> None:
        """``watch`` is called at every turn; True asks for the next turn soon."""
        self.problem = ""
        """Why nothing is set any more; empty while all is well."""
        self.asked = self.put_off = 0
        """Changes that were asked for, and how often the lease said "not now"."""
        self._lease, self._gpu, self._time = lease, gpu, gpu.time
        self._watch = watch
        self._speed = float(getattr(self._time, "speed", 1.0))
        self._wanted: deque[tuple[float, Setting]] = deque()
        self._in_force = DEFAULT  # or being asked for
        self._looks_s: deque[float] = deque(maxlen=_LOOKS_KEPT)
        self._delays_s: deque[float] = deque(maxlen=_DELAYS_KEPT)
        self._looking: tuple[float, float] | None = None  # since when, to which clock
        self._ignored = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None
        if isinstance(self._time, VirtualTime):
            self._time.spawn(self.loop())
        else:
            self._thread = threading.Thread(target=self._run, name="joulewise clocks", daemon=True)
            self._thread.start()

    @property
    def switch_s(self) -> float:
        """From the moment at which a clock is to be asked for until it is there: the middle of what was seen."""
        delay_s = statistics.median(self._delays_s) if self._delays_s else 0.0
        return delay_s + (statistics.median(self._looks_s) if self._looks_s else SM_MHZ.switch_s)

    @property
    def surely_s(self) -> float:
        """The same, and nearly always: nine in ten were faster."""
        return _ninth(self._delays_s, 0.0) + _ninth(self._looks_s, SM_MHZ.switch_s)

    @property
    def switches_seen(self) -> int:
        """How many changes of the GPU that rests on."""
        return len(self._looks_s)

    def at(self, setting: Setting, time_s: float) -> None:
        """Ask for ``setting`` at ``time_s``; what was to be asked for then or later is forgotten. Returns at once."""
        with self._changed:
            while self._wanted and self._wanted[-1][0] >= time_s:
                self._wanted.pop()
            if (self._wanted[-1][1] if self._wanted else self._in_force) != setting:
                self._wanted.append((time_s, setting))
                self._changed.notify()

    def close(self) -> None:
        """Ask for nothing more. Waits for the thread to leave."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def loop(self) -> Loop[None]:
        """All that it does, as a loop that yields its waits."""
        while not self._ended:
            yield self._turn()

    def _run(self) -> None:
        while not self._ended:
            wait_s = self._turn()
            with self._changed:
                if not self._ended and not self._due(self._time.now_s()):
                    self._changed.wait(max(wait_s / self._speed, _LEAST_WALL_S))

    def _due(self, now_s: float) -> bool:
        return bool(self._wanted) and self._wanted[0][0] <= now_s

    def _turn(self) -> float:
        """Do what is due; seconds until something may be."""
        due_s, setting, soon = 0.0, None, self._watch()
        with self._changed:
            now_s = self._time.now_s()
            before = self._in_force
            while self._due(now_s):
                due_s, setting = self._wanted.popleft()
                self._in_force = setting
        if setting is not None and not self.problem:
            self._ask(before, setting, due_s)
        elif self._looking is not None:
            self._look()
        with self._changed:
            wait_s = max(0.0, self._wanted[0][0] - self._time.now_s()) if self._wanted else _IDLE_S
        if self._thread is None:  # nobody can wake us
            soon = True
        return min(wait_s, _LOOK_S) if soon or self._looking is not None else wait_s

    def _ask(self, before: Setting, setting: Setting, due_s: float) -> None:
        self._looking = None
        try:
            # What it was is known where it was set, so a look at it costs no time before the change.
            looks = self._looks_now() and ceiling_mhz(setting) < ceiling_mhz(before)
            since_s = self._time.now_s()
            self._lease.apply(setting)
        except NotNow as error:
            self.put_off += 1
            again_s = self._time.now_s() + error.retry_s
            with self._changed:  # unless something else is wanted by now
                if not self._due(again_s):
                    self._wanted.appendleft((again_s, setting))
            return
        except JoulewiseError as error:
            self.problem = str(error)
            return
        self.asked += 1
        self._delays_s.append(since_s - due_s)
        if looks:  # only downwards: a raised ceiling need not be reached, a lowered one must be kept
            self._looking = since_s, ceiling_mhz(setting)
            self._look()

    def _looks_now(self) -> bool:
        return len(self._looks_s) < _LOOKS_KEPT or self.asked % _RARELY == 0

    def _look(self) -> None:
        assert self._looking is not None
        since_s, to_mhz = self._looking
        try:
            reading = self._gpu.read()
        except GpuError as error:
            self.problem = str(error)
            return
        if reading.sm_mhz is not None and reading.sm_mhz <= to_mhz + _NEAR_MHZ:
            took_s = reading.time_s - since_s
            if took_s > _LOOK_S:  # else it was so low before: a GPU at rest, or held down by something else
                self._looks_s.append(took_s)
            self._looking, self._ignored = None, 0
        elif reading.time_s > since_s + _PATIENCE_S:
            self._looking = None
            self._ignored += 1
            if self._ignored >= _IGNORED:
                shown = "no clock" if reading.sm_mhz is None else f"{reading.sm_mhz:g} MHz"
                self.problem = f"the GPU does not heed its clock: {shown} where {to_mhz:g} MHz were asked for"
