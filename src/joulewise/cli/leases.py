"""``joulewise leases``: who holds which knob of which GPU, what is set there, and until when.

As the daemon says, whom anybody may ask; and, for root, as the files of the state folder say: a lease that a process of
root's holds without the daemon is nowhere else, nor is what a dead one left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import records
from joulewise.core.errors import NoDaemon, NotPermitted
from joulewise.core.knob import Setting
from joulewise.core.units import format_duration
from joulewise.device.remote_client import DaemonClient
from joulewise.device.saved import PERSISTENCE, STATE
from joulewise.report import knobs

Socket = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        readable=False,
        help="The daemon's socket. Default: $JOULEWISE_SOCKET, else /run/joulewise/daemon.sock.",
    ),
]


State = Annotated[
    Path,
    typer.Option("--state", metavar="DIR", readable=False, help="Where leases keep what was there; root's to read."),
]


def leases(
    socket: Socket = None,
    state: State = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say who holds which knob of which GPU, and until when.

    joulewise leases
    joulewise leases --json | jq '.leases[].pid'

    Root also sees leases that are held without the daemon, and what is owed
    by processes that are gone. Exit code 0, also if nobody holds anything; 1
    if no daemon answers and the files are not ours to read.
    """
    held = every(socket, state)
    if as_json:
        typer.echo(json.dumps({"leases": held}))
        return
    if not held:
        typer.echo("no lease is held")
    for each in held:
        typer.echo("\n".join(lines(each)))


def every(socket: Path | None, state: Path) -> list[dict[str, Any]]:
    """The daemon's leases and the files'. NoDaemon or NotPermitted where neither can be had."""
    try:
        with DaemonClient(socket) as daemon:
            held = daemon.leases()
    except (NoDaemon, NotPermitted):
        if os.geteuid() != 0 or not records.can_see(state):
            raise
        return records.as_leases(records.records(state), None)
    return held + records.as_leases(records.records(state), held)


def lines(held: Mapping[str, Any]) -> list[str]:
    """One lease for people: who and what for, where and what, until when and by what right."""
    command = f" ({held['command']})" if held.get("command") else ""
    reason = f": {held['reason']}" if held.get("reason") else ""
    who = "of somebody unknown" if held["uid"] is None else f"uid {held['uid']} pid {held['pid']}"
    first = f"{held['lease']}  {who}{command}{reason}"
    return [first, *(f"  {line}" for line in (*_settings(held), _terms(held)))]


def _settings(held: Mapping[str, Any]) -> list[str]:
    """What is set, GPUs of one setting in one line."""
    settings: Mapping[str, Mapping[str, float]] = held.get("settings", {})
    alike: dict[Setting, list[str]] = {}
    for gpu in held["gpus"]:
        values = {knob: value for knob, value in settings.get(gpu, {}).items() if knob != PERSISTENCE}
        alike.setdefault(Setting(**values), []).append(gpu)
    return [f"{_gpus(gpus)}: {_what(setting, held['knobs'])}" for setting, gpus in alike.items()]


def _what(setting: Setting, leased: Sequence[str]) -> str:
    untouched = [knobs.name(knob) for knob in leased if knob not in setting and knob != PERSISTENCE]
    words = [knobs.chosen(setting)] if setting else []
    return ", ".join([*words, *(f"{' and '.join(untouched)} as before" for _ in untouched[:1])]) or "what is not known"


def _gpus(uuids: Sequence[str]) -> str:
    return uuids[0] if len(uuids) == 1 else f"{len(uuids)} GPUs ({', '.join(uuid[:12] for uuid in uuids)})"


def _terms(held: Mapping[str, Any]) -> str:
    right = f", by right of {held['because']}" if held.get("because") else ""
    if held["stage"] == "local":
        return "held without the daemon, until its process ends"
    if held["stage"] != "held":
        return f"{held['stage']}{': ' + held['why'] if held.get('why') else ''}"
    return f"{format_duration(held['left_s'])} left unless renewed{right}"
