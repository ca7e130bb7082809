"""``joulewise stand``: clocks that stay locked between leases, for sites that want them so for good.

A lease's clocks go back to the standing lock when it ends; a restart of the daemon or of the driver sets it again. Root
says so to the daemon. A power limit needs no such thing: it can be read, and what was there comes back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import records, talk
from joulewise.cli.gpus import uuids
from joulewise.cli.leases import Socket, State
from joulewise.core.errors import BadSpec, NotPermitted
from joulewise.core.knob import MEMORY_MHZ, SM_MHZ
from joulewise.device.remote_client import DaemonClient
from joulewise.device.saved import STATE
from joulewise.report import knobs

_CLOCKS = (SM_MHZ.name, MEMORY_MHZ.name)


def stand(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="CLOCK=MHZ", help="sm_mhz=1410 or memory_mhz=1593; with --end: CLOCK.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(metavar="SPEC", help="GPU-… or nvml:0-3. Repeatable.")] = None,
    end: Annotated[bool, typer.Option("--end", help="Keep it no longer; without a CLOCK, none of them.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Say what stands; so does no argument at all.")] = False,
    socket: Socket = None,
    state: State = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Keep clocks locked between leases, on all named GPUs or on none. As root, through the daemon.

    A clock is a ceiling. One that is leased now gets there when its lease
    ends. It stands until --end, over restarts of the daemon and the driver.

      joulewise stand sm_mhz=1410 --gpu nvml:0-3
      joulewise stand --end sm_mhz --gpu nvml:0-3
      joulewise stand --list

    Exit code 0 if all of it is so now; 2 for what is no clock, or a value
    that a GPU does not have; 1 otherwise, and then nothing has changed.
    """
    if os.geteuid() != 0:
        raise NotPermitted("what stands between leases is root's to see and to say; use 'sudo'")
    asked = words or []
    if not asked and not end:
        if gpu:
            raise BadSpec("--gpu names GPUs, but no clock; write 'joulewise stand sm_mhz=1410 --gpu nvml:0'")
        _list(state, as_json=as_json)
        return
    if listed:
        raise BadSpec("--list goes alone; say what is to stand, or ask what does")
    if not gpu:
        raise BadSpec("which GPUs? write '--gpu nvml:0-3', or '--gpu nvml:all'")
    setting = _ended(asked) if end else _wanted(asked)
    named = uuids(gpu)
    with DaemonClient(socket) as daemon:
        daemon.stand(named, setting)
    if as_json:
        typer.echo(json.dumps({"gpus": named, "setting": setting}))
    elif not talk(ctx).quiet:
        for knob, value in setting.items():
            said = f"{knobs.name(knob)}: no standing lock" if value is None else f"{knobs.ceiling(knob, value)} stands"
            typer.echo(f"{said} on {', '.join(named)}")


def _wanted(words: list[str]) -> dict[str, float | None]:
    setting = knobs.setting(words, flag="stand")
    for knob in setting:
        if knob not in _CLOCKS:
            raise BadSpec(f"{knob} cannot stand, only {' and '.join(_CLOCKS)} can; set a limit with your own tools")
    return dict(setting)


def _ended(words: list[str]) -> dict[str, float | None]:
    names = [name.strip() for word in words for name in word.split(",")] or list(_CLOCKS)
    for name in names:
        if name not in _CLOCKS:
            raise BadSpec(f"--end {name}: no clock is called so; clocks are {' and '.join(_CLOCKS)}")
    return dict.fromkeys(names)


def _list(state: Path, *, as_json: bool) -> None:
    """From the files: whoever may ask for it may read them, and they are so with the daemon dead, too."""
    if not records.can_see(state):
        raise records.not_ours(state)
    standing = {record.uuid: dict(record.standing) for record in records.records(state) if record.standing}
    if as_json:
        typer.echo(json.dumps({"standing": standing}))
        return
    if not standing:
        typer.echo("no clock stands")
    for uuid, values in standing.items():
        typer.echo(f"{uuid}: {', '.join(knobs.ceiling(knob, value) for knob, value in values.items())}")
