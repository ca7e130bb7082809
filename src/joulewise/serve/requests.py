"""What is sent to the server, as models that check it: finite numbers, bounds, sizes, nothing unknown.

The bounds are far outside of what happens and far inside of what the arithmetic of a tuner can stand: an energy of
1e300 J is a mistake or an attack, and one such number, squared, would be a hole in a journal that outlives us. Each
model turns into the vocabulary of ``core/series``; nothing else here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.serve.messages import LONGEST_TEXT, MOST_NOTES
from joulewise.tune.desk import LEASE_S

MOST_TRIALS = 2**31 - 1

Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Thirty years."""
Joules = Annotated[float, Field(ge=0, le=1e15)]
"""A gigawatt for eleven days."""
Epochs = Annotated[int, Field(ge=0, le=1_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000_000)]
Price = Annotated[float, Field(ge=0, le=1e9)]
Watts = Annotated[float, Field(ge=0, le=1e9)]
KnobValue = Annotated[float, Field(gt=0, le=1e6)]

JobName = Annotated[
    str,
    Path(
        pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$",
        description="The job's name: letters, digits, '_', '.' and '-'.",
        examples=["nightly"],
    ),
]
Trial = Annotated[int, Path(ge=0, le=MOST_TRIALS, description="The trial's number, from its ask.", examples=[0])]


class Body(BaseModel):
    """What all bodies have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ZeusObjective(Body):
    """η·energy + (1−η)·max power·time."""

    what: Literal["zeus"]
    eta: float = Field(ge=0, le=1, description="1 counts energy alone, 0 time alone.")


class EnergyObjective(Body):
    """Least energy, within a slowdown against the default or a deadline of the whole run."""

    what: Literal["energy"]
    max_slowdown: float | None = Field(default=None, ge=0, le=1e6, description="0.1 allows 10 % more time.")
    deadline_s: float | None = Field(default=None, gt=0, le=1e9)


class MoneyObjective(Body):
    """GPU hours and electricity, in one currency."""

    what: Literal["money"]
    gpu_hour_price: Price
    kwh_price: Price
    host_w: Watts | None = Field(default=None, description="What the rest of the node draws.")


Objective = Annotated[ZeusObjective | EnergyObjective | MoneyObjective, Field(discriminator="what")]


class JobBody(Body):
    """A job that returns: what may be chosen for it, and when a run has done its work."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "batch_sizes": [8, 16, 32, 64],
                    "default": 32,
                    "max_epochs": 10,
                    "target": "val_acc>=0.84",
                    "objective": {"what": "zeus", "eta": 0.5},
                }
            ]
        }
    )

    batch_sizes: list[BatchSize] = Field(min_length=1, max_length=200, description="In any order.")
    default: BatchSize = Field(description="One of them: what runs when nobody tunes, and the fall-back.")
    max_epochs: Epochs = Field(ge=1, description="A run that has not reached its target by then has failed.")
    target: Text = Field(default="", description="In words.")
    objective: Objective = ZeusObjective(what="zeus", eta=0.5)

    def job(self, name: str) -> Recurring:
        """As the tuner knows it. ValueError for a default that is no batch size of the job."""
        return Recurring(
            name,
            tuple(sorted(set(self.batch_sizes))),
            self.default,
            self.max_epochs,
            self.target,
            self.objective.model_dump(exclude_none=True),
        )


class PlatformBody(Body):
    """What a run has to run on."""

    gpu_name: Text = Field(min_length=1, examples=["NVIDIA H200"])
    gpus: int = Field(default=1, ge=1, le=1_000_000, description="How many, all together.")
    max_power_w: Watts = Field(default=0.0, description="Highest power limit, all GPUs together; 0: nobody knows.")

    def platform(self) -> Platform:
        """As the tuner knows it."""
        return Platform(self.gpu_name, self.gpus, self.max_power_w)


class SettingBody(Body):
    """A choice of values; a knob that is not named is left to the driver."""

    sm_mhz: KnobValue | None = None
    memory_mhz: KnobValue | None = None
    power_limit_w: KnobValue | None = None


class EpochCostBody(Body):
    """What one epoch took under one setting, all GPUs together; errors are one standard error."""

    duration_s: float = Field(ge=1e-6, le=1e9)
    energy_j: Joules
    setting: SettingBody = SettingBody()
    error_s: Seconds = 0.0
    error_j: Joules = 0.0

    def epoch_cost(self) -> EpochCost:
        """As the tuner knows it."""
        setting = Setting(**self.setting.model_dump(exclude_none=True))
        return EpochCost(self.duration_s, self.energy_j, setting, self.error_s, self.error_j)


Profile = Annotated[
    list[EpochCostBody], Field(max_length=100, description="What an epoch cost, setting by setting, where known.")
]
Lease = Annotated[
    float,
    Field(ge=1, le=30 * 86_400, description="The trial is lost so many seconds after the last that is heard of it."),
]


class AskBody(Body):
    """For one trial."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "recurrence": "2026-11-15",
                    "platform": {"gpu_name": "NVIDIA H200", "gpus": 1, "max_power_w": 700.0},
                    "owner": "node7:4242",
                    "key": "6f1c2e1c-5d0b-4a55-9a53-2f1f0b7f1f52",
                    "lease_s": 600.0,
                }
            ]
        }
    )

    recurrence: Text = Field(min_length=1, description="The submission that it serves.")
    platform: PlatformBody
    owner: Text = Field(default="", description="Who runs it, for people.")
    key: str = Field(
        max_length=2 * LONGEST_TEXT,
        default="",
        description="Asking again under it gives the same trial; choose it at random.",
    )
    lease_s: Lease = LEASE_S


class LimitBody(Body):
    """What an epoch of a trial costs."""

    profile: Profile = []


class ProgressBody(Body):
    """A trial is alive."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"epochs": 3, "profile": [{"duration_s": 12.5, "energy_j": 4100.0, "setting": {}}]}]
        }
    )

    epochs: Epochs = Field(description="Done so far.")
    profile: Profile = []
    lease_s: Lease = LEASE_S


class TellBody(Body):
    """How a trial ended."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"outcome": "reached", "epochs": 9, "duration_s": 112.5, "energy_j": 36900.0, "notes": []}]
        }
    )

    outcome: Outcome = Field(strict=False, description="Only 'reached' is a full observation.")
    epochs: Epochs = Field(description="Done in all.")
    duration_s: Seconds
    energy_j: Joules
    profile: Profile = []
    notes: list[Text] = Field(default=[], max_length=MOST_NOTES)


class PlatformQuery(BaseModel):
    """Which platform a view is of; without a name, the one that last asked."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    gpu_name: Text | None = Field(default=None, min_length=1)
    gpus: int = Field(default=1, ge=1, le=1_000_000)
    max_power_w: Watts = 0.0

    def platform(self) -> Platform | None:
        """As the tuner knows it; None if none was named."""
        return None if self.gpu_name is None else Platform(self.gpu_name, self.gpus, self.max_power_w)


OfPlatform = Annotated[PlatformQuery, Query()]
First = Annotated[int, Query(ge=0, le=MOST_TRIALS, description="From this trial on.")]
Most = Annotated[int, Query(ge=1, le=1000, description="So many trials at most.")]


def plain_profile(profile: list[EpochCostBody]) -> tuple[EpochCost, ...]:
    """A profile as the tuner knows it."""
    return tuple(each.epoch_cost() for each in profile)
