"""The agent's hands: one lease a job, through the node's daemon, and the settings on its GPUs.

What it is: the part that makes hardware be as wanted and finds out when it is not. A lease is taken on the GPUs of a
claim and on no others, and given back when the claim goes. A lease that is lost, a value that somebody else has written
and a refusal are seen, told and tried again. Nothing is decided here: what shall be set comes from ``agent``.

A job's setting is there on all its GPUs of this node or on none. What a ceiling demands is different: a knob that is
refused does not keep the other from being turned, since lower power is safe anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from joulewise.core.errors import GpuError, JoulewiseError, LeaseLost, NotNow, OutOfRange, Unsupported
from joulewise.core.knob import DEFAULT, Setting, Space
from joulewise.daemon.claims import Claim, held_for
from joulewise.device.lease import Lease

KNOBS: Final = ("sm_mhz", "power_limit_w")
"""What the scheduler sets, as far as there are such knobs."""
RETRY_S: Final = 1.0
"""After a lease was refused."""
REFUSED_S: Final = 10.0
"""After a knob was refused by the driver: what has no right now hardly has one a second later."""

Hold = Callable[[Sequence[str], Collection[str], str], Lease]
"""Takes a lease on these knobs of these GPUs, for that reason; raises as ``RemoteLease.take`` does."""


@dataclass(slots=True)
class _Hand:
    """One job's GPUs here."""

    claim: Claim
    lease: Lease | None = None
    why: str = "not taken yet"
    """Why there is no lease."""
    again_s: float = 0.0
    """When to try to take one again."""
    set: dict[str, Setting] = field(default_factory=dict)
    """GPU → what was last applied there and acknowledged."""
    refused: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    """(GPU, knob) → why it was refused, and when to try again."""


