"""``joulewise daemon``: become the privileged daemon, or print the systemd unit that starts it.

The daemon is another program (``python -m joulewise.daemon``), which loads none of what the command line does: this
verb turns into it and is gone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import say
from joulewise.core.errors import BadSpec


def daemon(
    ctx: typer.Context,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", readable=False, help="Where it listens. Default: /run/joulewise/daemon.sock."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="What was there before leases. Default: /var/lib/joulewise."),
    ] = None,
    grants: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="Where grants are. Default: /run/joulewise/grants."),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Who did what. Default: /var/log/joulewise/audit.jsonl."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="The site's rules. Default: /etc/joulewise/site.toml, if there."
        ),
    ] = None,
    print_unit: Annotated[
        bool, typer.Option("--print-unit", help="Print the systemd unit for this installation, and do nothing else.")
    ] = False,
) -> None:
    """Hold the leases of this node: set clocks and limits for users who may, and put them back.

    Needs root on real GPUs. It stays in the foreground; SIGTERM ends all
    leases and then it, SIGHUP reads the site's rules again. Usually systemd
    starts it:

      joulewise daemon --print-unit > /etc/systemd/system/joulewise.service
      systemctl daemon-reload && systemctl enable --now joulewise

    To try it on virtual GPUs, in a folder of your own:

      joulewise sim -- joulewise daemon --socket ./d.sock --state ./state \\
          --grants ./grants --audit ./audit.jsonl
    """
    flags = {"--socket": socket, "--state": state, "--grants": grants, "--audit": audit, "--site": site}
    given = [word for flag, path in flags.items() if path is not None for word in (flag, str(path))]
    if print_unit:
        if given:
            raise BadSpec(f"--print-unit goes with no other flag, not with {given[0]}; edit the unit's ExecStart= line")
        from joulewise.cli import unit

        python, folders = unit.here()
        made = unit.made_for(python, folders)
        if reason := unit.closed([python, *folders]):
            raise BadSpec(f"the service could not start from here: {reason}; install joulewise in /opt/joulewise, say")
        typer.echo(made, nl=False)
        if reason := unit.untrusted([python, *folders]):
            say(ctx, f"whoever may change what the unit starts is as good as root; {reason}")
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "joulewise.daemon", *given])
