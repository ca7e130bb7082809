"""What earlier runs taught about a workload on a GPU, as a tuner can use it, and what this run leaves behind.

The payload in ``store/memory`` is written and read here and nowhere else: phase → what was learnt of the job's law and
the best setting that was verified, or else what was held at the end. A memory that cannot be understood is no memory.
A run that verified nothing leaves what an earlier one had verified, unless it has refused just that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.knob import DEFAULT, Setting, Space
from joulewise.device.gpu import GpuInfo
from joulewise.model.learnt import Learnt
from joulewise.store.memory import Memory
from joulewise.tune.proof import Proof


class Recall:
    """One workload's memory on one GPU; everything is forgotten where there is no ``memory`` or no ``fingerprint``."""

    def __init__(self, memory: Memory | None, fingerprint: str, info: GpuInfo) -> None:
        self._memory = memory if fingerprint else None
        self._fingerprint, self._info = fingerprint, info
        found = self._memory.recall(fingerprint, info.uuid, info.name) if self._memory is not None else None
        phases = found.payload.get("phases", {}) if found is not None else {}
        self._phases: Mapping[str, Any] = phases if isinstance(phases, Mapping) else {}
        self._before: Mapping[str, Any] = found.payload if found is not None and found.same_card else {}
        self.says = ""
        """Where the first setting comes from, in words; empty where nothing is known."""
        if found is not None and self._phases:
            card = "this GPU" if found.same_card else f"another {info.name}"
            self.says = f"known from {found.runs} earlier run{'s' * (found.runs != 1)} on {card}"

    def learnt(self, phase: str) -> Learnt | None:
        """What the job's law was believed to be; without it, how this card differs from its model; or None."""
        try:
            if phase in self._phases:
                return Learnt.from_json(self._phases[phase]["learnt"])
            others = self._memory.card(self._info.uuid) if self._memory is not None else []
            for other in others:
                for kept in other.payload.get("phases", {}).values():
                    return Learnt.from_json(kept["learnt"]).of_card()
        except (BadSpec, KeyError, TypeError, AttributeError):
            pass
        return None

    def start(self, phase: str, space: Space) -> Setting | None:
        """What the last run was best at, verified or not, if it may be set here; None where nothing was."""
        try:
            setting = space.snap(Setting(**self._phases[phase]["chosen"]))
        except (KeyError, TypeError, ValueError, Unsupported):
            return None
        return setting if setting != DEFAULT else None

    def keep(
        self,
        learnt: Mapping[str, Learnt],
        chosen: Mapping[str, Setting],
        verified: Mapping[str, bool],
        proof: Proof | None,
        refused: Mapping[str, Collection[Setting]] | None = None,
    ) -> bool:
        """Leave behind what this run has learnt, and which settings it has ``refused``; whether it is kept."""
        if self._memory is None or not learnt:
            return False
        phases = {
            phase: {
                "learnt": each.to_json(),
                "chosen": dict(chosen.get(phase, DEFAULT)),
                "verified": bool(verified.get(phase)),
            }
            for phase, each in learnt.items()
        }
        stand = self._standing(phases, refused or {})
        told = proof.energy if proof is not None else None
        if phases.keys() <= stand.keys():  # nothing new was verified: what was proven then stands too
            change, error = self._before.get("energy_change"), self._before.get("energy_change_error")
        else:
            change, error = (told.value, told.error) if told is not None else (None, None)
        payload = {"phases": {**phases, **stand}, "energy_change": change, "energy_change_error": error}
        return self._memory.keep(self._fingerprint, self._info.uuid, self._info.name, payload)

    def _standing(self, phases: Mapping[str, Any], refused: Mapping[str, Collection[Setting]]) -> dict[str, Any]:
        """What was known of this card before and stands: phases that this run did not see, and what was verified then
        where it verified nothing, and did not refuse that."""
        stand = {}
        for phase, before in self._phases.items() if self._before else ():
            try:
                setting, verified = Setting(**before["chosen"]), bool(before["verified"])
            except (KeyError, TypeError, ValueError, Unsupported):
                continue
            new = phases.get(phase)
            if new is None or (verified and not new["verified"] and setting not in refused.get(phase, ())):
                stand[phase] = before
        return stand
