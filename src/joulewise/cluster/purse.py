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

With a *tariff* (``Weight``) a joule counts w(t) times, so that the budget is one of grams or of money: what is left is
then left in weighted joules, the price of a joule is w(t) times as high, and what may be drawn leans towards cheap
hours as w^−γ (γ = 2):

    allowed_w = idle_w + (left − idle_w · ∫w) · w^−γ / max(∫w^(1−γ) / swing, ∫ over look_s)

with integrals over what is left of the period. Again what is left falls as a power of that integral, never below 0.
Why it exists: a budget that is only predicted to hold is not kept.
What it is not: a forecast of load or of prices, nor a policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from joulewise.cluster.state import Budget, Snapshot
from joulewise.core.errors import BadSpec
from joulewise.core.units import format_duration, format_power, kwh_from_joules

# The price of a joule is kept relative to one at which the energy of a typical GPU weighs as much as its time. Below
# the least nobody feels it, and it is given as 0; above the most, clocks have nothing left to save.
_LEAST_PRICE, _FIRST_PRICE, _MOST_PRICE = 0.02, 0.1, 10.0
# A draw of twice the even course for this share of a period makes a joule e times dearer: four hours of a day. On
# made-up days, with and without nights, a twelfth to a quarter gave the same completion times within 1 %.
_PRICE_SHARE = 1 / 6
# What would be left over at the end of a period is lost: there a price that holds the draw below what is left falls
# faster, by the time that is left instead of the period's, and is as before when the next begins.
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
# How far what may be drawn leans towards cheap hours: a joule at half the mean may be four times as many.
_LEAN = 2.0


class Weight(Protocol):
    """What a joule counts, by time; 1 on average (``tariff.Tariff`` is one)."""

    def weight(self, now_s: float, /) -> float:
        """From now until ``next_s``; above 0."""
        ...

    def next_s(self, now_s: float, /) -> float:
        """When it changes next."""
        ...

    def integral(self, from_s: float, to_s: float, power: float = 1.0, /) -> float:
        """Of weight^power over time, in seconds."""
        ...


class _Even:
    """Every joule counts once."""

    def weight(self, _: float, /) -> float:
        return 1.0

    def next_s(self, _: float, /) -> float:
        return math.inf

    def integral(self, from_s: float, to_s: float, _: float = 1.0, /) -> float:
        return to_s - from_s


