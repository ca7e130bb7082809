"""The body of a virtual GPU: work, clocks, limiter and heat, evolving exactly from event to event.

Between two events (a phase ends, a clock arrives, the limiter bites, a second of heat has passed, somebody asks for
something) nothing changes, so nothing is computed: the law is asked once for each *stretch*, and power is
constant in it. Reading at whatever pace changes no result.

It is not an instrument (``device/sensors``) and knows no NVML (``device/virtual``, ``device/node``).
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from joulewise.core.measurement import Throttle
from joulewise.device.news import News
from joulewise.device.operating import Demand, Law, OperatingPoints
from joulewise.device.playlist import Phase, Playlist
from joulewise.device.power_trace import PowerTrace
from joulewise.device.state import Job, State, Stretch, activity_s, take_back, throttled_s
from joulewise.model import physics
from joulewise.model.catalog import GpuModel
from joulewise.model.physics import Load

_HEAT_STEP_S = 1.0  # heat moves in minutes (time constants of 60 s), so power may wait a second for its leakage
# The limiter holds an average, so power may exceed the limit for a moment, but not by more than this: 717 W of 500 W
# on a B300 (bursts of 500 ms), 983 W of 700 W on an H200 (bursts of 20 ms; bench/results/h200).
_BURST_LIMITS = 1.42
_AT_LIMIT = 0.999  # an average this close to the limit counts as there, or the limiter would chatter


class Board:
    """One virtual GPU's body, up to ``time_s``. All methods take moments of one time and are for one thread.

    ``rewind_s`` is how far back something may be said to have happened (see ``device/news``); 0: only now.
    """

    def __init__(
        self,
        model: GpuModel,
        *,
        start_s: float = 0.0,
        law: Law | None = None,
        seed: int = 0,
        rewind_s: float = 0.0,
    ) -> None:
        self.model = model
        self.points = OperatingPoints(model, law)
        self.trace = PowerTrace(start_s, keep_s=max(5.0, 2.0 * rewind_s))
        self._draw = random.Random(f"clock switches {seed}")
        cold_c = physics.settled_c(model.chip, model.chip.deep_idle_w)
        self.state = State(start_s, cold_c, model.chip.deep_idle_w, start_s + _HEAT_STEP_S)
        self._stretch: Stretch | None = None
        self._playlist: Playlist | None = None
        self._on_step: Callable[[float], None] | None = None
        self._news = News(self, rewind_s)

    @property
    def time_s(self) -> float:
        """Up to where the board has lived."""
        return self.state.time_s

    @property
    def now(self) -> Stretch:
        """The stretch that begins or goes on at ``time_s``."""
        if self._stretch is None:
            self._stretch = self._begin(self.state)
        return self._stretch

    @property
    def limit_w(self) -> float:
        """The power limit in force."""
        return self.state.in_force.enforced_limit_w(self.model.default_limit_w)

    @property
    def asked_limit_w(self) -> float:
        """The power limit that was asked for; the board's controller may hold power below it."""
        limit_w = self.state.asked.limit_w
        return self.model.default_limit_w if limit_w is None else limit_w

    @property
    def arrival_s(self) -> float:
        """When the next clock that was asked for arrives; infinite if none is under way."""
        return self.state.arriving[0][0] if self.state.arriving else math.inf

    @property
    def throttled_s(self) -> tuple[float, float]:
        """Seconds so far in which the power limit, and heat, held the clock down."""
        return throttled_s(self.state, self.now)

    @property
    def activity_s(self) -> tuple[float, ...]:
        """Seconds so far with any kernel running, bound by the SMs, bound by memory."""
        return activity_s(self.state, self.now)

    def expected_s(self, job: Job) -> float:
        """When ``job`` will be done if nothing changes; infinite if it is not queued here."""
        if job.finished_s is not None:
            return job.finished_s
        state, stretch = self.state, self.now
        at_s = state.time_s
        phase = 0
        if stretch.step_s is not None:
            at_s += stretch.left(state.remaining, state.time_s) * stretch.step_s
            phase = 0 if state.playing is not None else state.phase + 1
        for ahead in state.queue:
            at_s = max(at_s, ahead.start_s)
            for load in ahead.loads[phase:]:
                at_s += self.points.at_work(load, state.in_force, state.temperature_c).step_s
            if ahead is job:
                return at_s
            phase = 0
        return math.inf

    # What happens to it.

    def advance(self, until_s: float) -> None:
        """Live up to ``until_s``; nothing if that is past."""
        state = self.state
        while state.time_s < until_s:
            stretch = self.now
            to_s = min(stretch.end_s, until_s)
            self.trace.append(to_s, stretch.power_w, stretch.busy, stretch.activity[2])
            state.time_s = to_s
            if to_s >= stretch.end_s:
                self._end(state, stretch)

    def ask(self, demand: Demand, at_s: float) -> None:
        """Ask for clocks and a limit: the limit counts at once, clocks arrive after their switching time."""
        switching = self.model.switching
        arrivals_s = {
            knob: at_s + switching.clock_switch_s * math.exp(self._draw.gauss(0.0, switching.clock_switch_spread))
            for knob in ("sm_mhz", "memory_mhz")
        }

        def happen(state: State) -> None:
            arriving = list(state.arriving)
            for knob, due_s in arrivals_s.items():
                wanted = getattr(demand, knob)
                if wanted != getattr(state.asked, knob):
                    arriving = [entry for entry in arriving if entry[1] != knob]
                    # News older than what can be taken back happens late, and what follows from it no earlier.
                    insort(arriving, (max(due_s, state.time_s), knob, wanted), key=lambda entry: entry[0])
            state.arriving = tuple(arriving)
            state.in_force = replace(state.in_force, limit_w=demand.limit_w)
            state.asked = demand

        self._happen(at_s, happen)

    def hold_below(self, limit_w: float | None, at_s: float) -> None:
        """The board's own controller (BMC) allows no more than ``limit_w``; None: it stays out of it."""

        def happen(state: State) -> None:
            state.in_force = replace(state.in_force, bmc_limit_w=limit_w)

        self._happen(at_s, happen)

    def reload(self, at_s: float) -> None:
        """The driver starts afresh: nothing is asked any more, and the default is in force at once."""

        def happen(state: State) -> None:
            state.asked = Demand()
            state.in_force = Demand(bmc_limit_w=state.in_force.bmc_limit_w)  # which is not the driver's
            state.arriving = ()

        self._happen(at_s, happen)

    def submit(self, job: Job, at_s: float) -> None:
        """Queue ``job``; its process becomes resident. It starts when what was queued before is done."""

        def happen(state: State) -> None:
            if not (state.queue and job.pid in state.residents):
                self.interrupt()  # behind other work it makes no difference yet
            job.started_s = job.finished_s = job.energy_j = None  # it may be lived again
            state.residents = {job.pid: 0, **state.residents}
            state.queue = (*state.queue, job)

        # Behind work that was there at the time and is not done yet, it has made none up to now.
        queue, job.queued_s = self.state.queue, at_s
        unfelt = bool(queue) and queue[-1].queued_s <= at_s and job.pid in self.state.residents
        self._news.happen(at_s, happen, unfelt=unfelt)

    def attach(self, pid: int, memory_bytes: int, at_s: float) -> None:
        """A process holds ``memory_bytes`` on the GPU from now on, and keeps its clocks up."""

        def happen(state: State) -> None:
            state.residents = {**state.residents, pid: memory_bytes}

        self._happen(at_s, happen)

    def detach(self, pid: int, at_s: float) -> None:
        """A process is gone, and its work with it."""

        def happen(state: State) -> None:
            state.residents = {each: size for each, size in state.residents.items() if each != pid}
            if self._playlist is not None and self._playlist.pid == pid:
                state.plays = False
                if state.playing is not None:
                    state.playing, state.remaining = None, 1.0
            take_back(state, [job for job in state.queue if job.pid == pid])

        self._happen(at_s, happen)

    def withdraw(self, jobs: Collection[Job], at_s: float) -> None:
        """Take back jobs that are not done; one that is under way is broken off."""
        self._happen(at_s, lambda state: take_back(state, jobs))

    def play(
        self,
        phases: Iterable[Phase],
        at_s: float,
        *,
        pid: int = 0,
        memory_bytes: int = 0,
        on_step: Callable[[float], None] | None = None,
    ) -> None:
        """Work through ``phases`` whenever nothing is queued; ``on_step`` hears when each step ends.

        It replaces what was played before. With a ``rewind_s``, moments that are lived again are heard again.
        """
        if self._playlist is not None:
            self.detach(self._playlist.pid, at_s)
        self.attach(pid, memory_bytes, at_s)
        self._playlist, self._on_step = Playlist(phases, pid), on_step
        self.state.played, self.state.plays = 0, True
        self._news.start_over()

    def _happen(self, at_s: float, change: Callable[[State], None]) -> None:
        """Let ``change`` end the stretch under way at ``at_s``."""

        def happen(state: State) -> None:
            self.interrupt()
            change(state)

        self._news.happen(at_s, happen)

    def interrupt(self) -> None:
        """Close the books of the present stretch at ``time_s``; a new one will begin."""
        state, stretch = self.state, self._stretch
        self._stretch = None
        if stretch is None:
            return
        lived_s = state.time_s - stretch.start_s
        if (window_s := self.model.switching.limiter_window_s) > 0:
            state.limiter_w = stretch.drive_w + (state.limiter_w - stretch.drive_w) * math.exp(-lived_s / window_s)
        state.throttled_s = throttled_s(state, stretch)
        state.activity_s = activity_s(state, stretch)
        state.remaining = stretch.left(state.remaining, state.time_s)

    def restore(self, state: State) -> None:
        """Be again as in ``state``, which has not passed out of the trace's memory."""
        self.state = replace(state)
        for job in state.queue:
            job.finished_s = job.energy_j = None
        self._stretch = None
        self.trace.rewind(state.time_s)

    def forget_before(self, state: State) -> None:
        """Nobody will ask to be taken back before ``state``."""
        if self._playlist is not None:
            self._playlist.forget_before(state.played if state.playing is None else state.playing)

    # One stretch.

    def _begin(self, state: State) -> Stretch:
        """The stretch that starts now: ask the law, and find what ends it."""
        load = self._load(state)
        ends_s = min(state.heat_s, self.arrival_s)
        if load is None:
            if state.queue:
                ends_s = min(ends_s, state.queue[0].start_s)
            idle = self.points.at_rest(state.in_force, state.temperature_c, resident=bool(state.residents))
            reason = frozenset({Throttle.IDLE})
            return Stretch(
                state.time_s, ends_s, idle.power_w, idle.sm_mhz, idle.memory_mhz, reason, drive_w=idle.power_w
            )
        free = self.points.at_work(load, state.in_force, state.temperature_c, limits=_BURST_LIMITS)
        held = self.points.at_work(load, state.in_force, state.temperature_c)
        operation, settles_w = held, None
        window_s = self.model.switching.limiter_window_s
        below = state.limiter_w < _AT_LIMIT * held.busy_power_w < free.busy_power_w
        if held.sm_mhz < free.sm_mhz and below and window_s > 0:
            # The average is still below the limit: run free until it gets there, which a first-order
            # average of constant power does after window · ln((free − average) / (free − limit)).
            operation = free
            excess = (free.busy_power_w - state.limiter_w) / (free.busy_power_w - held.busy_power_w)
            bites_s = state.time_s + window_s * math.log(excess)
            if bites_s <= ends_s:
                ends_s, settles_w = bites_s, held.busy_power_w
        done_s = state.time_s + state.remaining * operation.step_s
        phase_ends = done_s <= ends_s
        return Stretch(
            start_s=state.time_s,
            end_s=done_s if phase_ends else ends_s,
            power_w=operation.average_power_w,
            sm_mhz=operation.sm_mhz,
            memory_mhz=operation.memory_mhz,
            throttle=self.points.throttle(operation),
            drive_w=operation.busy_power_w,
            busy=operation.busy_s / operation.step_s,
            step_s=operation.step_s,
            phase_ends=phase_ends,
            settles_w=None if phase_ends else settles_w,
            activity=self.points.activity(load, operation),
        )

    def _end(self, state: State, stretch: Stretch) -> None:
        """Let happen what ended the stretch."""
        self.interrupt()
        if stretch.settles_w is not None:
            state.limiter_w = stretch.settles_w
        if stretch.phase_ends:
            self._phase_done(state)
        while state.arriving and state.arriving[0][0] <= state.time_s:
            (_, knob, value), *rest = state.arriving
            state.arriving = tuple(rest)
            force = state.in_force
            state.in_force = replace(force, sm_mhz=value) if knob == "sm_mhz" else replace(force, memory_mhz=value)
        if state.heat_s <= state.time_s:
            energy_j = self.trace.energy_j(state.time_s)
            mean_w = (energy_j - state.heat_energy_j) / _HEAT_STEP_S
            state.temperature_c = physics.warmed_c(self.model.chip, state.temperature_c, mean_w, _HEAT_STEP_S)
            state.heat_energy_j = energy_j
            state.heat_s += _HEAT_STEP_S
        self._news.boundary()

    def _load(self, state: State) -> Load | None:
        """What there is to do: the phase under way, else the next job that may start, else what is played."""
        playlist = self._playlist
        if playlist is not None and state.playing is not None:
            under_way = playlist.get(state.playing)
            return under_way.load if under_way else None
        if state.queue and state.queue[0].start_s <= state.time_s:
            job = state.queue[0]
            if state.phase == 0 and state.remaining == 1.0:
                job.started_s = state.time_s
                state.started_energy_j = self.trace.energy_j(state.time_s)
            return job.loads[state.phase]
        if playlist is not None and state.plays:
            phase = playlist.get(state.played)
            if phase is not None:
                state.playing = state.played
                state.played += 1
                return phase.load
        return None

    def _phase_done(self, state: State) -> None:
        state.remaining = 1.0
        if state.playing is not None and self._playlist is not None:
            ended = self._playlist.get(state.playing)
            state.playing = None
            if ended is not None and ended.ends_step:
                state.steps += 1
                if self._on_step is not None:
                    self._on_step(state.time_s)
            return
        job = state.queue[0]
        state.phase += 1
        if state.phase == len(job.loads):
            state.phase = 0
            state.queue = state.queue[1:]
            job.finished_s = state.time_s
            job.energy_j = self.trace.energy_j(state.time_s) - state.started_energy_j
