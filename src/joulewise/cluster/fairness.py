"""Fairness between users: what a user says of a job may move GPUs among that user's own jobs, never from others.

A deadline, a weight, points of time and energy brought along, bounds on GPUs, a workload's name, a batch size and the
progress that a script tells are all their user's word, and nobody can check them in time. So each decision is made
twice. First with every job as ``state.Plain`` has it, where nothing is any user's word: what comes out for each user is
that user's *share*, GPUs by kind. Then with everything that was said: where that gives every user at least the share,
it stands. Else those who would have less are settled first, each alone within the own share and with the own word, and
the rest is decided anew among the others, until nobody has less. A user whose own word asks for less than the share
(``--most 2``) leaves the difference to the others.

The promise: a user never has fewer GPUs than the share, of any kind, unless by that user's own word; and no share
depends on any user's word. Against the same job without any such field, handed in among jobs without any, it is
therefore never lowered. ``Round`` holds this also for what is carried out, where GPUs lie in pieces and nodes boot.

What it is not: a rule of how shares come about (the policy decides plain jobs as it would decide any), a bound on how
many jobs a user has, or a promise about clocks. GPUs beyond all shares are nobody's due.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Plain, Snapshot, Way, cluster_power_w
from joulewise.core.errors import BadSpec
from joulewise.core.parsing import toml_tables
from joulewise.device import trusted

SITE = Path("/etc/joulewise/cluster.toml")
_MOST = 1e6  # of a weight: what an order may say at most
_EXACT = 1.0 + 1e-9  # sums of the same watts in another order

Gpus = Mapping[str, Mapping[str, int]]
"""User → kind → GPUs."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The most that a job's weight counts, by the site's file. Where several lines concern a job, the user's goes
    before the account's, and that before the QOS's."""

    most: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict)
    accounts: Mapping[str, float] = field(default_factory=dict)
    qos: Mapping[str, float] = field(default_factory=dict)

    def enforced(self, names: Collection[str]) -> tuple[Weights, str]:
        """Without what is said of accounts or QOS unless the engine sees to it that only those use one who may
        (``names``: ``account``, ``qos``); and a line that says so, empty where nothing is left out."""
        left = [
            said
            for name, said, weights in (("account", "accounts", self.accounts), ("qos", "qos", self.qos))
            if weights and name not in names
        ]
        if not left:
            return self, ""
        kept = Weights(
            self.most,
            self.users,
            {} if "accounts" in left else self.accounts,
            {} if "qos" in left else self.qos,
        )
        return kept, (
            f"weight.{' and weight.'.join(left)} of the site file left aside: any user could name any of them; "
            "set AccountingStorageEnforce=associations,qos in slurm.conf"
        )

    def limit(self, user: str, account: str = "", qos: str = "") -> float:
        """The most for such a job."""
        for named, name in ((self.users, user), (self.accounts, account), (self.qos, qos)):
            if name and name in named:
                return named[name]
        return self.most

    def counted(self, weight: float, user: str, account: str = "", qos: str = "") -> float:
        """What a job's own weight counts: itself, or the most."""
        return min(weight, self.limit(user, account, qos))

    def plain(self, weight: float, user: str, account: str = "", qos: str = "") -> float:
        """What it counts against other users: above 1 as far as the site allows, and never below for less.

        A user who gives one job less than 1 orders the own jobs; nobody else should feel that.
        """
        return min(max(1.0, weight), self.limit(user, account, qos))

    def clipped(self, weight: float, user: str, account: str = "", qos: str = "") -> str:
        """In words, that a weight counts for less than it says; empty where it does not."""
        most = self.limit(user, account, qos)
        if weight <= most:
            return ""
        return f"its weight of {weight:g} counts as {most:g}, the most that this site allows {user or 'its user'}"


