"""What the cluster verbs ask for alike: the trace, the GPUs, the jobs, the limits; and the scene that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.cluster_amounts import energy_budget as read_energy_budget
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.plan_amounts import watts
from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.cli.cluster_scene import Scene

_CLUSTER, _JOBS, _LIMITS = "The cluster", "The jobs", "What it may spend"

Gpu = Annotated[
    str, typer.Option(metavar="SPEC", help="'sim:a100*512', 'sim:a100*64,h200*8'.", rich_help_panel=_CLUSTER)
]
PerNode = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="GPUs of a node; 8.", rich_help_panel=_CLUSTER, show_default=False),
]
HostWatts = Annotated[
    float | None, typer.Option(metavar="W", min=0, help="A node besides its GPUs; 125 a GPU.", rich_help_panel=_CLUSTER)
]
PowerOff = Annotated[
    bool, typer.Option("--power-off/--no-power-off", help="Whether empty nodes may sleep.", rich_help_panel=_CLUSTER)
]
Warm = Annotated[int, typer.Option(metavar="N", min=0, help="Empty nodes that stay on.", rich_help_panel=_CLUSTER)]
Load = Annotated[
    float | None,
    typer.Option(metavar="0.9", help="Stretch the gaps to this load. Default: as recorded.", rich_help_panel=_JOBS),
]
Jobs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N.", rich_help_panel=_JOBS)]
Tenant = Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant's.", rich_help_panel=_JOBS)]
SizeError = Annotated[
    float, typer.Option(metavar="σ", help="Error of predicted sizes; 0: known.", rich_help_panel=_JOBS)
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of all that is drawn.", rich_help_panel=_JOBS)]
EnergyBudget = Annotated[
    str | None,
    typer.Option(metavar="500kWh/day", help="Of the whole cluster; also /h, /week.", rich_help_panel=_LIMITS),
]
PowerCap = Annotated[
    str | None, typer.Option(metavar="120kW", help="Of the whole cluster, at any time.", rich_help_panel=_LIMITS)
]
Tariff = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="g/kWh or EUR/MWh by the hour: the budget counts these.",
        rich_help_panel=_LIMITS,
        show_default=False,
    ),
]

Fairness = Annotated[
    float,
    typer.Option(
        metavar="1.0", min=0, help="priced: who fares worse counts more.", rich_help_panel=_JOBS, show_default=False
    ),
]


def scene(
    trace: Path,
    gpu: str,
    gpus_per_node: int | None,
    host_watts: float | None,
    power_off: bool,
    warm: int,
    load: float | None,
    jobs: int | None,
    tenant: str | None,
    size_error: float,
    seed: int,
    energy_budget: str | None,
    power_cap: str | None,
    tariff: Path | None = None,
) -> Scene:
    """All flags together. BadSpec for what makes no sense."""
    if load is not None and not 0 < load < 100:
        raise BadSpec(f"--load {load:g} makes no sense; 0.9 means that nine tenths of all GPUs are asked for")
    load_numpy()
    from joulewise.cli.cluster_scene import Limits, set_up
    from joulewise.cluster.tariff import read_tariff

    energy_j, period_s = (
        (None, 86_400.0) if energy_budget is None else read_energy_budget("--energy-budget", energy_budget)
    )
    power_w = None if power_cap is None else watts("--power-cap", power_cap)
    return set_up(
        trace,
        gpu,
        limits=Limits(energy_j, period_s, power_w),
        load=load,
        seed=seed,
        count=jobs,
        tenant=tenant,
        size_error=size_error,
        per_node=gpus_per_node,
        host_w=host_watts,
        warm=warm if power_off else None,
        tariff=None if tariff is None else read_tariff(tariff),
    )
