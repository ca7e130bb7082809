"""``joulewise restore --forget``: drop what is kept of a GPU that will not come back, and say what is dropped.

What is owed is tried again for ever, which is right for a GPU that is being reset and wrong for one that was taken out.
Nobody but an admin can tell the two apart.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from joulewise.cli import records
from joulewise.core.errors import LeaseTaken
from joulewise.device.saved import Entry, Saved
from joulewise.report import knobs


def forget(state: Path, prefix: str, *, as_json: bool) -> None:
    """Drop what ``state`` keeps of the one GPU whose UUID begins with ``prefix``; nothing is written to any GPU.

    BadSpec if there is not exactly one, LeaseTaken while a living process keeps it, NotPermitted if it is not ours.
    """
    if not records.can_see(state):
        raise records.not_ours(state)
    record = records.one(records.records(state), prefix.removeprefix("nvml:"), state)
    try:
        saved = Saved.open(state, record.uuid)
    except LeaseTaken as error:
        raise LeaseTaken(f"{str(error).partition('; ')[0]}, so nothing was dropped; stop that first") from None
    try:
        entries, standing = tuple(saved.entries.values()), dict(saved.standing)
        saved.set_aside()  # first: a file in which nothing is left to keep is removed
        saved.forget(*(entry.knob for entry in entries))
        for knob in standing:
            saved.stand(knob, None)
    finally:
        saved.close()
    if as_json:
        dropped = [asdict(entry) for entry in entries]
        said = {"gpu": record.uuid, "dropped": dropped, "standing": standing, "damaged": record.damaged}
        typer.echo(json.dumps(said))
        return
    for entry in entries:
        typer.echo(f"{record.uuid}: dropped {_in_words(entry)}")
    for knob, value in standing.items():
        typer.echo(f"{record.uuid}: dropped the standing {knobs.ceiling(knob, value)}")
    if record.damaged:
        typer.echo(f"{record.uuid}: dropped a file that could not be read; it is kept beside, as *.corrupt-*")


def _in_words(entry: Entry) -> str:
    wrote = f"set to {knobs.shown(entry.knob, entry.wrote[-1])}" if entry.wrote else "not set"
    before = "" if entry.before is None else f", {knobs.shown(entry.knob, entry.before)} before"
    return f"{knobs.name(entry.knob)} ({wrote}{before}) of {entry.owner}"
