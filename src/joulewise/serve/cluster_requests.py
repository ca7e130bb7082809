"""What is sent to a cluster's scheduler, as models that check it: finite numbers, bounds, sizes, nothing unknown.

As in ``requests``: the bounds are far outside of what happens and far inside of what arithmetic can stand. Each model
turns into the vocabulary of ``cluster.engine`` and ``cluster.declared``; nothing else here.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from joulewise.cluster import orders
from joulewise.cluster.declared import GpuReport, JobEnergy, Report, ShareReport
from joulewise.cluster.engine import Order
from joulewise.core.knob import Setting
from joulewise.serve.requests import Body, Joules, SettingBody, Text, Watts

LONGEST_WAIT_S = 30.0
"""A report is answered by then, whether there is anything new or not: proxies close what is silent for longer."""
_NAME = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
_MOST_EPOCHS = 2**53

JobName = Annotated[
    str,
    # A second user's job of one name is known as NAME@ID.
    Path(pattern=f"^{orders.NAME}(@[0-9]{{1,10}})?$", description="A job's name.", examples=["night-7"]),
]
NodeName = Annotated[str, Path(pattern=_NAME, description="A node's name, as its engine has it.", examples=["n1"])]
Wait = Annotated[
    float,
    Query(
        ge=0,
        le=LONGEST_WAIT_S,
        allow_inf_nan=False,
        description="The latest answer if nothing is new.",
    ),
]
Instant = Annotated[float, Field(ge=0, le=orders.LATEST_S)]
"""Seconds since 1970."""
Count = Annotated[int, Field(ge=0, le=_MOST_EPOCHS)]
Gpus = Annotated[int, Field(ge=1, le=orders.MOST_GPUS)]
Why = Annotated[str, Field(max_length=2000)]


class OrderBody(Body):
    """A job to run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "night-7",
                    "command": ["python", "train.py"],
                    "gpus": 8,
                    "checkpoint": "/scratch/night-7",
                    "least_gpus": 2,
                    "most_gpus": 16,
                    "work": 10000.0,
                }
            ]
        }
    )

    name: Annotated[str, Field(pattern=f"^{orders.NAME}$")]
    command: list[Annotated[str, Field(max_length=orders.LONGEST_WORD)]] = Field(
        min_length=1, max_length=orders.MOST_WORDS
    )
    gpus: Gpus = Field(description="What it asks for.")
    checkpoint: Annotated[str, Field(min_length=1, max_length=orders.LONGEST_PATH)] | None = Field(
        default=None, description="The folder of its checkpoints; with one it is elastic."
    )
    least_gpus: Gpus = 1
    most_gpus: Gpus | None = Field(default=None, description="None: as far as is believed to help.")
    work: Annotated[float, Field(gt=0, le=orders.MOST_WORK)] | None = Field(default=None, description="Steps it takes.")
    brought: dict[str, Any] | None = Field(default=None, description="Time and energy of a unit, by GPUs, where known.")
    workload: Text = Field(default="", description="Jobs with the same one learn from each other.")
    batch: Annotated[int, Field(ge=1, le=orders.MOST_BATCH)] | None = None
    deadline_s: Instant | None = Field(default=None, description="Seconds since 1970.")
    weight: Annotated[float, Field(gt=0, le=orders.MOST_WEIGHT)] = Field(
        default=1.0, description="What its time counts."
    )
    tenant: Text = ""
    directory: Annotated[str, Field(max_length=orders.LONGEST_PATH)] = ""
    environ: dict[str, Annotated[str, Field(max_length=orders.LONGEST_WORD)]] = Field(
        default={}, max_length=orders.MOST_WORDS
    )
    limit_s: Annotated[float, Field(gt=0, le=orders.LONGEST_S)] | None = None

    def order(self, submitted_s: float) -> Order:
        """As an engine knows it. BadSpec for what the bounds above cannot say."""
        order = Order(**{**self.model_dump(), "command": tuple(self.command), "submitted_s": submitted_s})
        orders.check(order)
        return order


class CapBody(Body):
    """What the whole cluster may draw from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"power_w": 20000.0, "for_s": 10800.0}]})

    power_w: Annotated[float, Field(gt=0, le=1e12)] | None = Field(description="None: no limit.")
    for_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None, description="Then what held before holds again; None: until another word."
    )
    ramp_w_per_s: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        default=None, description="The cap moves no faster than this; None: at once."
    )


class BudgetBody(Body):
    """What the whole cluster may spend in each period."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"energy_j": 1.8e9, "period_s": 86400.0}]})

    energy_j: Annotated[float, Field(gt=0, le=1e18)] | None = Field(description="None: no limit.")
    period_s: Annotated[float, Field(ge=60, le=1e9)] = 86_400.0


class GpuReportBody(Body):
    """One GPU of a node."""

    uuid: Text = Field(min_length=1)
    power_w: Watts | None
    energy_j: Joules
    setting: SettingBody = SettingBody()
    job: Text | None = None


class ShareReportBody(Body):
    """How far a share of a job is."""

    id: Text = Field(min_length=1)
    version: Count
    state: Annotated[str, Field(pattern="^(ready|applied|waiting|refused)$")]
    why: Why = ""


class JobEnergyBody(Body):
    """What a job has drawn on a node."""

    id: Text = Field(min_length=1)
    gpu_j: Joules
    host_j: Joules
    gpu_s: Annotated[float, Field(ge=0, le=1e12)]
    final: bool = False


class ReportBody(Body):
    """What a node's agent sees and has done."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "node": "n1",
                    "time_s": 1.8e9,
                    "epoch": 0,
                    "number": 0,
                    "power_w": 1500.0,
                    "node_j": 3000.0,
                    "idle_j": 3000.0,
                    "gpus": [{"uuid": "GPU-1", "power_w": 60.0, "energy_j": 120.0}],
                }
            ]
        }
    )

    node: Annotated[str, Field(pattern=_NAME)]
    time_s: Instant
    epoch: Count = Field(description="Of the declaration that it holds; 0: none yet.")
    number: Count
    power_w: Watts | None
    node_j: Joules
    idle_j: Joules
    gpus: list[GpuReportBody] = Field(default=[], max_length=64)
    shares: list[ShareReportBody] = Field(default=[], max_length=200)
    jobs: list[JobEnergyBody] = Field(default=[], max_length=500)
    ceiling_w: Watts | None = None
    trouble: list[Why] = Field(default=[], max_length=50)

    def report(self) -> Report:
        """As a scheduler knows it."""
        fields = self.model_dump()
        gpus = tuple(
            GpuReport(each.uuid, each.power_w, each.energy_j, _setting(each.setting), each.job) for each in self.gpus
        )
        shares = tuple(ShareReport(**each.model_dump()) for each in self.shares)
        jobs = tuple(JobEnergy(**each.model_dump()) for each in self.jobs)
        return Report(**{**fields, "gpus": gpus, "shares": shares, "jobs": jobs, "trouble": tuple(self.trouble)})


def _setting(body: SettingBody) -> Setting:
    return Setting(**body.model_dump(exclude_none=True))
