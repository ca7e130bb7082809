"""A block: one stretch of comparable work under one setting, and why it was run. Job tuners ask for blocks.

A block holds clean work only: the steps that contain a clock switch, a compilation, an evaluation, a checkpoint or a
stall are left out of its time, its work and its energy, and counted in ``left_out_s``. Two blocks of one phase can
therefore be compared; blocks of different phases never are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from joulewise.core.decision import Decision
from joulewise.core.knob import Setting


class Role(StrEnum):
    """Why a block is run."""

    BASELINE = "baseline"
    """Nothing set, to learn what default is."""
    PROBE = "probe"
    """A setting tried for what it teaches."""
    CANDIDATE = "candidate"
    """The candidate's half of a pair that the guard compares."""
    REFERENCE = "reference"
    """The baseline's half of such a pair."""
    HOLD = "hold"
    """The chosen setting, in use."""
    PROOF = "proof"
    """A baseline window at a time drawn beforehand, for the proof of the saving."""


class Rung(StrEnum):
    """Where the time of a unit of work comes from, from the finest ruler to none."""

    STEPS = "steps"
    """Step ends told by hooks in the job."""
    PERIOD = "period"
    """A period found in power, energy and activity."""
    ACTIVITY = "activity"
    """Work rate by the GPU's activity counters; the job has no period."""
    UNKNOWN = "unknown"
    """Nothing tells how fast the job goes: nothing may be judged."""


@dataclass(frozen=True, slots=True)
class Block:
    """One stretch of clean work. Energies and powers are summed over the job's GPUs."""

    setting: Setting
    """What was asked for; empty is the default."""
    start_s: float
    end_s: float
    """The stretch on the GPU's time, everything included."""
    work: float
    """Clean units of work in it: steps, periods, or the activity counters' unit. Above 0."""
    duration_s: float
    """Seconds of that clean work."""
    energy_j: float
    """Joules of that clean work."""
    energy_error_j: float
    """One standard error of ``energy_j``, the sensor's gain left out: it cancels in a ratio on one card."""
    time_error: float
    """One relative standard error of ``duration_s / work`` as a measure of how fast this setting is: the ruler's
    resolution and the job's own (autocorrelated) jitter together."""
    phase: str = ""
    rung: Rung = Rung.STEPS
    sm_mhz: float | None = None
    """Mean SM clock seen while busy, which a power cap may hold below the one asked for."""
    power_capped: bool | None = None
    """Whether the power limit, and not the clock, held the GPU back."""
    left_out_s: float = 0.0
    """Seconds between ``start_s`` and ``end_s`` that are not comparable work."""
    slack: bool = False
    """Whether GPUs that wait for others ran slower than ``setting`` says (``tune/slack``)."""

    def __post_init__(self) -> None:
        if not (self.work > 0 and self.duration_s > 0):
            raise ValueError(f"a block needs work and time, not {self.work} in {self.duration_s} s")

    @property
    def unit_s(self) -> float:
        """Seconds a unit of work."""
        return self.duration_s / self.work

    @property
    def unit_j(self) -> float:
        """Joules a unit of work."""
        return self.energy_j / self.work

    @property
    def power_w(self) -> float:
        """Average power over the clean work."""
        return self.energy_j / self.duration_s

    @property
    def power_error(self) -> float:
        """One relative standard error of ``power_w``."""
        return self.energy_error_j / self.energy_j if self.energy_j > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Move:
    """What a job tuner asks for: a setting with its reason, why it is run, and how much of it is wanted."""

    decision: Decision[Setting]
    role: Role
    phase: str = ""
    least_work: float = 1.0
    """Clean units of work wanted at least …"""
    least_s: float = 0.0
    """… and seconds of clean work wanted at least."""
    most_s: float = 60.0
    """After so long (waste included) take what there is, or nothing."""

    @property
    def setting(self) -> Setting:
        """What to apply."""
        return self.decision.setting
