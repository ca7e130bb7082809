"""Rights: may this user set these knobs of that GPU, and how far? One pure function of what is known.

Root may set everything that the hardware can. For everybody else each knob is decided by itself: a live grant for it
comes first, then the first rule of the site that names the user, the GPU and the knob; where a job has claimed the
GPU for the cluster's scheduler, rules give nothing. A grant wants nobody else's
processes on the GPU, unless it says that it may be shared; a rule wants one of the user's own there besides, unless it
says that it needs nothing; a GPU that is cut into slices is root's alone. So a yes depends on a look at the GPU, which
costs milliseconds and is made only where ``decide`` asks for it (NeedsLook).

What a user says about themselves counts for nothing: uid, groups and control groups come from the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from joulewise.core.errors import NotPermitted, OutOfRange, Unsupported
from joulewise.core.knob import Space
from joulewise.daemon.grants import Grant
from joulewise.daemon.policy import Bound, Policy, Range

ROOT = 0
NO_ONE = 65534
"""What the kernel shows for users that have no number here (another user namespace): several may look like it, so
"their process" cannot be told and it is never taken for somebody. Also the account ``nobody``."""


Need: TypeAlias = Literal["nothing", "alone", "process"]
"""What must be so on the GPU: anything; nobody else's process; one of the user's own and nobody else's."""


class NeedsLook(Exception):
    """The answer depends on which processes run on the GPU; look, and ask again."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks for what, as the kernel says."""

    uid: int
    gids: frozenset[int]
    cgroups: tuple[str, ...]
    """Where the process is, one path a hierarchy, as the daemon sees them in /proc/PID/cgroup."""
    gpu: str
    knobs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at one GPU has shown."""

    processes: tuple[tuple[int, int], ...] | None
    """(pid, uid) of everything that runs on it; uid -1 where that cannot be told; None: the driver does not say."""
    mig: bool
    """Whether it is cut into slices, which share its knobs."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the user may do there."""

    ranges: Mapping[str, tuple[float, float]]
    """Knob → the lowest and the highest value, within what the hardware has."""
    because: str
    until_unix_s: float | None
    """When the first of the grants that it rests on ends; None if it rests on none."""
    grants: tuple[str, ...] = ()
    """The names of those grants: taken away, they take the right with them."""

    def check(self, knob: str, value: float, *, gpu: str) -> None:
        """Raise OutOfRange, naming value and limit, unless ``knob`` may be set to ``value``."""
        low, high = self.ranges.get(knob, (1.0, 0.0))
        if not low <= value <= high:
            what = f"outside the {low:g}–{high:g} that you may set" if low <= high else "not part of your lease"
            raise OutOfRange(f"{knob}={value:g} on {gpu} is {what} ({self.because}); see 'joulewise doctor'")


def decide(
    asking: Asking,
    policy: Policy,
    grants: Iterable[Grant],
    seen: Seen | None,
    space: Space,
    default_limit_w: float | None,
) -> Allowed:
    """What ``asking`` may do; all of the knobs or NotPermitted, which says why and the way out.

    ``grants`` are the live ones. ``seen`` is None before anybody has looked: NeedsLook if that must be done first.
    Raises Unsupported for a knob that the GPU does not have.
    """
    ranges: dict[str, tuple[float, float]] = {}
    reasons: list[str] = []
    used: dict[str, Grant] = {}
    needs: dict[Need, str] = {}  # what must be so on the GPU, and for which knob
    grants = tuple(grants)
    mine = [grant for grant in grants if grant.uid == asking.uid and asking.gpu in grant.gpus]
    for knob in sorted(asking.knobs):
        choices = space.knobs.get(knob)
        if choices is None:
            raise Unsupported(f"{knob} cannot be set on {asking.gpu}; see 'joulewise doctor'")
        found: tuple[float, float] | None
        if asking.uid == ROOT:
            found, because = (choices.low, choices.high), "root"
        elif giving := [(grant, given) for grant in mine if (given := _given(grant, asking, knob, policy)) is not None]:
            # Of several the one that ends last: the lease lives as long as it may.
            grant, given = max(giving, key=lambda pair: (pair[0].expires_unix_s, pair[0].name))
            found, because = given.within(choices, default_limit_w), f"grant {grant.name}"
            used[grant.name] = grant
            needs.setdefault("nothing" if grant.shared else "alone", knob)
        elif claim := next((each for each in grants if each.claims and asking.gpu in each.gpus), None):
            raise _refused(asking, knob, f"the cluster's scheduler sets the GPUs of job {claim.job}", mine)
        else:
            given, because, need = _ruled(asking, knob, policy, mine)
            found = given.within(choices, default_limit_w)
            needs.setdefault(need, knob)
        if found is None:
            raise _refused(asking, knob, f"nothing of what the {because} allows can be set on this GPU ({choices})")
        ranges[knob] = found
        if because not in reasons:
            reasons.append(because)
    if asking.uid != ROOT:
        _meet(asking, needs, seen, mine)
    until = min((grant.expires_unix_s for grant in used.values()), default=None)
    return Allowed(ranges, ", ".join(reasons), until, tuple(used))


