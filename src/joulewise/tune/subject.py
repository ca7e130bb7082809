"""The subject of job tuning: a running job on some GPUs. Settings are applied to it, blocks of its work observed.

``JobSubject`` turns what a tuner asks for (a Move) into a setting on the hardware and into a Block of clean work
measured under it. A move may be observed over several visits of its phase. Every wait is a poll, so that a phase
change, a stop or the job's end is noticed within one; nothing here decides what to try.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from joulewise.core.block import Block, Move, Rung
from joulewise.core.errors import GpuError, LeaseLost, NotNow
from joulewise.core.knob import DEFAULT, POWER_LIMIT_W, Setting, Space
from joulewise.core.timeline import Loop
from joulewise.device.lease import Applied, Lease
from joulewise.monitor.ruler import Ruler

POLL_S = 0.1
"""Between two looks at the job while a phase or idle gap may change at any moment."""
EDGE_POLLS = 5
"""Of which so many are waited for the counter at a block's end."""
CALM_S = 0.5
"""The same while a block is far from its end and the job has shown one phase only."""
CLOCK_SETTLES_S = 0.1
"""After this a new clock is there: 25 ms median, 55 ms worst of 19,000 switches on a V100, then doubled."""
LIMIT_SETTLES_S = 1.5
"""The limiter acts on an average of about 0.5 s; after three of them a new balance is within 5 % of a step. It holds
also for a clock raised under a limit that then bites: for a moment such a GPU runs faster than it can for long."""
LEAST_WALL_S = 0.1
"""No block is shorter by the wall's clock, by which sensors are read: in simulated time, which runs faster, the ten
milliseconds that a loaded machine is late make a second."""
COARSE_S = (2.0, 4.0, 8.0, 12.0, 20.0, 30.0)
"""Lengths of blocks that are considered where a period or counters are the ruler."""
LONGER_S = 3.0
"""How much longer is waited for a period that does not show."""
ENDLESS_S = 120.0
"""No block is longer: tracks remember two minutes …"""
FEWEST_STEPS = 4.0
"""… unless it takes longer to see so many steps: fewer are no measure, and the first may have begun before."""


class Subject(Protocol):
    """What can be set, set, and observed."""

    @property
    def space(self) -> Space:
        """What may be set."""
        ...

    def apply(self, setting: Setting) -> None:
        """Put ``setting`` in force on all GPUs or none; nothing if it is in force already."""
        ...

    def observe(self, move: Move) -> Loop[Block | None]:
        """Wait for the work that ``move`` wants; its block, or None where no comparable work came."""
        ...


@dataclass(slots=True)
class Observation:
    """What has been gathered for one move, over one or several visits of its phase."""

    move: Move
    own: Mapping[str, Setting] = field(default_factory=dict)
    """What single GPUs get instead of the move's setting (``tune/slack``)."""
    visits: list[tuple[float, float]] = field(default_factory=list)
    work: float = 0.0
    clean_s: float = 0.0
    waited_s: float = 0.0
    done: bool = False


