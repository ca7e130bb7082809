"""``joulewise leases``: who holds which knob of which GPU, what is set there, and until when. As the daemon says.

Anybody may ask. A lease that root holds without the daemon is not listed here; its GPU's knobs refuse others all the
same, and name the holder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import knobs
from joulewise.core.knob import Setting
from joulewise.core.units import format_duration

Socket = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        readable=False,
        help="The daemon's socket. Default: $JOULEWISE_SOCKET, else /run/joulewise/daemon.sock.",
    ),
]


def leases(
    socket: Socket = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say who holds which knob of which GPU, and until when.

    joulewise leases
    joulewise leases --json | jq '.leases[].pid'

    Exit code 0, also if nobody holds anything; 1 if no daemon answers.
    """
    from joulewise.device.remote_client import DaemonClient

    with DaemonClient(socket) as daemon:
        held = daemon.leases()
    if as_json:
        typer.echo(json.dumps({"leases": held}))
        return
    if not held:
        typer.echo("no lease is held")
    for each in held:
        typer.echo("\n".join(lines(each)))


def lines(held: Mapping[str, Any]) -> list[str]:
    """One lease for people: who and what for, where and what, until when and by what right."""
    command = f" ({held['command']})" if held.get("command") else ""
    reason = f": {held['reason']}" if held.get("reason") else ""
    first = f"{held['lease']}  uid {held['uid']} pid {held['pid']}{command}{reason}"
    return [first, *(f"  {line}" for line in (*_settings(held), _terms(held)))]


def _settings(held: Mapping[str, Any]) -> list[str]:
    """What is set, GPUs of one setting in one line."""
    settings: Mapping[str, Mapping[str, float]] = held.get("settings", {})
    alike: dict[Setting, list[str]] = {}
    for gpu in held["gpus"]:
        alike.setdefault(Setting(**settings.get(gpu, {})), []).append(gpu)
    return [f"{_gpus(gpus)}: {_what(setting, held['knobs'])}" for setting, gpus in alike.items()]


def _what(setting: Setting, leased: Sequence[str]) -> str:
    untouched = [knobs.name(knob) for knob in leased if knob not in setting]
    words = [knobs.chosen(setting)] if setting else []
    return ", ".join([*words, *(f"{' and '.join(untouched)} as before" for _ in untouched[:1])])


def _gpus(uuids: Sequence[str]) -> str:
    return uuids[0] if len(uuids) == 1 else f"{len(uuids)} GPUs ({', '.join(uuid[:12] for uuid in uuids)})"


def _terms(held: Mapping[str, Any]) -> str:
    right = f", by right of {held['because']}" if held.get("because") else ""
    if held["stage"] != "held":
        return f"{held['stage']}{': ' + held['why'] if held.get('why') else ''}"
    return f"{format_duration(held['left_s'])} left unless renewed{right}"
