"""``joulewise cluster report``: what a live cluster did while it was watched, as a page for whoever pays for it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import say
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.recur_desk import DatabaseFlag
from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.core.event import Event
    from joulewise.report.cluster_facts import Story

_PREFIX = "cluster/"


def report(
    ctx: typer.Context,
    watched: Annotated[
        Path, typer.Argument(metavar="WATCHED", help="What 'cluster status --json --live' wrote.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="Write the page here.", show_default=False)
    ] = None,
    meter: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="A meter of your own: time_s,power_w of the whole cluster.")
    ] = None,
    accounts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What 'sacct -nPX -o jobname,admincomment' said.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="As Slurm calls it. Default: the only one in the store.")
    ] = None,
    database: DatabaseFlag = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="To stdout, every number in full; no page unless --out.")
    ] = False,
) -> None:
    """How a cluster kept its cap, and what it promised its jobs.

      joulewise cluster status --json --live > watched.jsonl
      joulewise cluster report watched.jsonl --out cluster.html

    Power against cap, GPUs, clocks and prices over time; of each job its
    energy, and what was promised of a step against what was measured. The
    promises are read from the scheduler's journal in the store.
    """
    if out is None and not as_json:
        raise BadSpec("nothing is asked for: name a page with --out FILE.html, or say --json")
    load_numpy()
    from joulewise.report import cluster_facts as facts
    from joulewise.report.cluster_page import page
    from joulewise.report.cluster_words import headline

    seen = facts.read_watched(watched)
    story = facts.told(
        seen,
        _journal(cluster, database),
        None if meter is None else facts.read_meter(meter),
        {} if accounts is None else facts.read_accounts(accounts),
    )
    if out is not None:
        try:
            out.write_text(page(story), encoding="utf-8")
        except OSError as fault:
            raise BadSpec(f"--out {out} cannot be written: {(fault.strerror or str(fault)).lower()}") from None
        say(ctx, f"the page is {out}")
    typer.echo(json.dumps(_plain(story), allow_nan=False) if as_json else headline(story) + ".")


def _plain(story: Story) -> dict[str, Any]:
    """What the page tells, in plain values. Not the statuses that it was told from: whoever asks has their file."""
    from joulewise.core.plain import plain
    from joulewise.report.cluster_words import conclusions, headline

    return {
        "headline": headline(story),
        "conclusions": conclusions(story),
        "begun_s": story.begun_s,
        "ended_s": story.last.time_s,
        "energy_j": story.last.energy_j - story.watched[0].energy_j,
        "metered": story.metered,
        "power": plain(story.power),
        "cuts": plain(story.cuts),
        "stretches": plain(story.stretches),
        "jobs": plain(story.last.jobs),
        "accounts_j": plain(story.accounts_j),
    }


def _journal(cluster: str | None, database: str | None) -> list[Event]:
    """The events of one cluster's journal. BadSpec where it is not clear whose."""
    from joulewise.store import open_store

    with closing(open_store(database)) as store:
        names = [stream.removeprefix(_PREFIX) for stream in store.streams(_PREFIX)]
        if cluster is None and len(names) > 1:
            raise BadSpec(f"the store has journals of {', '.join(names[:5])}; name one: --cluster {names[-1]}")
        if cluster is not None and cluster not in names:
            raise BadSpec(f"the store has no journal of a cluster {cluster!r}; it has {', '.join(names[:5]) or 'none'}")
        if not names:
            raise BadSpec("the store has no journal of a cluster; name the scheduler's own: --database FILE or URL")
        return [event for _, event in store.journal(_PREFIX + (cluster or names[0])).read()]
