"""The one poller of a node: power ten times a second, the counter rarely, on a thread or in virtual time.

Power is polled at 10 Hz because a call costs microseconds; the counter, which can cost milliseconds, is looked at
for window edges and at most once a second in between, within a budget of CPU time. GPUs are polled by the process
that holds their lock (``owner``); another process that measures the same GPU reads it at its windows' edges and
once a second. When the sensors tick is found out along the way (``seeker``).

It runs as one loop: in a thread of its own on wall time, spawned into a VirtualTime. It never prints, never raises
into the job, and never dies of a GPU that does.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count, pairwise
from pathlib import Path

from joulewise.core.errors import BadSpec, NoGpu
from joulewise.core.measurement import Reading
from joulewise.core.timeline import Loop, TimeSource, VirtualTime
from joulewise.device.discover import VIRTUAL
from joulewise.device.gpu import Gpu
from joulewise.monitor.allowance import Allowance
from joulewise.monitor.owner import Ownership, local_rank
from joulewise.monitor.seeker import Seeker
from joulewise.monitor.track import Recording, Track

COUNTER_SHARE = 0.001
"""CPU share of one core that counter calls off the windows' edges may cost, all GPUs together."""
EDGE_SHARE = 0.005
"""The same for the edges of windows; where they come thicker, some go by power alone."""
_RETRY_S = 2.0  # how often a process asks whether a GPU's owner has gone
_RANK_WAIT_S = 1.0  # what other ranks leave to local rank 0 at the start
_QUIET_S = 10.0  # between looks at the counter while no window is open
_TOGETHER_S = 5e-4  # what is due within this is done in one go: waking up costs as much as two readings
_IN_PROCESS = ("virtual", "replay")  # backends whose GPUs no other process can see

_log = logging.getLogger("joulewise")


