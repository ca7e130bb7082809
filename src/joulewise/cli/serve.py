"""``joulewise serve``: recurring jobs over HTTP, for clients on any machine; and the tokens that say who may.

Nobody is served who has not been let in: by a token of the file, by this start's own token (which this user's clients
find by themselves, and a browser gets for a link that works once), or by the kernel's word through a Unix socket.

The server keeps nothing of its own: all state is the journal's, so that it may be killed at any moment and several may
serve one database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import say
from joulewise.cli.help import VerbFamily
from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.serve import tokens
from joulewise.serve.local_paths import own_server
from joulewise.serve.tokens import Guard, Scope, Token

if TYPE_CHECKING:
    import socket as sockets

    from joulewise.serve.live import LiveGpus

PORT = 8745
"""Ours by habit; any that is free would do."""
_WORTH = "What it is worth"
_LOAD = "transformer"
"""What virtual GPUs are busy with, so that there is something to see."""

app = VerbFamily(
    no_args_is_help=False,
    invoke_without_command=True,
    help="A dashboard of runs, GPUs, recurring jobs, plans and clusters at /; /metrics for Prometheus; JSON under\n"
    "/api, described at /docs, where recurring jobs are asked and told from any machine.\n\n"
    "  joulewise serve\n"
    "  joulewise serve --gpu sim:h200 --kwh-price 0.30 --currency EUR\n"
    "  joulewise serve token --scope write --name ci\n"
    "  joulewise serve --host 0.0.0.0 --database postgresql://joulewise@db/joulewise\n\n"
    "Without tokens it serves you alone, on this machine, and prints a link that opens the dashboard once. It speaks\n"
    "plain HTTP: put it behind a proxy that speaks TLS where others listen.",
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
        typer.Option(metavar="URL", help="File or postgresql://…. Default: $JOULEWISE_DATABASE, else yours."),
    ] = None,
    token_file: TokenFile = None,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", readable=False, help="A Unix socket for you and root, instead of a port."),
    ] = None,
    trust_local_users: Annotated[
        bool, typer.Option("--trust-local-users", help="Ask for no token on this machine: all its users see and write.")
    ] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Ask for no token: whoever can connect may ask and tell.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="GPUs to show: nvml:0-3, sim:h200*4. Default: all of this machine."),
    ] = None,
    no_gpu: Annotated[bool, typer.Option("--no-gpu", help="Read no GPU of this machine.")] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two looks at the GPUs.")] = 1.0,
    plans: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Plans to show. Default: 'plans' beside the default database."),
    ] = None,
    kwh_price: Annotated[
        float | None, typer.Option(metavar="0.30", help="What a kWh costs.", rich_help_panel=_WORTH)
    ] = None,
    currency: Annotated[str | None, typer.Option(metavar="EUR", help="Of that price.", rich_help_panel=_WORTH)] = None,
    carbon_g_per_kwh: Annotated[
        float | None, typer.Option(metavar="350", help="What a kWh emits, in grams.", rich_help_panel=_WORTH)
    ] = None,
    carbon_source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where that figure is from.", rich_help_panel=_WORTH)
    ] = None,
    countersign_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Countersign runs with this key, which is made if it is not there."),
    ] = None,
) -> None:
    """Serve until SIGTERM."""
    if ctx.invoked_subcommand is not None:
        return
    from joulewise.serve import listen
    from joulewise.store import open_store

    _refuse_unfit(socket, token_file, trust_local_users=trust_local_users, no_auth=no_auth)
    known = None if socket is not None or no_auth else known_tokens(token_file)
    if known is None and socket is None and not no_auth and not tokens.is_loopback(host):
        raise BadSpec(
            f"--host {host} would let others write without a token; make one with 'joulewise serve token --scope "
            "write', or say --no-auth if something in front asks who they are"
        )
    try:
        from joulewise.serve.app import make_app
        from joulewise.serve.countersigning import Signer
        from joulewise.serve.face import Worth
        from joulewise.serve.links import Link
    except ImportError as error:
        raise listen.missing(error) from error
    worth = Worth(kwh_price, currency, carbon_g_per_kwh, carbon_source)
    signer = Signer.open(countersign_key) if countersign_key is not None else None
    store = open_store(database)
    try:
        with ExitStack() as stack:
            live = stack.enter_context(_live(gpu, interval, no_gpu=no_gpu))
            watched = {0: "", 1: ", watching one GPU"}.get(len(live), f", watching {len(live)} GPUs")
            make = partial(make_app, store, live=live, plans=_plans(plans), worth=worth, signer=signer)
            signs = "" if signer is None else f", countersigning with {signer.key.public}"
            # Bound last: whoever connects is answered at once, and does not wait for a driver that is slow to start.
            if socket is not None:
                listening = stack.enter_context(listen.bound_at(socket.absolute(), 0o600))
                say(ctx, f"serving you and root on unix:{socket.absolute()}{watched}{signs}")
                listen.serve(make(Guard()), listening)
                return
            listening = stack.enter_context(listen.bound(host, port))
            url = listen.url_of(listening)
            if known is not None or no_auth or trust_local_users:
                guard = Guard(known, open_to_all=no_auth, local_users=trust_local_users)
                who = "anyone who can connect" if no_auth else "everybody on this machine" if trust_local_users else ""
                with_token = "those with a token" if known is not None else ""
                say(ctx, f"serving {' and '.join(filter(None, (who, with_token)))} on {url}{watched}{signs}")
                listen.serve(make(guard), listening)
                return
            link = Link(url, lambda text: say(ctx, f"the link was used; another, once: {text}"))
            own = _for_own_clients(stack, listening.getsockname()[1])
            say(ctx, f"serving you on {url}{watched}{signs}; open {link.url} (it works once)")
            listen.serve(make(Guard((link.kept,)), link=link), listening, *own)
    finally:
        store.close()


def _for_own_clients(stack: ExitStack, port: int) -> list[sockets.socket]:
    """A socket at which this user's own clients need no token; none where there is no place for it (a user without a
    home, a disk that is full): they must be told a token then."""
    from joulewise.serve import listen

    try:
        path = own_server(port)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return [stack.enter_context(listen.bound_at(path, 0o600))]
    except (OSError, JoulewiseError):
        return []


def _refuse_unfit(socket: Path | None, token_file: Path | None, *, trust_local_users: bool, no_auth: bool) -> None:
    """BadSpec for flags of which one makes another meaningless."""
    given = {
        "--socket": socket is not None,
        "--token-file": token_file is not None,
        "--trust-local-users": trust_local_users,
        "--no-auth": no_auth,
    }
    said = [flag for flag, there in given.items() if there]
    if len(said) > 1 and said != ["--token-file", "--trust-local-users"]:
        raise BadSpec(f"{' and '.join(said)} each say who is served; give one of them")


@contextmanager
def _live(spec: str | None, interval_s: float, *, no_gpu: bool) -> Iterator[LiveGpus]:
    """The GPUs to watch while the context lasts. That there are none is no fault unless some were named."""
    from joulewise.cli.gpus import OpenGpus, opened
    from joulewise.device.discover import listed
    from joulewise.device.host import HostEnergy
    from joulewise.serve.holders import holders
    from joulewise.serve.live import LiveGpus

    if no_gpu and spec is not None:
        raise BadSpec(f"--no-gpu reads no GPU, --gpu {spec} one; give one of them")
    with ExitStack() as stack:
        if no_gpu:
            found = OpenGpus.none("--no-gpu")
        elif spec is not None:
            found = stack.enter_context(opened(spec, load=_LOAD))
        else:
            gpus, reasons = listed()
            found = OpenGpus(gpus, os.environ, "all of this machine" if gpus else "; ".join(reasons))
        live = LiveGpus(
            found.gpus,
            interval_s=interval_s,
            why=found.why,
            virtual=found.virtual,
            # A simulator of our own is known to no daemon, and this machine's daemon may know a GPU of the same name.
            holders=None if found.simulated else holders,
            host=None if no_gpu else HostEnergy(),
        )
        yield stack.enter_context(live)


@app.command("token")
def token(
    ctx: typer.Context,
    scope: Annotated[Scope, typer.Option(metavar="read|write|agent", help="Whoever may write may read.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Whose it is; for 'agent' the node's name, or '*'.")] = "",
    token_file: TokenFile = None,
) -> None:
    """Make a token, keep its hash, and print it: it is shown this once.

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


def known_tokens(path: Path | None) -> tuple[Token, ...] | None:
    """Those of the file that was named, or of the usual one; None where there is none."""
    if path is None:
        path = _default_file()
        if not path.exists():
            return None
    found = tokens.read(path)
    if not found:
        raise BadSpec(f"{path} holds no token, so that nobody could ask; make one with 'joulewise serve token'")
    return found


def _plans(folder: Path | None) -> Path | None:
    """The folder of plans that was named, which must be there; else the usual one, if it is there."""
    from joulewise.store import default_path

    if folder is not None and not folder.is_dir():
        raise BadSpec(f"--plans {folder} is no folder; 'joulewise plan solve --out FOLDER/NAME.json' writes plans")
    usual = default_path().with_name("plans")
    return folder if folder is not None else usual if usual.is_dir() else None


def _default_file() -> Path:
    from joulewise.store import default_path

    return default_path().with_name(tokens.FILE)