class Hands:
    """Leases and settings of one node. ``look_again`` gives the claims as they are this instant."""

    def __init__(
        self,
        hold: Hold,
        spaces: Mapping[str, Space],
        look_again: Callable[[], Collection[Claim]],
        now: Callable[[], float],
    ) -> None:
        self._hold = hold
        self._spaces = spaces
        self._look_again = look_again
        self._now = now
        self._jobs: dict[str, _Hand] = {}
        self._news: list[str] = []

    # -- leases

    def keep(self, claims: Collection[Claim]) -> bool:
        """Hold a lease for every managed claim and for nothing else. Whether anything has changed."""
        wanted = {claim.id: claim for claim in claims if claim.managed}
        changed = False
        for id, hand in list(self._jobs.items()):
            if wanted.get(id) != hand.claim:
                self._let_go(hand)
                del self._jobs[id]
                changed = True
        for id, claim in wanted.items():
            hand = self._jobs.setdefault(id, _Hand(claim))
            changed |= self._hear(hand)
            if hand.lease is None and self._now() >= hand.again_s:
                changed |= self._take(hand)
        return changed

    def _take(self, hand: _Hand) -> bool:
        claim, before = hand.claim, hand.why
        hand.again_s = self._now() + RETRY_S
        try:
            strangers = [gpu for gpu in claim.gpus if gpu not in self._spaces]
            if strangers:
                raise Unsupported(f"job {claim.id} claims {strangers[0]}, which is not on this node")
            knobs = [knob for knob in KNOBS if all(knob in self._spaces[gpu].knobs for gpu in claim.gpus)]
            if not knobs:
                raise Unsupported(f"the GPUs of job {claim.id} have no clock and no limit that could be set")
            lease = self._hold(claim.gpus, knobs, held_for(claim.id))
        except JoulewiseError as error:
            hand.why = str(error)
            return hand.why != before
        if claim not in self._look_again():  # its epilog may be over, and would not see this lease
            lease.release()
            hand.why, hand.again_s = "its claim has just gone", 0.0
            return False
        hand.lease, hand.why = lease, ""
        hand.set.clear()
        hand.refused.clear()
        return True

    def _hear(self, hand: _Hand) -> bool:
        """Take in what has happened to a lease without our doing."""
        if hand.lease is None:
            return False
        changed = False
        for notice in hand.lease.notices():
            if notice.kind == "foreign":
                self._news.append(f"job {hand.claim.id}: {notice.says}; it is set again")
                for gpu in (notice.gpu,) if notice.gpu else hand.claim.gpus:
                    hand.set.pop(gpu, None)
                changed = True
        if not hand.lease.alive:
            self._lost(hand)
            changed = True
        return changed

    def _lost(self, hand: _Hand) -> None:
        assert hand.lease is not None
        why = hand.lease.release().why
        hand.lease, hand.why, hand.again_s = None, f"its lease has ended: {why}", 0.0
        hand.set.clear()
        self._news.append(f"job {hand.claim.id}: {hand.why}; it is taken again")

    def _let_go(self, hand: _Hand) -> None:
        if hand.lease is None:
            return
        ended = hand.lease.release()
        hand.lease = None
        for each in ended.restored:
            if each.ending.value in ("failed", "foreign"):
                self._news.append(f"job {hand.claim.id}: {each.knob} of {each.gpu} was left {each.ending}: {each.why}")

    def release(self) -> None:
        """Give everything back."""
        for hand in self._jobs.values():
            self._let_go(hand)
        self._jobs.clear()

    # -- what may be set

    def news(self) -> tuple[str, ...]:
        """What has happened since the last call, in words."""
        news, self._news = tuple(self._news), []
        return news

    def why_not(self, id: str) -> str | None:
        """Why the job's GPUs cannot be set: no lease on them; None if they can."""
        hand = self._jobs.get(id)
        return "its GPUs are not claimed" if hand is None else hand.why or None

    def claimed(self, id: str) -> bool:
        """Whether a prolog has claimed GPUs here for the job."""
        return id in self._jobs

    def check(self, id: str, setting: Setting) -> None:
        """Whether ``setting`` could be set on all GPUs of a job whose lease is held; as far as can be told without
        doing it. Raises what would be raised: Unsupported, OutOfRange, NotPermitted."""
        hand = self._jobs[id]
        assert hand.lease is not None
        for gpu in hand.claim.gpus:
            for knob, value in setting.items():
                choices = self._spaces[gpu].knobs.get(knob)
                if knob not in hand.lease.knobs or choices is None:
                    raise Unsupported(f"{knob} cannot be set on {gpu}; see 'joulewise doctor'")
                low, high = hand.lease.allowed.get(knob, (choices.low, choices.high))
                if not max(low, choices.low) <= value <= min(high, choices.high):
                    raise OutOfRange(f"{knob}={value:g} on {gpu} is outside {choices}; see 'joulewise doctor'")
        self._check_not_refused(hand, setting)

    def _check_not_refused(self, hand: _Hand, setting: Setting) -> None:
        for (gpu, knob), (why, until_s) in list(hand.refused.items()):
            if self._now() >= until_s:
                del hand.refused[gpu, knob]
            elif knob in setting:
                raise GpuError(why)

    def settable(self, gpu: str) -> frozenset[str]:
        """The knobs of a GPU that can be turned now: leased, and not refused lately."""
        for hand in self._jobs.values():
            if gpu in hand.claim.gpus and hand.lease is not None:
                now_s = self._now()
                late = {
                    knob for (where, knob), (_, until_s) in hand.refused.items() if where == gpu and now_s < until_s
                }
                return frozenset(hand.lease.knobs - late)
        return frozenset()

    def refusals(self) -> tuple[str, ...]:
        """What cannot be set now, and why."""
        said = [f"job {id} has no lease: {hand.why}" for id, hand in sorted(self._jobs.items()) if hand.lease is None]
        for id, hand in sorted(self._jobs.items()):
            reasons = {f"job {id}: {knob} is refused: {why}" for (_, knob), (why, _) in hand.refused.items()}
            said += sorted(reasons)
        return tuple(said)

    # -- settings

    def setting(self, gpu: str) -> Setting:
        """What is applied on a GPU."""
        for hand in self._jobs.values():
            if gpu in hand.set:
                return hand.set[gpu]
        return DEFAULT

    def apply(self, wanted: Mapping[str, Setting]) -> bool:
        """Bring leased GPUs to ``wanted``, writing only what differs: limits that fall first, and where one of those
        fails nothing is raised, so that limits never add up to more than before. Whether all is as wanted."""
        falls: list[tuple[_Hand, list[str], Setting]] = []
        raises: list[tuple[_Hand, list[str], Setting]] = []
        for hand in self._jobs.values():
            if hand.lease is None:
                continue
            groups: dict[Setting, list[str]] = {}
            for gpu in hand.claim.gpus:
                if gpu in wanted and hand.set.get(gpu) != wanted[gpu] and self._differs(hand, gpu, wanted[gpu]):
                    groups.setdefault(wanted[gpu], []).append(gpu)
            for setting, gpus in groups.items():
                fall = any(_falls(hand.set.get(gpu, DEFAULT), setting) for gpu in gpus)
                (falls if fall else raises).append((hand, gpus, setting))
        failed = [each for each in falls if not self._apply(*each)]
        return not failed and not [each for each in raises if not self._apply(*each)]

    def _differs(self, hand: _Hand, gpu: str, setting: Setting) -> bool:
        """Whether there is anything to write: nothing was ever set, and nothing shall be."""
        return bool(setting) or gpu in hand.set

    def _apply(self, hand: _Hand, gpus: list[str], setting: Setting) -> bool:
        """Set it on these GPUs of one job; knob by knob where it is refused as a whole."""
        if hand.lease is None:  # lost since, in this very look
            return False
        try:
            self._write(hand, gpus, setting)
            return True
        except LeaseLost:
            self._lost(hand)
            return False
        except NotNow as error:
            self._news.append(f"job {hand.claim.id}: {error}")
            return False
        except JoulewiseError as error:
            why, until_s = str(error), self._now() + REFUSED_S
        for gpu in gpus:
            self._apply_in_part(hand, gpu, setting, why, until_s)
        return False

    def _apply_in_part(self, hand: _Hand, gpu: str, setting: Setting, why: str, until_s: float) -> None:
        """One GPU, after a refusal: as a whole, else the limit alone, else the clock alone."""
        parts = [setting, *(Setting(**{knob: setting[knob]}) for knob in reversed(KNOBS) if knob in setting)]
        for part in parts if len(parts) > 2 else parts[:1]:
            if hand.lease is None:
                return
            try:
                self._write(hand, [gpu], part)
            except LeaseLost:
                self._lost(hand)
                return
            except JoulewiseError as error:
                why = str(error)
                continue
            for knob in setting.keys() - part.keys():
                hand.refused[gpu, knob] = (why, until_s)
            return
        for knob in setting:
            hand.refused[gpu, knob] = (why, until_s)

    def _write(self, hand: _Hand, gpus: list[str], setting: Setting) -> None:
        assert hand.lease is not None
        applied = hand.lease.apply(setting, gpus=gpus)
        for gpu in gpus:
            hand.set[gpu] = setting
        self._news += [f"job {hand.claim.id}: {note}" for note in applied.notes]


def _falls(before: Setting, after: Setting) -> bool:
    """Whether a change lowers what a GPU may draw: its limit, or with the same limit its clock."""
    limits = before.get("power_limit_w", float("inf")), after.get("power_limit_w", float("inf"))
    if limits[0] != limits[1]:
        return limits[1] < limits[0]
    return after.get("sm_mhz", float("inf")) < before.get("sm_mhz", float("inf"))
