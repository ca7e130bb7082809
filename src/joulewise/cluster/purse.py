"""Joules a day and watts at once, as the budget of each round.

What it is: a budget of energy over a period (and the next, and the next) and a hard cap of power, turned into what an
allocator understands: a price of a joule, and what the cluster may draw now. The price follows the energy that the
meters have counted: above the course that would just use the budget up it rises, below it falls (dual ascent), slowly,
so that a busy hour may spend what a quiet one leaves. The allowed power keeps the budget whatever the policy does with
the price and however wrong its models are:

    allowed_w = idle_w + (left_j − idle_w · left_s) / max(left_s / swing, look_s)

Drawing that much for ever uses up what is left as (left_s)^swing: fast at first, slower towards the end, never more.
It is worked out once an hour of a day and held (look_s is then that hour); in the last hour, at every look (and look_s
is no shorter than a boot, which cannot be taken back).
With no job there nobody asks again, so what may then be drawn is what can be drawn for ever: no more than the even
course of what is left, nor than that of a period to come. A warm reserve that costs more than that goes off.
Why it exists: a budget that is only predicted to hold is not kept.
What it is not: a forecast of load or of prices, nor a policy.
"""

from __future__ import annotations

import math

from joulewise.cluster.state import Budget, Snapshot
from joulewise.core.errors import BadSpec
from joulewise.core.units import format_duration, format_power, kwh_from_joules

# The price of a joule is kept relative to one at which the energy of a typical GPU weighs as much as its time. Below
# the least nobody feels it, and it is given as 0; above the most, clocks have nothing left to save.
_LEAST_PRICE, _FIRST_PRICE, _MOST_PRICE = 0.02, 0.1, 10.0
# A draw of twice the even course for this share of a period makes a joule e times dearer: four hours of a day. On
# made-up days, with and without nights, a twelfth to a quarter gave the same completion times within 1 %.
_PRICE_SHARE = 1 / 6
# Half a per cent of the budget is never planned for: it pays for what happens between the last looks of a period.
_PLANNED = 0.995
# What may be drawn is held for this share of a period: if it fell with every joule, a job too large for the even course
# would run for minutes between boots. However wrong the models, what is left lasts for so many looks while it is held.
_HELD = 1 / 24
_LOOKS_LEFT = 4
# Less than this of a change in what jobs draw is none.
_CHANGED = 0.01
# How fast a past error of the believed power is forgotten, a look: models learn, so it shrinks.
_FORGET = 0.9


