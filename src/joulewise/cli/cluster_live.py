"""Where a live scheduler is, for all verbs that ask one: ``--server``, ``$JOULEWISE_CLUSTER``, else this machine's
Unix socket, where the kernel says who asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.plan_amounts import watts
from joulewise.cli.recur_desk import TOKEN_VARIABLE, read_token
from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.serve.cluster_client import ClusterClient

VARIABLE = "JOULEWISE_CLUSTER"
_LIVE = "The scheduler"
_TIMES_S = {"s": 1.0, "min": 60.0, "h": 3600.0}

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help=f"http://HOST:8746 or unix:PATH. Default: ${VARIABLE}, else this machine.",
        rich_help_panel=_LIVE,
    ),
]
Token = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help=f"Holds a token for it. Default: ${TOKEN_VARIABLE}.", rich_help_panel=_LIVE
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Say what was done as one JSON object, on stdout.")]


def scheduler(server: str | None, token_file: Path | None) -> ClusterClient:
    """The scheduler that was named. BadSpec for an address or a token that is none; nothing is sent yet."""
    from joulewise.serve.cluster_client import ClusterClient

    url = server or os.environ.get(VARIABLE)
    if url and not url.startswith(("unix:", "http:", "https:")) and "://" not in url:
        url = f"unix:{url}" if url.startswith("/") else f"http://{url}"
    return ClusterClient(url or None, read_token(token_file))


def watts_per_s(flag: str, text: str) -> float:
    """``"1kW/min"`` in W/s. BadSpec for anything else."""
    amount, slash, period = (part.strip() for part in text.partition("/"))
    if not slash or period not in _TIMES_S:
        raise BadSpec(f"{flag} {text[:40]!r} does not say how fast; write 1kW/min or 50W/s")
    return watts(flag, amount) / _TIMES_S[period]