class Sampler:
    """Polls GPUs and keeps a Track of each. ``start`` it, or run ``loop`` yourself; then ``stop``.

    All GPUs must live in one time. ``recorder`` gets everything that is kept. Locks are files in
    ``lock_directory`` (default: the user's own); virtual and replayed GPUs need none.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        interval_s: float = 0.1,
        recorder: Recording | None = None,
        lock_directory: Path | None = None,
        seed: int | None = None,
    ) -> None:
        if not gpus:
            raise NoGpu(f"there is no GPU to sample; 'joulewise doctor' says why, {VIRTUAL} gives a virtual one")
        if not interval_s > 0:
            raise BadSpec(f"interval_s={interval_s} must be above 0; 0.1 is usual")
        self.time: TimeSource = gpus[0].time
        if not all(_one_time(self.time, gpu.time) for gpu in gpus):
            raise BadSpec("GPUs that live in different times cannot share a sampler; measure them apart")
        self.interval_s = interval_s
        self.tracks = [Track(gpu, index, recording=recorder) for index, gpu in enumerate(gpus)]
        self._owned: dict[Track, Ownership | None] = {
            track: None
            if track.gpu.info.backend in _IN_PROCESS
            else Ownership(track.gpu.info.uuid, directory=lock_directory)
            for track in self.tracks
        }
        self._draw = random.Random(seed)
        self._wanted: set[Track] = set()
        self._chores: list[Callable[[float], bool]] = []
        self._open = 0
        self._looked_s: dict[Track, float] = {}
        self._counters_due_s = -math.inf
        self._paced_s = -math.inf
        self._pace: tuple[float, float] | None = None
        calls_s = sum(track.counter_call_s for track in self.tracks if track.has_counter)
        most_s, now_s = max(2.0 * calls_s, 0.02), self.time.now_s()
        self._allowance = Allowance(COUNTER_SHARE, most_s, left_s=0.25 * most_s, now_s=now_s)
        self._edge_allowance = Allowance(EDGE_SHARE, most_s, left_s=most_s, now_s=now_s)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = False
        _alive.add(self)

    # Running.

    def start(self) -> None:
        """Begin to sample: spawned into a VirtualTime, else on a thread of its own. A second call does nothing."""
        if self._started:
            return
        self._started = True
        self._stopping = threading.Event()
        if isinstance(self.time, VirtualTime):
            self.time.spawn(self.loop())
        else:
            self._thread = threading.Thread(target=self._run, name="joulewise sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End sampling, give up the GPUs' locks. Waits for the thread to leave."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)
        self._thread, self._started = None, False
        for ownership in self._owned.values():
            if ownership is not None:
                ownership.leave()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        speed = float(getattr(self.time, "speed", 1.0))
        stopping = self._stopping
        try:
            for wait_s in self.loop():
                if stopping.wait(max(0.0, wait_s) / speed):
                    return
        except Exception:
            _log.exception("the sampler stopped; windows go on with readings at their edges only")

    def loop(self) -> Loop[None]:
        """All that the sampler does, as one loop that yields its waits and ends after ``stop``."""
        stopping = self._stopping
        seeker = Seeker(self.tracks, self.time, counter_allowance=self._allowance, align=self._until_a_poll)
        loops: list[Loop[None]] = [self._poll_loop(), *seeker.loops()]
        order = count()
        due = [(self.time.now_s(), next(order), each) for each in loops]
        heapq.heapify(due)
        while due and not stopping.is_set():
            wait_s = due[0][0] - self.time.now_s()
            if wait_s > _TOGETHER_S:
                yield wait_s
                continue
            _, _, each = heapq.heappop(due)
            try:
                wait_s = next(each)
            except StopIteration:
                continue
            heapq.heappush(due, (self.time.now_s() + max(0.0, wait_s), next(order), each))

    # What others ask of it.

    @property
    def owned(self) -> list[Track]:
        """The tracks that this process polls."""
        return [track for track, ownership in self._owned.items() if ownership is None or ownership.held]

    def latest(self, index: int = 0) -> Reading | None:
        """The last reading of a GPU, or None if there is none yet."""
        return self.tracks[index].latest

    def want_counter(self, track: Track) -> None:
        """Have the counter looked at with the next poll, or as soon as the budget allows: an edge needs it."""
        with self._lock:
            self._wanted.add(track)

    @property
    def owes_counters(self) -> bool:
        """Whether a counter that an edge needs has not been looked at yet."""
        with self._lock:
            return bool(self._wanted)

    def opened(self, chore: Callable[[float], bool] | None = None) -> None:
        """A window has opened. ``chore`` is called after each poll with the time until it returns True."""
        with self._lock:
            if self._open == 0:
                self._counters_due_s = -math.inf
            self._open += 1
            if chore is not None:
                self._chores.append(chore)

    def closed(self) -> None:
        """A window has closed."""
        with self._lock:
            self._open -= 1

    def wait_for_ticks(self) -> None:
        """Return when every counter (or, without one, power sensor) has ticked once more: up to a period."""
        now_s = self.time.now_s()
        for track in self.tracks:
            ticks = (track.counter_ticks or track.power_ticks).ticks()
            known = ticks.known_at(now_s)
            tick_s = ticks.next_s(now_s) + 3.0 * ticks.error_at_s(now_s) if known else now_s + ticks.period_s
            self.time.sleep(tick_s - self.time.now_s())

    # Polling.

    def _poll_loop(self) -> Loop[None]:
        if local_rank() > 0 and any(self._owned.values()):
            yield _RANK_WAIT_S
        ask_s = slow_s = self.time.now_s()
        while True:
            now_s = self.time.now_s()
            if now_s >= ask_s:
                ask_s = now_s + _RETRY_S
                for ownership in self._owned.values():
                    if ownership is not None:
                        ownership.take()
                owned = self.owned
            for track in owned:
                track.poll()
            if len(owned) < len(self.tracks) and self._open and now_s >= slow_s:
                # Someone else polls these; a look a second tells what the load is like.
                slow_s = now_s + self._draw.uniform(0.7, 1.3)
                for track in self.tracks:
                    if track not in owned:
                        track.poll()
            if self._wanted or now_s >= self._counters_due_s:
                self._look_at_counters(now_s)
            if self._chores:
                self._do_chores(now_s)
            yield self._next_poll_s(owned) - self.time.now_s()

    def _next_poll_s(self, tracks: Iterable[Track]) -> float:
        """When to poll next: once per update of the sensors, and away from their ticks, whose exact place wavers.

        Sensors that update much more often are polled at uneven times instead, so that a job in step with the
        poller does not look steady.
        """
        now_s = self.time.now_s()
        if now_s >= self._paced_s:
            self._paced_s, self._pace = now_s + 2.0, self._find_pace(tracks, now_s)
        if self._pace is None:
            return now_s + self.interval_s * self._draw.uniform(0.6, 1.4)
        period_s, phase_s = self._pace
        wait_s = (phase_s - now_s) % period_s
        return now_s + (wait_s if wait_s > 0.4 * period_s else wait_s + period_s)

    def _until_a_poll(self, wait_s: float) -> float:
        """``wait_s``, a little longer so that a poll is due as well: one awakening serves both."""
        if self._pace is None:
            return wait_s
        period_s, phase_s = self._pace
        return wait_s + (phase_s - self.time.now_s() - wait_s) % period_s

    def _find_pace(self, tracks: Iterable[Track], now_s: float) -> tuple[float, float] | None:
        """Period and phase of polls, or None if they should be uneven."""
        trackers = [track.power_ticks for track in tracks]
        if trackers and all(tracker.period_s < 0.5 * self.interval_s for tracker in trackers):
            return None
        alike = [t.ticks() for t in trackers if abs(t.period_s / self.interval_s - 1.0) < 0.1]
        known = [ticks for ticks in alike if ticks.known_at(now_s)]
        if not known:
            return self.interval_s, now_s
        period_s = sum(ticks.period_s for ticks in known) / len(known)
        phases_s = sorted((ticks.last_s(now_s) - now_s) % period_s for ticks in known)
        widest_s, from_s = max((b - a, a) for a, b in pairwise([*phases_s, phases_s[0] + period_s]))
        return period_s, now_s + from_s + 0.5 * widest_s

    def _do_chores(self, now_s: float) -> None:
        with self._lock:
            chores, self._chores = self._chores, []
        unfinished = [chore for chore in chores if not chore(now_s)]
        with self._lock:
            self._chores += unfinished

    def _look_at_counters(self, now_s: float) -> None:
        """Look at counters that an edge wants, and now and then at the others, as far as the budgets go."""
        with self._lock:
            wanted = set(self._wanted)
        if not self._counters_due_s > now_s:
            self._counters_due_s = now_s + 0.95 * (1.0 if self._open else _QUIET_S)
            # Whoever has waited longest comes first, lest a tight budget go to the same GPUs every time.
            for track in sorted(self.tracks, key=lambda track: self._looked_s.get(track, -math.inf)):
                idle = track.slow_counter and not self._open
                if idle or not self._allowance.take(track.counter_call_s, now_s, leave=0.5):
                    continue
                self._look_at_counter(track, now_s)
                wanted.discard(track)
        for track in wanted:
            if self._edge_allowance.take(track.counter_call_s, now_s):
                self._look_at_counter(track, now_s)

    def _look_at_counter(self, track: Track, now_s: float) -> None:
        track.count()
        self._looked_s[track] = now_s
        with self._lock:
            self._wanted.discard(track)

    def _forked(self) -> None:
        """In a forked child: the thread and the locks are the parent's."""
        self._thread, self._started = None, False
        self._lock = threading.Lock()
        for track, ownership in self._owned.items():
            track.unlock()
            if ownership is not None:
                ownership.abandon()


def _one_time(one: TimeSource, other: TimeSource) -> bool:
    """Whether two clocks show the same; a virtual one is its own, wall clocks and those of a simulator are shared."""
    return one is other or (type(one) is type(other) and not isinstance(one, VirtualTime))


_alive: weakref.WeakSet[Sampler] = weakref.WeakSet()


def _after_fork() -> None:
    for sampler in list(_alive):
        sampler._forked()


os.register_at_fork(after_in_child=_after_fork)