def _given(grant: Grant, asking: Asking, knob: str, policy: Policy) -> Range | None:
    """The range that a grant gives for a knob; None if it does not give it."""
    if not grant.holds_in(asking.cgroups):
        return None
    if grant.knobs is None:
        return policy.granted.get(knob)
    bounds = grant.knobs.get(knob)
    return None if bounds is None else Range(Bound(bounds[0]), Bound(bounds[1]))


def _ruled(asking: Asking, knob: str, policy: Policy, mine: Iterable[Grant]) -> tuple[Range, str, Need]:
    """What the first rule that names user, GPU and knob gives, its name, and what it needs. NotPermitted."""
    for number, rule in enumerate(policy.rules, 1):
        if knob in rule.knobs and rule.names(asking.uid, asking.gids, asking.gpu):
            found = rule.knobs[knob]
            if found is None:
                raise _refused(asking, knob, f"rule {number} of the site forbids it", mine)
            return found, f"rule {number} of the site", rule.needs
    raise _refused(asking, knob, "no rule of the site names you for it", mine)


def _meet(asking: Asking, needs: Mapping[Need, str], seen: Seen | None, mine: Iterable[Grant]) -> None:
    """Raise unless the GPU is as it must be."""
    alone = needs.get("alone") or needs.get("process")
    process = needs.get("process")
    if process and asking.uid == NO_ONE:
        raise _refused(asking, process, f"uid {NO_ONE} may be anybody whom the kernel cannot name here", mine)
    if seen is None:
        raise NeedsLook(asking.gpu)
    if seen.mig:
        raise NotPermitted(
            f"uid {asking.uid} may not set {min(needs.values())} on {asking.gpu}: it is cut into MIG slices, which "
            "share its clocks and its limit; only root sets such a GPU"
        )
    if seen.processes is None:
        if process:
            raise _refused(asking, process, "the driver does not say whose processes run on it", mine)
        return
    others = sorted({uid for _, uid in seen.processes if uid != asking.uid})
    if alone and others:
        whose = ", ".join("a user not known" if uid < 0 else f"uid {uid}" for uid in others)
        raise _refused(asking, alone, f"it is shared with {whose}, so it can be read only", mine, shared=True)
    if process and not seen.processes:
        raise _refused(asking, process, "no process of yours runs on it", mine)


def _refused(asking: Asking, knob: str, why: str, mine: Iterable[Grant] = (), *, shared: bool = False) -> NotPermitted:
    """Why not, the grants that come near, and the way out."""
    for grant in mine:
        if not grant.holds_in(asking.cgroups):
            why += f"; grant {grant.name} is for control group {grant.cgroup}, where your process is not"
        elif grant.knobs and knob not in grant.knobs:
            why += f"; grant {grant.name} does not name {knob}"
    flag = " --shared" if shared else ""
    return NotPermitted(
        f"uid {asking.uid} may not set {knob} on {asking.gpu}: {why}; "
        f"an admin can allow it with 'joulewise grant add --uid {asking.uid} --gpu {asking.gpu}{flag}'"
    )
