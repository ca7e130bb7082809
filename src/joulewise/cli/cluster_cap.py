"""``joulewise cluster cap`` and ``cluster budget``: what a live cluster may draw now, and spend in a day."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from joulewise.cli import say
from joulewise.cli.cluster_amounts import energy_budget
from joulewise.cli.cluster_live import AsJson, Server, Token, scheduler, watts_per_s
from joulewise.cli.plan_amounts import watts
from joulewise.cli.recur_terms import seconds
from joulewise.core.units import format_duration, format_si, kwh_from_joules

_NONE = "none"


def cap(
    ctx: typer.Context,
    power: Annotated[str, typer.Argument(metavar="20kW|none", help="Of the whole cluster.", show_default=False)],
    for_: Annotated[
        str | None, typer.Option("--for", metavar="3h", help="Then what held before holds again. Default: for good.")
    ] = None,
    ramp: Annotated[
        str | None, typer.Option(metavar="1kW/min", help="Move no faster than this, down and up. Default: at once.")
    ] = None,
    server: Server = None,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """Limit what the whole cluster draws, from now on.

      joulewise cluster cap 20kW
      joulewise cluster cap 15kW --for 3h --ramp 1kW/min
      joulewise cluster cap none

    Clocks go down at once, then elastic jobs shrink, then jobs wait. A cap
    below what the cluster draws idle is refused, and the old one stays.
    """
    power_w = None if power.strip().lower() == _NONE else watts("a cap of", power)
    for_s = None if for_ is None else seconds("--for", for_)
    ramp_w_per_s = None if ramp is None else watts_per_s("--ramp", ramp)
    scheduler(server, token_file).cap(power_w, for_s=for_s, ramp_w_per_s=ramp_w_per_s)
    if as_json:
        typer.echo(json.dumps({"cap_w": power_w, "for_s": for_s, "ramp_w_per_s": ramp_w_per_s}))
        return
    limit = "any power" if power_w is None else format_si(power_w, "W")
    says = f"the cluster may draw {limit}"
    says += " from now on" if for_s is None else f" for {format_duration(for_s)}"
    if ramp_w_per_s is not None:
        says += f", at most {format_si(60.0 * ramp_w_per_s, 'W')} a minute nearer"
    say(ctx, f"{says}; 'joulewise cluster status' shows how far it is")


def budget(
    ctx: typer.Context,
    energy: Annotated[
        str, typer.Argument(metavar="500kWh/day|none", help="Of the whole cluster; also /h, /week.", show_default=False)
    ],
    server: Server = None,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """Limit what the whole cluster spends in each hour, day or week.

      joulewise cluster budget 500kWh/day
      joulewise cluster budget none

    Joules get a price that follows the meters, so that the budget lasts.
    """
    client = scheduler(server, token_file)
    if energy.strip().lower() == _NONE:
        client.budget(None)
        if as_json:
            typer.echo(json.dumps({"budget_j": None, "period_s": None}))
        else:
            say(ctx, "the cluster's energy is not limited from now on")
        return
    energy_j, period_s = energy_budget("a budget of", energy)
    client.budget(energy_j, period_s)
    if as_json:
        typer.echo(json.dumps({"budget_j": energy_j, "period_s": period_s}))
        return
    every = format_duration(period_s)
    say(ctx, f"the cluster may spend {kwh_from_joules(energy_j):,.4g} kWh in every {every} from now on")
