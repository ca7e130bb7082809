"""A job whose truth is a formula: blocks for a tuner's moves, with noise, on no clock but its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from joulewise.core.block import Block, Move, Role, Rung
from joulewise.core.event import Seen
from joulewise.core.knob import Choices, Setting, Space
from joulewise.tune.job import JobTuner

TOP_MHZ = 1980.0
SPACE = Space({"sm_mhz": Choices(345.0, TOP_MHZ, 15.0, ())})


@dataclass
class PlayedJob:
    """``sm_share`` of a step scales with the clock; power falls with voltage. Ends after ``length_s``."""

    sm_share: float = 0.4
    dynamic_w: float = 350.0
    step_s: float = 0.25
    noise: float = 0.003
    """One relative standard error of a step block of one second, in time and in power."""
    seed: int = 0
    length_s: float = 600.0
    rung: Rung = Rung.STEPS
    stretch: Callable[[Setting, float], float] = lambda setting, time_s: 1.0
    """What a setting's time is multiplied with, at a moment."""
    time_s: float = 0.0
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def truth(self, setting: Setting) -> tuple[float, float]:
        """Seconds of a step, and watts."""
        x = setting.get("sm_mhz", TOP_MHZ) / TOP_MHZ
        slower = self.sm_share / x + 1.0 - self.sm_share
        voltage = max(0.7, 0.7 + 0.3 * (x - 0.6) / 0.4)
        power_w = 120.0 + self.dynamic_w * voltage**2 / slower
        if "power_limit_w" in setting:
            power_w = min(power_w, setting["power_limit_w"])
        return self.step_s * slower * self.stretch(setting, self.time_s), power_w

    def slowdown(self, setting: Setting) -> float:
        return self.truth(setting)[0] / self.truth(Setting())[0] - 1.0

    def saving(self, setting: Setting) -> float:
        (time_s, power_w), (base_s, base_w) = self.truth(setting), self.truth(Setting())
        return 1.0 - time_s * power_w / (base_s * base_w)

    def observe(self, move: Move) -> Block:
        step_s, power_w = self.truth(move.setting)
        steps = math.ceil(max(move.least_work, move.least_s / step_s))
        length_s = steps * step_s
        error = self.noise / math.sqrt(length_s)
        duration_s = length_s * math.exp(error * self._random.normal())
        energy_j = duration_s * power_w * math.exp(error * self._random.normal())
        start_s, self.time_s = self.time_s, self.time_s + length_s
        return Block(
            move.setting,
            start_s,
            self.time_s,
            steps,
            duration_s,
            energy_j,
            energy_j * error,
            error,
            phase=move.phase,
            rung=self.rung,
            sm_mhz=move.setting.get("sm_mhz", TOP_MHZ),
            power_capped=False,
        )

    def play(self, tuner: JobTuner, *, until_s: float | None = None) -> Iterator[tuple[Role, Block]]:
        """Run under ``tuner`` to the end, or until a moment; every block as it was told."""
        end_s = self.length_s if until_s is None else until_s
        while self.time_s < end_s:
            move = tuner.ask()
            block = self.observe(move)
            tuner.tell(block)
            self.seen.append(Seen(self.time_s, move.role, block, tuner.says))
            yield move.role, block

    def run(self, tuner: JobTuner, *, until_s: float | None = None) -> list[tuple[Role, Block]]:
        return list(self.play(tuner, until_s=until_s))