class Purse:
    """``energy_j`` for every ``period_s`` from the first round on, never more than ``power_w``; None: no such limit.

    ``swing``: how many times the even course a busy hour may draw (1: not at all). ``looks``: in how many steps of a
    period the purse is looked at, at least, as far as rounds ``round_s`` apart allow. ``weight``: what a joule counts
    by time; ``energy_j`` is then in joules of the mean weight.
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
        weight: Weight | None = None,
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
        self._looks = looks
        self._weight: Weight = _Even() if weight is None else weight
        self._counted_j = 0.0  # what the meter has counted, weighted, and when and at what it was looked at last
        self._metered: tuple[float, float] | None = None
        self._begun_s = math.nan  # of this period, by the clock and by the meter
        self._begun_j = 0.0
        self._last: tuple[float, float] | None = None
        self._even_w = 0.0
        self._held_w = 0.0
        self._held_until_s = -math.inf
        self._log_price = math.log(_FIRST_PRICE)
        self._log_sale = 0.0
        self._unit_w: float | None = None
        self._believed: tuple[float, float, float, float] | None = None
        self._changed = False
        self._wrong = 1.0
        self.capped = False
        """Whether the last budget's watts were those of the cap, and not of the energy that is left."""

    @property
    def _look_s(self) -> float:
        return math.ceil(self.period_s / self._looks / self._round_s) * self._round_s

    def rebudget(self, energy_j: float | None, period_s: float) -> None:
        """Another budget from the next round on. What was drawn in this period counts, if it is as long as before;
        else a new one begins."""
        if (energy_j, period_s) == (self.energy_j, self.period_s):
            return
        if period_s != self.period_s or self.energy_j is None:
            self._last = None
        self.energy_j, self.period_s = energy_j, period_s
        self._held_until_s = -math.inf

    def facts(self) -> dict[str, float]:
        """Where this period stands, as plain numbers that ``resume`` takes; empty where there is no budget."""
        if self.energy_j is None or self._last is None:
            return {}
        metered_s, metered_j = self._metered or self._last
        return {
            "period_s": self.period_s,
            "begun_s": self._begun_s,
            "begun_j": self._begun_j,
            "last_s": self._last[0],
            "last_j": self._last[1],
            "metered_s": metered_s,
            "metered_j": metered_j,
            "counted_j": self._counted_j,
            "log_price": self._log_price,
            "log_sale": self._log_sale,
        }

    def resume(self, facts: Mapping[str, float]) -> None:
        """Go on with a period that another process began, by a meter that goes on as well. Nothing where there were
        none, or of another length."""
        if self.energy_j is None or facts.get("period_s") != self.period_s:
            return
        self._begun_s, self._begun_j = facts["begun_s"], facts["begun_j"]
        self._last = (facts["last_s"], facts["last_j"])
        self._metered = (facts["metered_s"], facts["metered_j"])
        self._counted_j, self._log_price = facts["counted_j"], facts["log_price"]
        self._log_sale = facts.get("log_sale", 0.0)

    @property
    def price(self) -> float:
        """What a joule is worth now; at 1 the energy of a typical GPU weighs as much as its time."""
        price = math.exp(self._log_price + self._log_sale)
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
        self.capped = self.power_w is not None
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
        now_s, counted_j = snapshot.now_s, self._count(snapshot.now_s, snapshot.energy_j)
        self._turn_page(now_s, counted_j)
        end_s = self._begun_s + self.period_s
        left_s = self._weight.integral(now_s, end_s)
        left_j = self._begun_j + _PLANNED * self.energy_j - counted_j
        spare_j = left_j - idle_w * left_s
        self._learn(snapshot)
        self._reprice(now_s, counted_j, idle_w)
        self._last = (now_s, counted_j)
        now_weight = self._weight.weight(now_s)
        self._even_w = spare_j * self._lean(now_weight) / self._weight.integral(now_s, end_s, 1.0 - _LEAN)
        if not snapshot.jobs:
            # Nobody may look again for days, and no job's power has to be believed.
            period_s = self._weight.integral(end_s, end_s + self.period_s)
            for_ever_w = min(spare_j / left_s, _PLANNED * self.energy_j / period_s - idle_w)
            allowed_w = idle_w + max(0.0, for_ever_w)
            return Budget(power_w=allowed_w if self.power_w is None else min(allowed_w, self.power_w))
        allowed_w = idle_w + self._allowed_w(snapshot, end_s, spare_j)
        if self.power_w is not None:
            self.capped = self.power_w <= allowed_w
            allowed_w = min(allowed_w, self.power_w)
        joule_s = now_weight * self.price / self._unit_w if self._unit_w else 0.0
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
        return min(soon_s or now_s + self._look_s, self._begun_s + self.period_s, self._weight.next_s(now_s))

    def _count(self, now_s: float, energy_j: float) -> float:
        """What has been drawn in all, each joule by the weight of the time since the last look."""
        if isinstance(self._weight, _Even):
            return energy_j
        if self._metered is not None and now_s > self._metered[0]:
            last_s, last_j = self._metered
            self._counted_j += (energy_j - last_j) * self._weight.integral(last_s, now_s) / (now_s - last_s)
        self._metered = (now_s, energy_j)
        return self._counted_j

    @staticmethod
    def _lean(weight: float) -> float:
        return float(weight**-_LEAN)

    def _turn_page(self, now_s: float, energy_j: float) -> None:
        """Begin the period that ``now_s`` falls in; what was drawn since the last look is shared out by time."""
        if self._last is None:
            self._begun_s, self._begun_j = now_s, energy_j
        elif (periods := math.floor((now_s - self._begun_s) / self.period_s)) > 0:
            last_s, last_j = self._last
            self._begun_s += periods * self.period_s
            self._held_until_s = now_s
            self._log_sale = 0.0
            share = (self._begun_s - last_s) / (now_s - last_s)
            self._begun_j = last_j + share * (energy_j - last_j)

    def _allowed_w(self, snapshot: Snapshot, end_s: float, spare_j: float) -> float:
        """What may be drawn beyond idle: the same for an hour of a day, then looked at anew in ever smaller steps."""
        now_s = snapshot.now_s
        left_s = end_s - now_s
        hold_s = _HELD * self.period_s
        lean = self._lean(self._weight.weight(now_s))
        left = self._weight.integral(now_s, end_s, 1.0 - _LEAN)
        if left_s <= hold_s:
            # A boot, once begun, goes on past the next look.
            boots_s = (kind.boot_s for kind in snapshot.kinds if kind.off_w < kind.empty_node_w)
            soon_s = min(max((self._look_s, *boots_s)), left_s)
            return spare_j * lean / max(left / self._swing, self._ahead(now_s, soon_s))
        if now_s >= self._held_until_s:
            self._held_w = spare_j * lean / max(left / self._swing, self._ahead(now_s, hold_s))
            self._held_until_s = min(now_s + hold_s, self._weight.next_s(now_s))
        return min(self._held_w, spare_j * lean / self._ahead(now_s, _LOOKS_LEFT * self._look_s))

    def _ahead(self, now_s: float, for_s: float) -> float:
        """∫ w^(1−γ) from now on, or w·w_now^−γ where that is more: what is held counts more in a dearer hour."""
        if isinstance(self._weight, _Even):
            return for_s
        lean = self._lean(self._weight.weight(now_s))
        return max(
            self._weight.integral(now_s, now_s + for_s, 1.0 - _LEAN),
            self._weight.integral(now_s, now_s + for_s) * lean,
        )

    def _reprice(self, now_s: float, energy_j: float, idle_w: float) -> None:
        if self._last is None or now_s <= self._last[0]:
            return
        took_s = now_s - self._last[0]
        drawn_w = (energy_j - self._last[1]) / took_s - idle_w
        over = drawn_w / self._even_w - 1 if self._even_w > 0 else 1.0
        over = min(1.0, max(-1.0, over))
        step = over * took_s / (_PRICE_SHARE * self.period_s)
        self._log_price = min(math.log(_MOST_PRICE), max(math.log(_LEAST_PRICE), self._log_price + step))
        left_s = max(self._look_s, self._begun_s + self.period_s - now_s)
        self._log_sale = min(0.0, self._log_sale + over * took_s / (_PRICE_SHARE * left_s) - step)

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
