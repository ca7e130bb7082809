"""``joulewise cluster status``: how a live cluster stands, once or again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli.cluster_live import Server, Token, scheduler
from joulewise.core.errors import NotKept

if TYPE_CHECKING:
    from joulewise.serve.cluster_client import ClusterClient

_EVERY_S = 1.0


def status(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Draw it anew every second; q or Ctrl-C ends.")] = False,
    server: Server = None,
    token_file: Token = None,
) -> None:
    """Watts and cap, prices, nodes and jobs of a live cluster.

    joulewise cluster status
    joulewise cluster status --live
    joulewise cluster status --json | jq '.jobs[] | {name, energy_j}'
    """
    client = scheduler(server, token_file)
    if as_json:
        _as_json(client, live=live)
    elif live:
        _live(client)
    else:
        from joulewise.cli.cluster_live_table import page
        from joulewise.cli.console import Console

        Console().print(page(client.status()))


def _as_json(client: ClusterClient, *, live: bool) -> None:
    """One object, or one a second, each on a line of its own."""
    import json

    from joulewise.cli.plan_views import dumped
    from joulewise.core.plain import plain

    if not live:
        print(dumped(plain(client.status())))
        return
    while True:
        print(json.dumps(plain(client.status())), flush=True)
        time.sleep(_EVERY_S)


def _live(client: ClusterClient) -> None:
    """The page, drawn anew until q. A scheduler that is away is waited for: that is what one watches for."""
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from joulewise.cli.cluster_live_table import page
    from joulewise.cli.console import Console
    from joulewise.cli.top import single_keys

    console = Console()
    shown: RenderableType = page(client.status())
    if not console.is_terminal or console.is_dumb_terminal:
        while True:
            console.print(shown, Text(), sep="\n")
            time.sleep(_EVERY_S)
            shown = page(client.status())
    with single_keys() as key_within, Live(shown, console=console, screen=True, auto_refresh=False) as display:
        display.refresh()
        while key_within(_EVERY_S) != "q":
            try:
                shown = page(client.status())
                display.update(shown, refresh=True)
            except NotKept as error:
                display.update(Group(Text(str(error), style="red"), Text(), shown), refresh=True)
