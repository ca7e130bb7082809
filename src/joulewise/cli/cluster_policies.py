"""Policies by name, as ``--policy`` knows them: ``priced``, ``tiresias``, ``tiresias+zeus``, ``tiresias@0.8``.

What it is: the one list of names. Behind ``@`` stands the policy's own knob, so that one policy can be drawn as a curve
of completion time against energy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from joulewise.cli.recur_terms import seconds
from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.gandiva import gandiva
from joulewise.cluster.allocators.optimus import optimus
from joulewise.cluster.allocators.pollux import pollux
from joulewise.cluster.allocators.powerflow import powerflow
from joulewise.cluster.allocators.priced import Terms, priced
from joulewise.cluster.allocators.srtf import srtf
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.allocators.zeus import zeus
from joulewise.cluster.state import Allocator
from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_KWH

_CLOCKED: dict[str, Callable[[float | None], Allocator]] = {
    # Jobs that fit may pass one that does not, as on most clusters.
    "fifo": lambda clock: fifo(backfill=True, clock=clock),
    # By remaining time × GPUs, which is kinder to the mean than remaining time alone.
    "srtf": lambda clock: srtf(service=True, clock=clock),
    "tiresias": lambda clock: tiresias(clock=clock),
    "optimus": lambda clock: optimus(clock=clock),
    "gandiva": lambda clock: gandiva(clock=clock),
    "pollux": lambda clock: pollux(clock=clock),
}
"""Those that choose no setting: one clock for all jobs, or each job's own by ``zeus``."""
NAMES = ("priced", "powerflow", *_CLOCKED)
_ZEUS = "+zeus"
_MOST_FAIRNESS = 10.0
"""A power of a ratio: beyond this one job outweighs all others together."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``name`` as it was asked for, ``family`` without its knob. ``make`` gives a fresh allocator; ``terms`` are those
    of ours, None for any other."""

    name: str
    family: str
    make: Callable[[], Allocator]
    terms: Terms | None = None
    flat: bool = False
    """Under a budget that counts every joule alike, whatever the tariff says: to compare with."""


def flat_besides(policies: Iterable[Policy]) -> list[Policy]:
    """Each policy, and after it the same one with no regard to the tariff."""
    return [
        each for policy in policies for each in (policy, replace(policy, name=f"{policy.name}, no tariff", flat=True))
    ]


def several(names: Iterable[str], *, fairness: float = 0.0) -> list[Policy]:
    """The policies of these names, each once. BadSpec where fairness is asked of none that knows it."""
    if not 0 <= fairness <= _MOST_FAIRNESS:
        raise BadSpec(f"--fairness {fairness:g} makes no sense; 0 is none, 1 is fair, {_MOST_FAIRNESS:g} is the most")
    found = [named(name, fairness=fairness) for name in dict.fromkeys(names)]
    if fairness and all(policy.terms is None for policy in found):
        raise BadSpec("--fairness is a term of priced alone; add --policy priced, or leave it out")
    return found


def named(text: str, *, fairness: float = 0.0) -> Policy:
    """The policy of that name. BadSpec, with the names there are, for any other."""
    family, at, knob = text.strip().partition("@")
    word, zeused, rest = family.partition(_ZEUS)
    if word not in NAMES or rest or (zeused and word not in _CLOCKED):
        raise BadSpec(
            f"--policy {text!r}: there are {', '.join(NAMES)}, and {_ZEUS} behind all but the first two (fifo{_ZEUS})"
        )
    if word == "priced":
        worth_s = seconds("--policy priced@", knob) / J_PER_KWH if at else 0.0
        terms = Terms(fairness=fairness)
        return Policy(text, family, lambda: _at_least(priced(terms), worth_s), terms)
    if word == "powerflow":
        least = _number(text, knob, "a number above 0, the dJ/dE below which it takes no step", most=1e9) if at else 0.0
        return Policy(text, family, lambda: powerflow(threshold=least))
    if zeused:
        eta = _number(text, knob, "the weight of energy against time, up to 1") if at else 0.5
        return Policy(text, family, lambda: zeus(_CLOCKED[word](None), eta=eta))
    clock = _number(text, knob, "the clock of all jobs, up to 1 of the highest") if at else None
    return Policy(text, family, lambda: _CLOCKED[word](clock))


def _at_least(allocate: Allocator, joule_s: float) -> Allocator:
    """The same policy with joules worth no less than ``joule_s``, whatever a budget says."""
    return lambda snapshot, budget: allocate(snapshot, replace(budget, joule_s=max(budget.joule_s, joule_s)))


def _number(text: str, knob: str, wanted: str, *, most: float = 1.0) -> float:
    try:
        value = float(knob)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise BadSpec(f"--policy {text!r}: behind @ stands {wanted}")
    return value
