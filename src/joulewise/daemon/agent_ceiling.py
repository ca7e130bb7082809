"""Keeping a node below its ceiling: from what its GPUs draw and may draw to limits and clocks, now.

What it is: a small controller without hardware, asked at every look of the agent. Its one law: **the power limits of
the GPUs that it may set add up to no more than what the ceiling leaves them**, at any time and whatever the jobs do.
Limits are held by the firmware, so the node stays below its ceiling between two looks, too. Only the *division* follows
the readings: who draws little lends its room to who is held down, and gets it back within a look or two when its work
comes. A limit acts within tenths of a second; so where a limit falls below what is drawn, the clock is cut with it (25
ms), and let go again in steps once the limit holds. Limits cannot go below the lowest that the hardware takes: under
such a ceiling every GPU goes to its lowest limit and clock and stays there; nothing in between could be promised.

The reduction is shared by **one factor of power above idle**, over the GPUs of all jobs: idle power cannot be reduced,
what lies above it is what clocks change, and power above idle in the same proportion is about the same loss of speed
for everybody. So no job pays for another's appetite, and none is stopped for the others.

What it is not: a policy. Which job should rather be slow is the scheduler's to say, by the settings that it declares;
those are never exceeded here. Watts throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from joulewise.core.knob import DEFAULT, Choices, Setting

_RESERVE: Final = 0.01
"""Of the ceiling, kept free by a division: so the host's small changes do not make a new one."""
_AT: Final = 0.96
"""Who draws this share of its limit is held down by it: limiters settle a few percent below."""
_ABOVE: Final = 1.05
"""Who draws this share of its limit is not held by it, whatever the firmware promises."""
_GROW: Final = 1.15
_SHRINK: Final = 0.97
"""Of a believed demand, a look: up when held down, down when it draws less."""
_SPARE: Final = 1.05
"""What a GPU may draw beyond its last reading without being held down."""
_WORTH: Final = 1.03
"""A raise by less is not worth a write."""
_RELEASE_LEAST: Final = 1.03
_RELEASE_MOST: Final = 1.2
"""Of a clock that was cut, a look."""
_ACTS: Final = 7
"""Looks after which a limit holds, if it ever will: about a second."""
_CALM: Final = 14
"""Looks for which there must be room again before the lowest clocks are left: what the others draw goes up and down."""
_SMOOTH: Final = 0.4
"""Weight of the newest reading: power sensors look at 25 ms of 100, and training goes up and down in that time."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU that can be set, as it is. ``declared`` is what the scheduler wants of it."""

    uuid: str
    power_w: float
    idle_w: float
    most_w: float
    """The limit that it has without us: the vendor's, or whoever's."""
    sm_mhz: float | None = None
    limits_w: Choices | None = None
    """What its power limit can be; None: that cannot be set."""
    clocks_mhz: Choices | None = None
    declared: Setting = DEFAULT

    @property
    def allowed_w(self) -> float:
        """The most that it may draw by its declared limit."""
        return min(self.most_w, self.declared.get("power_limit_w", self.most_w))

    @property
    def floor_w(self) -> float:
        """The lowest that its power can be promised to be held at; without a limit, what is hoped of the clocks."""
        return self.idle_w if self.limits_w is None else min(self.limits_w.low, self.allowed_w)