class Purse:
    """``energy_j`` for every ``period_s`` from the first round on, never more than ``power_w``; None: no such limit.

    ``swing``: how many times the even course a busy hour may draw (1: not at all). ``looks``: in how many steps of a
    period the purse is looked at, at least, as far as rounds ``round_s`` apart allow.
    """

    def __init__(
        self,
        *,
        energy_j: float | None = None,
        period_s: float = 86_400.0,
        power_w: float | None = None,
        swing: float = 3.0,
        looks: int = 288,
        round_s: float = 60.0,
    ) -> None:
        if energy_j is not None and not (energy_j > 0 and period_s > 0):
            raise BadSpec(f"an energy budget of {energy_j} J for {period_s} s makes no sense; both must be above 0")
        if power_w is not None and not power_w > 0:
            raise BadSpec(f"a power cap of {power_w} W makes no sense; it must be above 0")
        if not swing >= 1:
            raise BadSpec(f"a swing of {swing} would leave energy unused; it must be 1 or more")
        self.energy_j = energy_j
        self.period_s = period_s
        self.power_w = power_w
        self._swing = swing
        self._round_s = round_s
        self._look_s = math.ceil(period_s / looks / round_s) * round_s
        self._begun_s = math.nan  # of this period, by the clock and by the meter
        self._begun_j = 0.0
        self._last: tuple[float, float] | None = None
        self._even_w = 0.0
        self._held_w = 0.0
        self._held_until_s = -math.inf
        self._log_price = math.log(_FIRST_PRICE)
        self._unit_w: float | None = None
        self._believed: tuple[float, float, float, float] | None = None
        self._changed = False
        self._wrong = 1.0

    @property
    def price(self) -> float:
        """What a joule is worth now; at 1 the energy of a typical GPU weighs as much as its time."""
        price = math.exp(self._log_price)
        return 0.0 if self.energy_j is None or price <= _LEAST_PRICE else price

    def budget(self, snapshot: Snapshot) -> Budget:
        """What this round may spend. The snapshot's kinds say what a node draws that is not used (``off_w``).

        BadSpec where even an idle cluster would pass the budget or the cap, and where energy is to be kept without a
        meter (``Snapshot.energy_j``).
        """
        idle_w = sum(kind.nodes * kind.off_w for kind in snapshot.kinds)
        if self.power_w is not None and self.power_w < idle_w:
            raise BadSpec(
                f"the power cap of {format_power(self.power_w)} is below the {format_power(idle_w)} that the cluster "
                "draws with nothing to do; raise it, or let nodes be switched off"
            )
        if self.energy_j is None:
            self._learn(snapshot)
            return Budget(power_w=self._trusted(self.power_w, idle_w))
        if self.energy_j < idle_w * self.period_s:
            given_kwh, idle_kwh = kwh_from_joules(self.energy_j), kwh_from_joules(idle_w * self.period_s)
            raise BadSpec(
                f"the energy budget of {given_kwh:.4g} kWh for {format_duration(self.period_s)} is below the "
                f"{idle_kwh:.4g} kWh that the cluster draws with nothing to do; raise it, or let nodes be switched off"
            )
        if snapshot.energy_j is None:
            raise BadSpec("an energy budget cannot be kept without a meter of the whole cluster's energy")
        if self._unit_w is None and snapshot.jobs:
            ways = [way for job in snapshot.jobs for way in job.ways]
            self._unit_w = sum(way.power_w / way.gpus for way in ways) / len(ways)
        self._turn_page(snapshot.now_s, snapshot.energy_j)
        left_s = self._begun_s + self.period_s - snapshot.now_s
        left_j = self._begun_j + _PLANNED * self.energy_j - snapshot.energy_j
        spare_j = left_j - idle_w * left_s
        self._learn(snapshot)
        self._reprice(snapshot.now_s, snapshot.energy_j, idle_w)
        self._last = (snapshot.now_s, snapshot.energy_j)
        self._even_w = spare_j / left_s
        if not snapshot.jobs:
            # Nobody may look again for days, and no job's power has to be believed.
            for_ever_w = min(self._even_w, _PLANNED * self.energy_j / self.period_s - idle_w)
            allowed_w = idle_w + max(0.0, for_ever_w)
            return Budget(power_w=allowed_w if self.power_w is None else min(allowed_w, self.power_w))
        allowed_w = idle_w + self._allowed_w(snapshot, left_s, spare_j)
        if self.power_w is not None:
            allowed_w = min(allowed_w, self.power_w)
        joule_s = self.price / self._unit_w if self._unit_w else 0.0
        return Budget(power_w=self._trusted(allowed_w, idle_w), joule_s=joule_s)

    def decided(self, snapshot: Snapshot, jobs_w: float, others_w: float) -> None:
        """What jobs, and all else, are believed to draw from now on; the meter then tells how wrong that is."""
        if snapshot.energy_j is not None:
            before_w = 0.0 if self._believed is None else self._believed[2]
            self._changed = abs(jobs_w - before_w) > _CHANGED * before_w
            self._believed = (snapshot.now_s, snapshot.energy_j, jobs_w, others_w)

    def again_s(self, now_s: float) -> float | None:
        """When to look again if nothing happens before: under a cap in the next round after any change."""
        soon_s = now_s + self._round_s if self.power_w is not None and self._changed else None
        if self.energy_j is None:
            return soon_s
        return min(soon_s or now_s + self._look_s, self._begun_s + self.period_s)

    def _turn_page(self, now_s: float, energy_j: float) -> None:
        """Begin the period that ``now_s`` falls in; what was drawn since the last look is shared out by time."""
        if self._last is None:
            self._begun_s, self._begun_j = now_s, energy_j
        elif (periods := math.floor((now_s - self._begun_s) / self.period_s)) > 0:
            last_s, last_j = self._last
            self._begun_s += periods * self.period_s
            self._held_until_s = now_s
            share = (self._begun_s - last_s) / (now_s - last_s)
            self._begun_j = last_j + share * (energy_j - last_j)

    def _allowed_w(self, snapshot: Snapshot, left_s: float, spare_j: float) -> float:
        """What may be drawn beyond idle: the same for an hour of a day, then looked at anew in ever smaller steps."""
        hold_s = _HELD * self.period_s
        if left_s <= hold_s:
            # A boot, once begun, goes on past the next look.
            boots_s = (kind.boot_s for kind in snapshot.kinds if kind.off_w < kind.empty_node_w)
            return spare_j / max(left_s / self._swing, min(max((self._look_s, *boots_s)), left_s))
        if snapshot.now_s >= self._held_until_s:
            self._held_w = spare_j / max(left_s / self._swing, hold_s)
            self._held_until_s = snapshot.now_s + hold_s
        return min(self._held_w, spare_j / (_LOOKS_LEFT * self._look_s))

    def _reprice(self, now_s: float, energy_j: float, idle_w: float) -> None:
        if self._last is None or now_s <= self._last[0]:
            return
        took_s = now_s - self._last[0]
        drawn_w = (energy_j - self._last[1]) / took_s - idle_w
        over = drawn_w / self._even_w - 1 if self._even_w > 0 else 1.0
        step = min(1.0, max(-1.0, over)) * took_s / (_PRICE_SHARE * self.period_s)
        self._log_price = min(math.log(_MOST_PRICE), max(math.log(_LEAST_PRICE), self._log_price + step))

    def _learn(self, snapshot: Snapshot) -> None:
        """How many times what was believed jobs really drew: at once if more, slowly forgotten if less."""
        if self._believed is None or snapshot.energy_j is None:
            return
        then_s, then_j, jobs_w, others_w = self._believed
        if snapshot.now_s > then_s and jobs_w > 0:
            drawn_w = (snapshot.energy_j - then_j) / (snapshot.now_s - then_s)
            self._wrong = max(1.0, (drawn_w - others_w) / jobs_w, 1.0 + _FORGET * (self._wrong - 1.0))

    def _trusted(self, power_w: float | None, idle_w: float) -> float | None:
        """What a policy may believe to draw, so that the cluster really draws no more than ``power_w``."""
        return None if power_w is None else idle_w + max(0.0, power_w - idle_w) / self._wrong
