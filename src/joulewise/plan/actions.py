"""The words of a pipeline schedule: ``2F0``, ``1B3``, ``(0F3;3B1)OVERLAP_F_B``, as torch.distributed.pipelining writes.

That is the one form in which schedules of any kind are printed, kept in CSV and handed about, so it is read here, by
its text alone: nothing of torch is imported, and an action object of torch reads the same as its text. What a list of
actions means for the order of things is ``plan.schedules``' to say.

Every version of torch adds words for what is no computation (2.15: ``WAIT_SEND_F``, ``WAIT_REDUCE_GRAD``). A word that
is not known here is an action all the same, ``known`` is False for it, and the reader of a schedule passes it over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulewise.core.errors import BadSpec
from joulewise.plan.dag import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD

COMPUTES = {"F": FORWARD, "B": BACKWARD, "I": INPUT_GRAD, "W": WEIGHT_GRAD}
"""What each letter computes, in our words."""
SENDS = ("SEND_F", "SEND_B")
OVERLAP = "OVERLAP_F_B"
# Of one whole stage, or an end of a transfer: they change no order among computations.
_OF_A_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
_OF_A_MICROBATCH = (*COMPUTES, *SENDS, "RECV_F", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B")
# Six digits: a pipeline of a million stages or microbatches is a typing error. A computation is a single letter, so one
# that is not known is refused; the longest word of torch has 16 letters.
_ONE = re.compile(r"([0-9]{1,6})([A-Z]|[A-Z][A-Z_]{0,38}[A-Z])([0-9]{0,6})")
_SEVERAL = re.compile(r"\(([^()]*)\)" + OVERLAP)


@dataclass(frozen=True, slots=True)
class Action:
    """One entry of a rank's list. ``parts`` are the actions that an overlap holds; it has no stage of its own then."""

    stage: int
    what: str
    microbatch: int | None = None
    parts: tuple[Action, ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.what}"
        return f"{self.stage}{self.what}{'' if self.microbatch is None else self.microbatch}"

    @property
    def known(self) -> bool:
        """Whether its word is one of those that are described here; one that is not is taken for no computation."""
        return bool(self.parts) or self.what in _OF_A_STAGE or self.what in _OF_A_MICROBATCH

    @property
    def computes(self) -> tuple[Action, ...]:
        """The computations in it, in the order in which torch runs them; none for a transfer."""
        return tuple(part for part in self.parts or (self,) if part.what in COMPUTES)


def parse(entry: object) -> Action | None:
    """An action from its text, or from an object that prints as such; None for an idle entry (None or nothing).

    BadSpec for anything else, and for an unknown word of which the object says that it is a computation.
    """
    text = "" if entry is None else str(entry).strip()
    if not text:
        return None
    action = _parsed(text)
    if getattr(entry, "is_compute_op", False) and not action.computes:
        raise BadSpec(f"{text[:40]!r} is a computation that cannot be planned; {', '.join(COMPUTES)} can be")
    return action


def _parsed(text: str) -> Action:
    if several := _SEVERAL.fullmatch(text):
        parts = tuple(part for part in map(_one, several[1].split(";")) if part.what in COMPUTES)
        if not parts:
            raise BadSpec(f"the overlap {text!r} holds no computation; it is written like (0F3;3B1){OVERLAP}")
        return Action(-1, OVERLAP, None, parts)
    return _one(text)


def _one(text: str) -> Action:
    match = _ONE.fullmatch(text.strip())
    known = (*_OF_A_STAGE, *_OF_A_MICROBATCH)
    if match is None or (match[2] not in known and (len(match[2]) == 1 or match[2] == OVERLAP)):
        raise BadSpec(f"{text[:40]!r} is no action of a pipeline schedule; one is written like 2F0, 1B3 or 0SEND_F2")
    stage, what, microbatch = match.groups()
    if what in known and (what in _OF_A_MICROBATCH) != bool(microbatch):
        needs = "needs a microbatch" if what in _OF_A_MICROBATCH else "is of a whole stage, not of a microbatch"
        raise BadSpec(f"the action {text.strip()!r} {needs}; actions are written like 2F0, 1B3 or 2{_OF_A_STAGE[0]}")
    return Action(int(stage), what, int(microbatch) if microbatch else None)