def load(path: Path | None = None) -> Weights:
    """The site's file; the default (1 for everybody) where there is none at the usual place.

    BadSpec where it is not understood, or where anybody but root (or this process's user) could have written it.
    """
    where = SITE if path is None else path
    try:
        text = trusted.read(where)
    except (FileNotFoundError, NotADirectoryError):
        if path is None:
            return Weights()
        raise BadSpec(f"there is no site file {path}; write one, or leave --site out for the default") from None
    except PermissionError as error:
        raise BadSpec(f"site file {where} cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        return parse(text.decode("utf-8"))
    except (BadSpec, ValueError) as error:
        raise BadSpec(f"site file {where}: {error}") from error


def parse(text: str) -> Weights:
    """What a site file says::

    [weight]
    most = 1                  # for everybody who is not named below; 1 without this file
    users = { alice = 2 }     # by name, or by uid where the user has none
    accounts = { vision = 4 }
    qos = { urgent = 10 }

    BadSpec, or ValueError for what is no TOML.
    """
    table = toml_tables(text)
    if unknown := set(table) - {"weight"}:
        raise BadSpec(f"{sorted(unknown)[0]!r} is not known; known is [weight]")
    said = table.get("weight", {})
    if not isinstance(said, dict):
        raise BadSpec("weight must be a table; write [weight]")
    if unknown := set(said) - {"most", "users", "accounts", "qos"}:
        raise BadSpec(f"weight.{sorted(unknown)[0]} is not known; known are most, users, accounts and qos")
    named: dict[str, dict[str, float]] = {}
    for key in ("users", "accounts", "qos"):
        values = said.get(key, {})
        if not isinstance(values, dict):
            raise BadSpec(f"weight.{key} must map names to weights, as {key} = {{ name = 2 }}")
        named[key] = {name: _weight(f"weight.{key}.{name}", value) for name, value in values.items()}
    return Weights(_weight("weight.most", said.get("most", 1.0)), **named)


def _weight(where: str, value: Any) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 < value <= _MOST):
        raise BadSpec(f"{where} = {value!r} must be a number above 0, at most {_MOST:g}")
    return float(value)


def unclaimed(snapshot: Snapshot) -> Snapshot:
    """The jobs without anything that is their users' word; ``snapshot`` itself where that changes nothing for anybody
    else: with one user, or where nobody has said anything."""
    if len({job.user for job in snapshot.jobs}) < 2:
        return snapshot
    jobs = tuple(job if job.plain is None else _plain(job, job.plain) for job in snapshot.jobs)
    return snapshot if jobs == snapshot.jobs else replace(snapshot, jobs=jobs)


def shared(
    claimed: Snapshot, plain: Snapshot, entitled: Allocation, budget: Budget, allocate: Allocator
) -> Allocation | None:
    """An allocation of ``claimed`` in which every user has the share at least; None where there is none within the
    budget's watts, and ``entitled`` must do.

    ``entitled`` is the allocation of ``plain``, by the same policy and budget.
    """
    share = given(plain, entitled)
    parts = _Parts(claimed, entitled, budget, allocate)
    silent = {job.user for job in claimed.jobs} - {
        job.user for job, bare in zip(claimed.jobs, plain.jobs, strict=True) if job is not bare and job != bare
    }
    settled: dict[str, Way] = {}
    left = dict.fromkeys(job.user for job in claimed.jobs)
    while True:
        rest = parts.decided(left, settled)
        has = given(claimed, rest)
        short: list[str] = []
        for user in left:
            if _covers(has.get(user, {}), share.get(user, {})):
                continue
            own = parts.kept(user) if user in silent else parts.own(user, share.get(user, {}))
            if not _covers(has.get(user, {}), _by_kind(own)):
                settled |= own
                short.append(user)
        if not short:
            break
        for user in short:
            del left[user]
        if not left:
            rest = replace(rest, ways={})
            break
    if not settled:
        return rest
    settled = parts.topped_up({**settled, **rest.ways}, [user for user in share if user not in left], settled)
    # In the order of the plain decision, which nobody's word has changed: a cap takes the last ones first.
    ways = {**settled, **rest.ways}
    order = [*(name for name in entitled.ways if name in ways), *(name for name in ways if name not in entitled.ways)]
    reason = "its user's share is decided apart from what other users say of their jobs"
    merged = replace(
        rest,
        ways={name: ways[name] for name in order},
        gap=None,
        reasons={**rest.reasons, **{name: entitled.reasons.get(name, reason) for name in settled}},
    )
    if budget.power_w is not None:
        most_w = max(budget.power_w, cluster_power_w(plain, entitled))
        if cluster_power_w(claimed, merged) > most_w * _EXACT:
            return None
    return merged


def given(snapshot: Snapshot, allocation: Allocation) -> dict[str, dict[str, int]]:
    """What an allocation gives: user → kind → GPUs."""
    held: dict[str, dict[str, int]] = {}
    for job in snapshot.jobs:
        way = allocation.ways.get(job.name)
        if way is not None:
            own = held.setdefault(job.user, {})
            own[way.kind] = own.get(way.kind, 0) + way.gpus
    return held


