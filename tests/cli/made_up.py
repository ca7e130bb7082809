"""A tuned run that never was, for tests of what is told about one: blocks with known savings and seeded noise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from joulewise.core.block import Block, Role
from joulewise.core.decision import Decision, Expectation
from joulewise.core.event import Began, Decided, Event, Finished, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.proof import PROOF_REASON, Schedule, prove
from joulewise.tune.seal import Seal

SLOWER = {DEFAULT: 0.0, Setting(sm_mhz=1500): 0.008, Setting(sm_mhz=1305): 0.031, Setting(sm_mhz=1725): 0.002}
THRIFTIER = {DEFAULT: 0.0, Setting(sm_mhz=1500): 0.081, Setting(sm_mhz=1305): 0.12, Setting(sm_mhz=1725): 0.04}
HELD = Setting(sm_mhz=1500)
START_S = 1000.0
SHARE, WINDOW_S = 0.02, 1.0


class Made:
    """Writes a run block by block."""

    def __init__(self, seed: int = 1) -> None:
        self.now_s = START_S
        self.events: list[Event] = []
        self._luck = random.Random(seed)

    def block(self, setting: Setting, role: Role, reason: str, *, work: int = 20, says: str = "") -> None:
        self.events.append(Decided(self.now_s, Decision(setting, reason, Expectation(0.0, 0.0))))
        unit_s = 0.25 * (1 + SLOWER[setting]) * (1 + self._luck.gauss(0, 0.002))
        unit_j = 150.0 * (1 - THRIFTIER[setting]) * (1 + self._luck.gauss(0, 0.004))
        start_s, self.now_s = self.now_s, self.now_s + work * unit_s + 0.1
        mhz = setting.get("sm_mhz", 1755.0)
        seen = Block(setting, start_s, self.now_s, work, work * unit_s, work * unit_j, work * unit_j * 0.002, 0.002)
        seen = Block(**{**{name: getattr(seen, name) for name in Block.__slots__}, "sm_mhz": mhz, "left_out_s": 0.1})
        self.last = seen
        self.events.append(Seen(self.now_s, role, seen, says))


def run(name: str = "20260101-000000-abcd", *, hold: int = 120, seed: int = 1, **facts: Any) -> list[Event]:
    """Baseline, two probes, a verification, a holding with windows for the proof, and the end."""
    events, seal = list(_run(name, hold, seed, facts)), Seal()
    for event in events:
        seal.add(event)
    return [*events, Finished(events[-1].time_s, "stopped", {"seal": seal.facts})]


def _run(name: str, hold: int, seed: int, facts: dict[str, Any]) -> Iterator[Event]:
    made = Made(seed)
    schedule = Schedule(seed, SHARE, window_s=WINDOW_S)
    yield Began(
        START_S,
        name,
        {
            "command": ["python", "train.py"],
            "gpu_names": ["NVIDIA H200"],
            "gpus": 1,
            "bound": 0.02,
            "wanted": "least energy, at most 2.0 % slower",
            "seed": seed,
            "proof_share": SHARE,
            "proof_window_s": WINDOW_S,
            **facts,
        },
    )
    made.block(DEFAULT, Role.BASELINE, "learn what default is")
    made.block(Setting(sm_mhz=1725), Role.PROBE, "the law is steepest here")
    made.block(Setting(sm_mhz=1305), Role.PROBE, "and here it is nearly flat")
    for pair in range(6):
        halves = [(HELD, Role.CANDIDATE), (DEFAULT, Role.REFERENCE)]
        for setting, role in halves if pair % 3 else reversed(halves):
            made.block(setting, role, "expected −8 % energy at +0.8 % time", says=f"pair {pair + 1} of a test")
    for number in range(hold):
        if number == 50:
            made.events.append(Shifted(made.now_s, "pace", "steps are 2 % slower <than> before"))
        if schedule.due:
            made.block(DEFAULT, Role.PROOF, PROOF_REASON, work=4)
            schedule.tell(Role.PROOF, made.last)
        made.block(HELD, Role.HOLD, "verified: at most 2 % slower")
        schedule.tell(Role.HOLD, made.last)
    yield from made.events
    seen = [event for event in made.events if isinstance(event, Seen)]
    proven = prove(seen, [event for event in made.events if isinstance(event, Shifted)]).event(made.now_s)
    if proven is not None:
        yield proven
