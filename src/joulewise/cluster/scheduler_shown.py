"""Makes a ``Status`` of what a scheduler knows. What it is not: the data itself (``scheduler_status``)."""

from __future__ import annotations

import math

from joulewise.cluster.fairness import Weights
from joulewise.cluster.queue import Kept
from joulewise.cluster.scheduler_acts import HOLDS, done
from joulewise.cluster.scheduler_energy import Energy
from joulewise.cluster.scheduler_power import most_w
from joulewise.cluster.scheduler_rounds import Rounds
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_status import JobStatus, NodeStatus, Status
from joulewise.cluster.scheduler_watts import Watts
from joulewise.cluster.state import Prices
from joulewise.core.knob import DEFAULT
from joulewise.core.units import format_power

# Jobs that are over are shown for a day.
_SHOWN_S = 86_400.0


class Shown:
    """Sees all parts, changes none."""

    def __init__(self, sight: Sight, watts: Watts, energy: Energy, rounds: Rounds, weights: Weights) -> None:
        self._sight = sight
        self._watts = watts
        self._energy = energy
        self._rounds = rounds
        self._weights = weights

    def made(self, now_s: float) -> Status:
        """How the cluster stands."""
        limit = self._watts.limits.at(now_s)
        assumed = self._energy.assumed_w()
        agents = self._sight.agents
        nodes = []
        used: dict[str, int] = {}
        for seen in self._sight.seen.values():
            if seen.state in HOLDS:
                for name, gpus in seen.place.items():
                    used[name] = used.get(name, 0) + gpus
        power_w = 0.0
        for node in self._sight.nodes:
            report = None if agents is None else agents.latest(node.name)
            heard = report is not None and agents is not None and agents.heard(node.name)
            # The last word of a node that has gone off since says nothing of now.
            drawn_w = report.power_w if report is not None and heard and node.state not in ("off", "booting") else None
            kind = self._sight.kinds.get(node.kind)
            counted_w = assumed.get(node.name, 0.0)
            says = () if report is None else report.trouble
            if drawn_w is not None and report is not None:
                counted_w = self._watts.credible_w(report) or 0.0
                if counted_w < drawn_w:
                    said, most = format_power(drawn_w), format_power(counted_w)
                    says = (f"its sensors say {said}, more than it can draw; counted with {most}", *says)
            if node.name in self._sight.silent and kind is not None:
                counted_w = most_w(node, kind, self._sight.most_gpu_w.get(node.kind, 0.0))
            power_w += counted_w
            bound_w = None if agents is None else agents.in_force_w(node.name)
            if node.name in self._sight.silent:
                says = (f"its agent is silent; counted with {format_power(counted_w)}", *says)
            if node.state == "up" and node.name in self._sight.fresh:
                says = ("it is up, but its agent has not been heard yet; it is not used until then", *says)
            if node.why:
                says = (node.why, *says)
            need = self._watts.needs.get(node.name)
            nodes.append(
                NodeStatus(
                    node.name,
                    node.state,
                    node.kind,
                    node.gpus,
                    used.get(node.name, 0),
                    node.foreign_gpus,
                    drawn_w,
                    counted_w,
                    assumed.get(node.name, 0.0) if need is None else need.believed_w,
                    None if agents is None else agents.ceiling_w(node.name),
                    bound_w if bound_w is not None and math.isfinite(bound_w) else None,
                    None if agents is None else agents.silent_s(node.name),
                    tuple(says),
                )
            )
        decision = None if self._rounds.last is None else self._rounds.last[1]
        cap_w = limit.cap_w
        return Status(
            now_s,
            self._sight.book.epoch,
            power_w,
            sum(need.believed_w for need in self._watts.needs.values()) + self._watts.uncontrolled_w,
            cap_w,
            limit.aim_w,
            limit.until_s,
            limit.source,
            None if cap_w is None else power_w <= cap_w,
            self._energy.meter.whole_j,
            self._energy.meter.idle_j,
            limit.energy_j,
            limit.period_s,
            0.0 if self._watts.purse is None else self._watts.purse.price,
            Prices() if decision is None else decision.allocation.prices,
            None if decision is None else decision.allocation.gap,
            self._rounds.count,
            self._sight.last_round_s,
            tuple(nodes),
            tuple(
                self._job_status(now_s, kept)
                for kept in list(self._sight.book.jobs.values())
                if kept.ended_s is None or now_s - kept.ended_s < _SHOWN_S
            ),
            self._sight.lost,
            tuple(filter(None, (*limit.says, self._sight.book.trouble, *self._sight.faults.values()))),
            limit.cap_by,
            limit.budget_by,
        )

    def _job_status(self, now_s: float, kept: Kept) -> JobStatus:
        order, aim = kept.order, kept.aim
        whose = (order.user, order.account, order.qos)
        seen = self._sight.seen.get(order.name)
        track = self._sight.tracks.get(order.name)
        way = None if aim is None or kept.over else aim.way
        left = None if track is None or kept.over else track.work_left()
        shown = seen is not None and not kept.over
        busy = aim is not None and shown and seen is not None and not done(kept, seen)
        work = order.work
        if track is not None and track.progress is not None and track.progress.steps is not None:
            work = float(track.progress.steps)
        return JobStatus(
            order.name,
            kept.id,
            str(seen.state) if seen is not None and not kept.over else str(kept.state),
            aim.what if busy and aim is not None else "",
            0 if way is None else way.gpus,
            {} if way is None or aim is None else dict(aim.place),
            DEFAULT if way is None else way.setting,
            0.0 if way is None else way.power_w,
            kept.done if track is None else track.done,
            work,
            left,
            sum(self._energy.job_j(kept).values()),
            order.submitted_s,
            kept.started_s,
            kept.ended_s,
            None if way is None or left is None else now_s + left * way.unit_s,
            kept.starts if seen is None else seen.starts,
            order.deadline_s,
            order.elastic,
            order.gpus,
            order.tenant,
            self._weights.counted(order.weight, *whose),
            kept.exit_code,
            kept.why
            or self._sight.faults.get(f"job {order.name}", "")
            or ("" if kept.over else self._weights.clipped(order.weight, *whose)),
            self._energy.gpu_j(order.name),
            order.user,
        )