def lowered(after: Gpus, plainly: Gpus, wanted: Gpus, entitled: Gpus) -> bool:
    """Whether anybody has fewer GPUs ``after`` a decision than after the plain one, not by the own word.

    ``wanted`` and ``entitled`` are what the two decisions meant to give. Where a user's own word asks for less than the
    share, that is what must be there.
    """
    for user, kinds in plainly.items():
        for kind, gpus in kinds.items():
            asked, due = wanted.get(user, {}).get(kind, 0), entitled.get(user, {}).get(kind, 0)
            if after.get(user, {}).get(kind, 0) < (gpus if asked >= due else min(gpus, asked)):
                return True
    return False


class _Parts:
    """Decisions for some of the users on what the others leave."""

    def __init__(self, claimed: Snapshot, entitled: Allocation, budget: Budget, allocate: Allocator) -> None:
        self._claimed = claimed
        self._entitled = entitled
        self._budget = budget
        self._allocate = allocate
        self._names: dict[str, list[str]] = {}
        for job in claimed.jobs:
            self._names.setdefault(job.user, []).append(job.name)

    def kept(self, user: str) -> dict[str, Way]:
        """What the plain decision gives a user's jobs."""
        return {name: way for name in self._names[user] if (way := self._entitled.ways.get(name)) is not None}

    def own(self, user: str, share: Mapping[str, int]) -> dict[str, Way]:
        """A user's jobs alone on the share, with no more watts than it has in the plain decision."""
        taken = {kind: there - share.get(kind, 0) for kind, there in self._claimed.gpus.items()}
        power_w = self._budget.power_w
        if power_w is not None:
            power_w = cluster_power_w(self._claimed, Allocation(self.kept(user))) * _EXACT
        return dict(self._part([user], taken, power_w).ways)

    def decided(self, users: Collection[str], settled: Mapping[str, Way]) -> Allocation:
        """These users' jobs on what ``settled`` leaves of GPUs and watts."""
        if not settled and len(users) == len(self._names):
            return self._allocate(self._claimed, self._budget)
        power_w = self._budget.power_w
        if power_w is not None:
            empty_w = cluster_power_w(self._claimed, Allocation({}))
            power_w -= cluster_power_w(self._claimed, Allocation(settled)) - empty_w
        return self._part(users, _by_kind(settled), power_w)

    def topped_up(self, ways: Mapping[str, Way], users: Collection[str], settled: Mapping[str, Way]) -> dict[str, Way]:
        """``settled`` with what nobody has taken: one after the other of these users decides anew on the own GPUs and
        those, where that gives no fewer of any kind."""
        now, better = dict(ways), dict(settled)
        for user in users:
            others = {name: way for name, way in now.items() if name not in self._names[user]}
            held, free = _by_kind(now), self._claimed.gpus
            if all(held.get(kind, 0) >= gpus for kind, gpus in free.items()):
                break
            own = self.decided([user], others).ways
            had = {name: now[name] for name in self._names[user] if name in now}
            if _covers(_by_kind(own), _by_kind(had)):
                now = {**others, **own}
                better = {**{name: way for name, way in better.items() if name not in had}, **own}
        return better

    def _part(self, users: Collection[str], taken: Mapping[str, int], power_w: float | None) -> Allocation:
        kinds = tuple(replace(kind, taken=kind.taken + taken.get(kind.name, 0)) for kind in self._claimed.kinds)
        jobs = tuple(job for job in self._claimed.jobs if job.user in users)
        return self._allocate(replace(self._claimed, kinds=kinds, jobs=jobs), replace(self._budget, power_w=power_w))


def _plain(job: Job, plain: Plain) -> Job:
    return replace(
        job,
        ways=plain.ways,
        work_left=plain.work_left,
        weight=plain.weight,
        deadline_s=None,
        way=None if job.way is None else _plain_way(job.way, plain.ways),
    )


def _plain_way(way: Way, ways: tuple[Way, ...]) -> Way:
    """How a job runs now, with the seconds and joules that are thought of any: GPUs and setting are what the engine
    shows, the rest may be its user's word."""
    same = [each for each in ways if each.kind == way.kind]
    if not same:
        return way
    near = min(same, key=lambda each: (abs(math.log(each.gpus / way.gpus)), each.setting != way.setting, each.unit_s))
    return replace(near, gpus=way.gpus, unit_s=near.unit_s * near.gpus / way.gpus, setting=way.setting, batch=way.batch)


def _by_kind(ways: Mapping[str, Way]) -> dict[str, int]:
    held: dict[str, int] = {}
    for way in ways.values():
        held[way.kind] = held.get(way.kind, 0) + way.gpus
    return held


def _covers(has: Mapping[str, int], least: Mapping[str, int]) -> bool:
    return all(has.get(kind, 0) >= gpus for kind, gpus in least.items())
