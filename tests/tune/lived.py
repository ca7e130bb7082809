"""A made-up run as the loop would journal it: settings decided on, blocks seen, windows where the seed draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulewise.core.block import Block, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.event import Began, Decided, Event, Finished, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.coins import VOID, void_says
from joulewise.tune.guard import candidate_first, line_of
from joulewise.tune.proof import PROOF_REASON, Schedule, prove
from joulewise.tune.seal import Seal

HELD = Setting(sm_mhz=1500)
DEEP = Setting(sm_mhz=1000)


def steady(time_s: float) -> float:
    return 0.0


@dataclass
class Life:
    """A run of one phase. Effects are logs against default; ``drift`` is the log of the job's own pace over time."""

    seed: int = 0
    share: float = 0.02
    window_s: float = 2.0
    time_effect: float = math.log(1.01)
    energy_effect: float = math.log(0.92)
    noise: float = 0.0
    drift: Callable[[float], float] = steady
    now_s: float = 0.0
    phase: str = ""
    rung: Rung = Rung.STEPS
    unit_s: float = 0.1
    events: list[Event] = field(default_factory=list)
    used_j: float = 0.0
    default_j: float = 0.0
    used_s: float = 0.0
    default_s: float = 0.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.schedule = Schedule(self.seed, self.share, window_s=self.window_s, phase=self.phase)
        if not self.events:
            facts = {"seed": self.seed, "proof_share": self.share, "proof_window_s": self.window_s}
            self.events.append(Began(0.0, "run", facts))

    @property
    def seen(self) -> list[Seen]:
        return [event for event in self.events if isinstance(event, Seen)]

    @property
    def shifts(self) -> list[Shifted]:
        return [event for event in self.events if isinstance(event, Shifted)]

    def block(self, role: Role, setting: Setting, duration_s: float) -> None:
        """Decide on a block, run it, see it."""
        depth = {DEFAULT: 0.0, HELD: 1.0, DEEP: 2.0}[setting]
        base_s = self.unit_s * math.exp(self.drift(self.now_s + duration_s / 2))
        pace = base_s * math.exp(depth * self.time_effect)
        work = duration_s / (pace * math.exp(self.noise / math.sqrt(duration_s) * float(self.rng.standard_t(4))))
        joules_unit = 400.0 * base_s * math.exp(depth * self.energy_effect)
        joules = work * joules_unit * math.exp(self.noise / math.sqrt(duration_s) * float(self.rng.standard_t(4)))
        start_s, self.now_s = self.now_s, self.now_s + duration_s
        reason = PROOF_REASON if role is Role.PROOF else str(role)
        self.events.append(Decided(start_s, Decision(setting, reason)))
        block = Block(
            setting, start_s, self.now_s, work, duration_s, joules, 0.001 * joules, 0.001, self.phase, self.rung
        )
        self.events.append(Seen(self.now_s, role, block))
        self.schedule.tell(role, block)
        self.used_j, self.default_j = self.used_j + joules, self.default_j + work * 400.0 * base_s
        self.used_s, self.default_s = self.used_s + duration_s, self.default_s + work * base_s

    def hold(self, seconds: float, setting: Setting = HELD) -> None:
        """Hold for so long, with the windows that fall due in it."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            if self.schedule.due:
                self.block(Role.PROOF, DEFAULT, self.window_s)
            else:
                self.block(Role.HOLD, setting, max(0.5, min(10.0, self.schedule.wait_s)))

    def miss(self) -> None:
        """A window that is due comes to nothing."""
        self.events.append(Decided(self.now_s, Decision(DEFAULT, PROOF_REASON)))
        self.events.append(Shifted(self.now_s, VOID, void_says(Role.PROOF), self.phase))
        self.schedule.missed()

    def pair(self, trial: int, index: int, setting: Setting = HELD) -> None:
        """A pair in the order that the seed draws."""
        halves = [(Role.CANDIDATE, setting), (Role.REFERENCE, DEFAULT)]
        first = candidate_first(self.seed, trial, index, line_of(self.phase, self.rung))
        for role, chosen in halves if first else reversed(halves):
            self.block(role, chosen, 1.0)

    def lose(self, halves: int, *, said: bool) -> None:
        """The last pair's second half, or both, came to nothing; the journal may say so."""
        if halves == 2:  # the first did, so that the second was never asked for
            del self.events[-2:]
        lost = self.events.pop()
        assert isinstance(lost, Seen)
        self.now_s = lost.time_s
        if said:
            self.events.append(Shifted(lost.time_s, VOID, void_says(lost.role), self.phase))

    def finish(self) -> list[Event]:
        proven = prove(self.seen, self.shifts).event(self.now_s)
        if proven is not None:
            self.events.append(proven)
        self.events.append(Finished(self.now_s, "the command ended", {"seal": seal_of(self.events)}))
        return self.events


def seal_of(events: Iterable[Event]) -> dict[str, Any]:
    """As the journal's last event holds it, of all before it."""
    seal = Seal()
    for event in events:
        seal.add(event)
    return seal.facts


def usual_run(seed: int = 0, hold_s: float = 1200.0, **kwargs: Any) -> Life:
    """Baseline, a probe, pairs, then holding."""
    life = Life(seed=seed, **kwargs)
    life.block(Role.BASELINE, DEFAULT, 5.0)
    life.block(Role.PROBE, DEEP, 3.0)
    for index in range(6):
        life.pair(0, index)
    life.hold(hold_s)
    return life