@dataclass(frozen=True, slots=True)
class Held:
    """What shall be set now: for every GPU, at most what was declared. ``lowest``: nothing lower can be set."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    lowest: bool = False


class Ceiling:
    """The controller. It remembers what it set and what it believes the GPUs would draw."""

    def __init__(self) -> None:
        self._limits: dict[str, float] = {}
        """What each GPU may draw now, where that is less than it was declared to."""
        self._caps: dict[str, float] = {}
        """Clocks that are cut."""
        self._demand: dict[str, float] = {}
        self._drawn: dict[str, float] = {}
        self._looks: dict[str, int] = {}
        """For how many looks each limit has been as it is."""
        self._lowest = False
        self._calm = 0
        """For how many looks there has been room again."""

    def hold(self, ceiling_w: float | None, other_w: float, gpus: Sequence[GpuNow]) -> Held:
        """The settings now, if ``other_w`` (the host, and GPUs that cannot be set) and ``gpus`` shall draw at most
        ``ceiling_w`` (None: no ceiling). To be asked at every look, some times a second."""
        known = {gpu.uuid for gpu in gpus}
        for kept in (self._limits, self._caps, self._demand, self._drawn):
            for uuid in kept.keys() - known:
                del kept[uuid]
        self._looks = {uuid: looks for uuid, looks in self._looks.items() if uuid in known}
        for gpu in gpus:
            before_w = self._drawn.get(gpu.uuid, gpu.power_w)
            self._drawn[gpu.uuid] = before_w + _SMOOTH * (gpu.power_w - before_w)
        if ceiling_w is None or sum(gpu.allowed_w for gpu in gpus) <= ceiling_w - other_w:
            self._limits.clear()
            self._caps.clear()
            self._demand.clear()
            self._lowest = False
            return Held({gpu.uuid: gpu.declared for gpu in gpus})
        hard_w = ceiling_w - other_w - self._beyond_w(gpus)
        room_w = hard_w - _RESERVE * ceiling_w
        floor_w = sum(gpu.floor_w for gpu in gpus)
        if floor_w > (hard_w - 2 * _RESERVE * ceiling_w if self._lowest else hard_w):
            self._lowest, self._calm = True, 0
        elif self._lowest:
            self._calm += 1
            self._lowest = self._calm < _CALM
        if self._lowest:
            return Held({gpu.uuid: _lowest(gpu) for gpu in gpus}, lowest=True)
        self._divide(gpus, hard_w, max(room_w, floor_w))
        return Held({gpu.uuid: self._setting(gpu) for gpu in gpus})

    def _beyond_w(self, gpus: Sequence[GpuNow]) -> float:
        """What GPUs draw beyond limits that have had time to act: no clock is low enough for them, so others make
        room."""
        beyond_w = 0.0
        for gpu in gpus:
            limit_w = self._limit(gpu)
            self._looks[gpu.uuid] = self._looks.get(gpu.uuid, 0) + 1
            if gpu.limits_w is not None and limit_w < gpu.allowed_w and self._looks[gpu.uuid] > _ACTS:
                beyond_w += max(0.0, self._drawn[gpu.uuid] - limit_w)
        return beyond_w

    def _divide(self, gpus: Sequence[GpuNow], hard_w: float, room_w: float) -> None:
        held_down = {gpu.uuid for gpu in gpus if self._held_down(gpu)}
        demand = {gpu.uuid: self._believe(gpu, gpu.uuid in held_down) for gpu in gpus}
        now = {gpu.uuid: self._limit(gpu) for gpu in gpus}
        new = _division(gpus, demand, room_w)
        over = sum(now.values()) > hard_w
        if over or any(new[uuid] > _WORTH * now[uuid] for uuid in held_down):
            self._limits = new
            for uuid in new:
                if new[uuid] != now[uuid]:
                    self._looks[uuid] = 0
        for gpu in gpus:
            limit_w, drawn_w = self._limit(gpu), self._drawn[gpu.uuid]
            if gpu.clocks_mhz is None or gpu.sm_mhz is None:
                continue
            # Of a fresh step down the last reading counts; of one in force, what is drawn on average.
            fell = limit_w < now[gpu.uuid] and gpu.power_w > limit_w
            if fell or (drawn_w > _ABOVE * limit_w and gpu.power_w > limit_w):
                seen_w = max(gpu.power_w, drawn_w)
                share = max(0.0, limit_w - gpu.idle_w) / max(seen_w - gpu.idle_w, 1e-9)
                if gpu.limits_w is not None:
                    share = math.sqrt(share)  # the limit does the rest; a deeper cut would only be let go again
                cap = min(gpu.sm_mhz * min(share, 1.0), self._caps.get(gpu.uuid, gpu.sm_mhz))
                self._caps[gpu.uuid] = gpu.clocks_mhz.at_most(cap)
                self._drawn[gpu.uuid] = limit_w  # what was drawn before says nothing any more
            elif gpu.uuid in self._caps and (gpu.limits_w is not None or drawn_w < limit_w / _SPARE):
                cap = self._caps[gpu.uuid] * self._release(gpu, limit_w)
                if cap >= gpu.declared.get("sm_mhz", gpu.clocks_mhz.high):
                    del self._caps[gpu.uuid]
                else:
                    self._caps[gpu.uuid] = cap

    def _release(self, gpu: GpuNow, limit_w: float) -> float:
        """How far a clock that was cut is let go, in one look.

        Power above idle goes at least with the clock, and with its cube where the voltage follows: the square root of
        the room that is left neither passes the limit by much nor takes long. A limiter holds an average, which lies
        low after a cut: so nothing is let go at once.
        """
        if gpu.limits_w is None:
            return 1.0 / _SHRINK
        seen_w = max(self._drawn[gpu.uuid], gpu.power_w)
        room = max(0.0, limit_w - gpu.idle_w) / max(seen_w - gpu.idle_w, 1e-9)
        return min(max(math.sqrt(room), _RELEASE_LEAST), _RELEASE_MOST)

    def _limit(self, gpu: GpuNow) -> float:
        """What it may draw now."""
        return min(self._limits.get(gpu.uuid, gpu.allowed_w), gpu.allowed_w)

    def _held_down(self, gpu: GpuNow) -> bool:
        limit_w = self._limit(gpu)
        return limit_w < gpu.allowed_w and (
            self._drawn[gpu.uuid] >= _AT * limit_w or gpu.power_w >= limit_w or gpu.uuid in self._caps
        )

    def _believe(self, gpu: GpuNow, held_down: bool) -> float:
        """What it would draw if nobody held it down."""
        drawn_w = self._drawn[gpu.uuid]
        before_w = self._demand.get(gpu.uuid, drawn_w * _SPARE)
        believed_w = _GROW * max(before_w, drawn_w) if held_down else max(drawn_w * _SPARE, before_w * _SHRINK)
        believed_w = max(min(believed_w, gpu.allowed_w), gpu.floor_w)
        self._demand[gpu.uuid] = believed_w
        return believed_w

    def _setting(self, gpu: GpuNow) -> Setting:
        setting, limit_w = gpu.declared, self._limit(gpu)
        if gpu.limits_w is not None and limit_w < gpu.allowed_w:
            whole_w = max(float(math.floor(limit_w)), gpu.limits_w.low)  # less than a watt is not worth a write
            setting = setting.with_(power_limit_w=gpu.limits_w.at_most(whole_w))
        if gpu.uuid in self._caps and gpu.clocks_mhz is not None:
            cap = gpu.clocks_mhz.at_most(self._caps[gpu.uuid])
            setting = setting.with_(sm_mhz=min(cap, setting.get("sm_mhz", cap)))
        return setting


def _lowest(gpu: GpuNow) -> Setting:
    setting = gpu.declared
    if gpu.limits_w is not None:
        setting = setting.with_(power_limit_w=gpu.limits_w.low)
    if gpu.clocks_mhz is not None:
        setting = setting.with_(sm_mhz=gpu.clocks_mhz.low)
    return setting


def _division(gpus: Sequence[GpuNow], demand: Mapping[str, float], room_w: float) -> dict[str, float]:
    """Who may draw what; ``room_w`` in all, which is at least the sum of the floors.

    Demands that fit are met, and what is left goes to who could draw more, in proportion. Those that do not fit are met
    to one part, the same for all, of what lies above idle; nobody goes below its floor.
    """
    wanted_w = sum(demand.values())
    if wanted_w <= room_w:
        more_w = sum(gpu.allowed_w - demand[gpu.uuid] for gpu in gpus)
        part = min(1.0, (room_w - wanted_w) / more_w) if more_w > 0 else 0.0
        return {gpu.uuid: demand[gpu.uuid] + part * (gpu.allowed_w - demand[gpu.uuid]) for gpu in gpus}

    def met(part: float) -> dict[str, float]:
        met_w: dict[str, float] = {}
        for gpu in gpus:
            idle_w = min(gpu.idle_w, gpu.floor_w)  # boards draw less in deep idle than at rest, and floors may be lower
            met_w[gpu.uuid] = max(gpu.floor_w, idle_w + part * (demand[gpu.uuid] - idle_w))
        return met_w

    low, high = 0.0, 1.0
    for _ in range(40):  # to a part in 10¹²
        middle = (low + high) / 2
        low, high = (middle, high) if sum(met(middle).values()) <= room_w else (low, middle)
    return met(low)
