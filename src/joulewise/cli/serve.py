"""``joulewise serve``: recurring jobs over HTTP, for clients on any machine; and the tokens that say who may.

The server keeps nothing of its own: all state is the journal's, so that it may be killed at any moment and several may
serve one database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import say
from joulewise.core.errors import BadSpec
from joulewise.serve import tokens
from joulewise.serve.tokens import Guard, Scope, Token

PORT = 8745
"""Ours by habit; any that is free would do."""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    invoke_without_command=True,
    help="Recurring jobs over HTTP: ask for trials and tell results from any machine.\n\n"
    "  joulewise serve\n\n"
    "  joulewise serve token --scope write --name ci\n\n"
    "  joulewise serve --host 0.0.0.0 --database postgresql://joulewise@db/joulewise\n\n"
    "Its API is described at /docs. Without tokens it serves this machine only.\n"
    "It speaks plain HTTP: put it behind a proxy that speaks TLS where others listen.",
)

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        readable=False,
        help="The tokens' hashes. Default: 'tokens' beside the default database, if there.",
    ),
]


@app.callback()
def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = PORT,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A file, or postgresql://…. Default: $JOULEWISE_DATABASE, else your own."),
    ] = None,
    token_file: TokenFile = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no token: whoever can connect may ask and tell.")
    ] = False,
) -> None:
    """Serve until SIGTERM."""
    if ctx.invoked_subcommand is not None:
        return
    from joulewise.serve import listen
    from joulewise.store import open_store

    known = known_tokens(token_file, no_auth=no_auth)
    if known is None and not no_auth and not tokens.is_loopback(host):
        raise BadSpec(
            f"--host {host} would let others write without a token; make one with 'joulewise serve token --scope "
            "write', or say --no-auth if something in front asks who they are"
        )
    try:
        from joulewise.serve.app import make_app
    except ImportError as error:
        raise listen.missing(error) from error
    store = open_store(database)
    try:
        made = make_app(store, Guard(known, open_to_all=no_auth))
        with listen.bound(host, port) as listening:
            who = "anyone who can connect" if no_auth else "this machine" if known is None else "those with a token"
            say(ctx, f"serving {who} on {listen.url_of(listening)}")
            listen.serve(made, listening)
    finally:
        store.close()


@app.command("token")
def token(
    ctx: typer.Context,
    scope: Annotated[Scope, typer.Option(help="Whoever may write may read.")],
    name: Annotated[str, typer.Option(help="Whose it is; for 'agent' the node's name, or '*'.")] = "",
    token_file: TokenFile = None,
) -> None:
    """Make a token, keep its hash in the file, and print it: it is shown this once.

      joulewise serve token --scope write --name ci > ci.token

    To take it back, delete its line and restart the server.
    """
    path = token_file if token_file is not None else _default_file()
    secret, kept = tokens.make(scope, name)
    if path.exists():
        tokens.read(path)  # rather than add to somebody's other file
    tokens.keep(path, kept)
    typer.echo(secret)
    say(ctx, f"its hash is in {path}; a server that runs reads it when it is started again")


def known_tokens(path: Path | None, *, no_auth: bool = False) -> tuple[Token, ...] | None:
    """Those of the file that was named, or of the usual one; None where there is none, or none shall be asked for."""
    if no_auth:
        if path is not None:
            raise BadSpec("--no-auth asks for no token, --token-file for one; give one of them")
        return None
    if path is None:
        path = _default_file()
        if not path.exists():
            return None
    found = tokens.read(path)
    if not found:
        raise BadSpec(f"{path} holds no token, so that nobody could ask; make one with 'joulewise serve token'")
    return found


def _default_file() -> Path:
    from joulewise.store import default_path

    return default_path().with_name(tokens.FILE)