class JobSubject:
    """One job on the GPUs of ``ruler``'s sampler; ``lease`` None only measures."""

    def __init__(self, ruler: Ruler, lease: Lease | None, space: Space) -> None:
        self.ruler = ruler
        self.lease = lease
        self.setting = DEFAULT
        """What is in force, as far as we know; while ``asleep``, what will be."""
        self.asleep: Setting | None = None
        """The idle setting while it is in force instead."""
        self.own: Mapping[str, Setting] = {}
        """GPU → what it has instead of the common setting (``tune/slack``)."""
        self.switches = 0
        self.wanted_error = 0.0
        """Relative error of unit time that a block should have; coarse rulers (not steps) take longer for it."""
        self._space = space
        self.stopping: Callable[[], bool] = lambda: False
        """Asked at every look at the job; True ends what is being gathered."""
        self.watch: Callable[[], bool] = lambda: False
        """Called at every look at the job; True asks for the next one soon."""
        self._capped: dict[Setting, bool] = {}
        self._settled_s = self._rested_s = -math.inf
        self._limits_w: dict[str, float] = {}  # GPU → the limit that was there when we first set none
        self._stood_w: dict[tuple[str, Setting], float] = {}
        self._measured_s = -math.inf
        self._measured_phase: str | None = None
        self._history: deque[tuple[float, Setting]] = deque([(-math.inf, DEFAULT)], maxlen=64)

    @property
    def space(self) -> Space:
        """What may be set."""
        return self._space

    def confine(self, space: Space) -> None:
        """Only what ``space`` holds may be set from now on."""
        self._space = space

    def apply(self, setting: Setting, own: Mapping[str, Setting] | None = None) -> None:
        """As ``Subject.apply``; GPUs in ``own`` get that instead. What the lease raises leaves all as it was."""
        own = own or {}
        if self.lease is None or (setting == self.setting and own == self.own):
            return
        if not self.asleep:
            self._write(self.lease, self.setting, setting, own)
        self.setting, self.own = setting, own

    def setting_at(self, time_s: float) -> Setting:
        """What was in force at a moment that is not long past: hooks may tell of steps late."""
        return next((setting for from_s, setting in reversed(self._history) if from_s <= time_s), self._history[0][1])

    def rest(self, low: Setting) -> None:
        """Clock a waiting GPU down; what is applied meanwhile comes into force when it is roused."""
        if self.lease is not None and not self.asleep:
            self._write(self.lease, self.setting, low, {})
            self.asleep, self._rested_s = low, self._history[-1][0]
            self.ruler.log.rested(self._rested_s)

    def rouse(self) -> None:
        """Put what was applied last in force again; asleep still if the lease raises."""
        if self.lease is not None and self.asleep is not None:
            self._write(self.lease, self.asleep, self.setting, self.own)
            self.asleep = None
            self.ruler.log.rested(self._rested_s, self._settled_s)

    def _write(self, lease: Lease, before: Setting, after: Setting, own: Mapping[str, Setting]) -> None:
        self._want_counters()
        time = self.ruler.sampler.time
        from_s = time.now_s()
        if from_s >= self._settled_s:
            self._check_standing(before)
        self._check_limit(lease.apply(after))
        try:
            for uuid, each in own.items():
                lease.apply(each, gpus=[uuid])
        except GpuError:
            lease.apply(before)  # on all GPUs or on none
            raise
        self.switches += 1
        self._history.append((from_s, after))
        self._settled_s = time.now_s() + self._settle_s(before, after)
        self.ruler.switched(from_s, self._settled_s, after)

    def _check_standing(self, setting: Setting) -> None:
        """LeaseLost if the power limit is another one than the last time under the same setting: what somebody else
        has set since must not be written over."""
        for track in self.ruler.sampler.tracks:
            limit_w = track.gpu.read().power_limit_w
            if limit_w is None:
                continue
            uuid = track.gpu.info.uuid
            before_w = self._stood_w.setdefault((uuid, setting), limit_w)
            if abs(limit_w - before_w) > 1.0:
                raise LeaseLost(f"somebody else has set {limit_w:g} W on {uuid}, where {before_w:g} W were")

    def _check_limit(self, applied: Applied) -> None:
        """LeaseLost if a power limit that is not ours is another one than before: somebody else sets this GPU."""
        name = POWER_LIMIT_W.name
        if name in applied.requested:
            return
        for uuid, found in applied.effective.items():
            limit_w = found.get(name)
            before_w = limit_w if limit_w is None else self._limits_w.setdefault(uuid, limit_w)
            if limit_w is not None and before_w is not None and abs(limit_w - before_w) > 1.0:
                raise LeaseLost(f"somebody else has set {limit_w:g} W on {uuid}, where {before_w:g} W were")

    def observe(self, move: Move) -> Loop[Block | None]:
        """As ``Subject.observe``; a change of phase before there is enough ends it with what there is."""
        observation = Observation(move)
        self.apply(move.setting)
        yield from self.gather(observation)
        return self.block(observation)

    def gather(self, observation: Observation) -> Loop[None]:
        """Observe until the move has what it wanted (``done``), its phase is left, or somebody says stop."""
        move, ruler, time = observation.move, self.ruler, self.ruler.sampler.time
        begun_s = time.now_s()
        # Where nothing was switched in between, the step under way belongs to this block from its start.
        from_s = max(self._settled_s, self._measured_s if self._measured_phase == move.phase else begun_s)
        before = (observation.work, observation.clean_s, observation.waited_s)
        most_s = self._most_s(move)
        speed = float(getattr(time, "speed", 1.0))
        least_s = max(move.least_s, self._ruler_takes_s(move.phase), LEAST_WALL_S * speed)
        unlooked = from_s > begun_s  # the last look at the counter was before a switch
        while True:
            ruler.read()
            alert = self.watch()
            now_s = time.now_s()
            if unlooked and now_s >= from_s:
                unlooked = False
                self._want_counters()
            work, clean_s = ruler.progress(from_s, now_s, move.phase) if now_s > from_s else (0.0, 0.0)
            observation.work, observation.clean_s = before[0] + work, before[1] + clean_s
            observation.waited_s = before[2] + now_s - begun_s
            enough = observation.work >= move.least_work and observation.clean_s >= least_s
            if enough and not observation.done:
                # One more look, by when the sampler has read the counter for the block's end.
                observation.done = True
                self._want_counters()
                yield from self._counters_read()
                continue
            if enough and ruler.rung_in(move.phase) is Rung.PERIOD and ruler.clean(from_s, now_s, move.phase) is None:
                enough, least_s = False, least_s + LONGER_S  # no period shows yet: a longer look may find it
            observation.done = enough or observation.waited_s >= most_s
            if observation.done or ruler.phase != move.phase or self.stopping():
                break
            yield POLL_S if alert else self._wait_s(observation, least_s)
        to_s = self._last_edge_s(from_s, now_s, move.phase)
        self._measured_s, self._measured_phase = to_s, move.phase
        if to_s > from_s:
            observation.visits.append((from_s, to_s))

    def _most_s(self, move: Move) -> float:
        """How long a move is waited for: some steps at least, however long they are."""
        usual_s = self.ruler.usual_s(move.phase) if self.ruler.rung_in(move.phase) is Rung.STEPS else None
        return max(min(move.most_s, ENDLESS_S), FEWEST_STEPS * (usual_s or 0.0))

    def _last_edge_s(self, from_s: float, now_s: float, phase: str) -> float:
        """The end of the last step, so that the next block begins there; now, where the ruler knows no steps."""
        last_s = self.ruler.log.last_s
        if self.ruler.rung_in(phase) is not Rung.STEPS or last_s is None or not from_s < last_s <= now_s:
            return now_s
        return last_s

    def block(self, observation: Observation) -> Block | None:
        """What was observed, as a Block; None where no comparable work came or no energy could be read."""
        if not observation.visits:
            return None
        move, ruler = observation.move, self.ruler
        parts = [part for visit in observation.visits if (part := ruler.clean(*visit, move.phase)) is not None]
        if not parts:
            return None
        intervals = [interval for part in parts for interval in part.intervals]
        spent = ruler.spent(intervals)
        if spent is None:
            return None
        work, duration_s = sum(part.work for part in parts), sum(part.duration_s for part in parts)
        error = math.sqrt(sum((part.time_error * part.duration_s) ** 2 for part in parts)) / duration_s
        start_s, end_s = observation.visits[0][0], observation.visits[-1][1]
        error = ruler.error_of(move.phase, move.setting, start_s, end_s, duration_s / work, error)
        power_w, power_error = spent.energy_j / duration_s, spent.error_j / spent.energy_j
        power_error = ruler.power_error_of(move.phase, move.setting, start_s, end_s, power_w, power_error)
        if spent.power_capped is not None:
            self._capped[move.setting] = spent.power_capped
        return Block(
            setting=move.setting,
            start_s=start_s,
            end_s=end_s,
            work=work,
            duration_s=duration_s,
            energy_j=spent.energy_j,
            energy_error_j=spent.energy_j * power_error,
            time_error=error,
            phase=move.phase,
            rung=ruler.rung_in(move.phase),
            sm_mhz=spent.sm_mhz,
            power_capped=spent.power_capped,
            left_out_s=max(0.0, end_s - start_s - duration_s),
            slack=bool(observation.own),
        )

    def _settle_s(self, before: Setting, after: Setting) -> float:
        limit = POWER_LIMIT_W.name
        if before.get(limit) != after.get(limit) or self._capped.get(after, False):
            return LIMIT_SETTLES_S
        return CLOCK_SETTLES_S

    def _want_counters(self) -> None:
        """An edge of two blocks: a look at the counter helps on both sides."""
        for track in self.ruler.sampler.tracks:
            self.ruler.sampler.want_counter(track)

    def _counters_read(self) -> Loop[None]:
        """Wait until the sampler has looked: a poll, or a few on a loaded machine and where the look must be saved up
        for. Without it a block's end rests on power alone, which tells a tenth of what the counter does."""
        for _ in range(EDGE_POLLS):
            yield POLL_S
            if not self.ruler.sampler.owes_counters:
                return

    def _ruler_takes_s(self, phase: str) -> float:
        """Seconds that a coarse ruler needs for the wanted error; 0 where steps are told."""
        if self.ruler.rung_in(phase) is Rung.STEPS or not self.wanted_error > 0:
            return 0.0
        fine = (wait_s for wait_s in COARSE_S if self.ruler.resolution(wait_s, phase) <= self.wanted_error)
        return max(self.ruler.least_s(phase), next(fine, COARSE_S[-1]))

    def _wait_s(self, observation: Observation, least_s: float) -> float:
        """Until the next look: soon where something may change or the block is nearly done."""
        if self.ruler.phase or not observation.work > 0:
            return POLL_S
        move = observation.move
        share = min(
            observation.work / move.least_work if move.least_work > 0 else 1.0,
            observation.clean_s / least_s if least_s > 0 else 1.0,
        )
        left_s = observation.clean_s * (1.0 / share - 1.0) if share > 0 else CALM_S
        return min(CALM_S, max(POLL_S, left_s))


def retry_s(error: NotNow) -> float:
    """How long to wait before trying again, within reason."""
    return min(5.0, max(POLL_S, error.retry_s))


def common_space(
    spaces: Sequence[Space], knobs: Collection[str], allowed: Mapping[str, tuple[float, float]] | None = None
) -> Space:
    """What may be set on every GPU through a lease on ``knobs``: the first GPU's choices, where all have the same, as
    far as they are ``allowed``."""
    allowed = allowed or {}
    shared = {
        name: choices.within(*allowed[name]) if name in allowed else choices
        for name, choices in spaces[0].knobs.items()
        if name in knobs and all(space.knobs.get(name) == choices for space in spaces)
    }
    return Space({name: choices for name, choices in shared.items() if choices is not None})
